//! The operator's caches of the world: lagging watches, and its own writes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use training_core::scheduler_of_pod;
use training_core::{
    Attempt, AutoscalerView, BatchPod, GroupKind, GroupView, Mark, ObjectView, PodView,
    ServiceView, TrainingJob, Uid, names,
};

use super::feed::Feed;
use super::object::Place;

/// The annotation with a pod's attempt.
const ATTEMPT: &str = "trainyard.dev/attempt";

use crate::{JOB_ROLE, REPLICA_INDEX, REPLICA_TYPE};

/// The operator's caches, and the events in flight to them.
#[derive(Clone, Debug)]
pub(super) struct View<J> {
    pub(super) job: Option<J>,
    pub(super) job_news: VecDeque<Option<J>>,
    pub(super) pods: Feed<String, PodView>,
    pub(super) services: Feed<String, ServiceView>,
    pub(super) autoscaler: Feed<(), AutoscalerView>,
    pub(super) groups: Feed<GroupKind, GroupView>,
    pub(super) objects: Feed<Place, ObjectView>,
    pub(super) batch_pods: Feed<String, BatchPod>,
    /// Uids of objects that the operator saw deleted before they had ended.
    pub(super) gone: Vec<Uid>,
}

/// The API server's objects, as returned by lists.
pub(super) struct Listed<J> {
    pub(super) job: Option<J>,
    pub(super) pods: BTreeMap<String, PodView>,
    pub(super) services: BTreeMap<String, ServiceView>,
    pub(super) autoscaler: Option<AutoscalerView>,
    pub(super) groups: BTreeMap<GroupKind, GroupView>,
    pub(super) objects: BTreeMap<Place, ObjectView>,
    pub(super) batch_pods: BTreeMap<String, BatchPod>,
}

fn version<J: TrainingJob>(job: &J) -> u64 {
    let version = job.meta().resource_version.as_deref();
    version.and_then(|v| v.parse().ok()).unwrap_or(0)
}

impl<J: TrainingJob> View<J> {
    pub(super) fn new(job: Option<J>) -> Self {
        Self {
            job,
            job_news: VecDeque::new(),
            pods: Feed::default(),
            services: Feed::default(),
            autoscaler: Feed::default(),
            groups: Feed::default(),
            objects: Feed::default(),
            batch_pods: Feed::default(),
            gone: Vec::new(),
        }
    }

    pub(super) fn news_of_job(&mut self, job: Option<J>) {
        self.job_news.push_back(job);
    }

    /// Delivers all events of the job.
    pub(super) fn deliver_job(&mut self) {
        self.deliver_jobs(usize::MAX);
    }

    /// Delivers the oldest events of the job; skips those older than an own write.
    pub(super) fn deliver_jobs(&mut self, most: usize) {
        for _ in 0..most {
            match self.job_news.pop_front() {
                Some(Some(news)) => {
                    if self
                        .job
                        .as_ref()
                        .is_some_and(|j| version(j) < version(&news))
                    {
                        self.job = Some(news);
                    }
                }
                Some(None) => self.job = None,
                None => return,
            }
        }
    }

    /// Delivers the oldest events of the job's other objects.
    pub(super) fn deliver_objects(&mut self, most: usize) {
        let removed = self.objects.deliver(most);
        self.saw_to_go(&removed);
    }

    /// Records removed objects as gone, except Jobs that had ended.
    fn saw_to_go(&mut self, removed: &[ObjectView]) {
        let ended = |v: &&ObjectView| v.batch.as_ref().is_some_and(|b| b.end.is_some());
        let gone = removed.iter().filter(|v| !ended(v));
        self.gone.extend(gone.map(|v| v.uid));
    }

    /// Delivers all events.
    pub(super) fn deliver_all(&mut self) {
        self.deliver_job();
        self.pods.deliver(usize::MAX);
        self.services.deliver(usize::MAX);
        self.autoscaler.deliver(usize::MAX);
        self.groups.deliver(usize::MAX);
        self.deliver_objects(usize::MAX);
        self.batch_pods.deliver(usize::MAX);
    }

    /// Disturbs a watch: repeats or drops the oldest event, or restarts the watch with a list.
    pub(super) fn trouble(&mut self, what: u8, now: Listed<J>) {
        match (what % 3, what / 3 % 5) {
            (0, 0) => drop(self.pods.repeat()),
            (0, 1) => drop(self.services.repeat()),
            (0, 2) => {
                let removed = self.objects.repeat();
                self.saw_to_go(removed.as_slice());
            }
            (0, 3) => drop(self.batch_pods.repeat()),
            (0, _) => drop(self.groups.repeat()),
            (1, 0) => self.pods.lose(),
            (1, 1) => self.services.lose(),
            (1, 2) => self.groups.lose(),
            // Without a list a watch loses no events of objects whose end matters.
            _ => self.list(now),
        }
    }

    /// Everything but the jobs.
    pub(super) fn words(&self) -> impl std::fmt::Debug {
        (
            (&self.pods, &self.services, &self.autoscaler, &self.groups),
            (&self.objects, &self.batch_pods, &self.gone),
        )
    }

    /// Restarts every watch with a list.
    pub(super) fn list(&mut self, now: Listed<J>) {
        self.job = now.job;
        self.job_news.clear();
        self.pods.list(now.pods);
        self.services.list(now.services);
        let autoscaler = now.autoscaler.map(|a| ((), a));
        self.autoscaler.list(autoscaler.into_iter().collect());
        self.groups.list(now.groups);
        self.objects.list(now.objects);
        self.batch_pods.list(now.batch_pods);
    }
}

/// The role and index in an object's labels; a kind without replica types has the index in the name.
pub(super) fn place(meta: &ObjectMeta) -> (Arc<str>, u32) {
    let labels = meta.labels.as_ref();
    let label = |key: &str| labels.and_then(|l| l.get(key)).map(String::as_str);
    let (role, index) = match label(REPLICA_TYPE) {
        Some(role) => (role, label(REPLICA_INDEX).and_then(|i| i.parse().ok())),
        None => (
            label(JOB_ROLE).unwrap_or_default(),
            meta.name.as_deref().and_then(names::index),
        ),
    };
    (role.into(), index.unwrap_or(u32::MAX))
}

/// A pod right after its creation.
pub(super) fn of_new_pod(pod: &Pod, version: u64) -> PodView {
    let (role, index) = place(&pod.metadata);
    let attempt = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(ATTEMPT));
    PodView {
        attempt: Attempt::parse(attempt.map(String::as_str)),
        mark: Mark::of(pod),
        scheduler: scheduler_of_pod(pod),
        ..PodView::new(Uid(u128::from(version)), version, role, index)
    }
}

/// A service right after its creation.
pub(super) fn of_new_service(service: &Service, version: u64) -> ServiceView {
    let (role, index) = place(&service.metadata);
    ServiceView {
        uid: Uid(u128::from(version)),
        version,
        role,
        index,
        terminating: false,
    }
}
