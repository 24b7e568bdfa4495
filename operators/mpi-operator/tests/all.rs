//! All tests of this operator in one program, because each program compiles the planner anew.

// A panic here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod crd;
mod gang;
mod golden;
#[path = "../../every-kind/histories.rs"]
mod histories;
mod inputs;
mod launcher;
mod lifecycle;
#[path = "../../every-kind/lives.rs"]
mod lives;
#[cfg(feature = "bin")]
mod policies;
#[path = "../../every-kind/properties.rs"]
mod properties;
mod scene;
mod setup;
#[cfg(feature = "bin")]
#[path = "../../every-kind/taken.rs"]
mod taken;
mod takeover;
