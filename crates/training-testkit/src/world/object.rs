//! The job's other objects in the world, and the controller of `batch/v1` Jobs.

use kube::Resource;
use serde_json::{Value, json};
use training_core::{
    BatchEnd, BatchPod, BatchView, Deletion, Lifecycle, Object, ObjectKind, ObjectView, PodPhase,
    PodView, Step, TrainingJob, Uid,
};

use super::execute::Interruption;
use super::{JOB, World};

/// An object's kind and name.
pub(super) type Place = (ObjectKind, String);

impl<F: Lifecycle> World<F> {
    /// The stored objects as `Kind name`.
    pub fn object_names(&self) -> Vec<String> {
        let places = self.objects.keys();
        let watched = places.map(|(kind, name)| format!("{} {name}", kind.as_str()));
        let secrets = self.secrets.keys().map(|name| format!("Secret {name}"));
        watched.chain(secrets).collect()
    }

    /// A stored object as JSON.
    pub fn object(&self, kind: ObjectKind, name: &str) -> Option<Value> {
        let (_, object) = self.objects.get(&(kind, name.to_owned()))?;
        Some(json!(object))
    }

    /// Gives the name of a Secret to another owner.
    pub fn take_secret_name(&mut self, name: &str) {
        self.secrets.insert(name.to_owned(), false);
    }

    /// Creates the Secret and returns true, unless the name is taken: whoever has it, it is never read.
    pub(super) fn make_secret(&mut self, secret: &Object, name: String) -> bool {
        let new = self.job.is_some() && !self.secrets.contains_key(&name);
        if new {
            self.law_of_owner(secret);
            self.writes.push(format!("create Secret {name}"));
            self.secrets.insert(name, true);
        }
        new
    }

    /// Creates an object, unless the job already has it.
    pub(super) fn make_object(&mut self, place: &Place, object: Object) {
        if self.job.is_none() || self.objects.contains_key(place) {
            return;
        }
        self.law_of_new_further_object(&object);
        let version = self.next_version();
        self.writes
            .push(format!("create {} {}", place.0.as_str(), place.1));
        if let Some(view) = ObjectView::made(&object, Uid(u128::from(version)), version) {
            self.store_object(place.clone(), view, object);
        }
    }

    fn store_object(&mut self, place: Place, view: ObjectView, object: Object) {
        self.view.objects.send(place.clone(), Ok(view.clone()));
        self.objects.insert(place, (view, object));
    }

    fn store_batch_pod(&mut self, pod: BatchPod) {
        let name = pod.name.to_string();
        self.view.batch_pods.send(name.clone(), Ok(pod.clone()));
        self.batch_pods.insert(name, pod);
    }

    /// Adds a running pod that the job owns but whose name is no replica's: another operator created it.
    pub fn put_own_pod(&mut self, name: &str) {
        let version = self.next_version();
        let mut pod = new_pod(name, JOB, version);
        (pod.pod.phase, pod.pod.ready) = (PodPhase::Running, true);
        self.store_batch_pod(pod);
    }

    /// The pods that are not replicas, by name.
    pub fn batch_pods(&self) -> impl Iterator<Item = (&str, &PodView)> {
        self.batch_pods.values().map(|p| (&*p.name, &p.pod))
    }

    /// Deletes such a pod. Returns true if it existed.
    pub(super) fn delete_batch_pod(&mut self, name: &str, uid: Uid, how: Deletion) -> bool {
        let found = self.batch_pods.get(name).filter(|p| p.pod.uid == uid);
        let Some(mut pod) = found.cloned() else {
            return false;
        };
        self.writes.push(format!("delete pod {name}"));
        // The Job controller's finalizer keeps a pod until it has ended.
        let held = how == Deletion::Forced && pod.batch != JOB && !pod.pod.phase.has_ended();
        if how != Deletion::Graceful && !held {
            return self.drop_batch_pods(|p| p.pod.uid == uid);
        }
        if held && let Some(trouble) = pod.pod.trouble.as_deref_mut() {
            trouble.forced = true;
        }
        (pod.pod.terminating, pod.pod.version) = (true, self.next_version());
        self.store_batch_pod(pod);
        true
    }

    /// Deletes such a pod as a user, immediately.
    pub fn delete_own_pod(&mut self, name: &str) {
        self.drop_batch_pods(|pod| *pod.name == *name);
    }

    /// Deletes all Secrets as a user.
    pub fn lose_secrets(&mut self) {
        self.secrets.clear();
    }

    /// Removes terminating pods that are not replicas.
    pub fn let_batch_pods_go(&mut self) {
        self.drop_batch_pods(|pod| pod.pod.terminating);
    }

    /// Removes pods that are not replicas. Returns true if there were any.
    fn drop_batch_pods(&mut self, goes: impl Fn(&BatchPod) -> bool) -> bool {
        let going = self.batch_pods.values().filter(|pod| goes(pod));
        let going: Vec<(String, Uid)> = going.map(|p| (p.name.to_string(), p.pod.uid)).collect();
        for (name, uid) in &going {
            self.batch_pods.remove(name);
            self.view.batch_pods.send(name.clone(), Err(*uid));
        }
        !going.is_empty()
    }

    pub(super) fn law_of_owner(&mut self, object: &Object) {
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

    /// Executes a call about an existing object. Returns the object, if it existed.
    pub(super) fn call_object(&mut self, step: Step) -> Result<Option<Place>, Interruption> {
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
                            now.deadline = fresh.deadline;
                            now.backoff_limit = fresh.backoff_limit;
                        }
                    }
                }
                self.writes
                    .push(format!("change {} {}", kind.as_str(), place.1));
                self.store_object(place.clone(), view, object);
                Ok(Some(place))
            }
            Step::DeleteObject { kind, name, uid } => {
                let place = (kind, name);
                if self.objects.get(&place).is_none_or(|(v, _)| v.uid != uid) {
                    return Ok(None);
                }
                let batch = self.objects.get(&place).and_then(|(v, _)| v.batch.clone());
                let suspended = batch.is_some_and(|b| b.suspended);
                self.law_of_lost_object(kind, &place.1, uid, suspended);
                self.view.gone.push(uid);
                self.writes
                    .push(format!("delete {} {}", kind.as_str(), place.1));
                self.take_object(&place);
                self.drop_batch_pods(|pod| pod.batch == uid && pod.pod.phase.has_ended());
                self.terminate_batch_pods(uid);
                Ok(Some(place))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn has_object(&self, kind: &str, name: &str) -> bool {
        self.objects
            .keys()
            .any(|(k, n)| k.as_str() == kind && n == name)
    }

    /// Deletes one of the objects as a user; the pods of a Job go with it or terminate slowly.
    pub(super) fn lose(&mut self, pick: u8) {
        let places: Vec<Place> = self.objects.keys().cloned().collect();
        match places.get(usize::from(pick / 2) % places.len().max(1)) {
            Some((ObjectKind::Job, name)) if pick.is_multiple_of(2) => self.lose_batch(name),
            Some((kind, name)) => self.lose_object(*kind, name),
            None => {}
        }
    }

    fn batches(&self) -> Vec<String> {
        let jobs = self.objects.keys().filter(|(k, _)| *k == ObjectKind::Job);
        jobs.map(|(_, name)| name.clone()).collect()
    }

    /// Disturbs a Job: its controller reconciles it, its pod runs, fails and is retried, or the Job ends.
    pub(super) fn happen_to_batch(&mut self, what: u8) {
        let Some(name) = self.batches().pop() else {
            return;
        };
        let living = self.batch_pods.values().any(|p| !p.pod.phase.has_ended());
        match what % 8 {
            4 if living => {
                self.change_batch_pod(|p| p.phase = PodPhase::Failed);
                self.change_batch(&name, |b| b.failed += 1);
            }
            5 if living => self.complete_batch(&name),
            6 if living => {
                self.change_batch_pod(|p| p.phase = PodPhase::Failed);
                self.change_batch(&name, |b| {
                    b.failed += 1;
                    b.end = Some(BatchEnd::Failed {
                        reason: "BackoffLimitExceeded".to_owned(),
                        message: "too many failures".to_owned(),
                    });
                });
            }
            // A Job whose TTL expires goes with its pods.
            7 => self.lapse(&name),
            2 | 3 => self.change_batch_pod(|p| {
                p.phase = PodPhase::Running;
                p.ready = true;
            }),
            _ => drop(self.batch_moves(&name)),
        }
    }

    /// Removes an ended Job whose TTL has expired, if it has one.
    fn lapse(&mut self, name: &str) {
        let lives = |j: &F::Job| j.run_policy().ttl_seconds_after_finished.is_some();
        let batch = self.objects.get(&(ObjectKind::Job, name.to_owned()));
        let ended = batch.filter(|(v, _)| v.batch.as_ref().is_some_and(|b| b.end.is_some()));
        if let Some(uid) = ended.map(|(v, _)| v.uid)
            && self.job.as_ref().is_some_and(lives)
        {
            self.law_of_lapsed(uid);
            self.lose_object(ObjectKind::Job, name);
        }
    }

    /// Moves Job controllers and kubelets on. Returns true if something changed.
    pub(super) fn batches_move(&mut self, finish: bool) -> bool {
        let there: Vec<Uid> = self.objects.values().map(|(v, _)| v.uid).collect();
        let stays = |p: &BatchPod| p.batch == JOB || there.contains(&p.batch);
        let mut moved = self.drop_batch_pods(|p| p.pod.terminating || !stays(p));
        for name in self.batches() {
            moved |= self.batch_moves(&name);
            let mut pods = self.batch_pods.values();
            match pods.find(|p| !p.pod.phase.has_ended()).map(|p| p.pod.phase) {
                Some(PodPhase::Pending) => self.change_batch_pod(|p| {
                    p.phase = PodPhase::Running;
                    p.ready = true;
                }),
                Some(_) if finish => self.complete_batch(&name),
                Some(_) | None => continue,
            }
            moved = true;
        }
        moved
    }

    pub(super) fn drop_objects(&mut self) {
        let places: Vec<Place> = self.objects.keys().cloned().collect();
        for place in &places {
            self.take_object(place);
        }
        self.drop_batch_pods(|_| true);
        self.secrets.clear();
    }

    /// Deletes an object as a user.
    pub fn lose_object(&mut self, kind: ObjectKind, name: &str) {
        if let Some(uid) = self.take_object(&(kind, name.to_owned())) {
            self.drop_batch_pods(|pod| pod.batch == uid);
        }
    }

    /// Deletes a Job as a user; its pods terminate slowly.
    pub fn lose_batch(&mut self, name: &str) {
        let Some(uid) = self.take_object(&(ObjectKind::Job, name.to_owned())) else {
            return;
        };
        self.terminate_batch_pods(uid);
    }

    /// Deletes a Job that has ended, and its pods. The operator keeps its last state.
    pub fn lose_ended(&mut self, name: &str) {
        let place = (ObjectKind::Job, name.to_owned());
        let Some((mut view, _)) = self.objects.remove(&place) else {
            return;
        };
        (view.terminating, view.gone) = (true, true);
        view.version = self.next_version();
        let uid = view.uid;
        self.view.objects.send(place, Ok(view));
        self.drop_batch_pods(|pod| pod.batch == uid);
    }

    /// The garbage collector deletes the pods of a Job that is gone.
    fn terminate_batch_pods(&mut self, uid: Uid) {
        let going = self.batch_pods.values().filter(|p| p.batch == uid).cloned();
        let going: Vec<BatchPod> = going.collect();
        for mut pod in going {
            (pod.pod.terminating, pod.pod.version) = (true, self.next_version());
            self.store_batch_pod(pod);
        }
    }

    fn take_object(&mut self, place: &Place) -> Option<Uid> {
        let (view, _) = self.objects.remove(place)?;
        self.view.objects.send(place.clone(), Err(view.uid));
        Some(view.uid)
    }

    /// Reconciles a Job as its controller would: creates the pod unless the Job is suspended, and deletes it otherwise. Returns
    /// true if it changed something.
    pub fn batch_moves(&mut self, name: &str) -> bool {
        let place = (ObjectKind::Job, name.to_owned());
        let Some((view, object)) = self.objects.get(&place).cloned() else {
            return false;
        };
        let (uid, Some(batch)) = (view.uid, view.batch.as_deref()) else {
            return false;
        };
        let lives = |p: &BatchPod| p.batch == uid && !p.pod.phase.has_ended();
        if batch.end.is_some() {
            return false;
        }
        if batch.suspended {
            return self.drop_batch_pods(lives);
        }
        if !batch.started {
            let mut view = view.clone();
            view.version = self.next_version();
            view.batch.get_or_insert_default().started = true;
            self.store_object(place, view, object);
        }
        let alone = !self.batch_pods.values().any(lives);
        if alone {
            let version = self.next_version();
            let pod_name = format!("{name}-{version:05}");
            self.store_batch_pod(new_pod(&pod_name, uid, version));
        }
        alone
    }

    /// Removes the unfinished pods of Jobs; the others stay with their Job.
    pub fn lose_living_batch_pods(&mut self) {
        self.drop_batch_pods(|pod| !pod.pod.phase.has_ended());
    }

    /// Changes the unfinished pod of a Job as its kubelet would.
    pub fn change_batch_pod(&mut self, change: impl FnOnce(&mut PodView)) {
        let mut pods = self.batch_pods.values();
        if let Some(mut pod) = pods.find(|p| !p.pod.phase.has_ended()).cloned() {
            change(&mut pod.pod);
            pod.pod.version = self.next_version();
            self.store_batch_pod(pod);
        }
    }

    /// Makes an init container of a Job's unfinished pod succeed with this termination message.
    pub fn batch_pod_says(&mut self, said: &str) {
        let mut pods = self.batch_pods.values();
        if let Some(mut pod) = pods.find(|p| p.pod.phase == PodPhase::Running).cloned() {
            pod.said = Some(said.into());
            pod.pod.version = self.next_version();
            self.store_batch_pod(pod);
        }
    }

    /// Changes a Job's status as its controller would.
    pub fn change_batch(&mut self, name: &str, change: impl FnOnce(&mut BatchView)) {
        let place = (ObjectKind::Job, name.to_owned());
        if let Some((mut view, object)) = self.objects.get(&place).cloned()
            && let Some(batch) = view.batch.as_mut()
        {
            change(batch);
            view.version = self.next_version();
            self.store_object(place, view, object);
        }
    }

    /// Completes a Job now.
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
        forged: false,
        pod: PodView::new(Uid(u128::from(version)), version, "launcher".into(), 0),
    }
}
