//! Runs the tests of every kind for this kind.

// A panic here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../every-kind/mod.rs"]
mod every_kind;
#[path = "../../every-kind/lives.rs"]
mod lives;
#[path = "../../every-kind/masters.rs"]
mod masters;
mod scene;
#[path = "../../every-kind/taken.rs"]
mod taken;
