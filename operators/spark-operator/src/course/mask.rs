//! What a driver's last words must not tell.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::SparkApplicationSpec;

/// Words in the names of properties and variables whose values are secret. Source: the default of Spark's `spark.redaction.regex`,
/// and what names of credentials have besides.
const SECRET: [&str; 7] = [
    "secret",
    "password",
    "passwd",
    "token",
    "access.key",
    "accesskey",
    "credential",
];
/// Values that are shorter stand in any text by chance.
const SHORTEST: usize = 4;
/// What stands in place of a value. Source: Spark.
const HIDDEN: &str = "*********(redacted)";

/// Values to be hidden.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mask(Vec<String>);

impl Mask {
    /// The values of an application's properties and variables, and of the properties that every application has, whose names say
    /// that they are secret.
    ///
    /// Secrets of Kubernetes are not among them: the operator may not read those.
    pub fn of(spec: &SparkApplicationSpec, defaults: &BTreeMap<String, String>) -> Self {
        let conf = spec
            .spark_conf
            .iter()
            .chain(&spec.hadoop_conf)
            .chain(defaults);
        let conf = conf.map(|(key, value)| (key.as_str(), value.as_str()));
        let roles = [&spec.driver.pod, &spec.executor.pod];
        let env = roles.into_iter().flat_map(|pod| {
            let list = pod.env.iter();
            let list = list.filter_map(|e| Some((e.name.as_str(), e.value.as_deref()?)));
            let map = pod.env_vars.iter();
            list.chain(map.map(|(name, value)| (name.as_str(), value.as_str())))
        });
        let templates = [&spec.driver.pod.template, &spec.executor.pod.template];
        let pods = templates
            .into_iter()
            .flatten()
            .filter_map(|t| t.spec.as_ref());
        let within = pods.flat_map(|pod| {
            let init = pod.init_containers.iter().flatten();
            pod.containers.iter().chain(init)
        });
        let beside = roles
            .into_iter()
            .flat_map(|pod| pod.sidecars.iter().chain(&pod.init_containers));
        let of_containers = within.chain(beside).flat_map(|c| {
            let env = c.env.iter().flatten();
            env.filter_map(|e| Some((e.name.as_str(), e.value.as_deref()?)))
        });
        let secret = |(name, _): &(&str, &str)| {
            let name = name.to_ascii_lowercase().replace('_', ".");
            SECRET.iter().any(|word| name.contains(word))
        };
        let values: BTreeSet<&str> = conf
            .chain(env)
            .chain(of_containers)
            .filter(secret)
            .map(|(_, value)| value.trim())
            .filter(|value| value.len() >= SHORTEST)
            .collect();
        let mut values: Vec<String> = values.into_iter().map(str::to_owned).collect();
        // One that holds another is to go as a whole.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self(values)
    }

    /// A text without them.
    pub fn hide(&self, text: &str) -> String {
        let hide = |text: String, value: &String| text.replace(value, HIDDEN);
        self.0.iter().fold(text.to_owned(), hide)
    }
}
