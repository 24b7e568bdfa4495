//! The MPIJob operator: what is peculiar to MPI, without I/O.
//!
//! - [`api`]: the custom resource, in both versions
//! - [`setup`]: a job with its defaults, checked
//! - [`hosts`]: names of hosts, and the files that list them
//! - [`keys`]: the SSH keys of a job
//! - [`pods`], [`objects`]: what is made for a job
//! - [`framework`], [`course`]: what becomes of a job
//! - [`init`]: what makes the launcher wait for its hosts, and `gate`, how it waits

pub mod api;
#[cfg(feature = "bin")]
pub mod args;
mod bare;
pub mod common;
pub mod course;
pub mod framework;
#[cfg(feature = "bin")]
pub mod gate;
mod gate_trouble;
pub mod hosts;
pub mod init;
pub mod keys;
pub mod names;
pub mod objects;
pub mod pods;
pub mod setup;

pub use api::MPIJob;
pub use framework::Mpi;
pub use setup::Setup;
