//! Errors in a job's spec.

use thiserror::Error;

/// A field of the spec that makes the job impossible to run.
///
/// It is not retried: the job gets the final condition `Failed` with reason `InvalidSpec`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// Path of the field, e.g. `spec.pytorchReplicaSpecs[Worker].replicas`.
    pub field: String,
    /// The problem, and the accepted values.
    pub problem: String,
}

impl SpecError {
    /// An error about one field.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }
}
