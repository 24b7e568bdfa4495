//! Tests that run for every kind. The crate of an operator includes this directory and describes its kind in `scene`: its name, and
//! which pods lead and decide. Tests that need a master are in `masters.rs`, which only kinds with a master include.
//! `lives.rs` and `taken.rs` also run for kinds with other pods.

mod cleanup;
mod conformance_inputs;
mod conformance_limits;
mod conformance_pods;
mod conformance_status;
mod crd;
mod gangs;
mod inputs;
mod limits;
mod past_the_crd;
mod ranks;
mod restart;
mod suspend;
mod template;
mod trouble;
