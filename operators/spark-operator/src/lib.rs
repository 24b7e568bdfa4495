//! The Spark operator: what is peculiar to Spark, without I/O.
//!
//! - [`api`]: the custom resources
//! - [`defaults`]: what an application gets that says nothing
//! - [`submission`]: what is made for one run of an application, instead of running `spark-submit`
//! - [`course`]: what becomes of an application next
//! - [`digest`]: by what a submission, and a change of a spec, is known
//! - [`schedule`], [`cron`]: applications that are made again and again
//! - [`memory`]: how much memory pods ask for
//! - [`version`]: what the version of Spark changes
//! - [`names`], [`label`]: names, labels and annotations
//! - `args`, `work`: what the binary does besides
//! - [`grants`]: the rights of the operator
//! - [`escape`]: the text of a Java properties file

pub mod api;
#[cfg(feature = "bin")]
pub mod args;
pub mod course;
pub mod cron;
pub mod defaults;
pub mod digest;
pub mod escape;
pub mod grants;
pub mod label;
pub mod memory;
pub mod names;
pub mod schedule;
pub mod submission;
pub mod version;
#[cfg(feature = "bin")]
pub mod work;

pub use api::{ScheduledSparkApplication, SparkApplication};
pub use submission::{Inputs, Refusal, Settings, Submission, submit};
