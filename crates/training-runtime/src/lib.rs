//! The imperative shell of the operators: all I/O.
//!
//! A process starts in this order:
//!
//! 1. `main` calls [`entry`]; [`cli`] parses arguments and environment and rejects contradictions.
//! 2. [`telemetry`] opens the log; [`metrics`] and [`admin`] make the process observable.
//! 3. [`client`] builds the connections to the API server; [`caller`] sends requests, and [`requests`] those for children; [`fault`]
//!    classifies errors.
//! 4. [`mod@run`] wires it all: [`feed`] watches and indexes, [`dispatcher`] queues keys, and a [`worker`] reconciles them.
//!    [`frame`] gives each reconcile a deadline and records its outcome. Each kind has a planner; that of [`training`] jobs writes
//!    through the [`executor`].
//! 5. [`leader`] decides whether this process may write; [`retry`] decides when to retry a failed job.
//! 6. [`events`] records events; [`shutdown`] ends the process in order.

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
pub mod forged;
pub mod frame;
pub mod key;
pub mod leader;
pub mod metrics;
pub mod pending;
pub mod requests;
pub mod retry;
pub mod run;
pub mod shutdown;
pub mod telemetry;
pub mod training;
pub mod wait;
pub mod worker;

pub use cli::{JobArgs, RuntimeArgs};
pub use run::{Operator, run};
pub use training::Training;
