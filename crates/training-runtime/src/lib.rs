//! The imperative shell of the operators: everything that talks to the outside.
//!
//! The order in which a process comes to life:
//!
//! 1. [`cli`] turns arguments and environment into real types and refuses contradictions.
//! 2. [`telemetry`] opens the log; [`metrics`] and [`admin`] make the process visible.
//! 3. [`client`] builds the connections to the API server; [`fault`] gives their errors a meaning.
//! 4. [`leader`] decides whether this process may write; [`retry`] when a failed job is tried again.
//! 5. [`events`] tells users what happened; [`shutdown`] ends it all in order.

pub mod admin;
pub mod cli;
pub mod client;
pub mod events;
pub mod fault;
pub mod leader;
pub mod metrics;
pub mod retry;
pub mod shutdown;
pub mod telemetry;

pub use cli::RuntimeArgs;
