//! The objects of a job, rendered.

pub mod autoscaler;
pub mod gang;
pub mod pod;
pub mod service;
