//! Renders the objects of a job.

pub mod autoscaler;
pub mod gang;
pub mod pod;
pub mod service;
