//! The command line arguments.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::migrate::Other;
use crate::out::{Format, Output};
use crate::time;

/// The text below the help.
const CODES: &str = "\
Exit codes:
  0    success; for wait and run: the job succeeded
  1    for wait and run: the job failed or was deleted; for render: the operator would reject the job; for diff: there are differences; for preflight: a check failed
  2    usage or API error; standard error says how to fix it
  124  for wait and run: timed out

JOB is NAME or KIND/NAME, such as pytorchjob/ddp. KIND is required if jobs of several kinds have that name.";

/// Explain, run and control training jobs and Spark applications.
#[derive(Debug, Parser)]
#[command(name = "kubectl-trainyard", bin_name = "kubectl trainyard", version, after_help = CODES)]
pub struct Cli {
    /// The cluster and namespace.
    #[command(flatten)]
    pub target: Target,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The cluster and namespace.
#[derive(Debug, Args)]
pub struct Target {
    /// The namespace; by default the namespace of the context.
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// The kubeconfig context.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig file.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// A verb and its arguments.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Explain why a job waits or failed, what to do and what happens next. Without a job, list the jobs that need attention.
    #[command(after_help = CODES)]
    Why {
        /// The job.
        job: Option<String>,
        /// The output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Wait until a job finishes. A suspended job has not finished.
    #[command(after_help = CODES)]
    Wait {
        /// The job.
        job: String,
        /// Give up after this time: 90s, 5m, 1h30m.
        #[arg(long, value_parser = time::parse)]
        timeout: Option<Duration>,
    },
    /// Print the logs of a job's pods.
    #[command(after_help = CODES)]
    Logs {
        /// The job.
        job: String,
        /// Which pods and containers.
        #[command(flatten)]
        selection: LogSelection,
        /// Stream the logs until the job finishes.
        #[arg(short, long)]
        follow: bool,
    },
    /// Create a job from a file, stream its logs and wait until it finishes.
    #[command(after_help = CODES)]
    Run {
        /// The manifest file; - reads standard input.
        #[arg(short, long, value_name = "FILE")]
        filename: PathBuf,
        /// Give up after this time: 90s, 5m, 1h30m. The job continues.
        #[arg(long, value_parser = time::parse)]
        timeout: Option<Duration>,
        /// Which pods and containers.
        #[command(flatten)]
        selection: LogSelection,
    },
    /// Suspend a job. Its operator deletes the pods.
    #[command(after_help = CODES)]
    Suspend {
        /// The job.
        job: String,
    },
    /// Resume a suspended job.
    #[command(after_help = CODES)]
    Resume {
        /// The job.
        job: String,
    },
    /// Restart all pods of a running job together. It does not count against the backoff limit.
    #[command(after_help = CODES)]
    Restart {
        /// The job.
        job: String,
    },
    /// Show what jobs hold and wait for, by namespace and kind.
    #[command(after_help = CODES)]
    Top {
        /// In all namespaces.
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// The output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Check the cluster and the namespace for what jobs need, and for what is in their way.
    #[command(after_help = CODES)]
    Preflight {
        /// The output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Show which jobs of another operator need attention before they move to this project's operators. Nothing is changed without --apply or --undo. --namespace restricts it to the Deployments of a namespace.
    #[command(after_help = CODES)]
    Migrate {
        /// The other operator.
        #[arg(long)]
        from: Other,
        /// Change nothing, which is the default.
        #[arg(long, conflicts_with_all = ["apply", "undo"])]
        dry_run: bool,
        /// Stop the other operator: scale it to zero, and set the failurePolicy of its webhooks to Ignore.
        #[arg(long)]
        apply: bool,
        /// Start the other operator again, as it was before --apply.
        #[arg(long, conflicts_with = "apply")]
        undo: bool,
    },
    /// Show a job and the objects that it owns.
    #[command(after_help = CODES)]
    Tree {
        /// The job.
        job: String,
    },
    /// Show what has happened to a job, from its status and its events.
    #[command(after_help = CODES)]
    History {
        /// The job.
        job: String,
        /// The output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Compare what the operator would create for a job manifest with what it would create for the job in the cluster.
    #[command(after_help = CODES)]
    Diff {
        /// The manifest file; - reads standard input.
        #[arg(short, long, value_name = "FILE")]
        filename: PathBuf,
        /// The settings of the operator.
        #[command(flatten)]
        operator: OperatorFlags,
    },
    /// Print the objects that the operator would create first for a job manifest. No cluster is needed, except for --operator-deployment.
    #[command(after_help = CODES)]
    Render {
        /// The manifest file; - reads standard input.
        #[arg(short, long, value_name = "FILE")]
        filename: PathBuf,
        /// The settings of the operator.
        #[command(flatten)]
        operator: OperatorFlags,
        /// The output format.
        #[arg(short, long, default_value = "yaml")]
        output: Format,
    },
}

/// The settings of the operator; by default those of the shipped manifests.
#[derive(Clone, Debug, Default, Args)]
pub struct OperatorFlags {
    /// Flags of the operator besides those of the shipped manifests, such as "--gang=volcano --strict".
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true)]
    pub operator_flags: Option<String>,
    /// The Deployment of the operator, to read its flags. The namespace defaults to trainyard-system.
    #[arg(
        long,
        value_name = "[NAMESPACE/]NAME",
        conflicts_with = "operator_flags"
    )]
    pub operator_deployment: Option<String>,
}

/// Selects pods and containers.
#[derive(Clone, Debug, Args)]
pub struct LogSelection {
    /// Only the logs of this rank: worker-1, launcher, driver.
    #[arg(long)]
    pub rank: Option<String>,
    /// This container instead of the main container.
    #[arg(short, long)]
    pub container: Option<String>,
}
