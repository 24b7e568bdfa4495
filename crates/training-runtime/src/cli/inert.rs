//! Flags of existing operators, accepted so that a Deployment's arguments can stay.

use clap::{ArgAction, Args};

use super::value::LogFormat;

/// The help heading of flags without effect, also of those of one operator.
pub const INERT: &str = "Accepted for compatibility, without effect";

/// Flags that existing operators of these kinds publish and that change nothing here, except that
/// the log level and encoder are taken over where `--log-filter` and `--log-format` are not given.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = INERT)]
pub struct InertArgs {
    /// Without effect: requests are paced by the API server's own fairness
    #[arg(long, value_name = "RATE")]
    kube_api_qps: Option<String>,

    /// Without effect, as above
    #[arg(long, value_name = "COUNT")]
    kube_api_burst: Option<String>,

    /// Without effect: each kind has an operator of its own
    #[arg(long, value_name = "KIND")]
    enable_scheme: Vec<String>,

    /// Without effect: no webhook is needed
    #[arg(long, value_name = "PORT")]
    webhook_server_port: Option<String>,

    /// Without effect: no webhook is needed
    #[arg(long, value_name = "NAME")]
    webhook_service_name: Option<String>,

    /// Without effect: no webhook is needed
    #[arg(long, value_name = "NAME")]
    webhook_secret_name: Option<String>,

    /// Without effect: launchers reach their workers by SSH
    #[arg(long, value_name = "IMAGE")]
    mpi_kubectl_delivery_image: Option<String>,

    /// Without effect
    #[arg(
        long,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "true|false"
    )]
    zap_devel: Option<String>,

    /// Taken as --log-format where that is not given: console means compact
    #[arg(long, value_name = "json|console")]
    zap_encoder: Option<String>,

    /// Taken as --log-filter where that is not given
    #[arg(long, value_name = "LEVEL")]
    zap_log_level: Option<String>,

    /// Without effect
    #[arg(long, value_name = "LEVEL")]
    zap_stacktrace_level: Option<String>,

    /// Without effect
    #[arg(long, value_name = "NAME")]
    zap_time_encoding: Option<String>,
}

impl InertArgs {
    /// Returns the given flags that have no effect.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let Self {
            kube_api_qps,
            kube_api_burst,
            enable_scheme,
            webhook_server_port,
            webhook_service_name,
            webhook_secret_name,
            mpi_kubectl_delivery_image,
            zap_devel,
            zap_encoder: _,
            zap_log_level: _,
            zap_stacktrace_level,
            zap_time_encoding,
        } = self;
        [
            ("--kube-api-qps", kube_api_qps.is_some()),
            ("--kube-api-burst", kube_api_burst.is_some()),
            ("--enable-scheme", !enable_scheme.is_empty()),
            ("--webhook-server-port", webhook_server_port.is_some()),
            ("--webhook-service-name", webhook_service_name.is_some()),
            ("--webhook-secret-name", webhook_secret_name.is_some()),
            (
                "--mpi-kubectl-delivery-image",
                mpi_kubectl_delivery_image.is_some(),
            ),
            ("--zap-devel", zap_devel.is_some()),
            ("--zap-stacktrace-level", zap_stacktrace_level.is_some()),
            ("--zap-time-encoding", zap_time_encoding.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, given)| given.then_some(name))
        .collect()
    }

    /// Returns the log directives for the zap level; a number is a verbosity there.
    pub(super) fn zap_level(&self) -> Option<&'static str> {
        match self.zap_log_level.as_deref()? {
            "error" | "dpanic" | "panic" | "fatal" => Some("error"),
            "warn" => Some("warn"),
            "debug" | "1" => Some("debug"),
            number if number.parse::<u32>().is_ok_and(|n| n > 1) => Some("trace"),
            _ => Some("info"),
        }
    }

    /// Returns the log format for the zap encoder.
    pub(super) fn zap_format(&self) -> Option<LogFormat> {
        match self.zap_encoder.as_deref()? {
            "console" => Some(LogFormat::Compact),
            _ => Some(LogFormat::Json),
        }
    }
}

/// Flags of the Kubeflow training operator that concern `PyTorchJobs`: one Deployment's arguments serve the operators of all its kinds.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = INERT)]
#[expect(
    clippy::struct_field_names,
    reason = "the fields are named like the flags"
)]
pub struct PyTorchInertArgs {
    /// Without effect: concerns PyTorchJobs
    #[arg(long, value_name = "IMAGE")]
    pytorch_init_container_image: Option<String>,

    /// Without effect, as above
    #[arg(long, value_name = "FILE")]
    pytorch_init_container_template_file: Option<String>,

    /// Without effect, as above
    #[arg(long, value_name = "COUNT")]
    pytorch_init_container_max_tries: Option<String>,
}
