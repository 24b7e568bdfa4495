//! Tests of the library, in one program: separate ones would each link all of Kubernetes' types.

// A panic here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod additional;
mod api;
mod cron;
mod defaults;
mod digest;
mod driver;
mod golden;
mod inputs;
mod laws;
mod lifecycle;
mod made;
mod memory;
mod overlay;
mod properties;
mod refusal;
mod scene;
mod schedule;
mod slim;
mod submit;
mod unused;
