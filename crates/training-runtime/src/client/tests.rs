use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response, Uri};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use kube::client::Body;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tower::Layer;

use super::*;
use crate::fault::Fault;

#[test]
fn requests_are_told_as_roles_name_them() {
    for (method, uri, verb, resource) in [
        (Method::GET, "/api/v1/pods?&watch=true", "watch", "pods"),
        (
            Method::GET,
            "/api/v1/namespaces/team/pods?limit=500",
            "list",
            "pods",
        ),
        (Method::GET, "/api/v1/namespaces/team", "get", "namespaces"),
        (
            Method::POST,
            "/api/v1/namespaces/team/pods?",
            "create",
            "pods",
        ),
        (
            Method::DELETE,
            "/api/v1/namespaces/team/pods/a",
            "delete",
            "pods",
        ),
        (
            Method::DELETE,
            "/api/v1/namespaces/team/pods",
            "deletecollection",
            "pods",
        ),
        (
            Method::PATCH,
            "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/bert/status?",
            "patch",
            "pytorchjobs/status",
        ),
        (
            Method::PUT,
            "/apis/coordination.k8s.io/v1/namespaces/trainyard/leases/a",
            "update",
            "leases",
        ),
        (Method::GET, "/version", "get", "other"),
    ] {
        let uri: Uri = uri.parse().unwrap();
        assert_eq!(
            observe::describe(&method, &uri),
            (verb, resource.to_owned()),
            "{method} {uri}"
        );
    }
}

async fn overloaded(code: u16, header: Option<&str>, body: &str) -> Fault {
    let metrics = Arc::new(Metrics::new("pytorch"));
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let client = Client::new(Observe::new(metrics).layer(service), "default");
    let mut response = Response::builder().status(code);
    if let Some(header) = header {
        response = response.header("Retry-After", header);
    }
    let response = response.body(Body::from(body.as_bytes().to_vec())).unwrap();
    let server = tokio::spawn(async move {
        let (_, send) = handle.next_request().await.unwrap();
        send.send_response(response);
    });
    let pods: Api<Pod> = Api::namespaced(client, "team");
    let error = pods
        .create(&PostParams::default(), &Pod::default())
        .await
        .unwrap_err();
    server.await.unwrap();
    error.into()
}

#[tokio::test]
async fn f_10_f_72_the_retry_after_header_reaches_the_fault() {
    let plain = "Too many requests, please try again later.";
    let json = r#"{"kind":"Status","status":"Failure","message":"slow down","reason":"TooManyRequests","code":429}"#;
    for (header, seconds) in [
        (Some("1"), 1),
        (Some("7"), 7),
        (Some("3600"), 30),
        (None, 1),
        (Some("-5"), 1),
        (Some("soon"), 1),
    ] {
        for body in [plain, json] {
            let after = Duration::from_secs(seconds);
            assert_eq!(
                overloaded(429, header, body).await,
                Fault::Throttled { after },
                "{header:?} {body}"
            );
        }
    }
    let after = Duration::from_secs(3);
    assert_eq!(
        overloaded(503, Some("3"), plain).await,
        Fault::Throttled { after }
    );
    assert!(matches!(
        overloaded(503, None, plain).await,
        Fault::Transient(_)
    ));
    assert!(matches!(
        overloaded(500, Some("3"), plain).await,
        Fault::Transient(_)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_its_deadline_is_counted_as_unanswered() {
    let metrics = Arc::new(Metrics::new("pytorch"));
    let (service, _handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let client = Client::new(Observe::new(Arc::clone(&metrics)).layer(service), "default");
    let pods: Api<Pod> = Api::namespaced(client, "team");
    let answer = crate::fault::within(Duration::from_secs(1), pods.get("a")).await;
    assert!(matches!(answer, Err(Fault::Deadline { .. })));
    tokio::task::yield_now().await;
    let text = metrics.render().unwrap();
    assert!(
        text.contains("trainyard_requests_total{verb=\"get\",resource=\"pods\",code=\"none\"} 1"),
        "{text}"
    );
}

/// Runs a server that gives every request the same answer, counts requests, and stores the last one.
async fn serve(answer: &'static str) -> (Uri, Arc<AtomicUsize>, Arc<parking_lot::Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::new(parking_lot::Mutex::new(String::new()));
    let (counter, keeper) = (Arc::clone(&count), Arc::clone(&seen));
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (counter, keeper) = (Arc::clone(&counter), Arc::clone(&keeper));
            tokio::spawn(async move {
                let mut buffer = vec![0; 16 * 1024];
                while let Ok(size @ 1..) = socket.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..size]).into_owned();
                    // A body may arrive separately.
                    if !text.contains(" HTTP/1.1\r\n") {
                        continue;
                    }
                    counter.fetch_add(1, Ordering::SeqCst);
                    *keeper.lock() = text;
                    if socket.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (uri, count, seen)
}

fn recipe(uri: Uri) -> LazyClient {
    let mut config = limited(Config::new(uri), Duration::from_secs(2));
    config.default_retry = false;
    let identity = Identity::new("pytorch-operator", "1.2.3", "abc");
    config
        .headers
        .push((USER_AGENT, identity.user_agent.parse().unwrap()));
    LazyClient {
        config,
        metrics: Arc::new(Metrics::new("pytorch")),
    }
}

#[tokio::test]
async fn f_71_a_create_answered_with_504_is_on_the_wire_once() {
    install_crypto_provider();
    let (uri, count, seen) =
        serve("HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n").await;
    let pods: Api<Pod> = Api::namespaced(recipe(uri).open().unwrap(), "team");
    let pod = Pod::default();
    let error = pods.create(&PostParams::default(), &pod).await.unwrap_err();
    assert!(Fault::from(error).outcome_unknown());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let request = seen.lock().to_ascii_lowercase();
    assert!(
        request.contains("user-agent: pytorch-operator/1.2.3 (abc)\r\n"),
        "{request}"
    );
}

#[tokio::test]
async fn f_70_a_server_that_never_answers_ends_the_call() {
    install_crypto_provider();
    let (uri, _, _) = serve("").await;
    let pods: Api<Pod> = Api::namespaced(recipe(uri).open().unwrap(), "team");
    // Without a timeout neither this request nor the test would end.
    let error = pods.get("a").await.unwrap_err();
    assert!(Fault::from(error).outcome_unknown());
}

#[test]
fn identity_names_process_and_build() {
    let identity = Identity::new("pytorch-operator", "0.1.0", "deadbeef");
    assert_eq!(identity.user_agent, "pytorch-operator/0.1.0 (deadbeef)");
    assert!(
        identity
            .holder
            .ends_with(&format!("_{}_deadbeef", std::process::id()))
    );
}

#[tokio::test]
async fn a_missing_kubeconfig_is_an_error_with_its_name() {
    let Err(error) = find(Some(Path::new("/nonexistent/config"))).await else {
        panic!("found a config")
    };
    assert!(error.to_string().contains("/nonexistent/config"), "{error}");
}
