//! The TFJob operator: what is specific to TensorFlow, without I/O.
//!
//! - [`api`]: the custom resource
//! - [`framework`]: roles, and which role decides how a job ends
//! - [`cluster_spec`]: how pods learn about each other

pub mod api;
pub mod cluster_spec;
pub mod framework;
mod replicas;

pub use api::TFJob;
pub use framework::TensorFlow;

/// The description of the binary in its help text.
pub const ABOUT: &str = "Runs TFJobs (kubeflow.org/v1)";
