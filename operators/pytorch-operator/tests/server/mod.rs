//! A mock API server, and a worker that talks to it.

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
use training_runtime::caller::Caller;
use training_runtime::cli::EventMode;
use training_runtime::events::{EventConfig, EventSink, KubeEvents};
use training_runtime::executor::{Children, Executor};
use training_runtime::feed::{self, jobs::Jobs, slim};
use training_runtime::leader::Leadership;
use training_runtime::metrics::Metrics;
use training_runtime::retry::{Backoff, Jitter};
use training_runtime::training::{Settings, TrainingPlanner};
use training_runtime::worker::{Context, Times, Worker};

/// The uid of the job `pt`.
pub const JOB: &str = "00000000-0000-0000-0000-000000000007";
/// The uid of a child of the job.
pub const CHILD: &str = "00000000-0000-0000-0000-00000000000a";
/// With paused time, this passes as soon as nothing else can happen.
pub const NOTHING: Duration = Duration::from_secs(1);

/// The request line of a status write.
pub const STATUS: &str = "PATCH /apis/kubeflow.org/v1/namespaces/ns1/pytorchjobs/pt/status";

/// The request line of a list of jobs.
pub const JOBS: &str = "GET /apis/kubeflow.org/v1/namespaces/ns1/pytorchjobs";

/// The mock API server. The test sees each request and decides when to respond.
pub struct Server {
    pub handle: Handle<Request<Body>, Response<Body>>,
    pub children: Children,
    pub leads: Arc<AtomicBool>,
}

/// A request, and the way to respond to it.
pub struct Asked {
    pub what: String,
    pub body: Value,
    pub answer: SendResponse<Response<Body>>,
}

impl Asked {
    /// Responds with this code and body.
    pub fn with(self, code: u16, body: &Value) {
        let body = Body::from(body.to_string().into_bytes());
        self.answer
            .send_response(Response::builder().status(code).body(body).unwrap());
    }

    /// Responds with the metadata of the stored object.
    pub fn done(self, uid: &str) {
        let answer = json!({"kind": "PartialObjectMetadata", "metadata": {"uid": uid, "resourceVersion": "50"}});
        self.with(200, &answer);
    }
}

impl Server {
    /// Returns the next request.
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

    /// Asserts that no request arrives.
    pub async fn silence(&mut self) {
        let next = tokio::time::timeout(NOTHING, self.handle.next_request()).await;
        if let Ok(Some((request, _))) = next {
            panic!("{} {}", request.method(), request.uri().path());
        }
    }
}

/// An event sink and the server that it writes to.
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
        children: Children::default(),
        leads: Arc::default(),
    };
    (sink, server)
}

pub fn executor() -> (Executor, Server) {
    let (_, executor, server) = writer();
    (executor, server)
}

fn writer() -> (Arc<Caller>, Executor, Server) {
    let (service, handle) = mock::pair::<Request<Body>, Response<Body>>();
    let leads = Arc::new(AtomicBool::new(true));
    let gate = Arc::clone(&leads);
    let children = Children::default();
    let caller = Arc::new(Caller::new(
        Client::new(service, "default"),
        Arc::new(move || gate.load(Ordering::Relaxed)),
        Duration::from_secs(30),
        "pytorch-operator",
    ));
    let parent = feed::owner_kind::<PyTorch>();
    let executor = Executor::new::<PyTorch>(Arc::clone(&caller), parent, children.clone());
    let server = Server {
        handle,
        children,
        leads,
    };
    (caller, executor, server)
}

/// The metadata of `pt-master-0`, with this owner.
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

pub type PyTorchWorker = Worker<TrainingPlanner<PyTorch>>;

/// A worker that has seen a job and these pods.
pub fn worker(job: PyTorchJob, pods: &[Value]) -> (Arc<PyTorchWorker>, Server) {
    worker_with(job, pods, Arc::default())
}

/// The same with this cache.
pub fn worker_with(
    job: PyTorchJob,
    pods: &[Value],
    cache: Arc<Cache>,
) -> (Arc<PyTorchWorker>, Server) {
    let (caller, executor, server) = writer();
    let jobs = Jobs::new(cache);
    jobs.apply(job);
    let mut roles = slim::Roles::default();
    for pod in pods {
        let pod: slim::SlimPod = serde_json::from_value(pod.clone()).unwrap();
        let view = slim::pod_view(&pod, feed::owner_kind::<PyTorch>(), &mut roles).unwrap();
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
    let settings = Settings {
        events: EventMode::Off,
        rules: Rules::default(),
        gang: training_core::Provider::None,
    };
    let context = Context {
        caller,
        events: EventSink::spawn(
            &no_events,
            &nobody,
            &Leadership::always(),
            Arc::clone(&metrics),
        ),
        metrics: Arc::clone(&metrics),
        backoff: Backoff::new(NOTHING, NOTHING, 1),
        times: Times {
            deadline: Duration::from_mins(1),
            status_delay: Duration::ZERO,
            safety_period: Duration::from_hours(1),
        },
        jitter: Jitter::new(1).into(),
    };
    let planner = TrainingPlanner::new(PyTorch::default(), executor, metrics, settings);
    let worker = Worker::new(planner, Arc::new(jobs), context);
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
