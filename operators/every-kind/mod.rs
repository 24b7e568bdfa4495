//! What holds for every kind, run for each: the crate of an operator includes this folder, and says in its `scene` what its kind
//! is called, and which of its pods leads and decides. What needs a master as well is in `masters.rs`, which kinds with one include too.

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
