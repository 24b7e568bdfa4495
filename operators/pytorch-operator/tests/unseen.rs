//! Objects of a job that the operator's watches don't show, because they lost its label or never had it: the operator finds them by
//! name, without repeating requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::scene::{pt, typed};
use crate::server::{CHILD, JOB, JOBS, PyTorchWorker, STATUS, Server, pod, worker};
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use kube_runtime::watcher;
use pytorch_operator::{PyTorch, PyTorchJob};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower_test::mock;
use training_core::{Availability, GroupKind, PodView, Provider, ServiceView, Uid};
use training_runtime::feed::group::{Groups, group_view, watch_for_kueue, watch_groups};
use training_runtime::feed::slim::{self, Owned};
use training_runtime::feed::{self, Listener, Source};
use training_runtime::key::{JobKey, Scope};
use training_runtime::metrics::Metrics;

const OPERATOR: &str = "training.kubeflow.org/operator-name";
const GROUPS: &str = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ns1/podgroups";
const KIND: GroupKind = GroupKind::SchedulerPlugins;

fn key() -> JobKey {
    JobKey::new("ns1", "pt")
}

fn stored() -> PyTorchJob {
    let mut job = typed(pt(1));
    job.metadata.resource_version = Some("41".to_owned());
    job
}

fn uid(text: &str) -> Uid {
    Uid::parse(text).unwrap()
}

fn exists() -> (u16, Value) {
    let body = json!({"kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409, "message": "exists"});
    (409, body)
}

fn missing() -> (u16, Value) {
    let body = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found",
        "details": {"name": "pt", "kind": "podgroups"}});
    (404, body)
}

/// Reconciles the job once. Returns the requests with their bodies, and when to requeue. `says` may override the responses; all
/// other requests succeed.
async fn reconcile(
    worker: &Arc<PyTorchWorker>,
    server: &mut Server,
    mut says: impl FnMut(&str, &Value) -> Option<(u16, Value)>,
) -> (Vec<(String, Value)>, Option<Instant>) {
    let mut reconcile = tokio::spawn(Arc::clone(worker).reconcile(key()));
    let mut asked = Vec::new();
    let next = loop {
        tokio::select! {
            next = &mut reconcile => break next.unwrap(),
            one = server.asked() => {
                asked.push((one.what.clone(), one.body.clone()));
                assert!(asked.len() < 40, "{asked:?}");
                match says(&one.what, &one.body) {
                    Some((code, body)) => one.with(code, &body),
                    None if one.what == STATUS => one.done(JOB),
                    None if one.what == JOBS => one.with(200, &json!({"items": [{"metadata": {"uid": JOB}}]})),
                    None => {
                        let new = format!("00000000-0000-0000-0000-0000000001{:02}", asked.len());
                        one.done(&new);
                    }
                }
            }
        }
    };
    (asked, next)
}

fn told<'a>(asked: &'a [(String, Value)], of: &str) -> Vec<&'a str> {
    let named = asked.iter().map(|(what, _)| what.as_str());
    named.filter(|what| what.contains(of)).collect()
}

/// Returns the stalled condition of the last status write.
fn stalled(asked: &[(String, Value)]) -> Option<(String, String, String)> {
    let statuses = asked.iter().filter(|(what, _)| what == STATUS);
    let mut conditions = statuses.filter_map(|(_, body)| body["status"]["conditions"].as_array());
    let stalled = conditions
        .next_back()?
        .iter()
        .find(|c| c["type"] == "Stalled")?;
    let text = |field: &str| stalled[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

fn view(pod: &Value) -> Owned<PodView> {
    let pod: slim::SlimPod = serde_json::from_value(pod.clone()).unwrap();
    slim::pod_view(
        &pod,
        feed::owner_kind::<PyTorch>(),
        &mut slim::Roles::default(),
    )
    .unwrap()
}

/// The worker's pod without a label that the watch selects by.
fn unlabelled(label: &str) -> Value {
    let mut pod = pod("worker", "Running");
    let labels = pod["metadata"]["labels"].as_object_mut().unwrap();
    labels.remove(label).unwrap();
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_lost_its_labels_is_said_and_not_asked_for_again_and_again() {
    for label in [OPERATOR, "training.kubeflow.org/job-name"] {
        let (worker, mut server) = worker(stored(), &[pod("master", "Running")]);
        let lost = view(&pod("worker", "Running"));
        server.children.pods.apply(lost.clone());
        server.children.pods.deleted(&lost, Instant::now());
        let taken = |what: &str, _: &Value| match what {
            "POST /api/v1/namespaces/ns1/pods" => Some(exists()),
            "GET /api/v1/namespaces/ns1/pods/pt-worker-0" => Some((200, unlabelled(label))),
            _ => None,
        };
        let (asked, next) = reconcile(&worker, &mut server, taken).await;
        let (status, reason, message) = stalled(&asked).unwrap();
        assert_eq!((status.as_str(), reason.as_str()), ("True", "NameConflict"));
        assert!(
            message.starts_with("exists; it is the job's own, but has lost labels"),
            "{message}"
        );
        assert!(
            message.contains("operator-name=pytorchjob-controller"),
            "{message}"
        );
        let pods = "/namespaces/ns1/pods";
        assert_eq!(told(&asked, pods).len(), 2, "{label}: {asked:?}");
        assert!(next.unwrap() > Instant::now() + Duration::from_millis(400));

        let (asked, _) = reconcile(&worker, &mut server, taken).await;
        assert_eq!(told(&asked, pods), [""; 0], "its time has not come");
        tokio::time::advance(Duration::from_secs(2)).await;
        let (asked, _) = reconcile(&worker, &mut server, taken).await;
        assert_eq!(told(&asked, pods).len(), 2, "it is tried again");
        assert_eq!(stalled(&asked), None, "it was said");
    }
}

/// The watch shows none of the created objects: a webhook may have removed their labels, or somebody may have deleted them at once.
#[tokio::test(start_paused = true)]
async fn what_was_made_and_no_watch_shows_is_read_after_a_while() {
    for there in [false, true] {
        let (worker, mut server) = worker(stored(), &[pod("master", "Running")]);
        let mut made = String::new();
        let (asked, _) = reconcile(&worker, &mut server, |what, _| {
            (what == "POST /api/v1/namespaces/ns1/pods").then(|| {
                "00000000-0000-0000-0000-00000000000b".clone_into(&mut made);
                let metadata = json!({ "uid": made, "resourceVersion": "50" });
                (
                    201,
                    json!({ "kind": "PartialObjectMetadata", "metadata": metadata }),
                )
            })
        })
        .await;
        assert_eq!(told(&asked, "POST /api/v1/namespaces/ns1/pods").len(), 1);
        let (asked, next) = reconcile(&worker, &mut server, |_, _| None).await;
        assert_eq!(told(&asked, "GET"), [""; 0], "its time has not come");
        let next = next.unwrap().saturating_duration_since(Instant::now());
        assert!(next <= Duration::from_secs(31), "{next:?}");

        tokio::time::advance(Duration::from_secs(31)).await;
        let (asked, _) = reconcile(&worker, &mut server, |what, _| match what {
            "GET /api/v1/namespaces/ns1/pods/pt-worker-0" if there => {
                Some((200, pod("worker", "Running")))
            }
            _ => what.starts_with("GET /api/v1").then(missing),
        })
        .await;
        assert_eq!(told(&asked, "GET /api/v1/namespaces/ns1/pods").len(), 1);
        assert_eq!(told(&asked, "GET /api/v1/namespaces/ns1/services").len(), 2);
        let pods = told(&asked, "POST /api/v1/namespaces/ns1/pods").len();
        assert_eq!(pods, usize::from(!there), "{asked:?}");
        let services = told(&asked, "POST /api/v1/namespaces/ns1/services");
        assert_eq!(services.len(), 2, "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_labelled_again_is_the_jobs_at_once() {
    let (worker, mut server) = worker(stored(), &[pod("master", "Running")]);
    let lost = view(&pod("worker", "Running"));
    server.children.pods.apply(lost.clone());
    server.children.pods.deleted(&lost, Instant::now());
    let taken = |what: &str, _: &Value| match what {
        "POST /api/v1/namespaces/ns1/pods" => Some(exists()),
        "GET /api/v1/namespaces/ns1/pods/pt-worker-0" => Some((200, unlabelled(OPERATOR))),
        _ => None,
    };
    reconcile(&worker, &mut server, taken).await;

    let mut again = pod("worker", "Running");
    again["metadata"]["resourceVersion"] = json!("12");
    assert!(
        server.children.pods.apply(view(&again)).is_some(),
        "news for the job"
    );
    let (asked, _) = reconcile(&worker, &mut server, taken).await;
    assert_eq!(told(&asked, "/namespaces/ns1/pods"), [""; 0]);
    assert_eq!(stalled(&asked).unwrap().0, "False", "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_lost_its_label_is_said_as_well() {
    let pods = [pod("master", "Running"), pod("worker", "Running")];
    let (worker, mut server) = worker(stored(), &pods);
    let mut service = pod("worker", "");
    service["kind"] = json!("Service");
    let seen: slim::SlimService = serde_json::from_value(service.clone()).unwrap();
    let parent = feed::owner_kind::<PyTorch>();
    let lost: Owned<ServiceView> =
        slim::service_view(&seen, parent, &mut slim::Roles::default()).unwrap();
    server.children.services.apply(lost.clone());
    server.children.services.deleted(&lost, Instant::now());
    service["metadata"]["labels"][OPERATOR] = json!("somebody");
    let taken = |what: &str, body: &Value| match what {
        "POST /api/v1/namespaces/ns1/services" if body["metadata"]["name"] == "pt-worker-0" => {
            Some(exists())
        }
        "GET /api/v1/namespaces/ns1/services/pt-worker-0" => Some((200, service.clone())),
        _ => None,
    };
    let (asked, _) = reconcile(&worker, &mut server, taken).await;
    let (_, reason, message) = stalled(&asked).unwrap();
    assert_eq!(reason, "NameConflict");
    assert!(message.contains("it is the job's own"), "{message}");
    // Before recreating what the job lost without the operator's doing, the operator looks up the job itself.
    let gets = told(&asked, "GET");
    assert_eq!(
        gets,
        [JOBS, "GET /api/v1/namespaces/ns1/services/pt-worker-0"]
    );
}

/// A worker under scheduler-plugins, which the cluster serves.
fn under_plugins(job: PyTorchJob) -> (Arc<PyTorchWorker>, Server) {
    let (mut worker, server) = worker(job, &[]);
    let settings = &mut Arc::get_mut(&mut worker).unwrap().planner.settings;
    settings.gang = Provider::parse("scheduler-plugins").unwrap();
    let offer = Availability::Served("v1alpha1");
    server.children.groups.offer(KIND, &Scope::new(None), offer);
    (worker, server)
}

/// A group as the operator created it, at this version.
fn group(version: &str, digest: &Value) -> Value {
    let mut metadata = crate::server::master_of(JOB);
    (metadata["name"], metadata["resourceVersion"]) = (json!("pt"), json!(version));
    if !digest.is_null() {
        metadata["annotations"] = json!({"trainyard.dev/gang": digest});
    }
    json!({
        "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": metadata, "spec": {"minMember": 2}
    })
}

fn without_label(mut group: Value) -> Value {
    let labels = group["metadata"]["labels"].as_object_mut().unwrap();
    labels.remove(OPERATOR).unwrap();
    group
}

fn digest(body: &Value) -> Value {
    body["metadata"]["annotations"]["trainyard.dev/gang"].clone()
}

/// The watch reports the deletion of a group, at this version.
fn lose(server: &Server, version: &str) {
    let seen = serde_json::from_value(group(version, &json!("x"))).unwrap();
    let lost = group_view(&seen, KIND, feed::owner_kind::<PyTorch>()).unwrap();
    let index = server.children.groups.of_kind(KIND);
    index.apply(lost.clone());
    index.deleted(&lost, Instant::now());
}

/// Responds for a group that has lost its label by version 8, and has it again at version 9.
fn read_and_patched(what: &str, group: impl Fn(&str) -> Value) -> Option<(u16, Value)> {
    if what == format!("GET {GROUPS}/pt") {
        return Some((200, without_label(group("8"))));
    }
    (what == format!("PATCH {GROUPS}/pt")).then(|| (200, group("9")))
}

/// Returns the patch of the group.
fn patch_of_group(asked: &[(String, Value)]) -> &Value {
    let is_patch = |what: &str| what.starts_with("PATCH") && what != STATUS;
    let patch = asked.iter().find(|(what, _)| is_patch(what));
    &patch.expect("a patch").1
}

#[tokio::test(start_paused = true)]
async fn a_group_that_lost_its_label_gets_it_back_by_one_patch() {
    let (worker, mut server) = under_plugins(stored());
    lose(&server, "8");
    let mut made = Value::Null;
    let (asked, _) = reconcile(&worker, &mut server, |what, body| {
        if what == format!("POST {GROUPS}") {
            made = digest(body);
            return Some(exists());
        }
        read_and_patched(what, |version| group(version, &made))
    })
    .await;
    let verbs: Vec<&str> = told(&asked, "podgroups")
        .into_iter()
        .filter_map(|what| what.split(' ').next())
        .collect();
    assert_eq!(verbs, ["POST", "GET", "PATCH"], "{asked:?}");
    let metadata = &patch_of_group(&asked)["metadata"];
    assert_eq!(metadata["labels"][OPERATOR], "pytorchjob-controller");
    assert_eq!(
        (&metadata["uid"], &metadata["resourceVersion"]),
        (&json!(CHILD), &json!("8"))
    );
    assert_eq!(told(&asked, "POST /api/v1/namespaces/ns1/pods").len(), 2);
    let known = server.children.groups.of(uid(JOB));
    assert_eq!((known.len(), known[0].version), (1, 9));
}

#[tokio::test(start_paused = true)]
async fn the_group_of_a_former_run_gets_its_label_so_that_its_end_is_seen() {
    let (worker, mut server) = under_plugins(stored());
    let mut made = Value::Null;
    let terminating = |version: &str, made: &Value| {
        let mut group = group(version, made);
        group["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        group
    };
    let (asked, _) = reconcile(&worker, &mut server, |what, body| {
        if what == format!("POST {GROUPS}") {
            made = digest(body);
            return Some(exists());
        }
        read_and_patched(what, |version| terminating(version, &made))
    })
    .await;
    let patch = patch_of_group(&asked);
    assert_eq!(
        patch["metadata"]["labels"][OPERATOR],
        "pytorchjob-controller"
    );
    assert_eq!(patch.get("spec"), None, "what goes follows nothing");
    assert_eq!(stalled(&asked).unwrap().1, "GangWaiting");
    assert_eq!(told(&asked, "podgroups").len(), 3, "{asked:?}");

    // The group's deletion.
    let seen = serde_json::from_value(terminating("10", &made)).unwrap();
    let gone = group_view(&seen, KIND, feed::owner_kind::<PyTorch>()).unwrap();
    server
        .children
        .groups
        .of_kind(KIND)
        .deleted(&gone, Instant::now());
    let (asked, _) = reconcile(&worker, &mut server, |what, body| {
        (what == format!("POST {GROUPS}")).then(|| {
            let mut new = group("11", &digest(body));
            new["metadata"]["uid"] = json!("00000000-0000-0000-0000-00000000000c");
            (201, new)
        })
    })
    .await;
    assert_eq!(
        told(&asked, "POST /api/v1/namespaces/ns1/pods").len(),
        2,
        "{asked:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_gone_before_it_gets_its_label_is_forgotten() {
    let (worker, mut server) = under_plugins(stored());
    let mut reads = 0;
    let (asked, _) = reconcile(&worker, &mut server, |what, body| {
        if what == format!("POST {GROUPS}") {
            return Some(exists());
        }
        if what == format!("GET {GROUPS}/pt") {
            reads += 1;
            let there = without_label(group("8", &digest(body)));
            return Some(if reads == 1 { (200, there) } else { missing() });
        }
        (what == format!("PATCH {GROUPS}/pt")).then(missing)
    })
    .await;
    assert_eq!(told(&asked, "podgroups").len(), 4, "{asked:?}");
    assert!(server.children.groups.of(uid(JOB)).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_another_operator_left_of_a_job_at_its_end_is_found_by_its_name_and_deleted() {
    let ended = json!({
        "conditions": [{"type": "Succeeded", "status": "True", "reason": "PyTorchJobSucceeded"}],
        "completionTime": "2026-01-01T00:00:00Z", "gangScheduler": "none,scheduler-plugins",
    });
    for (found, asks) in [(true, vec!["GET", "DELETE"]), (false, vec!["GET"])] {
        let mut job = typed(pt(1).set("/status", ended.clone()));
        job.metadata.resource_version = Some("41".to_owned());
        let (worker, mut server) = under_plugins(job);
        let (asked, _) = reconcile(&worker, &mut server, |what, _| {
            let group = without_label(group("8", &Value::Null));
            let answer = if found { (200, group) } else { missing() };
            (what == format!("GET {GROUPS}/pt")).then_some(answer)
        })
        .await;
        let verbs: Vec<&str> = told(&asked, "podgroups")
            .into_iter()
            .filter_map(|what| what.split(' ').next())
            .collect();
        assert_eq!(verbs, asks, "{asked:?}");
        if found {
            let delete = asked.iter().find(|(what, _)| what.starts_with("DELETE"));
            assert_eq!(delete.unwrap().1["preconditions"], json!({"uid": CHILD}));
        }
        let (last, body) = asked.last().unwrap();
        assert_eq!(
            (last.as_str(), &body["status"]),
            (STATUS, &json!({"gangScheduler": null}))
        );
        let (asked, _) = reconcile(&worker, &mut server, |_, _| None).await;
        assert_eq!(asked, [], "and that is all");
    }
}

/// Records which jobs are requeued.
#[derive(Default)]
struct RequeueRecorder(Mutex<Vec<JobKey>>);

impl Listener for RequeueRecorder {
    fn enqueue(&self, key: JobKey) {
        self.0.lock().unwrap().push(key);
    }
    fn child_deleted(&self, _: JobKey) {}
    fn forget(&self, _: &JobKey) {}
    fn unreadable(&self, _: &kube::core::ObjectMeta, _: &str) {}
    fn watching(&self, _: &'static str, _: &Scope, _: Option<&watcher::Error>) {}
    fn silent(&self, _: &'static str, _: &Scope, _: bool) {}
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_does_not_say_what_it_serves_keeps_no_job_waiting_in_silence() {
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    let source = Source {
        client: Client::new(service, "default"),
        watches: Metrics::new("pytorch").watches().clone(),
        timeout: Duration::from_mins(5),
    };
    let (groups, ear) = (
        Arc::new(Groups::default()),
        Arc::new(RequeueRecorder::default()),
    );
    groups.want(KIND, &key());
    let (sender, synced) = tokio::sync::watch::channel(false);
    let watching = tokio::spawn(watch_groups(
        source,
        Scope::new(None),
        feed::owner_kind::<PyTorch>(),
        KIND,
        Arc::clone(&groups),
        Arc::clone(&ear),
        sender,
    ));
    let begun = Instant::now();
    for asked in 1..=6 {
        let (_, answer) = handle.next_request().await.unwrap();
        assert_eq!(*synced.borrow(), asked > 3, "{asked}");
        let broken =
            json!({"kind": "Status", "status": "Failure", "code": 503, "message": "broken"});
        let body = Body::from(broken.to_string().into_bytes());
        answer.send_response(Response::builder().status(503).body(body).unwrap());
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    let known = groups.offers().of(KIND).clone();
    assert!(
        matches!(&known, Availability::Unanswered(words) if words.contains("broken")),
        "{known:?}"
    );
    assert_eq!(*ear.0.lock().unwrap(), [key()], "told once");
    assert!(
        begun.elapsed() >= Duration::from_secs(31),
        "more and more rarely"
    );
    watching.abort();
}

#[tokio::test(start_paused = true)]
async fn whether_the_cluster_serves_kueue_is_asked_until_it_does() {
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    let groups = Arc::new(Groups::default());
    let (sender, asked) = tokio::sync::watch::channel(false);
    let client = Client::new(service, "default");
    tokio::spawn(watch_for_kueue(client, Arc::clone(&groups), sender));
    let of = |names: &[&str]| {
        let of_name = |name: &&str| json!({"name": name, "versions": []});
        let all: Vec<Value> = names.iter().map(of_name).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": all})
    };
    let broken = json!({"kind": "Status", "status": "Failure", "code": 503, "message": "broken"});
    for (code, body, known) in [
        (503, broken, None),
        (200, of(&["apps"]), Some(false)),
        (200, of(&["apps", "kueue.x-k8s.io"]), Some(true)),
    ] {
        let (request, answer) = handle.next_request().await.unwrap();
        assert_eq!(request.uri().path(), "/apis");
        let body = Body::from(body.to_string().into_bytes());
        answer.send_response(Response::builder().status(code).body(body).unwrap());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(groups.kueue(), known);
        assert!(*asked.borrow(), "jobs don't wait for it");
    }
    let more = tokio::time::timeout(Duration::from_hours(1), handle.next_request());
    assert!(more.await.is_err(), "it is there");
}
