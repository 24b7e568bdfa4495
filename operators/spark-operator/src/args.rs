//! The binary's arguments, and aliases for those of the published operator. They are part of the library so that the docs are
//! generated from them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{ArgAction, Parser};
use k8s_openapi::api::networking::v1::IngressTLS;
use training_runtime::cli::{self, INERT, parse_bool, parse_duration};
use training_runtime::{RuntimeArgs, run::Operator as _};

use crate::controllers::Spark;
use crate::controllers::metrics::{Naming, SparkMetrics};
use crate::lifecycle::Rules;
use crate::schedule::Precision;
use crate::submission::settings::{IN_CLUSTER, master};
use crate::submission::{
    BatchSettings, DriverIngress, IngressLimits, Settings, Switch, WebSettings,
};

/// The help heading of these flags; otherwise they would appear under the previous heading.
const APPS: &str = "SparkApplications";
/// Batch schedulers with built-in support.
const SCHEDULERS: [&str; 2] = ["volcano", "yunikorn"];

/// Runs `SparkApplications` and `ScheduledSparkApplications` (sparkoperator.k8s.io/v1beta2)
#[derive(Parser, Debug)]
#[command(name = Spark::NAME, version, about)]
#[expect(clippy::struct_excessive_bools, reason = "flags are what they are")]
pub struct Cli {
    /// The flags common to all operators.
    #[command(flatten)]
    pub runtime: RuntimeArgs,

    /// Labels of namespaces to serve in addition to those of --namespace, as in `kubectl get -l`. The operator then watches all
    /// namespaces. It needs the right to list and watch namespaces, which the namespaced install doesn't give; without it, it
    /// serves none of them. Without effect if --namespace is given and empty, which means all
    #[arg(long, env = "TRAINYARD_NAMESPACE_SELECTOR", default_value = "", hide_default_value = true, value_name = "SELECTOR", help_heading = APPS)]
    pub namespace_selector: String,

    /// How long a submitted driver may be missing before its run counts as failed
    #[arg(long, env = "TRAINYARD_DRIVER_POD_CREATION_GRACE_PERIOD", default_value = "10s", value_parser = parse_duration, help_heading = APPS)]
    pub driver_pod_creation_grace_period: Duration,

    /// How long a driver may wait for its image, volumes or configuration before its run counts as failed
    #[arg(long, env = "TRAINYARD_DRIVER_WAITING_LIMIT", default_value = "10m", value_parser = parse_duration, help_heading = APPS)]
    pub driver_waiting_limit: Duration,

    /// The maximum number of executors that a status lists
    #[arg(
        long,
        env = "TRAINYARD_MAX_TRACKED_EXECUTOR_PER_APP",
        default_value_t = 1000,
        value_name = "COUNT",
        help_heading = APPS
    )]
    pub max_tracked_executor_per_app: usize,

    /// The default time to live of applications that have ended, in seconds. 0: never delete them
    #[arg(
        long,
        env = "TRAINYARD_DEFAULT_TIME_TO_LIVE_SECONDS",
        default_value_t = 0,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(i64).range(0..),
        help_heading = APPS
    )]
    pub default_time_to_live_seconds: i64,

    /// A default Spark property for all applications, KEY=VALUE; repeat the flag, or put one property on each line of the
    /// variable. An application's own properties override it
    #[arg(long = "default-conf", env = "TRAINYARD_DEFAULT_CONF", value_delimiter = '\n', value_name = "KEY=VALUE", value_parser = parse_property, help_heading = APPS)]
    pub default_conf: Vec<(String, String)>,

    /// The URL of the API server for drivers, such as `k8s://https://10.0.0.1:443`. Default: from the environment of the
    /// operator's own pod
    #[arg(long, env = "TRAINYARD_SPARK_MASTER", value_name = "URL", help_heading = APPS)]
    pub spark_master: Option<String>,

    /// Keep the last output of drivers, so that a failure message includes the cause
    #[arg(long, env = "TRAINYARD_DRIVER_LAST_WORDS", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "true", default_missing_value = "true", value_name = "true|false", value_parser = parse_bool, help_heading = APPS)]
    pub driver_last_words: bool,

    /// Create the Services and Ingresses of driverIngressOptions; false: refuse applications that set them
    #[arg(long, env = "TRAINYARD_DRIVER_INGRESS", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "true", default_missing_value = "true", value_name = "true|false", value_parser = parse_bool, help_heading = APPS)]
    pub driver_ingress: bool,

    /// Create a NetworkPolicy for executors, as Spark does since 4.2. It needs a right that the operator doesn't have by default
    #[arg(long, env = "TRAINYARD_NETWORK_POLICY", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", value_name = "true|false", value_parser = parse_bool, help_heading = APPS)]
    pub network_policy: bool,

    /// Create a PodDisruptionBudget for drivers of applications that ask for it
    #[arg(long, env = "TRAINYARD_ENABLE_DRIVER_PDB", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", value_name = "true|false", value_parser = parse_bool, help_heading = APPS)]
    pub enable_driver_pdb: bool,

    /// The cluster has the admission policy that sets memory limits of executors, so the operator doesn't report them as ignored
    #[arg(long, env = "TRAINYARD_MEMORY_LIMIT_POLICY", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", value_name = "true|false", value_parser = parse_bool, help_heading = APPS)]
    pub memory_limit_policy: bool,

    /// Create a Service for the web UI of every application
    #[arg(long, env = "TRAINYARD_ENABLE_UI_SERVICE", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "true", default_missing_value = "true", value_name = "true|false", value_parser = parse_bool, help_heading = APPS)]
    pub enable_ui_service: bool,

    /// The URL of web UIs, such as `{{$appName}}.spark.example.com`. Without it, they have no Ingress
    #[arg(long, env = "TRAINYARD_INGRESS_URL_FORMAT", default_value = "", hide_default_value = true, value_name = "FORMAT", help_heading = APPS)]
    pub ingress_url_format: String,

    /// The class of Ingresses
    #[arg(long, env = "TRAINYARD_INGRESS_CLASS_NAME", default_value = "", hide_default_value = true, value_name = "NAME", help_heading = APPS)]
    pub ingress_class_name: String,

    /// Default TLS of Ingresses: a JSON list of TLS objects
    #[arg(long, env = "TRAINYARD_INGRESS_TLS", default_value = "", hide_default_value = true, value_name = "JSON", help_heading = APPS)]
    pub ingress_tls: String,

    /// Default annotations of Ingresses: a JSON object
    #[arg(long, env = "TRAINYARD_INGRESS_ANNOTATIONS", default_value = "", hide_default_value = true, value_name = "JSON", help_heading = APPS)]
    pub ingress_annotations: String,

    /// Host names that applications may use in Ingresses: these and their subdomains, such as `spark.example.com`; repeat the
    /// flag or separate several by commas. Also applies to the hosts of their TLS, but not to --ingress-url-format. Default: any
    /// host
    #[arg(long, env = "TRAINYARD_INGRESS_ALLOWED_HOST_SUFFIXES", value_delimiter = ',', value_name = "SUFFIX", help_heading = APPS)]
    pub ingress_allowed_host_suffixes: Vec<String>,

    /// Classes that applications may set in the annotation `kubernetes.io/ingress.class`; repeat the flag or separate several by
    /// commas. --ingress-class-name must then be one of them. Default: any class
    #[arg(long, env = "TRAINYARD_INGRESS_ALLOWED_CLASSES", value_delimiter = ',', value_name = "NAME", help_heading = APPS)]
    pub ingress_allowed_classes: Vec<String>,

    /// Annotations that applications may set on Ingresses: keys, or prefixes that end with `*` or `/`, such as
    /// `nginx.ingress.kubernetes.io/proxy-*`; repeat the flag or separate several by commas. Keys that contain `snippet` are
    /// always refused. Default: any other annotation
    #[arg(long, env = "TRAINYARD_INGRESS_ALLOWED_ANNOTATIONS", value_delimiter = ',', value_name = "KEY", help_heading = APPS)]
    pub ingress_allowed_annotations: Vec<String>,

    /// Support batch schedulers
    #[arg(long, env = "TRAINYARD_ENABLE_BATCH_SCHEDULER", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", value_name = "true|false", value_parser = parse_bool, help_heading = APPS)]
    pub enable_batch_scheduler: bool,

    /// Schedulers with the coscheduling plugin; repeat the flag or separate several by commas
    #[arg(long, env = "TRAINYARD_KUBE_SCHEDULER_NAMES", value_delimiter = ',', value_name = "NAME", help_heading = APPS)]
    pub kube_scheduler_names: Vec<String>,

    /// The default batch scheduler
    #[arg(long, env = "TRAINYARD_DEFAULT_BATCH_SCHEDULER", default_value = "", hide_default_value = true, value_name = "NAME", help_heading = APPS)]
    pub default_batch_scheduler: String,

    /// The unit of times in the names of scheduled runs: nanos, micros, millis, seconds or minutes
    #[arg(
        long,
        env = "TRAINYARD_SCHEDULED_TIMESTAMP_PRECISION",
        default_value = "nanos",
        value_name = "UNIT",
        help_heading = APPS
    )]
    pub scheduled_spark_application_timestamp_precision: String,

    /// The prefix of metrics of applications
    #[arg(long, env = "TRAINYARD_METRICS_PREFIX", default_value = "", hide_default_value = true, value_name = "PREFIX", help_heading = APPS)]
    pub metrics_prefix: String,

    /// Labels of applications to use as metric labels; repeat the flag or separate several by commas
    #[arg(long, env = "TRAINYARD_METRICS_LABELS", value_delimiter = ',', value_name = "LABEL", help_heading = APPS)]
    pub metrics_labels: Vec<String>,

    /// The maximum number of values of such a label; the rest counts as `other`
    #[arg(long, env = "TRAINYARD_METRICS_LABEL_VALUES", default_value_t = 100, value_name = "COUNT", help_heading = APPS)]
    pub metrics_label_values: usize,

    /// Histogram buckets for the time from creation to submission, in seconds
    #[arg(long, env = "TRAINYARD_METRICS_JOB_SUBMIT_LATENCY_BUCKETS", value_delimiter = ',', default_value = "0.5,1,2,4,8,16,32,64,128,256",
        value_name = "SECONDS", help_heading = APPS)]
    pub metrics_job_submit_latency_buckets: Vec<f64>,

    /// Histogram buckets for the time from creation to the first run, in seconds
    #[arg(long, env = "TRAINYARD_METRICS_JOB_START_LATENCY_BUCKETS", value_delimiter = ',',
        default_value = "30,60,90,120,150,180,210,240,270,300", value_name = "SECONDS", help_heading = APPS)]
    pub metrics_job_start_latency_buckets: Vec<f64>,

    /// Without effect, except that `false` disables metrics
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false",
        value_parser = parse_bool, help_heading = INERT)]
    pub enable_metrics: Option<bool>,

    /// Without effect: the path is /metrics
    #[arg(long, value_name = "PATH", help_heading = INERT)]
    pub metrics_endpoint: Option<String>,

    /// Without effect: metrics are served without TLS
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", help_heading = INERT)]
    pub secure_metrics: Option<String>,

    /// Without effect, as above
    #[arg(long, value_name = "VERSION", help_heading = INERT)]
    pub metric_tls_min_version: Option<String>,

    /// Without effect, as above
    #[arg(long, value_name = "NAMES", help_heading = INERT)]
    pub metric_tls_cipher_suites: Option<String>,

    /// Without effect
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", help_heading = INERT)]
    pub enable_http2: Option<String>,

    /// Without effect: the operator has no pprof endpoint
    #[arg(long, value_name = "ADDRESS", help_heading = INERT)]
    pub pprof_bind_address: Option<String>,

    /// Without effect: the operator is ready once its caches are complete
    #[arg(long, value_name = "DURATION", help_heading = INERT)]
    pub cache_sync_timeout: Option<String>,

    /// Without effect: the work queue has no rate limit
    #[arg(long, value_name = "RATE", help_heading = INERT)]
    pub workqueue_ratelimiter_bucket_qps: Option<String>,

    /// Without effect, as above
    #[arg(long, value_name = "COUNT", help_heading = INERT)]
    pub workqueue_ratelimiter_bucket_size: Option<String>,

    /// Without effect, as above
    #[arg(long, value_name = "DURATION", help_heading = INERT)]
    pub workqueue_ratelimiter_max_delay: Option<String>,

    /// `PartialRestart=true`: an edit that only changes `affinity`, `nodeSelector`, `priorityClassName`, `schedulerName` and
    /// `tolerations` of executors applies to new executors, and starts no new run. Other published gates have no effect: their
    /// features are always on, or have a flag of their own
    #[arg(long, value_name = "NAME=BOOL,...", value_delimiter = ',', value_parser = Gate::parse)]
    pub feature_gates: Vec<Gate>,
}

/// Gates with an effect.
const GATES: [&str; 2] = [PARTIAL_RESTART, "AllAlpha"];
const PARTIAL_RESTART: &str = "PartialRestart";

/// One entry of `--feature-gates`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    name: String,
    open: bool,
}

impl Gate {
    /// Parses `NAME=BOOL`, with Go's words for true and false.
    fn parse(word: &str) -> Result<Self, String> {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} is no NAME=BOOL, such as {PARTIAL_RESTART}=true"))?;
        let open = match value.trim() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            other => return Err(format!("{name}={other}: write true or false")),
        };
        Ok(Self {
            name: name.trim().to_owned(),
            open,
        })
    }
}

/// Published flags, and our equivalents.
const SAME: [(&str, &str); 7] = [
    ("--namespaces", "--namespace"),
    ("--leader-election", "--leader-elect"),
    ("--leader-election-lock-name", "--leader-election-id"),
    (
        "--leader-election-lock-namespace",
        "--leader-election-namespace",
    ),
    ("--leader-election-lease-duration", "--lease-duration"),
    ("--leader-election-renew-deadline", "--lease-renew-deadline"),
    ("--leader-election-retry-period", "--lease-retry-period"),
];

/// Parses a command line. Also accepts the published operator's, which starts with subcommands.
pub fn parse(args: impl Iterator<Item = OsString>) -> Cli {
    Cli::parse_from(translated(args))
}

/// Translates the command line of the published operator to ours.
pub fn translated(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args = cli::rename_flags(cli::normalise_args(args), &SAME);
    for word in ["controller", "start"] {
        if args.get(1).is_some_and(|first| first == word) {
            args.remove(1);
        }
    }
    // There is no separate submitter.
    args.retain(|arg| !arg.to_string_lossy().starts_with("--submitter-"));
    args.into_iter().map(all_namespaces).collect()
}

/// If one namespace in the list is empty, all are meant. The published chart quotes it.
fn all_namespaces(arg: OsString) -> OsString {
    let text = arg.to_string_lossy();
    let Some(list) = text.strip_prefix("--namespace=") else {
        return arg;
    };
    let list = list.trim_matches('"');
    if list.split(',').any(|name| name.trim().is_empty()) {
        return "--namespace=".into();
    }
    format!("--namespace={list}").into()
}

fn parse_property(text: &str) -> Result<(String, String), String> {
    let parts = text
        .split_once('=')
        .filter(|(key, _)| key.starts_with("spark."));
    let (key, value) = parts.ok_or(format!(
        "\"{text}\" is not of the form spark.some.key=value"
    ))?;
    Ok((key.to_owned(), value.to_owned()))
}

fn switch(on: bool) -> Switch {
    if on { Switch::On } else { Switch::Off }
}

impl Cli {
    /// Builds the operator from the arguments.
    ///
    /// # Errors
    /// Names the argument and the accepted values. The process should exit with it.
    pub fn operator(&self) -> anyhow::Result<Spark> {
        let precision = &self.scheduled_spark_application_timestamp_precision;
        let Some(precision) = Precision::parse(precision) else {
            bail!(
                "--scheduled-spark-application-timestamp-precision={precision}: supported values: nanos, micros, millis, seconds, minutes"
            );
        };
        Ok(Spark {
            settings: self.settings()?,
            rules: self.rules(),
            precision,
            metrics: SparkMetrics::new(self.naming()),
            namespace_selector: self.selector(),
            without_effect: self.without_effect(),
        })
    }

    /// The label selector of the namespaces to serve, unless all are served.
    fn selector(&self) -> Option<String> {
        let all = self.runtime.names_all_namespaces();
        let selector = self.namespace_selector.trim();
        (!all && !selector.is_empty()).then(|| selector.to_owned())
    }

    fn without_effect(&self) -> Vec<String> {
        let given = [
            ("--metrics-endpoint", self.metrics_endpoint.is_some()),
            ("--secure-metrics", self.secure_metrics.is_some()),
            (
                "--metric-tls-min-version",
                self.metric_tls_min_version.is_some(),
            ),
            (
                "--metric-tls-cipher-suites",
                self.metric_tls_cipher_suites.is_some(),
            ),
            ("--enable-http2", self.enable_http2.is_some()),
            ("--pprof-bind-address", self.pprof_bind_address.is_some()),
            ("--cache-sync-timeout", self.cache_sync_timeout.is_some()),
            (
                "--workqueue-ratelimiter-bucket-qps",
                self.workqueue_ratelimiter_bucket_qps.is_some(),
            ),
            (
                "--workqueue-ratelimiter-bucket-size",
                self.workqueue_ratelimiter_bucket_size.is_some(),
            ),
            (
                "--workqueue-ratelimiter-max-delay",
                self.workqueue_ratelimiter_max_delay.is_some(),
            ),
        ];
        let flags = given
            .into_iter()
            .filter(|(_, given)| *given)
            .map(|(name, _)| name.to_owned());
        let gates = self.feature_gates.iter();
        let gates = gates.filter(|gate| !GATES.contains(&gate.name.as_str()));
        let gates = gates.map(|gate| format!("--feature-gates {}", gate.name));
        let no_ingress = self.runtime.strict && !self.ingress_url_format.is_empty();
        let ui = no_ingress.then(|| "--ingress-url-format (because of --strict)".to_owned());
        flags.chain(gates).chain(ui).collect()
    }

    fn naming(&self) -> Naming {
        let labels = self.metrics_labels.iter().filter(|l| !l.is_empty());
        Naming {
            prefix: self.metrics_prefix.clone(),
            labels: labels.cloned().collect(),
            most_values: self.metrics_label_values,
            submit: self.metrics_job_submit_latency_buckets.clone(),
            start: self.metrics_job_start_latency_buckets.clone(),
        }
    }

    /// True if a gate is open. The last entry for a gate wins.
    fn gate(&self, name: &str) -> bool {
        let all = [name, "AllAlpha"];
        let said = |of: &str| {
            let mut said = self.feature_gates.iter().filter(|gate| gate.name == of);
            said.next_back().map(|gate| gate.open)
        };
        all.into_iter().find_map(said).unwrap_or(false)
    }

    fn rules(&self) -> Rules {
        // Rounded up, so that a short time doesn't become zero.
        let seconds = |time: Duration| {
            let whole = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            i64::try_from(whole).unwrap_or(i64::MAX)
        };
        let ttl = self.default_time_to_live_seconds;
        Rules {
            grace: seconds(self.driver_pod_creation_grace_period),
            most_waiting: seconds(self.driver_waiting_limit),
            most_executors: self.max_tracked_executor_per_app,
            time_to_live: (ttl > 0).then_some(ttl),
            partial_restart: self.gate(PARTIAL_RESTART),
        }
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let names = self.kube_scheduler_names.iter().filter(|n| !n.is_empty());
        let kube_schedulers: Vec<String> = names.cloned().collect();
        let default = &self.default_batch_scheduler;
        let known = SCHEDULERS.contains(&default.as_str()) || kube_schedulers.contains(default);
        if self.enable_batch_scheduler && !default.is_empty() && !known {
            bail!(
                "--default-batch-scheduler={default}: supported values: volcano, yunikorn, and the names of --kube-scheduler-names"
            );
        }
        let limits = self.ingress_limits();
        let class = &self.ingress_class_name;
        if !(class.is_empty() || limits.classes.is_empty() || limits.classes.contains(class)) {
            bail!(
                "--ingress-class-name={class} is not among --ingress-allowed-classes={}",
                limits.classes.join(",")
            );
        }
        let strict = self.runtime.strict;
        let tls: Vec<IngressTLS> = json("--ingress-tls", &self.ingress_tls)?;
        let annotations: BTreeMap<String, String> =
            json("--ingress-annotations", &self.ingress_annotations)?;
        Ok(Settings {
            master: self.master(),
            defaults: self.default_conf.iter().cloned().collect(),
            web: WebSettings {
                service: switch(self.enable_ui_service),
                url_format: if strict {
                    String::new()
                } else {
                    self.ingress_url_format.clone()
                },
                ingress_class: self.ingress_class_name.clone(),
                annotations,
                tls,
            },
            driver_ingress: if self.driver_ingress {
                DriverIngress::Served
            } else {
                DriverIngress::Refused
            },
            ingress_limits: limits,
            strict: switch(strict),
            batch: BatchSettings {
                enabled: switch(self.enable_batch_scheduler),
                default: default.clone(),
                kube_schedulers,
            },
            network_policy: switch(self.network_policy),
            disruption_budget: switch(self.enable_driver_pdb),
            last_words: switch(self.driver_last_words),
            memory_limit_policy: switch(self.memory_limit_policy),
        })
    }

    fn ingress_limits(&self) -> IngressLimits {
        let given = |list: &[String]| {
            let words = list.iter().map(|word| word.trim().to_owned());
            words.filter(|word| !word.is_empty()).collect()
        };
        IngressLimits {
            host_suffixes: given(&self.ingress_allowed_host_suffixes),
            classes: given(&self.ingress_allowed_classes),
            annotations: given(&self.ingress_allowed_annotations),
        }
    }

    fn master(&self) -> String {
        let told = self.spark_master.clone().filter(|url| !url.is_empty());
        told.unwrap_or_else(|| {
            let var = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
            let at = (
                var("KUBERNETES_SERVICE_HOST"),
                var("KUBERNETES_SERVICE_PORT"),
            );
            match at {
                (Some(host), Some(port)) => master(&host, &port),
                _ => IN_CLUSTER.to_owned(),
            }
        })
    }

    /// Returns the common arguments, adjusted by published flags.
    #[must_use]
    pub fn runtime(&self) -> RuntimeArgs {
        let mut runtime = self.runtime.clone();
        if self.enable_metrics == Some(false) {
            runtime.metrics_bind_address = cli::Bind::Off;
        }
        runtime
    }
}

fn json<T: Default + serde::de::DeserializeOwned>(flag: &str, text: &str) -> anyhow::Result<T> {
    if text.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_str(text).with_context(|| format!("{flag} is no such JSON"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn read(args: &[&str]) -> Cli {
        let args = std::iter::once("spark-operator").chain(args.iter().copied());
        Cli::try_parse_from(translated(args.map(Into::into))).unwrap()
    }

    #[test]
    fn the_arguments_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_last_value_of_a_repeated_flag_counts() {
        let cli = read(&["--leader-elect", "--leader-election=false"]);
        assert!(!cli.runtime.leader_elect);
    }

    #[test]
    fn the_published_command_line_is_understood() {
        let cli = read(&[
            "controller",
            "start",
            "--zap-log-level=info",
            "--namespaces=default,team-a",
            "--controller-threads=10",
            "--enable-ui-service=true",
            "--ingress-url-format={{$appName}}.example.com",
            r#"--ingress-tls=[{"hosts":["*.example.com"],"secretName":"tls"}]"#,
            r#"--ingress-annotations={"a":"b"}"#,
            "--enable-batch-scheduler=true",
            "--kube-scheduler-names=mine",
            "--default-batch-scheduler=mine",
            "--enable-metrics=true",
            "--metrics-bind-address=:8080",
            "--metrics-endpoint=/metrics",
            "--metrics-prefix=",
            "--metrics-labels=app_type",
            "--metrics-job-start-latency-buckets=30,60",
            "--leader-election=true",
            "--leader-election-lock-name=spark-operator-controller-lock",
            "--leader-election-lock-namespace=spark",
            "--workqueue-ratelimiter-bucket-qps=50",
            "--workqueue-ratelimiter-bucket-size=500",
            "--workqueue-ratelimiter-max-delay=6h",
            "--driver-pod-creation-grace-period=10s",
            "--max-tracked-executor-per-app=7",
            "--scheduled-spark-application-timestamp-precision=seconds",
            "--default-time-to-live-seconds=60",
            "--namespace-selector=spark in (yes, maybe)",
        ]);
        cli.runtime.validate().unwrap();
        assert_eq!(cli.runtime.namespaces(), ["default", "team-a"]);
        assert!(cli.runtime.leader_elect);
        assert_eq!(
            cli.runtime.leader_election_id(Spark::NAME),
            "spark-operator-controller-lock"
        );
        assert_eq!(cli.runtime.leader_election_namespace(), "spark");
        let Spark {
            settings,
            rules,
            precision,
            metrics: _,
            namespace_selector,
            without_effect,
        } = cli.operator().unwrap();
        assert_eq!(namespace_selector.as_deref(), Some("spark in (yes, maybe)"));
        assert_eq!(without_effect.len(), 4, "{without_effect:?}");
        assert_eq!(precision, Precision::Seconds);
        assert_eq!((rules.most_executors, rules.time_to_live), (7, Some(60)));
        assert_eq!(settings.web.tls[0].secret_name.as_deref(), Some("tls"));
        assert_eq!(settings.web.annotations["a"], "b");
        assert_eq!(settings.batch.default, "mine");
    }

    #[test]
    fn an_empty_namespace_means_all_and_a_submitter_is_not_asked() {
        for (said, meant) in [
            ("--namespaces=\"\"", &[][..]),
            ("--namespaces=", &[]),
            ("--namespaces=a,", &[]),
            ("--namespaces=a,b", &["a", "b"]),
        ] {
            let cli = read(&["controller", "start", said, "--submitter-url=http://x"]);
            assert_eq!(cli.runtime.namespaces(), meant, "{said}");
            let chosen = read(&[said, "--namespace-selector=a=b"]).selector();
            assert_eq!(chosen.is_none(), meant.is_empty(), "{said}");
        }
        assert_eq!(
            read(&["--namespace-selector=a=b"]).selector().as_deref(),
            Some("a=b")
        );
        let conf = read(&["--default-conf=spark.jars.packages=a:b:1,c:d:2"]).default_conf;
        assert_eq!(conf[0].1, "a:b:1,c:d:2");
    }

    #[test]
    fn what_can_not_be_run_with_is_refused_by_name() {
        for (flags, named) in [
            (&["--ingress-tls={"][..], "--ingress-tls"),
            (
                &["--scheduled-spark-application-timestamp-precision=days"][..],
                "nanos, micros",
            ),
            (
                &[
                    "--enable-batch-scheduler",
                    "--default-batch-scheduler=other",
                ][..],
                "--default-batch-scheduler=other",
            ),
        ] {
            let error = read(flags).operator().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let parsed = |flag: &str| Cli::try_parse_from(["spark-operator", flag]);
        assert!(parsed("--default-time-to-live-seconds=-1").is_err());
        assert!(parsed("--default-conf=memory=1g").is_err());
    }

    #[test]
    fn limits_of_ingresses_are_lists_that_fit_the_class() {
        let cli = read(&[
            "--ingress-allowed-host-suffixes=a.example.com, b.example.com",
            "--ingress-allowed-classes=internal",
            "--ingress-allowed-annotations=",
            "--ingress-class-name=internal",
        ]);
        let limits = cli.operator().unwrap().settings.ingress_limits;
        assert_eq!(limits.host_suffixes, ["a.example.com", "b.example.com"]);
        assert_eq!(limits.classes, ["internal"]);
        assert_eq!(limits.annotations, Vec::<String>::new());
        let odd = [
            "--ingress-allowed-classes=internal",
            "--ingress-class-name=public",
        ];
        let error = read(&odd).operator().unwrap_err().to_string();
        assert!(error.contains("--ingress-class-name=public"), "{error}");
    }

    #[test]
    fn strict_mode_has_no_ingress_for_the_web_ui_and_says_so() {
        let format = "--ingress-url-format={{$appName}}.example.com";
        for (flags, strict) in [(&[format][..], false), (&[format, "--strict"], true)] {
            let spark = read(flags).operator().unwrap();
            assert_eq!(spark.settings.strict.is_on(), strict);
            assert_eq!(spark.settings.web.url_format.is_empty(), strict);
            assert_eq!(spark.without_effect.len(), usize::from(strict));
        }
    }

    #[test]
    fn metrics_can_be_switched_off_as_published() {
        let off = read(&["--enable-metrics=false", "--metrics-bind-address=:8080"]).runtime();
        assert_eq!(off.metrics_bind_address, cli::Bind::Off);
        let on = read(&["--enable-metrics", "--metrics-bind-address=:8080"]).runtime();
        assert_eq!(on.metrics_bind_address, cli::Bind::Any(8080));
    }
}
