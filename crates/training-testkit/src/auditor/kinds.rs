//! What each kind of job owns, with names and labels.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;

use crate::builders::{KINDS, MPI};
use crate::{JOB_NAME, JOB_ROLE, OPERATOR_NAME, REPLICA_INDEX, REPLICA_TYPE};

/// The kind of Spark jobs.
pub(super) const SPARK: &str = "SparkApplication";
/// The label with the application's name.
pub(super) const SPARK_NAME: &str = "sparkoperator.k8s.io/app-name";
/// The label with the submission's id.
pub(super) const SUBMISSION: &str = "sparkoperator.k8s.io/submission-id";
/// The labels that mark pods and all other objects of an application.
const SPARK_MARKS: [&str; 2] = [
    "sparkoperator.k8s.io/launched-by-spark-operator",
    "sparkoperator.k8s.io/created-by-spark-operator",
];
/// The label of Spark's pods: `driver` or `executor`.
pub(super) const SPARK_ROLE: &str = "spark-role";

/// A resource as group, kind and plural. All have a version `v1`.
type Child = (&'static str, &'static str, &'static str);

const PLAIN: [Child; 2] = [("", "Pod", "pods"), ("", "Service", "services")];

const OF_MPI: [Child; 5] = [
    PLAIN[0],
    PLAIN[1],
    ("", "ConfigMap", "configmaps"),
    ("", "Secret", "secrets"),
    ("batch", "Job", "jobs"),
];

const OF_SPARK: [Child; 7] = [
    PLAIN[0],
    PLAIN[1],
    ("", "ConfigMap", "configmaps"),
    ("", "PersistentVolumeClaim", "persistentvolumeclaims"),
    ("networking.k8s.io", "Ingress", "ingresses"),
    ("networking.k8s.io", "NetworkPolicy", "networkpolicies"),
    ("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
];

/// Returns the resources that jobs of a kind can own.
pub(super) fn children(kind: &str) -> &'static [Child] {
    match kind {
        "MPIJob" => &OF_MPI,
        SPARK => &OF_SPARK,
        _ => &PLAIN,
    }
}

/// Returns true if objects of this kind are owned by jobs and are not jobs themselves.
pub(super) fn is_child(kind: &str) -> bool {
    let mut all = OF_MPI.iter().chain(&OF_SPARK);
    all.any(|(_, child, _)| *child == kind)
}

/// Returns the kind for a plural.
pub(super) fn of_plural(plural: &str) -> Option<&'static str> {
    let mut all = OF_MPI.iter().chain(&OF_SPARK);
    all.find(|(_, _, of)| *of == plural)
        .map(|(_, kind, _)| *kind)
}

/// Returns true if the kind is a job.
pub(super) fn is_job(kind: &str) -> bool {
    kind == SPARK || KINDS.iter().chain([&MPI]).any(|job| job.name == kind)
}

/// Returns true if an object's labels say that an operator created it.
pub(super) fn is_marked(labels: &BTreeMap<String, String>) -> bool {
    labels.contains_key(OPERATOR_NAME) || SPARK_MARKS.iter().any(|mark| labels.contains_key(*mark))
}

/// I-02: the names that an object of a job may have, [`masked`].
///
/// `drivers` are the driver names that the application has ever requested.
pub(super) fn names(
    kind: &str,
    owner: &OwnerReference,
    labels: &BTreeMap<String, String>,
    drivers: &BTreeSet<String>,
) -> Names {
    let label = |name: &str| labels.get(name).map(String::as_str).unwrap_or_default();
    let full = |ends: &[&str]| {
        let names = ends.iter().map(|end| owner.name.clone() + end);
        Names::Exactly(names.collect())
    };
    match (owner.kind.as_str(), kind) {
        ("MPIJob", "Service") => full(&["", "-launcher"]),
        ("MPIJob", "ConfigMap") => full(&["-config"]),
        // The second name is used if it is unknown whether the first Secret is the job's: it is never read.
        ("MPIJob", "Secret") => full(&["-ssh", "-ssh-1"]),
        ("MPIJob", "Job") => full(&["-launcher"]),
        (SPARK, _) => of_spark(kind, &owner.name, drivers),
        _ => {
            // Pods of an MPIJob of v2beta1 have another role label.
            let role = [REPLICA_TYPE, JOB_ROLE].map(label);
            let role = role.into_iter().find(|role| !role.is_empty());
            let role = role.unwrap_or_default();
            let index = label(REPLICA_INDEX);
            let mut ends = vec![format!("-{role}-{index}")];
            if owner.kind == "MPIJob"
                && let Ok(index) = index.parse::<u32>()
            {
                // A launcher that also runs ranks takes index 0.
                ends.extend(index.checked_sub(1).map(|index| format!("-{role}-{index}")));
            }
            full(&ends.iter().map(String::as_str).collect::<Vec<_>>())
        }
    }
}

/// Allowed names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// Exactly these.
    Exactly(Vec<String>),
    /// These, and one of the prefixes followed by a decimal number.
    Or(Vec<String>, Vec<String>),
    /// Any: the operator truncates long names in a way that the auditor can't compute.
    Any,
}

impl Names {
    /// Returns true if an object may have this name.
    pub(super) fn allow(&self, name: &str) -> bool {
        let (exactly, numbered) = match self {
            Self::Exactly(names) => (names, &[][..]),
            Self::Or(names, beginnings) => (names, &beginnings[..]),
            Self::Any => return true,
        };
        let name = masked(name);
        let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
        exactly.iter().any(|allowed| masked(allowed) == name)
            || numbered.iter().any(|beginning| {
                let rest = name.strip_prefix(masked(beginning).as_str());
                rest.is_some_and(is_number)
            })
    }
}

/// The longest name of an application whose object names are all predictable. Unit: bytes.
const UNCUT: usize = 32;

/// The names of a Spark application's objects. The digits of the submission are masked because they always differ.
fn of_spark(kind: &str, app: &str, drivers: &BTreeSet<String>) -> Names {
    if app.len() > UNCUT && kind != "Pod" {
        return Names::Any;
    }
    // Spark's own names contain only letters, digits and dashes.
    let spark = app.replace('.', "-");
    let all = |ends: &[&str]| {
        let beginning = |end: &&str| {
            if end.contains('…') {
                spark.as_str()
            } else {
                app
            }
        };
        let names = ends.iter().map(|end| format!("{}{end}", beginning(end)));
        names.collect()
    };
    match kind {
        "Pod" | "PodDisruptionBudget" => {
            let mut names = vec![format!("{app}-driver")];
            names.extend(drivers.iter().cloned());
            Names::Exactly(names)
        }
        "Service" => Names::Or(all(&["-…-driver-svc", "-ui-svc"]), all(&["-driver-"])),
        "Ingress" => Names::Or(all(&["-ui-ingress"]), all(&["-ing-"])),
        "ConfigMap" => {
            let mut names: Vec<String> = all(&["-…-driver-podspec-conf-map", "-prom-conf"]);
            names.push("spark-drv-…-conf-map".to_owned());
            Names::Exactly(names)
        }
        "PersistentVolumeClaim" => Names::Or(Vec::new(), all(&["-…-driver-pvc-"])),
        "NetworkPolicy" => Names::Exactly(all(&["-…-policy"])),
        _ => Names::Exactly(Vec::new()),
    }
}

/// Replaces each part of a name that is 16 or 32 hexadecimal digits, which change with every submission, by `…`.
pub(crate) fn masked(name: &str) -> String {
    let parts = name.split('-').map(|part| {
        let digits = part.bytes().all(|b| b.is_ascii_hexdigit());
        if digits && matches!(part.len(), 16 | 32) {
            "…"
        } else {
            part
        }
    });
    parts.collect::<Vec<_>>().join("-")
}

/// An object's name in a summary: masked if it changes with every submission.
pub(super) fn lasting(owner: &str, name: &str) -> String {
    if owner == SPARK {
        masked(name)
    } else {
        name.to_owned()
    }
}

/// I-24: returns true if an object has the labels that select it.
pub(super) fn is_labelled(
    kind: &str,
    owner: &OwnerReference,
    labels: &BTreeMap<String, String>,
) -> bool {
    let names_job = |key: &str| labels.get(key) == Some(&owner.name);
    match owner.kind.as_str() {
        "MPIJob" if kind != "Pod" => names_job("app"),
        SPARK => {
            // The exporter's settings outlive the submission.
            let lasts = kind == "ConfigMap" || labels.contains_key(SUBMISSION);
            names_job(SPARK_NAME) && lasts && is_marked(labels)
        }
        _ => labels.contains_key(OPERATOR_NAME) && names_job(JOB_NAME),
    }
}

/// The driver name that an application requests.
pub(super) fn driver_name(app: &Value) -> Option<String> {
    let spec = &app["spec"];
    let property = &spec["sparkConf"]["spark.kubernetes.driver.pod.name"];
    let said = [&spec["driver"]["podName"], property].map(Value::as_str);
    let name = said.into_iter().flatten().find(|name| !name.is_empty())?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef";

    fn owner(kind: &str, name: &str) -> OwnerReference {
        OwnerReference {
            kind: kind.to_owned(),
            name: name.to_owned(),
            ..OwnerReference::default()
        }
    }

    fn allows(kind: &str, name: &str) -> bool {
        let drivers = BTreeSet::from(["mine".to_owned()]);
        names(kind, &owner(SPARK, "pi"), &BTreeMap::new(), &drivers).allow(name)
    }

    #[test]
    fn i_02_names_of_a_submission_are_known_by_their_digits() {
        for (kind, name) in [
            ("Pod", "pi-driver"),
            ("Pod", "mine"),
            ("Service", "pi-0123456789abcdef-driver-svc"),
            ("Service", "pi-ui-svc"),
            ("Service", "pi-driver-8080"),
            ("ConfigMap", "spark-drv-0123456789abcdef-conf-map"),
            ("ConfigMap", "pi-0123456789abcdef-driver-podspec-conf-map"),
            ("ConfigMap", "pi-prom-conf"),
            ("PersistentVolumeClaim", "pi-0123456789abcdef-driver-pvc-0"),
            ("Ingress", "pi-ui-ingress"),
            ("Ingress", "pi-ing-8080"),
        ] {
            assert!(allows(kind, name), "{kind} {name}");
            assert!(!allows(kind, &format!("x{name}")), "{kind} x{name}");
        }
        assert!(!allows("Service", "pi-driver-web"), "no number");
        assert!(!allows("Service", "pi-0123-driver-svc"), "too few digits");
    }

    #[test]
    fn only_parts_that_are_nothing_but_digits_are_masked() {
        assert_eq!(masked(&format!("pi-{ID}-exec-1")), "pi-…-exec-1");
        assert_eq!(masked("spark-pi-driver"), "spark-pi-driver");
        assert_eq!(lasting("PyTorchJob", ID), ID);
    }
}
