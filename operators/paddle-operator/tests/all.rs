//! All tests of this operator in one program, because each program compiles the planner anew.

// A panic here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../every-kind/mod.rs"]
mod every_kind;
#[path = "../../every-kind/histories.rs"]
mod histories;
#[path = "../../every-kind/lives.rs"]
mod lives;
#[path = "../../every-kind/masters.rs"]
mod masters;
#[path = "../../every-kind/properties.rs"]
mod properties;
mod rendezvous;
mod scene;
#[cfg(feature = "bin")]
#[path = "../../every-kind/taken.rs"]
mod taken;
