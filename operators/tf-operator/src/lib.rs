//! The TFJob operator: what is peculiar to TensorFlow, without I/O.
//!
//! - [`api`]: the custom resource
//! - [`framework`]: roles, who decides the end
//! - [`cluster_spec`]: what pods are told of each other

pub mod api;
pub mod cluster_spec;
pub mod framework;
mod replicas;

pub use api::TFJob;
pub use framework::TensorFlow;

/// What the binary says of itself.
pub const ABOUT: &str = "Runs TFJobs (kubeflow.org/v1)";
