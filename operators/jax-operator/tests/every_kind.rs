//! What holds for every kind, of this one: the parts that need no master.

// What fails here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../every-kind/crd.rs"]
mod crd;
#[path = "../../every-kind/past_the_crd.rs"]
mod past_the_crd;
mod scene;
