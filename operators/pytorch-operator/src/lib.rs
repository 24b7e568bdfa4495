//! The PyTorchJob operator: what is peculiar to PyTorch, without I/O.
//!
//! - [`api`]: the custom resource
//! - [`framework`]: roles, rendezvous variables, who decides the end
//! - `elastic`: what `torchrun` is told
//! - [`init`]: the init container of workers

pub mod api;
pub(crate) mod elastic;
pub mod framework;
pub mod init;

pub use api::PyTorchJob;
pub use framework::PyTorch;
