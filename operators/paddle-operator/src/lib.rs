//! The PaddleJob operator: what is specific to PaddlePaddle, without I/O.
//!
//! - [`api`]: the custom resource
//! - [`framework`]: roles, rendezvous variables, and which role decides how a job ends

pub mod api;
pub mod framework;

pub use api::PaddleJob;
pub use framework::Paddle;

/// The description of the binary in its help text.
pub const ABOUT: &str = "Runs PaddleJobs (kubeflow.org/v1)";
