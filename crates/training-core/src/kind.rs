//! What a kind of job is: its framework, its replicas, its variables, and what makes its spec impossible.

pub mod check;
pub mod env;
pub mod framework;
pub mod replicas;
