//! Shared test code of Trainyard.
//!
//! ```text
//!   control_plane   a real API server, started once per test binary
//!   operator        the shipped binary as a process that can be killed
//!   kubelet         plays scheduler and kubelet from a script
//!   scripted        an API server that is a function, for what a single call makes of an answer
//!   proxy           the operator's only way to the API server; counts and breaks requests
//!   auditor         watches everything and checks the invariants at every event
//!   audit           the API server's own log of requests, per user
//!   snapshot        the end state of a job, without what differs between runs
//!   world           a cluster as a data structure, which checks plans against the laws
//!   explore         visits every state of a world that some moves reach
//!   scene           a world in the vocabulary of the operators' test tables
//!   validation      the tables of valid and invalid jobs
//!   job, builders   manifests as JSON, and waiting for a job's status
//! ```
//!
//! Nothing here depends on an operator's crate: a test that shared the operator's types would share its mistakes. Only the world
//! runs plans, and so depends on the core.

// Every error here fails a test; callers can't handle it otherwise.
#![allow(clippy::missing_errors_doc)]

pub mod audit;
pub mod auditor;
pub mod builders;
pub mod control_plane;
pub mod explore;
pub mod hostile;
pub mod job;
pub mod kubelet;
pub mod manifest;
pub mod namespace;
pub mod operator;
pub mod proxy;
pub mod scene;
pub mod scripted;
pub mod snapshot;
pub mod validation;
pub mod wait;
pub mod world;

/// Returns true in `make test-deep`: tests then repeat more often, and use larger numbers.
pub fn is_deep() -> bool {
    std::env::var_os("TRAINYARD_DEEP").is_some()
}

/// The label with the operator's name on pods and services.
pub const OPERATOR_NAME: &str = "training.kubeflow.org/operator-name";
/// The label with the job's name on pods and services.
pub const JOB_NAME: &str = "training.kubeflow.org/job-name";
/// The label with the role in lower case on pods and services.
pub const REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
/// The label with the decimal index within the role on pods and services.
pub const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
/// The label of the pod whose exit decides the job's success; on an `MPIJob`'s pods, the role.
pub const JOB_ROLE: &str = "training.kubeflow.org/job-role";
/// The annotation by which users restart a job.
pub const RESTART_REQUEST: &str = "trainyard.dev/restart-request";
/// The label with the `SparkApplication`'s name on its pods.
pub const SPARK_APP_NAME: &str = "sparkoperator.k8s.io/app-name";
/// The label that marks a `SparkApplication`'s pod as driver or executor.
pub const SPARK_ROLE: &str = "spark-role";
