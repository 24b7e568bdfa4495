//! The way into an operator's process, the same for every kind.
//!
//! ```text
//! fn main() -> anyhow::Result<()> {
//!     training_runtime::entry::main(ABOUT, |_: NoArgs, _| Ok(Toy))
//! }
//! ```

use anyhow::Context as _;
use clap::{Args, CommandFactory, FromArgMatches, Parser};
use training_core::Lifecycle;

use crate::cli::{JobArgs, RuntimeArgs, normalise_args};
use crate::run::Operator;
use crate::training::Training;

/// The arguments of an operator of a framework: what every operator understands, and what this one adds.
#[derive(Parser, Debug)]
pub struct Cli<A: Args> {
    /// What operators understand whose jobs are made of replicas.
    #[command(flatten)]
    pub jobs: JobArgs,
    /// What every operator understands.
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    /// What is peculiar to this one.
    #[command(flatten)]
    pub own: A,
}

/// No arguments beside those of every operator.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct NoArgs {}

/// The command line of an operator, as its help shows it.
pub fn command<F: Lifecycle, A: Args>(about: &'static str) -> clap::Command {
    Cli::<A>::command()
        .name(F::OPERATOR)
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
}

/// Reads arguments, the program's name first; ends the process where they can't be read, or ask for help.
pub fn parse<F: Lifecycle, A: Args>(
    about: &'static str,
    args: impl IntoIterator<Item = std::ffi::OsString>,
) -> Cli<A> {
    let mut matches = command::<F, A>(about).get_matches_from(normalise_args(args.into_iter()));
    Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.exit())
}

/// Runs an operator whose framework is made from its arguments, until it is told to stop.
///
/// # Errors
/// If the framework can't be made, or as [`crate::run()`].
pub fn main<F: Lifecycle + Clone, A: Args>(
    about: &'static str,
    framework: impl FnOnce(A, &JobArgs) -> anyhow::Result<F>,
) -> anyhow::Result<()> {
    let cli = parse::<F, A>(about, std::env::args_os());
    let framework = framework(cli.own, &cli.jobs)?;
    let args = cli.jobs;
    serve(Training { framework, args }, cli.runtime)
}

/// Runs an operator until it is told to stop.
///
/// # Errors
/// As [`crate::run()`].
pub fn serve<O: Operator>(operator: O, args: RuntimeArgs) -> anyhow::Result<()> {
    // As a task of its own: whatever wakes the future that the runtime was started with costs a system call.
    block_on(async {
        tokio::spawn(crate::run(operator, args))
            .await
            .context("the operator's task")?
    })
}

/// Runs something to its end on one thread.
///
/// # Errors
/// What it ends with, or if the runtime can't be made.
pub fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("a runtime")?
        .block_on(work)
}
