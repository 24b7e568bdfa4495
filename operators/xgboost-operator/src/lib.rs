//! The XGBoostJob operator: what is peculiar to XGBoost, without I/O.
//!
//! - [`api`]: the custom resource
//! - [`framework`]: roles, rendezvous variables, who decides the end

pub mod api;
pub mod framework;

pub use api::XGBoostJob;
pub use framework::XGBoost;

/// What the binary says of itself.
pub const ABOUT: &str = "Runs XGBoostJobs (kubeflow.org/v1)";

#[cfg(doctest)]
#[doc = include_str!("../../../docs/extending.md")]
struct Extending;
