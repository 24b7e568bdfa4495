//! What defines a kind of job: its framework, replicas, environment variables and spec validation.

pub mod check;
pub mod env;
pub mod framework;
pub mod replicas;
