//! An API server that a test plays, and an operator's worker that talks to it.

// Every test file uses its own part of it.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use pytorch_operator::{PyTorch, PyTorchJob};
use serde_json::{Value, json};
use tower_test::mock::{self, Handle, SendResponse};
use training_core::Rules;
use training_runtime::cache::Cache;
use training_runtime::cli::EventMode;
use training_runtime::events::{EventConfig, EventSink, KubeEvents};
use training_runtime::executor::{Children, Executor};
use training_runtime::feed::{self, jobs::Jobs, slim};
use training_runtime::leader::Leadership;
use training_runtime::metrics::Metrics;
use training_runtime::pass::{Passing, Settings, Worker};
use training_runtime::retry::Backoff;

/// The uid of the job `pt`.
pub const JOB: &str = "00000000-0000-0000-0000-000000000007";
/// The uid of a child of it.
pub const CHILD: &str = "00000000-0000-0000-0000-00000000000a";
/// In paused time this passes as soon as nothing else can happen.
pub const NOTHING: Duration = Duration::from_secs(1);

/// What a status write of it asks.
pub const STATUS: &str = "PATCH /apis/kubeflow.org/v1/namespaces/ns1/pytorchjobs/pt/status";

/// What a list of jobs asks.
pub const JOBS: &str = "GET /apis/kubeflow.org/v1/namespaces/ns1/pytorchjobs";

/// The API server: it sees each request and answers when it likes.
pub struct Server {
    pub handle: Handle<Request<Body>, Response<Body>>,
    pub children: Children,
    pub leads: Arc<AtomicBool>,
}

/// A request, and the way to answer it.
pub struct Asked {
    pub what: String,
    pub body: Value,
    pub answer: SendResponse<Response<Body>>,
}

impl Asked {
    /// Answers with this code and body.
    pub fn with(self, code: u16, body: &Value) {
        let body = Body::from(body.to_string().into_bytes());
        self.answer
            .send_response(Response::builder().status(code).body(body).unwrap());
    }

    /// Answers with the metadata of an object as it is stored afterwards.
    pub fn done(self, uid: &str) {
        let answer = json!({"kind": "PartialObjectMetadata", "metadata": {"uid": uid, "resourceVersion": "50"}});
        self.with(200, &answer);
    }
}

impl Server {
    /// The next request.
    pub async fn asked(&mut self) -> Asked {
        let next = tokio::time::timeout(NOTHING, self.handle.next_request()).await;
        let (request, answer) = next.expect("a request").unwrap();
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Asked {
            what: format!("{} {}", parts.method, parts.uri.path()),
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            answer,
        }
    }

    /// Nothing is asked for now.
    pub async fn silence(&mut self) {
        let next = tokio::time::timeout(NOTHING, self.handle.next_request()).await;
        if let Ok(Some((request, _))) = next {
            panic!("{} {}", request.method(), request.uri().path());
        }
    }
}

fn no_children() -> Children {
    Children {
        pods: Arc::default(),
        services: Arc::default(),
        autoscalers: Arc::default(),
        groups: Arc::default(),
        objects: Arc::default(),
        batch_pods: Arc::default(),
    }
}

/// A sink of events, and the server that they are written to.
pub fn events() -> (EventSink, Server) {
    let (service, handle) = mock::pair::<Request<Body>, Response<Body>>();
    let config = EventConfig {
        component: String::new(),
        mode: EventMode::Folded,
        call_deadline: NOTHING,
    };
    let writer = KubeEvents::new(Client::new(service, "default"));
    let metrics = Arc::new(Metrics::new("pytorch"));
    let sink = EventSink::spawn(&config, &writer, &Leadership::always(), metrics);
    let server = Server {
        handle,
        children: no_children(),
        leads: Arc::default(),
    };
    (sink, server)
}

pub fn executor() -> (Executor, Server) {
    let (service, handle) = mock::pair::<Request<Body>, Response<Body>>();
    let leads = Arc::new(AtomicBool::new(true));
    let gate = Arc::clone(&leads);
    let children = no_children();
    let executor = Executor::new::<PyTorch>(
        Client::new(service, "default"),
        Arc::new(move || gate.load(Ordering::Relaxed)),
        Duration::from_secs(30),
        feed::parent::<PyTorch>(),
        children.clone(),
    );
    let server = Server {
        handle,
        children,
        leads,
    };
    (executor, server)
}

/// The metadata of `pt-master-0`, owned by this job.
pub fn master_of(owner: &str) -> Value {
    json!({
        "name": "pt-master-0", "namespace": "ns1", "uid": CHILD, "resourceVersion": "9",
        "labels": {
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
            "training.kubeflow.org/job-name": "pt",
            "training.kubeflow.org/replica-type": "master",
            "training.kubeflow.org/replica-index": "0",
        },
        "ownerReferences": [{
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "pt", "uid": owner, "controller": true,
        }],
    })
}

/// A worker that has seen a job and these pods.
pub fn worker(job: PyTorchJob, pods: &[Value]) -> (Arc<Worker<PyTorch>>, Server) {
    worker_with(job, pods, Arc::default())
}

/// The same with this cache.
pub fn worker_with(
    job: PyTorchJob,
    pods: &[Value],
    cache: Arc<Cache>,
) -> (Arc<Worker<PyTorch>>, Server) {
    let (executor, server) = executor();
    let jobs = Jobs::new(cache);
    jobs.apply(job);
    let mut roles = slim::Roles::default();
    for pod in pods {
        let pod: slim::SlimPod = serde_json::from_value(pod.clone()).unwrap();
        let view = slim::pod_view(&pod, feed::parent::<PyTorch>(), &mut roles).unwrap();
        server.children.pods.apply(view);
    }
    let metrics = Arc::new(Metrics::new("pytorch"));
    let no_events = EventConfig {
        component: String::new(),
        mode: EventMode::Off,
        call_deadline: NOTHING,
    };
    let (service, _) = mock::pair::<Request<Body>, Response<Body>>();
    let nobody = KubeEvents::new(Client::new(service, "default"));
    let worker = Worker {
        framework: PyTorch::default(),
        jobs: Arc::new(jobs),
        pods: Arc::clone(&server.children.pods),
        services: Arc::clone(&server.children.services),
        autoscalers: Arc::clone(&server.children.autoscalers),
        batch_pods: Arc::clone(&server.children.batch_pods),
        objects: Arc::clone(&server.children.objects),
        groups: Arc::clone(&server.children.groups),
        executor,
        backoff: Backoff::new(NOTHING, NOTHING, 1),
        events: EventSink::spawn(
            &no_events,
            &nobody,
            &Leadership::always(),
            Arc::clone(&metrics),
        ),
        metrics,
        settings: Settings {
            deadline: Duration::from_mins(1),
            status_delay: Duration::ZERO,
            safety_period: Duration::from_hours(1),
            events: EventMode::Off,
            rules: Rules::default(),
            gang: training_core::Provider::None,
        },
        passing: Passing::new(1),
    };
    (Arc::new(worker), server)
}

pub fn pod(role: &str, phase: &str) -> Value {
    let mut metadata = master_of(JOB);
    metadata["name"] = json!(format!("pt-{role}-0"));
    metadata["uid"] = json!(if role == "master" {
        CHILD
    } else {
        "00000000-0000-0000-0000-00000000000b"
    });
    metadata["labels"]["training.kubeflow.org/replica-type"] = json!(role);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": phase}})
}
