//! The HTTP connections of a client.

use axum::BoxError;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt as _, DynBody};
use tower::ServiceBuilder;
use tower::retry::RetryLayer;
use tower::util::BoxService;

/// The service below a client's own layers.
pub type Connection = BoxService<Request<Body>, Response<Box<DynBody>>, BoxError>;

/// Returns the builder of a client with `TCP_NODELAY`, as Go's clients have it. Without it, the first request of a resumed TLS session
/// waits up to 40 ms for a delayed acknowledgement. kube's own builder has no such setting; it refuses proxies, which are not supported.
///
/// # Errors
/// If the credentials or certificates can't be used.
pub fn builder(config: Config) -> kube::Result<ClientBuilder<Connection>> {
    if config.proxy_url.is_some() {
        return ClientBuilder::try_from(config);
    }
    let https = config.rustls_https_connector_with_connector(tcp())?;
    let mut connector = TimeoutConnector::new(https);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let retry = config.default_retry;
    let service = ServiceBuilder::new()
        .map_response(|response: Response<Incoming>| {
            response.map(|body| Box::new(body.map_err(BoxError::from)) as Box<DynBody>)
        })
        .layer(config.base_uri_layer())
        .option_layer(retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Http::builder(TokioExecutor::new()).build(connector));
    Ok(ClientBuilder::new(
        BoxService::new(service),
        config.default_namespace,
    ))
}

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    // The next layer handles `https`.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn a_connection_sends_without_waiting_for_acknowledgements() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let stream = tcp().oneshot(url.parse().unwrap()).await.unwrap();
        assert!(stream.inner().nodelay().unwrap());
    }
}
