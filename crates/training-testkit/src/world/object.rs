//! The further objects of the job in the world, and what the controller of `batch/v1` Jobs does with one.

use kube::Resource;
use serde_json::{Value, json};
use training_core::{
    Attempt, BatchEnd, BatchPod, BatchView, Framework, Mark, Object, ObjectKind, ObjectView,
    PodPhase, PodView, Step, Uid,
};

use super::World;
use super::execute::Interruption;

/// Which object: its kind and name.
pub(super) type Place = (ObjectKind, String);

impl<F: Framework> World<F> {
    /// The stored objects as `Kind name`.
    pub fn object_names(&self) -> Vec<String> {
        let places = self.objects.keys();
        let watched = places.map(|(kind, name)| format!("{} {name}", kind.as_str()));
        let secrets = self.secrets.iter().map(|name| format!("Secret {name}"));
        watched.chain(secrets).collect()
    }

    /// A stored object as JSON.
    pub fn object(&self, kind: ObjectKind, name: &str) -> Option<Value> {
        let (_, object) = self.objects.get(&(kind, name.to_owned()))?;
        Some(match object {
            Object::Service(o) => json!(o),
            Object::ConfigMap(o) => json!(o),
            Object::Job(o) => json!(o),
            Object::Secret(o) => json!(o),
        })
    }

    /// Somebody else has a Secret of this name.
    pub fn take_secret_name(&mut self, name: &str) {
        self.secrets.insert(name.to_owned());
    }

    /// True if the object is made; a name that is taken is a conflict, and changes nothing.
    pub(super) fn make_object(&mut self, object: Object) -> bool {
        let name = object.name();
        let Some(kind) = object.watched() else {
            let new = self.job.is_some() && self.secrets.insert(name.clone());
            if new {
                self.writes.push(format!("create Secret {name}"));
            }
            return new;
        };
        let place = (kind, name);
        if self.job.is_none() || self.objects.contains_key(&place) {
            return false;
        }
        self.law_of_owner(&object);
        let version = self.next_version();
        self.writes
            .push(format!("create {} {}", kind.as_str(), place.1));
        if let Some(view) = ObjectView::made(&object, Uid(u128::from(version)), version) {
            self.objects.insert(place, (view, object));
        }
        true
    }

    fn law_of_owner(&mut self, object: &Object) {
        let uid = self.job.as_ref().and_then(|j| j.meta().uid.clone());
        let owners = object
            .meta()
            .owner_references
            .as_deref()
            .unwrap_or_default();
        if !matches!(owners, [o] if Some(&o.uid) == uid.as_ref() && o.controller == Some(true)) {
            let breach = format!("{} is not the job's: {owners:?}", object.name());
            self.breaches.push(breach);
        }
    }

    /// A call about an object that is there. True if it changed something.
    pub(super) fn call_object(&mut self, step: Step) -> Result<bool, Interruption> {
        match step {
            Step::ChangeObject {
                kind,
                name,
                subresource,
                patch,
            } => {
                let place = (kind, name);
                let names = &patch["metadata"];
                let meant = |view: &ObjectView| {
                    names["uid"] == json!(view.uid.to_string())
                        && names["resourceVersion"] == json!(view.version.to_string())
                };
                let Some((view, object)) = self.objects.get(&place).filter(|(v, _)| meant(v))
                else {
                    return Err(Interruption::Conflict);
                };
                let (mut view, mut object) = (view.clone(), object.clone());
                view.version = self.next_version();
                if let (Some("status"), Some(batch)) = (subresource, view.batch.as_mut()) {
                    batch.started = !patch["status"]["startTime"].is_null();
                } else {
                    object = patched(&object, &patch);
                    if let Some(fresh) = ObjectView::made(&object, view.uid, view.version) {
                        (view.digest, view.keys) = (fresh.digest, fresh.keys);
                        if let (Some(now), Some(fresh)) = (view.batch.as_mut(), fresh.batch) {
                            now.suspended = fresh.suspended;
                        }
                    }
                }
                self.writes
                    .push(format!("change {} {}", kind.as_str(), place.1));
                self.objects.insert(place, (view, object));
                Ok(true)
            }
            Step::DeleteObject { kind, name, uid } => {
                let place = (kind, name);
                if self.objects.get(&place).is_none_or(|(v, _)| v.uid != uid) {
                    return Ok(false);
                }
                self.writes
                    .push(format!("delete {} {}", kind.as_str(), place.1));
                self.objects.remove(&place);
                self.batch_pods.retain(|_, pod| pod.batch != uid);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    pub(super) fn drop_objects(&mut self) {
        self.objects.clear();
        self.batch_pods.clear();
        self.secrets.clear();
    }

    /// Somebody deletes an object.
    pub fn lose_object(&mut self, kind: ObjectKind, name: &str) {
        if let Some(uid) = self.take_object(kind, name) {
            self.batch_pods.retain(|_, pod| pod.batch != uid);
        }
    }

    /// Somebody deletes a Job, whose pods take their time to end.
    pub fn lose_batch(&mut self, name: &str) {
        let Some(uid) = self.take_object(ObjectKind::Job, name) else {
            return;
        };
        for pod in self.batch_pods.values_mut().filter(|p| p.batch == uid) {
            pod.pod.leaving = true;
        }
    }

    fn take_object(&mut self, kind: ObjectKind, name: &str) -> Option<Uid> {
        let (view, _) = self.objects.remove(&(kind, name.to_owned()))?;
        self.gone.push(view.uid);
        Some(view.uid)
    }

    /// The controller of Jobs looks at one: one that is not suspended gets a pod, and one that is loses it.
    pub fn batch_moves(&mut self, name: &str) {
        let version = self.next_version();
        let Some((view, _)) = self.objects.get_mut(&(ObjectKind::Job, name.to_owned())) else {
            return;
        };
        let (uid, Some(batch)) = (view.uid, view.batch.as_mut()) else {
            return;
        };
        if batch.end.is_some() {
            return;
        }
        if batch.suspended {
            self.batch_pods.retain(|_, pod| pod.batch != uid);
            return;
        }
        (batch.started, view.version) = (true, version);
        let lives = |p: &BatchPod| p.batch == uid && !p.pod.phase.has_ended();
        if !self.batch_pods.values().any(lives) {
            let pod_name = format!("{name}-{version:05}");
            let pod = new_pod(&pod_name, uid, version);
            self.batch_pods.insert(pod_name, pod);
        }
    }

    /// The pods of suspended Jobs that have not ended are gone; the others stay with their Job.
    pub fn lose_living_batch_pods(&mut self) {
        let ended = |p: &BatchPod| p.pod.phase.has_ended();
        self.batch_pods.retain(|_, pod| ended(pod));
    }

    /// Changes the living pod of a Job as its kubelet does.
    pub fn change_batch_pod(&mut self, change: impl FnOnce(&mut PodView)) {
        let version = self.next_version();
        let mut pods = self.batch_pods.values_mut();
        if let Some(pod) = pods.find(|p| !p.pod.phase.has_ended()) {
            change(&mut pod.pod);
            pod.pod.version = version;
        }
    }

    /// An init container of the living pod of a Job ends well, and leaves this to be told.
    pub fn batch_pod_says(&mut self, said: &str) {
        let mut pods = self.batch_pods.values_mut();
        if let Some(pod) = pods.find(|p| p.pod.phase == PodPhase::Running) {
            pod.said = Some(said.into());
        }
    }

    /// Changes how far a Job has come, as its controller does.
    pub fn change_batch(&mut self, name: &str, change: impl FnOnce(&mut BatchView)) {
        let version = self.next_version();
        if let Some((view, _)) = self.objects.get_mut(&(ObjectKind::Job, name.to_owned()))
            && let Some(batch) = view.batch.as_mut()
        {
            change(batch);
            view.version = version;
        }
    }

    /// A Job ends well, now.
    pub fn complete_batch(&mut self, name: &str) {
        self.change_batch_pod(|p| p.phase = PodPhase::Succeeded);
        let at = Some(self.now);
        self.change_batch(name, |b| b.end = Some(BatchEnd::Complete { at }));
    }
}

fn patched(object: &Object, patch: &Value) -> Object {
    fn apply<K: serde::Serialize + serde::de::DeserializeOwned + Clone>(
        of: &K,
        patch: &Value,
    ) -> K {
        let mut patch = patch.clone();
        if let Some(fields) = patch.as_object_mut() {
            fields.remove("metadata");
        }
        let whole = serde_json::to_value(of).unwrap_or_default();
        let whole = training_core::patch::apply(&whole, &patch);
        serde_json::from_value(whole).unwrap_or_else(|_| of.clone())
    }
    match object {
        Object::Service(o) => Object::Service(Box::new(apply(&**o, patch))),
        Object::ConfigMap(o) => Object::ConfigMap(apply(o, patch)),
        Object::Job(o) => Object::Job(Box::new(apply(&**o, patch))),
        Object::Secret(o) => Object::Secret(apply(o, patch)),
    }
}

fn new_pod(name: &str, batch: Uid, version: u64) -> BatchPod {
    BatchPod {
        name: name.into(),
        batch,
        said: None,
        pod: PodView {
            uid: Uid(u128::from(version)),
            version,
            role: "launcher".into(),
            index: 0,
            attempt: Attempt::default(),
            phase: PodPhase::Pending,
            ready: false,
            leaving: false,
            mark: Mark::None,
            scheduler: None,
            disrupted: false,
            exit_code: None,
            restarts: 0,
            starting: None,
            trouble: None,
        },
    }
}
