//! Random histories of this kind's jobs.

// A panic here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../every-kind/histories.rs"]
mod histories;
#[path = "../../every-kind/properties.rs"]
mod properties;
mod scene;
