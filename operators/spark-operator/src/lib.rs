//! The Spark operator: everything specific to Spark. Without the feature `bin` it does no I/O.
//!
//! - [`api`]: the custom resources
//! - [`defaults`]: defaults for unset fields of an application
//! - [`submission`]: the objects of one run of an application, built without running `spark-submit`
//! - [`lifecycle`]: the life cycle of an application
//! - [`digest`]: submission ids, and hashes that detect changes of a spec
//! - [`schedule`], [`cron`]: scheduled applications
//! - [`memory`]: the memory requests of pods
//! - [`version`]: differences between Spark versions
//! - [`names`], [`label`]: names, labels and annotations
//! - `args`, `controllers`: the flags and the controllers of the binary
//! - [`grants`]: the RBAC rules of the operator
//! - [`escape`]: the escaping of Java properties files

pub mod api;
#[cfg(feature = "bin")]
pub mod args;
#[cfg(feature = "bin")]
pub mod controllers;
pub mod cron;
pub mod defaults;
pub mod digest;
pub mod escape;
pub mod grants;
pub mod label;
pub mod lifecycle;
pub mod memory;
pub mod names;
pub mod schedule;
pub mod submission;
pub mod version;

pub use api::{ScheduledSparkApplication, SparkApplication};
pub use submission::{Inputs, Refusal, Settings, Submission, submit};
