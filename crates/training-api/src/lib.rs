//! The types and names that all custom resources of Trainyard share.
//!
//! - [`run_policy`]: limits, clean-up, suspension and scheduling of a job ([`RunPolicy`])
//! - [`replica`]: the number of pods of a role, and their template ([`ReplicaSpec`], [`ReplicaSpecs`])
//! - [`status`]: a job's status, including its durable state ([`JobStatus`])
//! - [`condition`]: the list of conditions and its rules ([`JobCondition`])
//! - [`labels`]: keys of labels and annotations
//! - [`schema`]: helpers that keep the CRDs small and valid for the API server

pub mod condition;
pub mod labels;
pub mod replica;
pub mod run_policy;
pub mod schema;
pub mod status;

pub use condition::{ConditionType, JobCondition};
pub use replica::{ReplicaSpec, ReplicaSpecs, RestartPolicy};
pub use run_policy::{CleanPodPolicy, RunPolicy, SchedulingPolicy};
pub use status::{JobStatus, LastFailure, ReplicaAttempt, ReplicaStatus};
