//! Names of a job's objects, and label values of its pods.

/// The label value of pods of jobs of `v2beta1`. Source: the published contract.
pub const CONTROLLER: &str = "mpi-operator";
/// The label value of pods of jobs of `v1`. Source: likewise.
pub const CONTROLLER_V1: &str = "mpijob-controller";

/// The event source. Source: likewise, of `v2beta1`.
pub const EVENT_SOURCE: &str = "mpi-job-controller";

/// Status key: the name of the Secret.
pub(crate) const SECRET: &str = "secret";
/// Status key: the uid of a launcher that another operator started.
pub(crate) const LAUNCHER_BARE: &str = "launcherPod";

/// Returns the name of the ConfigMap that lists the hosts.
pub fn config_map(job: &str) -> String {
    format!("{job}-config")
}

/// Returns the name of the Secret with the keys; `others` counts the Secrets of that name that belong to others.
pub fn secret(job: &str, others: u32) -> String {
    match others {
        0 => format!("{job}-ssh"),
        n => format!("{job}-ssh-{n}"),
    }
}
