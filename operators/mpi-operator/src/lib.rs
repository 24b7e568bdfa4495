//! The MPIJob operator: everything specific to MPI, without I/O.
//!
//! - [`api`]: the custom resource, in both versions
//! - [`setup`]: a validated job with defaults
//! - [`hosts`]: host names, and the files that list them
//! - [`keys`]: the SSH keys of a job
//! - [`pods`], [`objects`]: the objects of a job
//! - [`framework`], [`lifecycle`]: the life cycle of a job
//! - [`init`]: the launcher's init container that waits for the hosts, and `gate`, the program in it

pub mod api;
#[cfg(feature = "bin")]
pub mod args;
mod bare;
pub mod common;
pub mod framework;
#[cfg(feature = "bin")]
pub mod gate;
mod gate_trouble;
pub mod hosts;
pub mod init;
pub mod keys;
pub mod lifecycle;
pub mod names;
pub mod objects;
pub mod pods;
pub mod setup;

pub use api::MPIJob;
pub use framework::Mpi;
pub use setup::Setup;
