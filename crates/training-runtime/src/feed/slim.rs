//! Decodes only the few fields of pods and services that decisions read.

mod seen;
mod trouble;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use training_api::labels;
use training_core::{Attempt, BatchPod, Mark, PodPhase, PodView, ServiceView, Uid, names};

use crate::key::JobKey;
use seen::{SlimCondition, SlimContainer};
pub use seen::{SlimPod, SlimService};

/// A child of a job, and the job.
#[derive(Clone, Debug)]
pub struct Owned<V> {
    /// The job by name.
    pub key: JobKey,
    /// The job's uid.
    pub owner: Uid,
    /// The child.
    pub view: V,
}

/// The kind that owns a feed's children.
#[derive(Clone, Copy, Debug)]
pub struct OwnerKind {
    /// The API group of the owner reference. Its version is ignored, as a kind may be served in several.
    pub group: &'static str,
    /// `kind` of the owner reference.
    pub kind: &'static str,
    /// The main container, whose exit code counts; empty if it may have any name.
    pub container: &'static str,
    /// The value of the label that the watches select.
    pub controller: &'static str,
    /// Further values of that label.
    pub also: &'static [&'static str],
}

impl OwnerKind {
    /// Returns true if an object has the label that the watches select: without it, no event shows its changes.
    pub fn watches(&self, meta: &ObjectMeta) -> bool {
        let label = meta.labels.as_ref();
        let label = label.and_then(|l| l.get(labels::OPERATOR_NAME));
        label.is_some_and(|name| name == self.controller || self.also.contains(&name.as_str()))
    }

    /// Returns the selector of the watches.
    pub fn selector(&self) -> String {
        let key = labels::OPERATOR_NAME;
        if self.also.is_empty() {
            return format!("{key}={}", self.controller);
        }
        format!("{key} in ({},{})", self.controller, self.also.join(","))
    }

    /// Returns true if an owner reference points to a job of the kind.
    pub fn owns(&self, owner: &OwnerReference) -> bool {
        let group = owner.api_version.split_once('/').map_or("", |(g, _)| g);
        owner.kind == self.kind && group == self.group
    }
}

/// Names of roles and schedulers, each stored once for all pods.
#[derive(Debug, Default)]
pub struct Roles {
    roles: BTreeMap<Box<str>, Arc<str>>,
    schedulers: BTreeMap<Box<str>, Arc<String>>,
}

impl Roles {
    /// Returns the shared copy of a role's name.
    pub fn shared(&mut self, role: &str) -> Arc<str> {
        if let Some(known) = self.roles.get(role) {
            return Arc::clone(known);
        }
        let new: Arc<str> = role.into();
        self.roles.insert(role.into(), Arc::clone(&new));
        new
    }

    /// Returns the shared copy of a scheduler's name.
    fn scheduler(&mut self, name: &str) -> Arc<String> {
        if let Some(known) = self.schedulers.get(name) {
            return Arc::clone(known);
        }
        let new = Arc::new(name.to_owned());
        self.schedulers.insert(name.into(), Arc::clone(&new));
        new
    }
}

/// Returns the pod as a child of a job; `None` if it has no owner, one of another kind, or a name that we don't give. Labels alone
/// prove nothing: anybody can set them.
pub fn pod_view(pod: &SlimPod, owner_kind: OwnerKind, roles: &mut Roles) -> Option<Owned<PodView>> {
    let child = identify(&pod.metadata, owner_kind, roles)?;
    let (key, owner) = (child.key.clone(), child.owner);
    let view = view_of(pod, child, owner_kind, roles);
    Some(Owned { key, owner, view })
}

/// Returns the pod as one of a job's `batch/v1` Job; `None` if it is none. The caller checks that the job owns that Job. A pod whose name
/// the Job's controller doesn't give is forged. Another operator's pod without an index, `<job>-<replica type>`, counts as created by
/// the job itself.
pub fn batch_pod_view(
    pod: &SlimPod,
    owner_kind: OwnerKind,
    roles: &mut Roles,
) -> Option<Owned<BatchPod>> {
    let meta = &pod.metadata;
    let owner = controller(meta)?;
    let labels = meta.labels.as_ref()?;
    let role = labels
        .get(labels::REPLICA_TYPE)
        .or_else(|| labels.get(labels::JOB_ROLE))?;
    let of_batch = owner.kind == "Job" && owner.api_version == "batch/v1";
    let own = || {
        let name = meta.name.as_deref().and_then(|n| n.rsplit_once('-'));
        let named = name == Some((owner.name.as_str(), role.as_str()));
        owner_kind.owns(owner) && named && labels.get(labels::JOB_NAME) == Some(&owner.name)
    };
    if !of_batch && !own() {
        return None;
    }
    let batch = Uid::parse(&owner.uid)?;
    let key = JobKey::new(
        meta.namespace.as_deref().unwrap_or_default(),
        labels.get(labels::JOB_NAME)?,
    );
    let child = Child {
        key: key.clone(),
        owner: batch,
        uid: Uid::of(meta)?,
        version: version(meta),
        role: roles.shared(role),
        index: 0,
    };
    let view = BatchPod {
        name: meta.name.as_deref()?.into(),
        batch,
        said: trouble::termination_message(pod),
        forged: of_batch && !is_generated(meta.name.as_deref()?, &owner.name),
        pod: view_of(pod, child, owner_kind, roles),
    };
    Some(Owned {
        key,
        owner: batch,
        view,
    })
}

/// Returns the view of any pod, for readers who know its owner already. `main` is the container whose exit code counts; empty for a
/// container of any name. Neither role nor index is read.
pub fn any_pod_view(pod: &SlimPod, main: &'static str) -> PodView {
    let uid = Uid::of(&pod.metadata);
    let child = Child {
        key: JobKey::new("", ""),
        owner: Uid::default(),
        uid: uid.unwrap_or_default(),
        version: version(&pod.metadata),
        role: "".into(),
        index: 0,
    };
    let owner_kind = OwnerKind {
        group: "",
        kind: "",
        container: main,
        controller: "",
        also: &[],
    };
    view_of(pod, child, owner_kind, &mut Roles::default())
}

/// Returns true if the Job controller may have given this name: the Job's name, cut if necessary, and a random suffix. A pod with
/// another name was not created for that Job, whatever its owner reference says.
fn is_generated(name: &str, job: &str) -> bool {
    /// The lengths of both parts of a generated name. Source: `k8s.io/apiserver/pkg/storage/names`.
    const MAX_BASE: usize = 58;
    const END: usize = 5;
    let base = format!("{job}-");
    let base = base.get(..MAX_BASE).unwrap_or(&base);
    name.strip_prefix(base).is_some_and(|end| {
        end.len() == END
            && end
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    })
}

fn view_of(pod: &SlimPod, child: Child, owner_kind: OwnerKind, roles: &mut Roles) -> PodView {
    let status = &pod.status;
    let phase = PodPhase::parse(status.phase.as_deref().unwrap_or_default());
    let disrupted = trouble::is_disrupted(pod);
    let containers = || status.container_statuses.iter().flatten();
    let ended = |c: &SlimContainer| c.state.as_ref()?.terminated.as_ref()?.exit_code;
    let exit_code = if owner_kind.container.is_empty() {
        // A failed container decides for the pod.
        let codes = || containers().filter_map(ended);
        codes().find(|code| *code != 0).or_else(|| codes().next())
    } else {
        let main = containers().find(|c| c.name.as_deref() == Some(owner_kind.container));
        main.and_then(ended)
    };
    let exit_code = exit_code.and_then(|code| i32::try_from(code).ok());
    let restarts: i64 = containers()
        .chain(status.init_container_statuses.iter().flatten())
        .filter_map(|c| c.restart_count)
        .sum();
    let mark = mark(pod, &child.key.name);
    let scheduler = pod.spec.scheduler_name.as_deref();
    let scheduler = scheduler.filter(|name| !name.is_empty() && mark == Mark::SchedulerPlugins);
    PodView {
        uid: child.uid,
        version: child.version,
        role: child.role,
        index: child.index,
        attempt: Attempt::parse(annotation(&pod.metadata, labels::ATTEMPT)),
        phase,
        ready: trouble::condition(pod, "Ready").is_some_and(SlimCondition::holds),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        mark,
        scheduler: scheduler.map(|name| roles.scheduler(name)),
        disrupted,
        exit_code,
        restarts: u32::try_from(restarts.max(0)).unwrap_or(u32::MAX),
        since: trouble::since(pod, phase),
        trouble: trouble::of(pod, phase, owner_kind.container),
    }
}

/// Returns which of its job's gangs a pod belongs to, if any.
fn mark(pod: &SlimPod, job: &str) -> Mark {
    let group = pod.spec.scheduling_group.as_ref();
    let group = group.and_then(|g| g.pod_group_name.as_deref());
    let labels = pod.metadata.labels.as_ref();
    let label = labels.and_then(|l| l.get(labels::PLUGINS_GROUP));
    let annotation = annotation(&pod.metadata, labels::VOLCANO_GROUP);
    Mark::read(job, group, annotation, label.map(String::as_str))
}

/// Returns the service as a child of a job, as [`pod_view`] does.
pub fn service_view(
    service: &SlimService,
    owner_kind: OwnerKind,
    roles: &mut Roles,
) -> Option<Owned<ServiceView>> {
    let child = identify(&service.metadata, owner_kind, roles)?;
    let view = ServiceView {
        uid: child.uid,
        version: child.version,
        role: child.role,
        index: child.index,
        terminating: service.metadata.deletion_timestamp.is_some(),
    };
    Some(Owned {
        key: child.key,
        owner: child.owner,
        view,
    })
}

struct Child {
    key: JobKey,
    owner: Uid,
    uid: Uid,
    version: u64,
    role: Arc<str>,
    index: u32,
}

fn identify(meta: &ObjectMeta, owner_kind: OwnerKind, roles: &mut Roles) -> Option<Child> {
    let label = |key: &str| {
        meta.labels
            .as_ref()
            .and_then(|l| l.get(key))
            .map(String::as_str)
    };
    let owner = controller(meta)?;
    if !owner_kind.owns(owner) {
        return None;
    }
    let name = meta.name.as_deref()?;
    // Pods without a type label have a role label instead, and their index label may differ from the index in the name.
    let (role, index) = match label(labels::REPLICA_TYPE) {
        Some(role) => (role, label(labels::REPLICA_INDEX)?.parse().ok()?),
        None => (label(labels::JOB_ROLE)?, names::index(name)?),
    };
    if label(labels::JOB_NAME) != Some(owner.name.as_str())
        || !names::is_replica(name, &owner.name, role, index)
    {
        return None;
    }
    Some(Child {
        key: JobKey::new(meta.namespace.as_deref().unwrap_or_default(), &owner.name),
        owner: Uid::parse(&owner.uid)?,
        uid: Uid::of(meta)?,
        version: version(meta),
        role: roles.shared(role),
        index,
    })
}

/// Returns the controller owner reference, if any.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references
        .as_ref()?
        .iter()
        .find(|o| o.controller == Some(true))
}

/// Returns the resource version as a number, so that states can be ordered. Source: since Kubernetes 1.35 it is specified to be
/// one; earlier servers have always used one. Otherwise 0, older than all.
pub fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version
        .as_deref()
        .and_then(|v| v.parse().ok())
        .unwrap_or(0)
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const OWNER_KIND: OwnerKind = OwnerKind {
        group: "kubeflow.org",
        kind: "PyTorchJob",
        container: "pytorch",
        controller: "pytorchjob-controller",
        also: &[],
    };

    fn pod(change: impl FnOnce(&mut Value)) -> Option<Owned<PodView>> {
        let mut value = json!({
            "metadata": {
                "name": "pt-worker-1", "namespace": "ns", "uid": "0b9f3c1e-00aa-4bcd-8eff-000012345678",
                "resourceVersion": "42",
                "labels": {
                    "training.kubeflow.org/job-name": "pt", "training.kubeflow.org/replica-type": "worker",
                    "training.kubeflow.org/replica-index": "1"
                },
                "annotations": {"trainyard.dev/attempt": "1.2", "other": "x"},
                "managedFields": [{"fieldsV1": {"f:a": {}}}],
                "ownerReferences": [{
                    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "pt", "controller": true,
                    "uid": "11111111-00aa-4bcd-8eff-000012345678"
                }]
            },
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        });
        change(&mut value);
        let slim: SlimPod = serde_json::from_value(value).unwrap();
        pod_view(&slim, OWNER_KIND, &mut Roles::default())
    }

    #[test]
    fn a_pod_of_a_job_is_recognised_with_its_attempt() {
        let owned = pod(|_| ()).unwrap();
        assert_eq!(owned.key, JobKey::new("ns", "pt"));
        let view = owned.view;
        assert_eq!(
            (view.index, view.version, view.attempt),
            (
                1,
                42,
                Attempt {
                    gang: 1,
                    replica: 2
                }
            )
        );
        assert!(view.ready && !view.terminating && view.trouble.is_none());
    }

    #[test]
    fn a_pod_without_an_index_is_the_jobs_own_by_its_name_and_owner() {
        let bare = |change: fn(&mut Value)| {
            let mut value = json!({
                "metadata": {
                    "name": "a-b-launcher", "namespace": "ns", "uid": "0b9f3c1e-00aa-4bcd-8eff-000012345678",
                    "labels": {
                        "training.kubeflow.org/job-name": "a-b", "training.kubeflow.org/replica-type": "launcher",
                        "training.kubeflow.org/job-role": "master"
                    },
                    "ownerReferences": [{
                        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "a-b", "controller": true,
                        "uid": "11111111-00aa-4bcd-8eff-000012345678"
                    }]
                },
                "status": {"phase": "Running"}
            });
            change(&mut value);
            let slim: SlimPod = serde_json::from_value(value).unwrap();
            assert!(pod_view(&slim, OWNER_KIND, &mut Roles::default()).is_none());
            batch_pod_view(&slim, OWNER_KIND, &mut Roles::default())
        };
        let owned = bare(|_| ()).unwrap();
        assert_eq!(owned.key, JobKey::new("ns", "a-b"));
        assert_eq!(owned.view.batch, owned.owner);
        assert_eq!(&*owned.view.name, "a-b-launcher");
        for change in [
            (|p| p["metadata"]["name"] = json!("a-b-launcher-x")) as fn(&mut Value),
            |p| p["metadata"]["name"] = json!("a-launcher"),
            |p| p["metadata"]["labels"]["training.kubeflow.org/job-name"] = json!("a"),
            |p| p["metadata"]["ownerReferences"][0]["controller"] = json!(false),
            |p| p["metadata"]["ownerReferences"][0]["kind"] = json!("TFJob"),
        ] {
            assert!(bare(change).is_none());
        }
    }

    #[test]
    fn mt_53_a_pod_that_no_job_controller_named_is_a_forged_launcher() {
        let long = "a".repeat(60);
        for (name, job, ours) in [
            ("pi-launcher-x7k2p", "pi-launcher", true),
            ("pi-launcher-00012", "pi-launcher", true),
            ("pi-launcher", "pi-launcher", false),
            ("pi-launcher-", "pi-launcher", false),
            ("pi-launcher-x7k2", "pi-launcher", false),
            ("pi-launcher-x7k2p0", "pi-launcher", false),
            ("pi-launcher-x-k2p", "pi-launcher", false),
            ("other-x7k2p", "pi-launcher", false),
            (&format!("{}x7k2p", &long[..58]), &long, true),
            (&format!("{long}-x7k2p"), &long, false),
        ] {
            let value = json!({
                "metadata": {
                    "name": name, "namespace": "ns", "uid": "0b9f3c1e-00aa-4bcd-8eff-000012345678",
                    "labels": {
                        "training.kubeflow.org/job-name": "pi", "training.kubeflow.org/job-role": "launcher"
                    },
                    "ownerReferences": [{
                        "apiVersion": "batch/v1", "kind": "Job", "name": job, "controller": true,
                        "uid": "11111111-00aa-4bcd-8eff-000012345678"
                    }]
                }
            });
            let slim: SlimPod = serde_json::from_value(value).unwrap();
            let owned = batch_pod_view(&slim, OWNER_KIND, &mut Roles::default()).unwrap();
            assert_eq!(owned.view.forged, !ours, "{name} of {job}");
        }
    }

    #[test]
    fn the_schedulers_name_is_kept_of_pods_whose_scheduler_may_have_any() {
        let named = |label: &str| {
            let view = pod(|p| {
                p["metadata"]["labels"][label] = json!("pt");
                p["spec"]["schedulerName"] = json!("mine");
            });
            let name = view.unwrap().view.scheduler;
            name.map(|name| name.to_string())
        };
        assert_eq!(named(labels::PLUGINS_GROUP).as_deref(), Some("mine"));
        assert_eq!(named("other"), None);
    }

    #[test]
    fn b_043_mt_53_labels_or_a_name_alone_do_not_make_a_pod_ours() {
        assert!(pod(|p| p["metadata"]["name"] = json!("other-worker-1")).is_none());
        assert!(
            pod(|p| p["metadata"]["labels"]["training.kubeflow.org/replica-index"] = json!("2"))
                .is_none()
        );
        assert!(
            pod(|p| p["metadata"]["ownerReferences"][0]["controller"] = json!(false)).is_none()
        );
        assert!(pod(|p| p["metadata"]["ownerReferences"][0]["kind"] = json!("TFJob")).is_none());
        assert!(pod(|p| p["metadata"]["ownerReferences"] = json!([])).is_none());
        assert!(pod(|p| p["metadata"]["uid"] = json!("x")).is_none());
    }

    #[test]
    fn b_126_a_failed_pod_says_the_exit_code_of_the_main_container_and_its_last_words() {
        let view = pod(|p| {
            p["status"] = json!({"phase": "Failed", "containerStatuses": [
                {"name": "side", "restartCount": 1, "state": {"terminated": {"exitCode": 0}}},
                {"name": "pytorch", "restartCount": 2, "state": {"terminated":
                    {"exitCode": 137, "reason": "OOMKilled", "message": "a\u{1b}[31mb\n"}}}
            ]});
        })
        .unwrap()
        .view;
        assert_eq!((view.exit_code, view.restarts), (Some(137), 3));
        let trouble = view.trouble.unwrap();
        assert_eq!(
            (trouble.reason.as_str(), trouble.message.as_str()),
            ("OOMKilled", "a [31mb")
        );
    }

    #[test]
    fn f_60_an_eviction_by_the_kubelet_is_no_disruption_but_one_by_others_is() {
        for (reason, of_pod, disrupted) in [
            ("TerminationByKubelet", "Evicted", false),
            ("TerminationByKubelet", "Terminated", true),
            ("TerminationByKubelet", "Preempting", true),
            ("EvictionByEvictionAPI", "", true),
            ("PreemptionByScheduler", "", true),
        ] {
            let target = json!([{"type": "DisruptionTarget", "status": "True", "reason": reason}]);
            let status = json!({"phase": "Failed", "reason": of_pod, "conditions": target});
            let view = pod(|p| p["status"] = status).unwrap().view;
            assert_eq!(view.disrupted, disrupted, "{reason} {of_pod}");
        }
    }

    #[test]
    fn f_65_odd_statuses_have_a_defined_reading() {
        for status in [
            json!({"phase": "Failed"}),
            json!({"phase": "Succeeded", "containerStatuses": null}),
            json!({"phase": "Weird", "containerStatuses": [{"name": "pytorch", "restartCount": -5}]}),
            json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
            json!({}),
        ] {
            let view = pod(|p| p["status"] = status.clone()).unwrap().view;
            assert_eq!(view.exit_code, None, "{status}");
            assert_eq!(view.restarts, 0, "{status}");
        }
    }
}
