//! What the tests of Trainyard share.
//!
//! ```text
//!   control_plane   a real API server, started once per test binary
//!   operator        the shipped binary as a process that can be killed
//!   kubelet         plays scheduler and kubelet from a script
//!   proxy           the operator's only way to the API server; counts and breaks requests
//!   auditor         watches everything and checks the invariants at every event
//!   audit           what the API server itself wrote down, per user
//!   snapshot        the end state of a job, without what differs from run to run
//!   world           a cluster as a data structure, which holds plans to the laws
//!   explore         every state of a world that some moves lead to
//!   scene           a world in the words of the operators' tables
//!   validation      the tables of good and bad jobs
//!   job, builders   manifests as JSON, and waiting for what becomes of them
//! ```
//!
//! Nothing here depends on a crate of an operator: a test that shared the operator's own types
//! would share its mistakes. The world alone runs plans, and so knows the core.

// Whatever fails here fails a test; there is nothing else for a caller to do about it.
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
pub mod snapshot;
pub mod validation;
pub mod wait;
pub mod world;

/// The label that names the operator of a pod or service.
pub const OPERATOR_NAME: &str = "training.kubeflow.org/operator-name";
/// The label that names the job of a pod or service.
pub const JOB_NAME: &str = "training.kubeflow.org/job-name";
/// The label that names the role of a pod or service, in lower case.
pub const REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
/// The label that holds the decimal index of a pod or service within its role.
pub const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
/// The label that marks the pod on whose exit the job's success depends; of an `MPIJob`'s pods, the role.
pub const JOB_ROLE: &str = "training.kubeflow.org/job-role";
/// The label that names the `SparkApplication` of a pod.
pub const SPARK_APP_NAME: &str = "sparkoperator.k8s.io/app-name";
/// The label that says whether a pod of a `SparkApplication` is its driver or an executor.
pub const SPARK_ROLE: &str = "spark-role";
