//! The JAXJob operator: what is specific to JAX, without I/O.
//!
//! - [`api`]: the custom resource
//! - [`framework`]: roles, rendezvous variables, and which role decides how a job ends

pub mod api;
pub mod framework;

pub use api::JAXJob;
pub use framework::JAX;

/// The description of the binary in its help text.
pub const ABOUT: &str = "Runs JAXJobs (kubeflow.org/v1)";
