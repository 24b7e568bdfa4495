//! The XGBoostJob operator: what is specific to XGBoost, without I/O.
//!
//! - [`api`]: the custom resource
//! - [`framework`]: roles, rendezvous variables, and which role decides how a job ends

pub mod api;
pub mod framework;

pub use api::XGBoostJob;
pub use framework::XGBoost;

/// The description of the binary in its help text.
pub const ABOUT: &str = "Runs XGBoostJobs (kubeflow.org/v1)";

#[cfg(doctest)]
#[doc = include_str!("../../../docs/extending.md")]
struct Extending;
