//! What the operator knows of the world: three watches that lag, and its own writes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use training_core::gang::scheduler_of_pod;
use training_core::{
    Attempt, AutoscalerView, GroupKind, GroupView, Mark, PodPhase, PodView, ServiceView,
    TrainingJob, Uid, names,
};

/// The annotation that names a pod's attempt.
const ATTEMPT: &str = "trainyard.dev/attempt";

use crate::{JOB_ROLE, REPLICA_INDEX, REPLICA_TYPE};

/// News of one object: how it is now, or the uid of what is gone.
type News<T> = (String, Result<T, Uid>);

/// The operator's memory, and the news on their way to it.
#[derive(Debug)]
pub(super) struct View<J> {
    pub(super) job: Option<J>,
    pub(super) pods: BTreeMap<String, PodView>,
    pub(super) services: BTreeMap<String, ServiceView>,
    pub(super) autoscaler: Option<AutoscalerView>,
    pub(super) groups: BTreeMap<GroupKind, GroupView>,
    pub(super) job_news: VecDeque<Option<J>>,
    pub(super) pod_news: VecDeque<News<PodView>>,
    pub(super) service_news: VecDeque<News<ServiceView>>,
    pub(super) autoscaler_news: VecDeque<Result<AutoscalerView, Uid>>,
    pub(super) group_news: VecDeque<(GroupKind, Result<GroupView, Uid>)>,
}

impl<J> Default for View<J> {
    fn default() -> Self {
        Self {
            job: None,
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            autoscaler: None,
            groups: BTreeMap::new(),
            job_news: VecDeque::new(),
            pod_news: VecDeque::new(),
            service_news: VecDeque::new(),
            autoscaler_news: VecDeque::new(),
            group_news: VecDeque::new(),
        }
    }
}

fn version<J: TrainingJob>(job: &J) -> u64 {
    let version = job.meta().resource_version.as_deref();
    version.and_then(|v| v.parse().ok()).unwrap_or(0)
}

impl<J: TrainingJob> View<J> {
    pub(super) fn new(job: &J) -> Self {
        Self {
            job: Some(job.clone()),
            ..Self::default()
        }
    }

    pub(super) fn news_of_job(&mut self, job: Option<J>) {
        self.job_news.push_back(job);
    }

    pub(super) fn news_of_pod(&mut self, name: &str, news: Result<PodView, Uid>) {
        self.pod_news.push_back((name.to_owned(), news));
    }

    pub(super) fn news_of_service(&mut self, name: &str, news: Result<ServiceView, Uid>) {
        self.service_news.push_back((name.to_owned(), news));
    }

    /// Takes in all news of the job.
    pub(super) fn deliver_job(&mut self) {
        self.deliver_jobs(usize::MAX);
    }

    /// Takes in the oldest news of the job; what is older than an own write is no news.
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

    /// Takes in the oldest news of pods.
    pub(super) fn deliver_pods(&mut self, most: usize) {
        for _ in 0..most {
            let Some((name, news)) = self.pod_news.pop_front() else {
                return;
            };
            self.take_pod(name, news);
        }
    }

    fn take_pod(&mut self, name: String, news: Result<PodView, Uid>) {
        let known = self.pods.get(&name);
        match news {
            Ok(pod) if known.is_none_or(|k| k.version < pod.version) => {
                self.pods.insert(name, pod);
            }
            Err(uid) if known.is_some_and(|k| k.uid == uid) => {
                self.pods.remove(&name);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// Takes in the oldest news of services.
    pub(super) fn deliver_services(&mut self, most: usize) {
        for _ in 0..most {
            let Some((name, news)) = self.service_news.pop_front() else {
                return;
            };
            self.take_service(name, news);
        }
    }

    fn take_service(&mut self, name: String, news: Result<ServiceView, Uid>) {
        let known = self.services.get(&name);
        match news {
            Ok(service) if known.is_none_or(|k| k.version < service.version) => {
                self.services.insert(name, service);
            }
            Err(uid) if known.is_some_and(|k| k.uid == uid) => {
                self.services.remove(&name);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// Takes in the oldest news of the autoscaler.
    pub(super) fn deliver_autoscalers(&mut self, most: usize) {
        for _ in 0..most {
            let Some(news) = self.autoscaler_news.pop_front() else {
                return;
            };
            let known = self.autoscaler.as_ref();
            match news {
                Ok(now) if known.is_none_or(|k| k.version < now.version) => {
                    self.autoscaler = Some(now);
                }
                Err(uid) if known.is_some_and(|k| k.uid == uid) => self.autoscaler = None,
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Knows the newest of the autoscaler at once.
    pub(super) fn learn_autoscaler(&mut self) {
        if let Some(news) = self.autoscaler_news.back() {
            self.autoscaler = news.clone().ok();
        }
    }

    /// Takes in the oldest news of groups.
    pub(super) fn deliver_groups(&mut self, most: usize) {
        for _ in 0..most {
            let Some((kind, news)) = self.group_news.pop_front() else {
                return;
            };
            let known = self.groups.get(&kind);
            match news {
                Ok(now) if known.is_none_or(|k| k.version < now.version) => {
                    self.groups.insert(kind, now);
                }
                Err(uid) if known.is_some_and(|k| k.uid == uid) => {
                    self.groups.remove(&kind);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Takes in all news.
    pub(super) fn deliver_all(&mut self) {
        self.deliver_job();
        self.deliver_pods(usize::MAX);
        self.deliver_services(usize::MAX);
        self.deliver_autoscalers(usize::MAX);
        self.deliver_groups(usize::MAX);
    }

    /// Knows the newest of one pod at once, from the answer to an own write.
    pub(super) fn learn_pod(&mut self, name: &str) {
        let newest = self.pod_news.iter().rev().find(|(n, _)| n == name);
        if let Some((name, news)) = newest.cloned() {
            self.take_own(name, news);
        }
    }

    /// An own write is known whatever was known before: its news are always the newest.
    fn take_own(&mut self, name: String, news: Result<PodView, Uid>) {
        match news {
            Ok(pod) => {
                self.pods.insert(name, pod);
            }
            Err(_) => {
                self.pods.remove(&name);
            }
        }
    }

    /// Knows the newest of one service at once.
    pub(super) fn learn_service(&mut self, name: &str) {
        let newest = self.service_news.iter().rev().find(|(n, _)| n == name);
        if let Some((name, news)) = newest.cloned() {
            match news {
                Ok(service) => {
                    self.services.insert(name, service);
                }
                Err(_) => {
                    self.services.remove(&name);
                }
            }
        }
    }
}

/// The role and the index that an object's labels say; a kind without types of replicas says the index in the name.
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

/// How a pod looks right after its creation.
pub(super) fn of_new_pod(pod: &Pod, version: u64) -> PodView {
    let (role, index) = place(&pod.metadata);
    let attempt = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(ATTEMPT));
    PodView {
        uid: Uid(u128::from(version)),
        version,
        role,
        index,
        attempt: Attempt::parse(attempt.map(String::as_str)),
        phase: PodPhase::Pending,
        ready: false,
        leaving: false,
        mark: Mark::of(pod),
        scheduler: scheduler_of_pod(pod),
        disrupted: false,
        exit_code: None,
        restarts: 0,
        starting: None,
        trouble: None,
    }
}

/// How a service looks right after its creation.
pub(super) fn of_new_service(service: &Service, version: u64) -> ServiceView {
    let (role, index) = place(&service.metadata);
    ServiceView {
        uid: Uid(u128::from(version)),
        version,
        role,
        index,
        leaving: false,
    }
}
