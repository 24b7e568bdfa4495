//! The HTTP servers of liveness, readiness and metrics.
//!
//! Both servers run on the runtime that does the work, on purpose: if it hangs, the probes hang too.
//! They limit connections, headers and time, as anyone in the cluster may call.

mod health;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::cli::Bind;
use crate::metrics::{self, Metrics};

pub use health::{Health, ReconcileGuard};

/// Maximum connections per server; a kubelet and a scraper need two.
const CONNECTIONS: usize = 64;

/// Time limit for a client to send its headers, also between two requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_mins(5);

/// Maximum count of headers, and their maximum size in bytes.
const HEADERS: usize = 64;
const HEADER_BYTES: usize = 16 * 1024;

/// Pause after a failed accept, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listening addresses; `None` if a server is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// `/livez`, `/healthz`, `/readyz`.
    pub probes: Option<SocketAddr>,
    /// `/metrics`.
    pub metrics: Option<SocketAddr>,
}

/// Starts both servers on the current runtime; they end when `stop` is cancelled.
///
/// # Errors
/// If an address can't be bound. The process should exit, as nobody could probe it.
pub async fn serve(
    probes: &Bind,
    figures: &Bind,
    health: &Health,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
) -> io::Result<Addresses> {
    // Bind both before serving either: a half-started process is of no use.
    let probes = bind("health-probe-bind-address", probes).await?;
    let figures = bind("metrics-bind-address", figures).await?;
    Ok(Addresses {
        probes: start(probes, probe_routes(health), stop)?,
        metrics: start(figures, metric_routes(metrics), stop)?,
    })
}

async fn bind(flag: &str, at: &Bind) -> io::Result<Option<TcpListener>> {
    let listener = match at {
        Bind::Off => return Ok(None),
        Bind::At(address) => TcpListener::bind(address.as_str()).await,
        // An IPv6 socket takes IPv4 as well, but not every node has IPv6.
        Bind::Any(port) => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).await {
            Ok(listener) => Ok(listener),
            Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).await,
        },
    };
    listener
        .map(Some)
        .map_err(|error| io::Error::new(error.kind(), format!("--{flag}={at}: {error}")))
}

fn start(
    listener: Option<TcpListener>,
    routes: Router,
    stop: &CancellationToken,
) -> io::Result<Option<SocketAddr>> {
    let Some(listener) = listener else {
        return Ok(None);
    };
    let address = listener.local_addr()?;
    let stop = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept(listener, routes, stop.clone()) => {}
        }
    });
    Ok(Some(address))
}

async fn accept(listener: TcpListener, routes: Router, stop: CancellationToken) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else {
            return;
        };
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (routes, stop) = (routes.clone(), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                // Ignore broken client connections.
                _ = tokio::time::timeout(CONNECTION_TIMEOUT, serve_connection(socket, routes)) => {}
            }
            drop(seat);
        });
    }
}

async fn serve_connection(socket: TcpStream, routes: Router) -> Result<(), hyper::Error> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(routes))
        .await
}

fn probe_routes(health: &Health) -> Router {
    let answer = |verdict: Result<(), String>| match verdict {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(missing) => (StatusCode::SERVICE_UNAVAILABLE, format!("{missing}\n")),
    };
    let live = {
        let health = health.clone();
        move || std::future::ready(answer(health.live()))
    };
    let ready = {
        let health = health.clone();
        move || std::future::ready(answer(health.ready()))
    };
    Router::new()
        .route("/livez", get(live.clone()))
        .route("/healthz", get(live))
        .route("/readyz", get(ready))
}

fn metric_routes(metrics: &Arc<Metrics>) -> Router {
    let metrics = Arc::clone(metrics);
    let render = move || {
        let answer: Response = match metrics.render() {
            Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        };
        std::future::ready(answer)
    };
    Router::new().route("/metrics", get(render))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // A server that closes early may reset the connection.
        let _ = socket.read_to_string(&mut answer).await;
        answer
    }

    async fn fetch(address: SocketAddr, path: &str) -> String {
        ask(
            address,
            &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        )
        .await
    }

    async fn started(health: &Health) -> (SocketAddr, SocketAddr, CancellationToken) {
        let stop = CancellationToken::new();
        let at = Bind::At("127.0.0.1:0".to_owned());
        let metrics = Arc::new(Metrics::new("pytorch"));
        let addresses = serve(&at, &at, health, &metrics, &stop).await.unwrap();
        (addresses.probes.unwrap(), addresses.metrics.unwrap(), stop)
    }

    #[tokio::test]
    async fn i_38_probes_tell_what_is_missing() {
        let health = Health::new(&["caches"]);
        let (probes, _, _stop) = started(&health).await;
        for path in ["/livez", "/healthz"] {
            assert!(
                fetch(probes, path).await.starts_with("HTTP/1.1 200 OK"),
                "{path}"
            );
        }
        let answer = fetch(probes, "/readyz").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.contains("caches"),
            "{answer}"
        );
        health.set_ready("caches", true);
        assert!(
            fetch(probes, "/readyz")
                .await
                .starts_with("HTTP/1.1 200 OK")
        );
        assert!(fetch(probes, "/metrics").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn metrics_are_served_as_what_they_are() {
        let (_, metrics, _stop) = started(&Health::new(&[])).await;
        let answer = fetch(metrics, "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"));
        assert!(answer.ends_with("# EOF\n"));
    }

    #[tokio::test]
    async fn mt_41_oversized_requests_are_refused() {
        let (probes, _, _stop) = started(&Health::new(&[])).await;
        let wide = format!(
            "GET /livez HTTP/1.1\r\nx: {}\r\n\r\n",
            "y".repeat(64 * 1024)
        );
        let answer = ask(probes, &wide).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        let many = format!("GET /livez HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(100));
        let answer = ask(probes, &many).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[tokio::test]
    async fn mt_41_silent_clients_do_not_keep_others_out() {
        let (probes, _, _stop) = started(&Health::new(&[])).await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS {
            silent.push(TcpStream::connect(probes).await.unwrap());
        }
        // If the silent clients kept their slots, this would not return.
        assert!(fetch(probes, "/livez").await.starts_with("HTTP/1.1 200 OK"));
    }

    #[tokio::test]
    async fn servers_may_be_off_and_an_address_in_use_is_an_error() {
        let health = Health::new(&[]);
        let metrics = Arc::new(Metrics::new("pytorch"));
        let stop = CancellationToken::new();
        let off = serve(&Bind::Off, &Bind::Off, &health, &metrics, &stop)
            .await
            .unwrap();
        assert_eq!(
            off,
            Addresses {
                probes: None,
                metrics: None
            }
        );
        let (probes, _, _stop) = started(&health).await;
        let taken = Bind::At(probes.to_string());
        for (probes, metrics_at, flag) in [
            (&taken, &Bind::Off, "--health-probe-bind-address"),
            (&Bind::Off, &taken, "--metrics-bind-address"),
        ] {
            let served = serve(probes, metrics_at, &health, &metrics, &stop).await;
            let error = served.unwrap_err().to_string();
            let begins = format!("{flag}={taken}: Address already in use");
            assert!(error.starts_with(&begins), "{error}");
        }
    }
}
