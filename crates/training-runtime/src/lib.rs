//! The imperative shell of the operators: everything that talks to the outside.
//!
//! The order in which a process comes to life:
//!
//! 1. [`entry`] is what `main` calls; [`cli`] turns arguments and environment into real types and refuses contradictions.
//! 2. [`telemetry`] opens the log; [`metrics`] and [`admin`] make the process visible.
//! 3. [`client`] builds the connections to the API server, [`caller`] sends what is asked of it; [`fault`] gives errors a meaning.
//! 4. [`mod@run`] wires it all: [`feed`] watches and indexes, [`dispatcher`] decides whose turn it is, and a
//!    [`controller::Reconciler`] looks, in the way that all [`look`]. That of [`training`] jobs is [`pass`]: it plans and has the [`executor`] write.
//! 5. [`leader`] decides whether this process may write; [`retry`] when a failed job is tried again.
//! 6. [`events`] tells users what happened; [`shutdown`] ends it all in order.

pub mod admin;
pub mod cache;
pub mod caller;
pub mod cli;
pub mod client;
pub mod controller;
pub mod dispatcher;
pub mod entry;
pub mod events;
pub mod executor;
pub mod fault;
pub mod feed;
pub mod key;
pub mod leader;
pub mod look;
pub mod metrics;
pub mod pass;
pub mod retry;
pub mod run;
pub mod shutdown;
pub mod telemetry;
pub mod told;
pub mod training;
pub mod wait;

pub use cli::{JobArgs, RuntimeArgs};
pub use run::{Operator, run};
pub use training::Training;
