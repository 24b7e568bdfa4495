//! All tests of this operator in one program, because each program compiles the planner anew.

// A panic here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod alone;
mod autoscaler;
#[cfg(feature = "bin")]
mod cache;
mod conformance_golden;
mod edits;
#[cfg(feature = "bin")]
mod ended;
mod env;
#[path = "../../every-kind/mod.rs"]
mod every_kind;
mod gang;
mod gang_properties;
#[path = "../../every-kind/histories.rs"]
mod histories;
mod invalid;
#[path = "../../every-kind/lives.rs"]
mod lives;
#[path = "../../every-kind/masters.rs"]
mod masters;
mod plan;
#[path = "../../every-kind/properties.rs"]
mod properties;
mod scene;
#[cfg(feature = "bin")]
mod server;
#[cfg(feature = "bin")]
#[path = "../../every-kind/taken.rs"]
mod taken;
#[cfg(feature = "bin")]
mod unseen;
#[cfg(feature = "bin")]
mod writes;
