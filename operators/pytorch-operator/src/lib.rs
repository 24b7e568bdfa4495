//! The PyTorchJob operator: what is peculiar to PyTorch, without I/O.
//!
//! - [`api`]: the custom resource
//! - [`framework`]: roles, rendezvous variables, who decides the end
//! - `elastic`: what `torchrun` is told
//! - [`init`]: the init container of workers
//! - `args`: the binary's arguments, with the feature `bin`

pub mod api;
#[cfg(feature = "bin")]
pub mod args;
pub(crate) mod elastic;
pub mod framework;
pub mod init;
mod replicas;

pub use api::PyTorchJob;
pub use framework::PyTorch;
