//! The operators of other projects for the same kinds, recognized by their images.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;
use kube::core::{ApiResource, GroupVersionKind};

use crate::flags;

/// Their names, which are part of their images' names, and their kinds. Source: their published manifests and charts.
const OTHERS: [(&str, &[&str]); 3] = [
    (
        "training-operator",
        &[
            "PyTorchJob",
            "TFJob",
            "XGBoostJob",
            "MPIJob",
            "JAXJob",
            "PaddleJob",
        ],
    ),
    ("mpi-operator", &["MPIJob"]),
    (
        "spark-operator",
        &["SparkApplication", "ScheduledSparkApplication"],
    ),
];
/// In the names of this project's images.
const OURS: &str = "trainyard";
/// Kinds of theirs that no operator of this project serves: the operator, group, version, kind and plural.
const UNSERVED: [(&str, &str, &str, &str, &str); 2] = [
    (
        "spark-operator",
        "sparkoperator.k8s.io",
        "v1alpha1",
        "SparkConnect",
        "sparkconnects",
    ),
    ("training-operator", "kubeflow.org", "v1", "MXJob", "mxjobs"),
];
/// The flag of the Go training operator that restricts its kinds.
const SCHEME: &str = "enable-scheme";
/// The variable of the Go operators that restricts their namespaces.
const NAMESPACE: &str = "KUBEFLOW_NAMESPACE";

/// Another operator in a Deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Served<'a> {
    /// Its name, such as `training-operator`.
    pub name: &'static str,
    /// The kinds that it serves.
    pub kinds: Vec<&'static str>,
    /// Its container.
    pub container: &'a Container,
}

impl Served<'_> {
    /// Returns true if it only answers webhooks.
    pub fn is_webhook(&self) -> bool {
        let mut args = self.container.args.iter().flatten();
        args.next().is_some_and(|first| first == "webhook")
    }

    /// Returns what it serves, for messages.
    pub fn serves(&self) -> String {
        if self.is_webhook() {
            return "webhooks".to_owned();
        }
        self.kinds.join(", ")
    }

    /// Returns its flags, and the variable that restricts its namespaces.
    pub fn flags(&self) -> Vec<String> {
        let mut flags: Vec<String> = Vec::new();
        let mut takes_value = false;
        for word in words(self.container) {
            match flags.last_mut() {
                Some(flag) if takes_value && !word.starts_with('-') => {
                    *flag = format!("{flag}={word}");
                }
                _ if word.starts_with('-') => flags.push(word.to_owned()),
                _ => {}
            }
            takes_value = word.starts_with('-') && !word.contains('=');
        }
        let variables = self.container.env.iter().flatten();
        for variable in variables.filter(|variable| variable.name == NAMESPACE) {
            match (&variable.value, &variable.value_from) {
                (Some(value), _) => flags.push(format!("{NAMESPACE}={value}")),
                (None, Some(_)) => flags.push(format!("{NAMESPACE}=…")),
                // All namespaces.
                (None, None) => {}
            }
        }
        flags
    }
}

fn words(container: &Container) -> impl Iterator<Item = &str> {
    let words = container.command.iter().chain(&container.args).flatten();
    words.map(String::as_str)
}

/// Returns the name of the operator in an image's name. A mirror may change its registry, and add to its name.
fn name_of(image: &str) -> Option<(&'static str, &'static [&'static str])> {
    let path = image.split('@').next().unwrap_or_default();
    let mut parts: Vec<&str> = path.split('/').collect();
    if parts.contains(&OURS) {
        return None;
    }
    // The tag.
    let last = parts.pop()?.split(':').next()?;
    // `spark-operator/controller`
    let before = parts.last().copied().filter(|_| last == "controller");
    let name = before.unwrap_or(last);
    OTHERS.into_iter().find(|(other, _)| name.contains(other))
}

/// Returns the other operator that a Deployment runs.
pub fn of(deployment: &Deployment) -> Option<Served<'_>> {
    if flags::is_ours(deployment) {
        return None;
    }
    flags::containers(deployment).find_map(|container| {
        let (name, kinds) = name_of(container.image.as_deref().unwrap_or_default())?;
        let mut enabled = Vec::new();
        let mut rest = words(container).map(|word| word.trim_start_matches('-'));
        while let Some(word) = rest.next() {
            let value = match word.strip_prefix(SCHEME) {
                Some("") => rest.next(),
                Some(value) => value.strip_prefix('='),
                None => None,
            };
            enabled.extend(value.into_iter().flat_map(|list| list.split(',')));
        }
        let is_enabled = |kind: &&str| {
            let mut enabled = enabled.iter();
            enabled.len() == 0 || enabled.any(|name| name.eq_ignore_ascii_case(kind))
        };
        let kinds = kinds.iter().copied().filter(is_enabled);
        Some(Served {
            name,
            kinds: kinds.collect(),
            container,
        })
    })
}

/// Returns the resources of an operator that no operator of this project serves.
pub fn unserved(name: &str) -> Vec<ApiResource> {
    let own = UNSERVED.iter().filter(|(of, ..)| *of == name);
    own.map(|(_, group, version, kind, plural)| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Served, of};

    #[test]
    fn published_and_mirrored_images_are_recognized_and_ours_are_not() {
        let name = |image: &str| {
            let container = json!({ "name": "c", "image": image });
            let template = json!({ "spec": { "containers": [container] } });
            let spec = json!({ "selector": {}, "template": template });
            let deployment = serde_json::from_value(json!({ "spec": spec })).unwrap();
            of(&deployment).map(|served: Served<'_>| served.name)
        };
        for (image, expected) in [
            ("kubeflow/training-operator:v1-855e096", "training-operator"),
            (
                "ghcr.io/kubeflow/training-v1/training-operator",
                "training-operator",
            ),
            (
                "registry.local/rhoai/odh-training-operator-rhel8@sha256:0",
                "training-operator",
            ),
            ("mpioperator/mpi-operator:0.8.0", "mpi-operator"),
            ("registry.local:5000/mpi-operator", "mpi-operator"),
            (
                "ghcr.io/kubeflow/spark-operator/controller:2.3.0",
                "spark-operator",
            ),
            (
                "ghcr.io/googlecloudplatform/spark-operator:v1beta2-1.3.8-3.1.1",
                "spark-operator",
            ),
        ] {
            assert_eq!(name(image), Some(expected), "{image}");
        }
        for image in [
            "trainyard/spark-operator:0.1.0",
            "registry.local/trainyard/mpi-operator",
            "kueue/controller:v1",
            "",
        ] {
            assert_eq!(name(image), None, "{image}");
        }
    }

    #[test]
    fn the_training_operator_serves_the_enabled_kinds() {
        let both = |args: &[&str]| {
            let image = "kubeflow/training-operator";
            let container = json!({ "name": "c", "image": image, "args": args });
            let template = json!({ "spec": { "containers": [container] } });
            let spec = json!({ "selector": {}, "template": template });
            let deployment = serde_json::from_value(json!({ "spec": spec })).unwrap();
            let served = of(&deployment).unwrap();
            (served.serves(), served.flags().join(" "))
        };
        let kinds = |args: &[&str]| both(args).0;
        let all = "PyTorchJob, TFJob, XGBoostJob, MPIJob, JAXJob, PaddleJob";
        assert_eq!(kinds(&["--leader-elect"]), all);
        assert_eq!(kinds(&["--enable-scheme=tfjob"]), "TFJob");
        assert_eq!(kinds(&["-enable-scheme", "tfjob,mpijob"]), "TFJob, MPIJob");
        let separate = [
            "-enable-scheme",
            "tfjob",
            "--leader-elect",
            "--namespace",
            "a",
        ];
        let flags = "-enable-scheme=tfjob --leader-elect --namespace=a";
        assert_eq!(both(&separate), ("TFJob".to_owned(), flags.to_owned()));
        let twice = ["--enable-scheme=PyTorchJob", "--enable-scheme=tfjob"];
        assert_eq!(kinds(&twice), "PyTorchJob, TFJob");
    }
}
