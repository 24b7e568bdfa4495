//! The vocabulary shared by every custom resource of Trainyard.
//!
//! - [`run_policy`]: when a job ends, what is cleaned up, how often it is tried ([`RunPolicy`])
//! - [`replica`]: how many pods of a role, from which template ([`ReplicaSpec`], [`ReplicaSpecs`])
//! - [`status`]: what a job reports, and what it remembers ([`JobStatus`])
//! - [`condition`]: the list of conditions and its rules ([`JobCondition`])
//! - [`labels`]: label, annotation and field-manager names
//! - [`schema`]: helpers that keep the CRDs small and accepted by the API server

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
