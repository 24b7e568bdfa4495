//! What holds for every kind, run for each: the crate of an operator includes this folder, and says in its `scene` what its kind
//! is called.

mod cleanup;
mod conformance_inputs;
mod conformance_limits;
mod conformance_pods;
mod conformance_status;
mod crd;
mod inputs;
mod limits;
mod past_the_crd;
mod restart;
mod suspend;
mod template;
mod trouble;
