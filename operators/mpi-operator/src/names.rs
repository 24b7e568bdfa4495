//! Names of a job's objects, and the names under which its pods are known.

/// The label value of pods of jobs of `v2beta1`. Source: the published contract.
pub const CONTROLLER: &str = "mpi-operator";
/// The label value of pods of jobs of `v1`. Source: likewise.
pub const CONTROLLER_V1: &str = "mpijob-controller";

/// The name under which events are told. Source: likewise, of `v2beta1`.
pub const EVENT_SOURCE: &str = "mpi-job-controller";

/// In a status: the name of the Secret.
pub(crate) const SECRET: &str = "secret";
/// In a status: the uid of the launcher that another operator began.
pub(crate) const LAUNCHER_BARE: &str = "launcherPod";

/// The name of the ConfigMap that lists the hosts.
pub fn config_map(job: &str) -> String {
    format!("{job}-config")
}

/// The name of the Secret that holds the keys; `others` of this name belong to somebody else.
pub fn secret(job: &str, others: u32) -> String {
    match others {
        0 => format!("{job}-ssh"),
        n => format!("{job}-ssh-{n}"),
    }
}
