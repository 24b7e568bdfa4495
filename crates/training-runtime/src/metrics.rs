//! All metrics of the process, in one struct.
//!
//! Labels are bounded sets; no series carries a job's name. The five published counters carry the namespace, and their series end with
//! the namespace's last job.

mod jobs;
mod process;
mod watches;

use std::collections::BTreeSet;
use std::time::Duration;

use jobs::JobMetrics;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use training_core::Progress;
use training_core::reasons::FailureReason;

pub use jobs::KindPhases;
pub use watches::{Wanted, WatchTimes};

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of the reconcile histogram, in seconds: a reconcile without writes takes well under a millisecond, and none may take
/// longer than a minute.
const RECONCILE_BUCKETS: [f64; 12] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0,
];

/// The transitions of a job in the published counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Seen for the first time.
    Created,
    /// Deleted.
    Deleted,
    /// Succeeded.
    Successful,
    /// Failed.
    Failed,
    /// A replica was replaced.
    Restarted,
}

/// The outcome of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOutcome {
    /// Written as a new event.
    Posted,
    /// Incremented the count of an existing event.
    Repeated,
    /// Summed up with others of its job.
    Folded,
    /// Rejected by the API server, or the request failed.
    Failed,
    /// The queue was full.
    Overflowed,
    /// This process no longer led.
    NotLeading,
}

impl EventOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Posted => "posted",
            Self::Repeated => "repeated",
            Self::Folded => "folded",
            Self::Failed => "failed",
            Self::Overflowed => "overflowed",
            Self::NotLeading => "not_leading",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabels {
    job_namespace: String,
    framework: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    resource: String,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Index {
    index: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobInfo {
    launcher: String,
    namespace: String,
}

/// All metrics of one operator process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    framework: &'static str,
    jobs: Jobs,
    own: Option<PublishedMetrics>,
    reconciles: Family<Outcome, Counter>,
    reconcile_seconds: Histogram,
    requests: Family<Request, Counter>,
    resources: Mutex<BTreeSet<String>>,
    queue_depth: Gauge,
    index_objects: Family<Index, Gauge>,
    leader: Gauge,
    panics: Counter,
    events: Family<Outcome, Counter>,
    watches: WatchTimes,
    progress: JobMetrics,
}

/// Metrics of one published operator, in addition to the common ones or instead of them.
#[derive(Debug, Default)]
struct PublishedMetrics {
    created: Counter,
    successful: Counter,
    failed: Counter,
    info: Family<JobInfo, Gauge>,
}

#[derive(Debug, Default)]
struct Jobs {
    created: Family<JobLabels, Counter>,
    deleted: Family<JobLabels, Counter>,
    successful: Family<JobLabels, Counter>,
    failed: Family<JobLabels, Counter>,
    restarted: Family<JobLabels, Counter>,
}

impl Metrics {
    /// Creates the metrics of a framework, such as `pytorch`.
    pub fn new(framework: &'static str) -> Self {
        let mut metrics = Self::process();
        metrics.framework = framework;
        let (r, jobs) = (&mut metrics.registry, &metrics.jobs);
        for (name, help, family) in [
            ("created", "Jobs seen for the first time", &jobs.created),
            ("deleted", "Jobs deleted", &jobs.deleted),
            ("successful", "Jobs that succeeded", &jobs.successful),
            ("failed", "Jobs that failed", &jobs.failed),
            (
                "restarted",
                "Replicas of jobs that were replaced",
                &jobs.restarted,
            ),
        ] {
            r.register(
                format!("training_operator_jobs_{name}"),
                help,
                family.clone(),
            );
        }
        metrics
    }

    /// Creates the metrics of any operator's process.
    pub fn process() -> Self {
        let mut registry = Registry::default();
        let metrics = Self {
            progress: JobMetrics::new(&mut registry),
            registry,
            framework: "",
            jobs: Jobs::default(),
            own: None,
            reconciles: Family::default(),
            reconcile_seconds: Histogram::new(RECONCILE_BUCKETS),
            requests: Family::default(),
            resources: Mutex::default(),
            queue_depth: Gauge::default(),
            index_objects: Family::default(),
            leader: Gauge::default(),
            panics: Counter::default(),
            events: Family::default(),
            watches: WatchTimes::default(),
        };
        metrics.registered()
    }

    /// Registers the metrics. The text format appends `_total` to every counter, so names here don't have it.
    fn registered(mut self) -> Self {
        let Self {
            registry: r,
            framework: _,
            jobs: _,
            own: _,
            reconciles,
            reconcile_seconds,
            requests,
            resources: _,
            queue_depth,
            index_objects,
            leader,
            panics,
            events,
            watches,
            progress: _,
        } = &mut self;
        r.register(
            "trainyard_reconciles",
            "Passes over a job by outcome",
            reconciles.clone(),
        );
        r.register(
            "trainyard_pass_seconds",
            "Duration of a reconcile",
            reconcile_seconds.clone(),
        );
        r.register(
            "trainyard_requests",
            "Answers of the API server",
            requests.clone(),
        );
        r.register(
            "trainyard_queue_depth",
            "Jobs that wait for a reconcile",
            queue_depth.clone(),
        );
        r.register(
            "trainyard_index_objects",
            "Objects held in memory",
            index_objects.clone(),
        );
        r.register(
            "trainyard_leader",
            "1 while this process may write",
            leader.clone(),
        );
        r.register(
            "trainyard_panics",
            "Passes that ended in a panic",
            panics.clone(),
        );
        r.register(
            "trainyard_events",
            "Kubernetes events by what became of them",
            events.clone(),
        );
        r.register_collector(Box::new(watches.clone()));
        r.register_collector(Box::new(process::Process));
        self
    }

    /// Adds an operator's own metrics.
    #[must_use]
    pub fn with_collector(mut self, collector: Box<dyn Collector>) -> Self {
        self.registry.register_collector(collector);
        self
    }

    /// Adds the metrics of a published operator, whose names have this prefix.
    #[must_use]
    pub fn with_own(mut self, prefix: &str) -> Self {
        let own = PublishedMetrics::default();
        let r = &mut self.registry;
        for (name, help, counter) in [
            ("created", "Jobs seen for the first time", &own.created),
            ("successful", "Jobs that succeeded", &own.successful),
            ("failed", "Jobs that failed", &own.failed),
        ] {
            r.register(format!("{prefix}_jobs_{name}"), help, counter.clone());
        }
        r.register(
            format!("{prefix}_job_info"),
            "1 for every job that has a launcher, which is named as its Job",
            own.info.clone(),
        );
        r.register(
            format!("{prefix}_is_leader"),
            "1 while this process may write",
            self.leader.clone(),
        );
        self.own = Some(own);
        self
    }

    /// Records the name of a job's launcher.
    pub fn launches(&self, namespace: &str, launcher: &str) {
        if let Some(own) = &self.own {
            own.info
                .get_or_create(&job_info(namespace, launcher))
                .set(1);
        }
    }

    /// Forgets the launcher of a job that is gone.
    pub fn forget_launcher(&self, namespace: &str, launcher: &str) {
        if let Some(own) = &self.own {
            own.info.remove(&job_info(namespace, launcher));
        }
    }

    /// Counts a transition of a job in a namespace.
    pub fn job(&self, transition: Transition, namespace: &str) {
        // Nothing is registered for the kinds without these counters.
        if self.framework.is_empty() {
            return;
        }
        if let Some(own) = &self.own {
            match transition {
                Transition::Created => own.created.inc(),
                Transition::Successful => own.successful.inc(),
                Transition::Failed => own.failed.inc(),
                Transition::Deleted | Transition::Restarted => 0,
            };
        }
        let labels = self.job_labels(namespace);
        self.family(transition).get_or_create(&labels).inc();
    }

    /// Ends the series of a namespace; call it when its last job is gone.
    pub fn forget_namespace(&self, namespace: &str) {
        let labels = self.job_labels(namespace);
        let Jobs {
            created,
            deleted,
            successful,
            failed,
            restarted,
        } = &self.jobs;
        for family in [created, deleted, successful, failed, restarted] {
            family.remove(&labels);
        }
    }

    fn job_labels(&self, namespace: &str) -> JobLabels {
        JobLabels {
            job_namespace: namespace.to_owned(),
            framework: self.framework,
        }
    }

    fn family(&self, transition: Transition) -> &Family<JobLabels, Counter> {
        match transition {
            Transition::Created => &self.jobs.created,
            Transition::Deleted => &self.jobs.deleted,
            Transition::Successful => &self.jobs.successful,
            Transition::Failed => &self.jobs.failed,
            Transition::Restarted => &self.jobs.restarted,
        }
    }

    /// Counts a reconcile; `outcome` is one of a fixed set of labels, such as those of [`crate::fault::Fault::as_str`].
    pub fn reconcile(&self, outcome: &'static str, took: Duration) {
        self.reconciles.get_or_create(&Outcome { outcome }).inc();
        self.reconcile_seconds.observe(took.as_secs_f64());
    }

    /// Counts an answer of the API server; no code means no answer.
    pub fn request(&self, verb: &'static str, resource: &str, code: Option<u16>) {
        let labels = Request {
            verb,
            resource: self.bounded(resource).to_owned(),
            code: bucket(code),
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Bounds the resource labels. An operator uses about a dozen; if a path is ever misread, the names in it must not become series.
    fn bounded<'a>(&self, resource: &'a str) -> &'a str {
        const MAX_RESOURCES: usize = 32;
        let mut known = self.resources.lock();
        if known.contains(resource) {
            return resource;
        }
        if known.len() >= MAX_RESOURCES {
            return "other";
        }
        known.insert(resource.to_owned());
        resource
    }

    /// Sets the counts of all jobs by phase.
    pub fn phases(&self, phases: Vec<KindPhases>) {
        self.progress.set_phases(phases);
    }

    /// Counts a restart of a replica or gang.
    pub fn restarted(&self, kind: &str, reason: FailureReason) {
        self.progress.restarted(kind, reason);
    }

    /// Records how long a job took to start or to end, if this change of its status ends that time.
    pub fn progressed(&self, kind: &str, before: &Progress, after: &Progress, now: Timestamp) {
        self.progress.progressed(kind, before, after, now);
    }

    /// Sets how many jobs are queued.
    pub fn queue_depth(&self, jobs: usize) {
        self.queue_depth
            .set(i64::try_from(jobs).unwrap_or(i64::MAX));
    }

    /// Sets how many objects an index, such as `pods`, holds.
    pub fn index_objects(&self, index: &'static str, objects: usize) {
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        self.index_objects
            .get_or_create(&Index { index })
            .set(objects);
    }

    /// Sets whether this process may write.
    pub fn leader(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// Counts a reconcile that panicked.
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// Counts events by outcome.
    pub fn events(&self, outcome: EventOutcome, count: u64) {
        self.events
            .get_or_create(&Outcome {
                outcome: outcome.as_str(),
            })
            .inc_by(count);
    }

    /// Returns how many events have had this outcome.
    pub fn events_so_far(&self, outcome: EventOutcome) -> u64 {
        self.events
            .get(&Outcome {
                outcome: outcome.as_str(),
            })
            .map_or(0, |counter| counter.get())
    }

    /// Returns the state of the watches.
    pub fn watches(&self) -> &WatchTimes {
        &self.watches
    }

    /// Renders all metrics as text, with [`CONTENT_TYPE`].
    ///
    /// # Errors
    /// If a metric can't be encoded, which would be a bug.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn job_info(namespace: &str, launcher: &str) -> JobInfo {
    JobInfo {
        launcher: launcher.to_owned(),
        namespace: namespace.to_owned(),
    }
}

/// Returns a code that is worth its own label, else its class.
fn bucket(code: Option<u16>) -> &'static str {
    match code {
        None => "none",
        Some(401) => "401",
        Some(403) => "403",
        Some(404) => "404",
        Some(409) => "409",
        Some(410) => "410",
        Some(422) => "422",
        Some(429) => "429",
        Some(500) => "500",
        Some(503) => "503",
        Some(504) => "504",
        Some(100..=199) => "1xx",
        Some(200..=299) => "2xx",
        Some(300..=399) => "3xx",
        Some(400..=499) => "4xx",
        Some(_) => "5xx",
    }
}

#[cfg(test)]
mod tests;
