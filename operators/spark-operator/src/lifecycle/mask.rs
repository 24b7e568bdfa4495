//! Masks secrets in a driver's termination message.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::SparkApplicationSpec;

/// Words in the names of properties and variables with secret values. Source: the default of Spark's `spark.redaction.regex`,
/// plus further names of credentials.
const SECRET: [&str; 7] = [
    "secret",
    "password",
    "passwd",
    "token",
    "access.key",
    "accesskey",
    "credential",
];
/// Shorter values occur in any text by chance.
const SHORTEST: usize = 4;
/// The replacement for a value. Source: Spark.
const HIDDEN: &str = "*********(redacted)";

/// Values to mask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mask(Vec<String>);

impl Mask {
    /// Collects the values of secret properties and variables, by name, of an application and of the operator's default
    /// properties.
    ///
    /// Kubernetes Secrets are not included: the operator may not read them.
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
        // Replace longer values first, because they may contain shorter ones.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self(values)
    }

    /// Returns a text with the values masked.
    pub fn apply(&self, text: &str) -> String {
        let hide = |text: String, value: &String| text.replace(value, HIDDEN);
        self.0.iter().fold(text.to_owned(), hide)
    }
}
