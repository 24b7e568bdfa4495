//! Logs and, where a collector is named, traces.
//!
//! Without an endpoint nothing is sent anywhere. With one, spans go through a bounded queue to a
//! thread of their own: a collector that is slow, broken or absent costs spans, never a pass.

use std::io;
use std::thread;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use thiserror::Error;
use tokio::sync::oneshot;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::cli::LogFormat;

/// The longest time one batch of spans may take to be sent.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the libraries say about themselves and we say better: kube logs every 5xx and every refused
/// connection as an error of its own, and the exporter's connection tells of each attempt.
const QUIET: [&str; 4] = [
    "kube_client::client::builder=off",
    "h2=warn",
    "tonic=warn",
    "opentelemetry_sdk=warn",
];

/// Where kube logs the whole of an answer that it can't read, with whatever secrets stand in it. Why a call failed is told without it.
const BODIES: &str = "kube_client::client";

/// Logs or traces can't be set up as asked.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The log directives can't be read.
    #[error("read the log filter \"{filter}\": {source}")]
    Filter {
        /// The directives.
        filter: String,
        /// What is wrong with them.
        source: ParseError,
    },
    /// The endpoint is no address.
    #[error("use the OTLP endpoint: {0}")]
    Endpoint(#[from] ExporterBuildError),
    /// The exporter's thread could not be started.
    #[error("start the exporter's thread: {0}")]
    Thread(#[from] io::Error),
    /// Somebody set up logging before.
    #[error("set up logging: {0}")]
    Twice(#[from] TryInitError),
}

/// Keeps traces flowing; to be flushed at the end of the process.
#[must_use = "spans that wait are lost without a flush"]
#[derive(Debug, Default)]
pub struct Telemetry {
    traces: Option<Traces>,
}

#[derive(Debug)]
struct Traces {
    provider: SdkTracerProvider,
    /// Ends the exporter's thread when dropped.
    _thread: oneshot::Sender<()>,
}

impl Telemetry {
    /// Sends the spans that still wait, for no longer than `limit`.
    pub async fn flush(self, limit: Duration) {
        let Some(Traces { provider, _thread }) = self.traces else {
            return;
        };
        // The exporter's own interface blocks.
        let shut = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(limit));
        match shut.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last spans were not sent"),
            Err(error) => tracing::warn!(%error, "the exporter failed"),
        }
    }
}

/// Sets up the process's log and traces. `service` is the operator's name.
///
/// # Errors
/// If the filter or the endpoint can't be read, or logging is set up already. A collector that is not
/// there is no error.
pub fn init(
    service: &str,
    filter: &str,
    format: LogFormat,
    otlp_endpoint: Option<&str>,
) -> Result<Telemetry, TelemetryError> {
    let traces = otlp_endpoint
        .map(|endpoint| Traces::start(service, endpoint))
        .transpose()?;
    let spans = traces.as_ref().map(|traces| {
        let source: SdkTracer = traces.provider.tracer(service.to_owned());
        tracing_opentelemetry::layer().with_tracer(source)
    });
    // Both are layers under one filter: what is not logged is not traced, and costs nothing.
    tracing_subscriber::registry()
        .with(lines(format))
        .with(spans)
        .with(directives(filter)?)
        // Whoever asks for more of that library doesn't ask for this.
        .with(filter_fn(|metadata| metadata.target() != BODIES))
        .try_init()?;
    Ok(Telemetry { traces })
}

/// The filter; what it says itself about a library stands.
fn directives(filter: &str) -> Result<EnvFilter, TelemetryError> {
    let wrong = |source| TelemetryError::Filter {
        filter: filter.to_owned(),
        source,
    };
    let mut parsed = EnvFilter::builder().parse(filter).map_err(wrong)?;
    for quiet in QUIET {
        let target = quiet.split('=').next().unwrap_or(quiet);
        let library = target.split("::").next().unwrap_or(target);
        if !filter.contains(library) {
            parsed = parsed.add_directive(quiet.parse().map_err(wrong)?);
        }
    }
    Ok(parsed)
}

/// The log itself, on the standard error.
fn lines(format: LogFormat) -> Box<dyn Layer<Registry> + Send + Sync> {
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false);
    match format {
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
        LogFormat::Compact => layer.compact().boxed(),
    }
}

impl Traces {
    fn start(service: &str, endpoint: &str) -> Result<Self, TelemetryError> {
        // The connection's tasks need a runtime that turns while the process's own one works, and also
        // while it is blocked by the last flush.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let exporter = {
            let _inside = runtime.enter();
            SpanExporter::builder()
                .with_tonic()
                .with_endpoint(endpoint)
                .with_timeout(EXPORT_TIMEOUT)
                .build()?
        };
        let (keep, end) = oneshot::channel::<()>();
        thread::Builder::new()
            .name("otlp".to_owned())
            .spawn(move || {
                // Ends when the sender is dropped.
                let _ = runtime.block_on(end);
            })?;
        let provider = SdkTracerProvider::builder()
            .with_resource(
                Resource::builder()
                    .with_service_name(service.to_owned())
                    .build(),
            )
            .with_batch_exporter(exporter)
            .build();
        Ok(Self {
            provider,
            _thread: keep,
        })
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, Tracer as _};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn filters_are_read_and_libraries_kept_quiet_unless_named() {
        for (filter, quiet) in [
            ("info", true),
            ("debug,training_runtime=trace", true),
            ("info,kube_client=debug", false),
        ] {
            let text = directives(filter).unwrap().to_string();
            assert_eq!(
                text.contains("kube_client::client::builder=off"),
                quiet,
                "{text}"
            );
        }
        assert!(matches!(
            directives("in=fo=x"),
            Err(TelemetryError::Filter { .. })
        ));
    }

    #[tokio::test]
    async fn it_is_set_up_once_per_process() {
        // Other tests of this process must stay quiet.
        init("test", "off", LogFormat::Compact, None)
            .unwrap()
            .flush(Duration::from_secs(1))
            .await;
        let again = init("test", "off", LogFormat::Json, None);
        assert!(matches!(again, Err(TelemetryError::Twice(_))), "{again:?}");
    }

    #[tokio::test]
    async fn an_absent_collector_neither_blocks_nor_fails() {
        // Nothing listens on port 9, and if something does, it speaks no gRPC.
        let traces = Traces::start("test", "http://127.0.0.1:9").unwrap();
        let source = traces.provider.tracer("test");
        for _ in 0..10_000 {
            source.start("span").end();
        }
        // If one of these blocked, the test would not end.
        Telemetry {
            traces: Some(traces),
        }
        .flush(Duration::from_secs(2))
        .await;
    }

    #[tokio::test]
    async fn spans_reach_a_collector_even_while_this_runtime_is_blocked() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let listener = listener.into_std().unwrap();
        // A collector on another thread, as this one will be blocked.
        let collector = thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(async move {
                    let listener = TcpListener::from_std(listener).unwrap();
                    let (mut socket, _) = listener.accept().await.unwrap();
                    let mut preface = [0; 14];
                    socket.read_exact(&mut preface).await.unwrap();
                    preface
                })
        });
        let traces = Traces::start("test", &endpoint).unwrap();
        traces.provider.tracer("test").start("span").end();
        Telemetry {
            traces: Some(traces),
        }
        .flush(Duration::from_secs(2))
        .await;
        assert_eq!(&collector.join().unwrap(), b"PRI * HTTP/2.0");
    }

    #[test]
    fn a_wrong_endpoint_is_an_error_at_start() {
        assert!(Traces::start("test", "not an address").is_err());
    }
}
