//! Logs and, if an endpoint is set, traces.
//!
//! Without an endpoint nothing is sent anywhere. With one, spans go through a bounded queue to a separate thread: a slow, broken or
//! absent collector costs spans, never a reconcile.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{
    ExporterBuildError, SpanExporter, WithExportConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use thiserror::Error;
use tokio::sync::oneshot;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::cli::{Collector, LogFormat};

/// Time limit for sending one batch of spans.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Library logs that duplicate ours: the exporter's connection logs each attempt.
const QUIET: [&str; 3] = ["h2=warn", "tonic=warn", "opentelemetry_sdk=warn"];

/// The target where kube logs the full body of an unreadable answer, including any secrets in it. Our logs give the reason without it.
const BODIES: &str = "kube_client::client";

/// Logs or traces can't be set up.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The log directives are invalid.
    #[error("read the log filter \"{filter}\": {source}")]
    Filter {
        /// The directives.
        filter: String,
        /// The parse error.
        source: ParseError,
    },
    /// The endpoint is invalid.
    #[error("use the OTLP endpoint: {0}")]
    Endpoint(#[from] ExporterBuildError),
    /// The CA certificates can't be read.
    #[error("read --otlp-ca-file {path}: {reason}")]
    CaFile {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The exporter's thread could not be started.
    #[error("start the exporter's thread: {0}")]
    Thread(#[from] io::Error),
    /// Logging is set up already.
    #[error("set up logging: {0}")]
    Twice(#[from] TryInitError),
}

/// Keeps the trace exporter running; flush it at the end of the process.
#[must_use = "queued spans are lost without a flush"]
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
    /// Sends the queued spans, for no longer than `limit`.
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
/// If the filter or the endpoint is invalid, or logging is set up already. An absent collector is no error.
pub fn init(
    service: &str,
    filter: &str,
    format: LogFormat,
    collector: Option<Collector<'_>>,
) -> Result<Telemetry, TelemetryError> {
    let traces = collector
        .map(|collector| Traces::start(service, collector))
        .transpose()?;
    let spans = traces.as_ref().map(|traces| {
        let source: SdkTracer = traces.provider.tracer(service.to_owned());
        tracing_opentelemetry::layer().with_tracer(source)
    });
    // Both are layers under one filter: spans that are not logged are not traced, and cost nothing.
    tracing_subscriber::registry()
        .with(lines(format))
        .with(spans)
        .with(directives(filter)?)
        // A directive for that library must not enable this target.
        .with(filter_fn(|metadata| metadata.target() != BODIES))
        .try_init()?;
    Ok(Telemetry { traces })
}

/// Parses the filter; its own directives for a library take precedence.
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

/// Returns the log layer, which writes to standard error.
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
    fn start(service: &str, collector: Collector<'_>) -> Result<Self, TelemetryError> {
        let Collector { endpoint, ca_file } = collector;
        let authorities = ca_file.map(certificates).transpose()?;
        // The connection's tasks need their own runtime, which runs while the process's runtime works and while the last flush blocks it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let exporter = {
            let _inside = runtime.enter();
            let builder = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(endpoint)
                .with_timeout(EXPORT_TIMEOUT);
            match authorities {
                Some(pem) if endpoint.starts_with("https://") => {
                    let authority = Certificate::from_pem(pem);
                    builder.with_tls_config(ClientTlsConfig::new().ca_certificate(authority))
                }
                _ => builder,
            }
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

/// Reads CA certificates. The library would accept a file without any, and trust nobody.
fn certificates(path: &Path) -> Result<Vec<u8>, TelemetryError> {
    let wrong = |reason: String| TelemetryError::CaFile {
        path: path.display().to_string(),
        reason,
    };
    let pem = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(pem),
        Ok(_) => Err(wrong(
            "it has no certificate; give CA certificates in PEM format".to_owned(),
        )),
        Err(error) => Err(wrong(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, Tracer as _};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    /// A collector without TLS.
    fn at(endpoint: &str) -> Collector<'_> {
        Collector {
            endpoint,
            ca_file: None,
        }
    }

    #[test]
    fn filters_are_read_and_libraries_kept_quiet_unless_named() {
        for (filter, quiet) in [
            ("info", true),
            ("debug,training_runtime=trace", true),
            ("info,h2=debug", false),
        ] {
            let text = directives(filter).unwrap().to_string();
            assert_eq!(text.contains("h2=warn"), quiet, "{text}");
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
        let traces = Traces::start("test", at("http://127.0.0.1:9")).unwrap();
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
        // The collector runs on another thread, as this one will be blocked.
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
        let traces = Traces::start("test", at(&endpoint)).unwrap();
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
        assert!(Traces::start("test", at("not an address")).is_err());
        for (ca_file, reason) in [
            ("/no/such/file", "No such file"),
            (
                concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
                "no certificate",
            ),
        ] {
            let collector = Collector {
                endpoint: "https://127.0.0.1:9",
                ca_file: Some(ca_file.as_ref()),
            };
            let error = Traces::start("test", collector).err().unwrap().to_string();
            assert!(
                error.contains(&format!("--otlp-ca-file {ca_file}")),
                "{error}"
            );
            assert!(error.contains(reason), "{error}");
        }
    }
}
