//! The arguments of every operator, parsed into real types.
//!
//! Each binary flattens [`RuntimeArgs`]; those whose jobs consist of replicas also flatten [`JobArgs`]. Flags of existing operators
//! of these kinds are accepted in both of Go's spellings (see [`normalise_args`]); flags without effect are accepted too and logged
//! once at start (see [`RuntimeArgs::without_effect`]).

mod inert;
mod job;
mod normalise;
mod value;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{ArgAction, Args, ValueEnum};

use crate::cache::Cache;

pub use inert::{INERT, InertArgs, PyTorchInertArgs};
pub use job::JobArgs;
pub use normalise::{is_flag, normalise_args, rename_flags};
pub use value::{Bind, GangMode, LogFormat, UsageError, parse_bool, parse_domain, parse_duration};

use value::parse_namespace;

/// The file with the namespace that a pod runs in.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// How much of what happens is written as Kubernetes events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EventMode {
    /// Every published event, one by one.
    Full,
    /// Sums where many events would say the same; at most ten per job and minute.
    #[default]
    Folded,
    /// None.
    Off,
}

/// The client library rejects watch timeouts from this length on.
const WATCH_LIMIT: Duration = Duration::from_secs(295);

/// The arguments that every operator understands.
///
/// Every duration is an argument, so that tests can scale time. Durations are written as Go writes
/// them: `500ms`, `15s`, `1m30s`, `1h`.
///
/// A repeated flag has its last value, as with Go's flags.
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true)]
pub struct RuntimeArgs {
    /// Path of a kubeconfig file. Without it: KUBECONFIG, then ~/.kube/config, then the pod's service account
    #[arg(long, env = "TRAINYARD_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Namespace to serve; repeat it or separate several by commas. Empty: all namespaces
    #[arg(
        long = "namespace",
        env = "KUBEFLOW_NAMESPACE",
        value_delimiter = ',',
        value_name = "NAME",
        value_parser = parse_namespace
    )]
    namespace: Vec<String>,

    /// Passes that may run at the same time, each for another job
    #[arg(
        long,
        visible_alias = "concurrency",
        env = "TRAINYARD_CONTROLLER_THREADS",
        default_value_t = 16,
        value_name = "COUNT"
    )]
    pub controller_threads: u16,

    /// Size of the cache of jobs that have not ended, in MiB. When it is full, further jobs are read whenever they are reconciled
    #[arg(
        long,
        env = "TRAINYARD_JOB_CACHE_MIB",
        default_value_t = 64,
        value_name = "MIB"
    )]
    pub job_cache_mib: u16,

    /// Address of the metrics: host:port, :port for all addresses, 0 for none
    #[arg(long, env = "TRAINYARD_METRICS_BIND_ADDRESS", default_value = ":8080")]
    pub metrics_bind_address: Bind,

    /// Address of the probes: host:port, :port for all addresses, 0 for none
    #[arg(
        long,
        env = "TRAINYARD_HEALTH_PROBE_BIND_ADDRESS",
        default_value = ":8081"
    )]
    pub health_probe_bind_address: Bind,

    /// Write only while holding the lease; needed with more than one replica
    #[arg(
        long,
        env = "TRAINYARD_LEADER_ELECT",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        value_name = "true|false",
        value_parser = parse_bool
    )]
    pub leader_elect: bool,

    /// Name of the lease. Default: the operator's name followed by .trainyard.dev
    #[arg(
        long = "leader-election-id",
        env = "TRAINYARD_LEADER_ELECTION_ID",
        value_name = "NAME"
    )]
    leader_election_id: Option<String>,

    /// Namespace of the lease. Default: the namespace the operator's pod runs in
    #[arg(
        long = "leader-election-namespace",
        env = "POD_NAMESPACE",
        value_name = "NAME"
    )]
    leader_election_namespace: Option<String>,

    /// Time without renewal after which another replica takes the lease over
    #[arg(
        long,
        alias = "leader-election-lease-duration",
        env = "TRAINYARD_LEASE_DURATION",
        default_value = "15s",
        value_parser = parse_duration
    )]
    pub lease_duration: Duration,

    /// Time without renewal after which the leader itself stops writing
    #[arg(
        long,
        alias = "leader-election-renew-deadline",
        env = "TRAINYARD_LEASE_RENEW_DEADLINE",
        default_value = "10s",
        value_parser = parse_duration
    )]
    pub lease_renew_deadline: Duration,

    /// Time between two renewals of the lease
    #[arg(
        long,
        alias = "leader-election-retry-period",
        env = "TRAINYARD_LEASE_RETRY_PERIOD",
        default_value = "3s",
        value_parser = parse_duration
    )]
    pub lease_retry_period: Duration,

    /// Longest time one request to the API server may take
    #[arg(long, env = "TRAINYARD_CALL_DEADLINE", default_value = "30s", value_parser = parse_duration)]
    pub call_deadline: Duration,

    /// Time after which the API server ends a watch, which then goes on where it was. A watch that is silent for longer
    /// is opened again, and one that says nothing for twice as long makes the operator unready
    #[arg(long, env = "TRAINYARD_WATCH_TIMEOUT", default_value = "290s", value_parser = parse_duration)]
    pub watch_timeout: Duration,

    /// Time limit of one reconcile
    #[arg(long, env = "TRAINYARD_PASS_DEADLINE", default_value = "60s", value_parser = parse_duration)]
    pub pass_deadline: Duration,

    /// Backoff after the first failed reconcile of a job; it doubles with each further one
    #[arg(long, env = "TRAINYARD_BACKOFF_BASE", default_value = "2s", value_parser = parse_duration)]
    pub backoff_base: Duration,

    /// Longest backoff after a failed reconcile of a job
    #[arg(long, env = "TRAINYARD_BACKOFF_CAP", default_value = "60s", value_parser = parse_duration)]
    pub backoff_cap: Duration,

    /// Resync period of a job without changes
    #[arg(long, env = "TRAINYARD_SAFETY_PERIOD", default_value = "1h", value_parser = parse_duration)]
    pub safety_period: Duration,

    /// Longest time a status change of counters alone waits for others to join it
    #[arg(long, env = "TRAINYARD_STATUS_DELAY", default_value = "100ms", value_parser = parse_duration)]
    pub status_delay: Duration,

    /// Seed of all jitter. Default: taken from the clock
    #[arg(
        long = "jitter-seed",
        env = "TRAINYARD_JITTER_SEED",
        value_name = "NUMBER"
    )]
    jitter_seed: Option<u64>,

    /// Time that running requests get to end after a signal
    #[arg(long, env = "TRAINYARD_SHUTDOWN_DEADLINE", default_value = "8s", value_parser = parse_duration)]
    pub shutdown_deadline: Duration,

    /// Kubernetes events: all of them, folded into few, or none
    #[arg(long, env = "TRAINYARD_EVENTS", value_enum, default_value_t)]
    pub events: EventMode,

    /// Strict mode: refuse what reaches beyond a job's namespace, which are priority classes of the system and Ingresses. Install the
    /// policy of strict mode as well, which asks whether the user could create what the operator creates
    #[arg(
        long,
        env = "TRAINYARD_STRICT",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        value_name = "true|false",
        value_parser = parse_bool
    )]
    pub strict: bool,

    /// What is logged: a level, or directives such as `info,training_runtime=debug`. Default: info
    #[arg(
        long = "log-filter",
        env = "TRAINYARD_LOG_FILTER",
        value_name = "DIRECTIVES"
    )]
    log_filter: Option<String>,

    /// The shape of a log line. Default: json
    #[arg(long = "log-format", env = "TRAINYARD_LOG_FORMAT", value_enum)]
    log_format: Option<LogFormat>,

    /// Collector that traces are sent to by OTLP over gRPC, such as `https://collector:4317`. Default: none are sent
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// File with the CA certificates (PEM) that verify the collector's certificate; read once at start. `https://` needs it
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE")]
    pub otlp_ca_file: Option<PathBuf>,

    /// Arguments of existing operators that change nothing here.
    #[command(flatten)]
    pub inert: InertArgs,
}

/// Where traces go.
#[derive(Clone, Copy, Debug)]
pub struct Collector<'a> {
    /// The URL of its OTLP receiver for gRPC.
    pub endpoint: &'a str,
    /// The certificates (PEM) that its own is checked with.
    pub ca_file: Option<&'a Path>,
}

impl RuntimeArgs {
    /// Creates the job cache of one term.
    #[must_use]
    pub fn job_cache(&self) -> Arc<Cache> {
        Arc::new(Cache::new(usize::from(self.job_cache_mib) * 1024 * 1024))
    }

    /// Rejects invalid and contradictory arguments.
    ///
    /// # Errors
    /// Names the argument and the values it accepts. The process should exit with it.
    pub fn validate(&self) -> Result<(), UsageError> {
        let refuse = |text: String| Err(UsageError(text));
        if self.controller_threads == 0 {
            return refuse("--controller-threads must be at least 1".to_owned());
        }
        for (name, value) in [
            ("lease-retry-period", self.lease_retry_period),
            ("call-deadline", self.call_deadline),
            ("pass-deadline", self.pass_deadline),
            ("backoff-base", self.backoff_base),
            ("safety-period", self.safety_period),
            ("shutdown-deadline", self.shutdown_deadline),
        ] {
            if value.is_zero() {
                return refuse(format!("--{name} must be longer than zero"));
            }
        }
        if !(Duration::from_secs(1)..WATCH_LIMIT).contains(&self.watch_timeout) {
            return refuse(format!(
                "--watch-timeout must be at least 1s and shorter than {}s",
                WATCH_LIMIT.as_secs()
            ));
        }
        for (shorter, low, longer, high) in [
            (
                "lease-retry-period",
                self.lease_retry_period,
                "lease-renew-deadline",
                self.lease_renew_deadline,
            ),
            (
                "lease-renew-deadline",
                self.lease_renew_deadline,
                "lease-duration",
                self.lease_duration,
            ),
        ] {
            if low >= high {
                return refuse(format!("--{shorter} must be shorter than --{longer}"));
            }
        }
        if self.lease_duration < Duration::from_secs(1) {
            return refuse(
                "--lease-duration must be at least 1s: a Lease counts seconds".to_owned(),
            );
        }
        if self.backoff_cap < self.backoff_base {
            return refuse("--backoff-cap must not be shorter than --backoff-base".to_owned());
        }
        if let Some(Collector { endpoint, ca_file }) = self.collector() {
            let is_secure = endpoint.starts_with("https://");
            if !is_secure && !endpoint.starts_with("http://") {
                return refuse(format!(
                    "--otlp-endpoint must start with https:// or http://, such as https://collector:4317, not \"{endpoint}\""
                ));
            }
            if is_secure && ca_file.is_none() {
                return refuse(
                    "--otlp-endpoint with https:// needs --otlp-ca-file, the file with the CA certificates: the operator's image has none"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    /// Returns true if an empty name selects all namespaces explicitly.
    pub fn names_all_namespaces(&self) -> bool {
        self.namespace.iter().any(String::is_empty)
    }

    /// Returns the namespaces to serve, sorted and unique. Empty means all.
    pub fn namespaces(&self) -> Vec<String> {
        let mut names: Vec<_> = self
            .namespace
            .iter()
            .filter(|n| !n.is_empty())
            .cloned()
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the name of the lease; `operator` is a name such as `pytorch-operator`.
    pub fn leader_election_id(&self, operator: &str) -> String {
        match self.leader_election_id.as_deref() {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!("{operator}.trainyard.dev"),
        }
    }

    /// Returns the namespace of the lease: the flag, else the pod's namespace, else `default`.
    pub fn leader_election_namespace(&self) -> String {
        let told = self.leader_election_namespace.clone();
        told.or_else(|| std::fs::read_to_string(NAMESPACE_FILE).ok())
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "default".to_owned())
    }

    /// Returns the seed of all jitter: the flag, else from the clock, so that replicas differ.
    pub fn jitter_seed(&self) -> u64 {
        self.jitter_seed.unwrap_or_else(|| {
            let since = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            since.as_secs().rotate_left(32) ^ u64::from(since.subsec_nanos())
        })
    }

    /// Returns the log directives: `--log-filter`, else the equivalent of `--zap-log-level`, else `info`.
    pub fn log_filter(&self) -> &str {
        match self.log_filter.as_deref() {
            Some(filter) if !filter.is_empty() => filter,
            _ => self.inert.zap_level().unwrap_or("info"),
        }
    }

    /// Returns the log format: `--log-format`, else the equivalent of `--zap-encoder`, else JSON.
    pub fn log_format(&self) -> LogFormat {
        self.log_format
            .or_else(|| self.inert.zap_format())
            .unwrap_or_default()
    }

    /// Returns the collector of traces, if any.
    pub fn collector(&self) -> Option<Collector<'_>> {
        let endpoint = self.otlp_endpoint.as_deref().filter(|e| !e.is_empty())?;
        let ca_file = self.otlp_ca_file.as_deref();
        let ca_file = ca_file.filter(|path| !path.as_os_str().is_empty());
        Some(Collector { endpoint, ca_file })
    }

    /// Returns the given flags that have no effect, to log at start.
    pub fn without_effect(&self) -> Vec<&'static str> {
        self.inert.given()
    }
}

#[cfg(test)]
mod tests;
