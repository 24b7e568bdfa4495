//! The PyTorchJob operator: what is specific to PyTorch, without I/O.
//!
//! - [`api`]: the custom resource
//! - [`framework`]: roles, rendezvous variables, the role that decides the outcome
//! - `elastic`: the rendezvous settings of `torchrun`
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
