//! The binary's arguments, including those of the published operator. They are in the library because documents are generated from
//! them.

use std::ffi::OsString;

use clap::{ArgAction, Parser};
use training_runtime::cli::{INERT, PyTorchInertArgs};
use training_runtime::{JobArgs, RuntimeArgs, cli};

use crate::Mpi;
use crate::gate::GateArgs;

/// The default image of the launcher's init container.
pub const OWN_IMAGE: &str = concat!("trainyard/mpi-operator:", env!("CARGO_PKG_VERSION"));

/// The help heading of these flags; without it they would appear under the preceding heading.
const JOBS: &str = "MPIJobs";

/// Runs `MPIJobs` (kubeflow.org/v2beta1 and v1)
#[derive(Parser, Debug)]
#[command(
    name = "mpi-operator",
    version,
    about,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    /// A command other than running the operator.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Flags of operators whose jobs consist of replicas.
    #[command(flatten)]
    pub jobs: JobArgs,

    /// Flags of every operator.
    #[command(flatten)]
    pub runtime: RuntimeArgs,

    /// Launchers wait until their hosts answer, so that a slow worker doesn't make them fail
    #[arg(
        long,
        env = "TRAINYARD_LAUNCHER_GATE",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "true",
        default_missing_value = "true",
        value_name = "true|false",
        help_heading = JOBS
    )]
    pub launcher_gate: bool,

    /// Image of the init container that waits; defaults to the operator's own
    #[arg(
        long,
        env = "TRAINYARD_LAUNCHER_GATE_IMAGE",
        default_value = OWN_IMAGE,
        help_heading = JOBS
    )]
    pub launcher_gate_image: String,

    /// Delete an MPIJob of v2beta1 when its TTL expires, as one of v1 is. Otherwise its objects are deleted then, and the MPIJob
    /// stays
    #[arg(
        long,
        env = "TRAINYARD_TTL_DELETES_JOB",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        value_name = "true|false",
        help_heading = JOBS
    )]
    pub ttl_deletes_job: bool,

    /// Flags of the training operator for another kind.
    #[command(flatten)]
    pub pytorch: PyTorchInertArgs,

    /// Without effect: the kubeconfig names the API server
    #[arg(long, value_name = "URL", help_heading = INERT)]
    pub master: Option<String>,

    /// Without effect: there is no rate limit on the queue
    #[arg(long, value_name = "RATE", help_heading = INERT)]
    pub controller_queue_rate_limit: Option<String>,

    /// Without effect, as above
    #[arg(long, value_name = "COUNT", help_heading = INERT)]
    pub controller_queue_burst: Option<String>,

    /// Without effect: see --log-filter
    #[arg(short, long = "v", value_name = "LEVEL", help_heading = INERT)]
    pub v: Option<String>,

    /// Without effect: logs go to standard error
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", help_heading = INERT)]
    pub alsologtostderr: Option<String>,

    /// Without effect, as above
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", help_heading = INERT)]
    pub logtostderr: Option<String>,

    /// Without effect: see --log-filter
    #[arg(long, value_name = "LEVEL", help_heading = INERT)]
    pub stderrthreshold: Option<String>,

    /// Without effect: see --log-filter
    #[arg(long, value_name = "FILTER", help_heading = INERT)]
    pub vmodule: Option<String>,

    /// Without effect
    #[arg(long = "log_backtrace_at", value_name = "FILE:LINE", help_heading = INERT)]
    pub log_backtrace_at: Option<String>,

    /// Without effect: logs go to standard error
    #[arg(long = "log_dir", value_name = "DIRECTORY", help_heading = INERT)]
    pub log_dir: Option<String>,

    /// Without effect, as above
    #[arg(long = "log_file", value_name = "FILE", help_heading = INERT)]
    pub log_file: Option<String>,

    /// Without effect, as above
    #[arg(long = "log_file_max_size", value_name = "MEGABYTES", help_heading = INERT)]
    pub log_file_max_size: Option<String>,

    /// Without effect, as above
    #[arg(long = "one_output", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", help_heading = INERT)]
    pub one_output: Option<String>,

    /// Without effect: lines are JSON, or text as --log-format says
    #[arg(long = "add_dir_header", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", help_heading = INERT)]
    pub add_dir_header: Option<String>,

    /// Without effect, as above
    #[arg(long = "skip_headers", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", help_heading = INERT)]
    pub skip_headers: Option<String>,

    /// Without effect, as above
    #[arg(long = "skip_log_headers", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", help_heading = INERT)]
    pub skip_log_headers: Option<String>,
}

/// Commands of the binary other than running the operator.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Waits until the hosts of a job answer; the init container of launchers
    WaitForHosts(GateArgs),
}

/// Published flags and their equivalents here.
const SAME: [(&str, &str); 4] = [
    ("--kubeConfig", "--kubeconfig"),
    ("--lock-namespace", "--leader-election-namespace"),
    ("--threadiness", "--controller-threads"),
    ("--gang-scheduling", "--gang-scheduler-name"),
];
/// The published flag for the metrics port.
const METRICS_PORT: &str = "--monitoring-port";
/// The published variable with the one namespace to serve.
pub const NAMESPACE: &str = "KUBEFLOW_NAMESPACE";

impl Cli {
    /// Returns the framework.
    pub fn framework(&self) -> Mpi {
        let gate = self.launcher_gate.then_some(&self.launcher_gate_image);
        Mpi {
            domain: self.jobs.cluster_domain().unwrap_or_default().to_owned(),
            gate_image: gate.cloned(),
            ttl_deletes_job: self.ttl_deletes_job,
        }
    }
}

/// Parses a command line, including that of the published operator. `namespace` is the value of its variable.
pub fn parse(args: impl Iterator<Item = OsString>, namespace: Option<OsString>) -> Cli {
    Cli::parse_from(translated(cli::normalise_args(args), namespace))
}

/// Translates flags of the published operator to ours.
pub fn translated(args: Vec<OsString>, namespace: Option<OsString>) -> Vec<OsString> {
    let helps = args.get(1).is_some_and(|first| first == "wait-for-hosts");
    let named = args.iter().any(|arg| cli::is_flag(arg, "--namespace"));
    let mut out = Vec::with_capacity(args.len());
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if cli::is_flag(&arg, METRICS_PORT) {
            let text = arg.to_string_lossy().into_owned();
            let port = match text.split_once('=') {
                Some((_, port)) => port.to_owned(),
                None => args
                    .next()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
            };
            // The published operator disables metrics with 0.
            let bind = if port == "0" {
                port
            } else {
                format!(":{port}")
            };
            out.push(format!("--metrics-bind-address={bind}").into());
            continue;
        }
        out.push(arg);
    }
    let mut out = cli::rename_flags(out, &SAME);
    if let Some(namespace) = namespace.filter(|n| !n.is_empty() && !named && !helps) {
        let mut flag = OsString::from("--namespace=");
        flag.push(namespace);
        out.push(flag);
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn read(args: &[&str]) -> Cli {
        let args = std::iter::once("mpi-operator").chain(args.iter().copied());
        parse(args.map(Into::into), None)
    }

    #[test]
    fn the_arguments_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_last_value_of_a_repeated_flag_counts() {
        let cli = read(&["--leader-elect", "--leader-elect=false"]);
        assert!(!cli.runtime.leader_elect);
    }

    #[test]
    fn the_published_command_line_is_understood() {
        let cli = read(&[
            "-alsologtostderr",
            "-v=2",
            "-vmodule=a=1",
            "-log_backtrace_at=:0",
            "-log_dir=/tmp",
            "-log_file=/tmp/x",
            "-log_file_max_size=1800",
            "-one_output",
            "-add_dir_header=false",
            "-skip_headers",
            "-skip_log_headers=true",
            "--lock-namespace=mpi",
            "--kubeConfig",
            "/x",
            "-threadiness=4",
            "-kube-api-qps=50",
            "-kube-api-burst=100",
            "-controller-queue-rate-limit=10",
            "-controller-queue-burst=100",
            "-cluster-domain=cluster.local",
            "-monitoring-port=8443",
            "-master=",
            "-namespace=ns",
        ]);
        let runtime = &cli.runtime;
        assert_eq!(runtime.leader_election_namespace(), "mpi");
        assert_eq!(runtime.kubeconfig.as_deref(), Some("/x".as_ref()));
        assert_eq!(runtime.controller_threads, 4);
        assert_eq!(cli.jobs.cluster_domain(), Some("cluster.local"));
        assert_eq!(runtime.namespaces(), ["ns"]);
        assert!(cli.launcher_gate && !cli.ttl_deletes_job);
    }

    #[test]
    fn gang_scheduling_names_volcano_or_a_scheduler() {
        for (said, meant) in [
            ("volcano", "volcano"),
            ("mine", "scheduler-plugins/mine"),
            ("", "none"),
        ] {
            let cli = read(&[&format!("--gang-scheduling={said}")]);
            assert_eq!(cli.jobs.gang().to_string(), meant, "{said}");
        }
    }

    #[test]
    fn the_variable_names_a_namespace_where_no_flag_does() {
        let namespaces = |args: &[&str]| {
            let args = std::iter::once("mpi-operator").chain(args.iter().copied());
            parse(args.map(Into::into), Some("team".into()))
                .runtime
                .namespaces()
        };
        assert_eq!(namespaces(&[]), ["team"]);
        assert_eq!(namespaces(&["--namespace=other"]), ["other"]);
    }

    #[test]
    fn a_port_of_zero_means_no_metrics() {
        let bind = |port: &str| {
            read(&["--monitoring-port", port])
                .runtime
                .metrics_bind_address
        };
        assert_eq!(bind("0"), "0".parse().unwrap());
        assert_eq!(bind("8443"), ":8443".parse().unwrap());
    }

    #[test]
    fn the_init_containers_arguments_are_its_own() {
        let cli = read(&["wait-for-hosts", "--own=a", "--port=22", "--any"]);
        assert!(matches!(cli.command, Some(Command::WaitForHosts(args)) if args.any));
    }
}
