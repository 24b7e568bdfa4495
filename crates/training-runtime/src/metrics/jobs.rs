//! Jobs by kind: their phases, how long they took to start and to end, and their restarts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use training_core::reasons::FailureReason;
use training_core::{Phase, Progress};

/// Upper bounds of the times from start to running, in seconds: from pods whose images are on their nodes to a wait for nodes.
const START_SECONDS: [f64; 12] = [
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0,
];
/// Upper bounds of the times from start to end, in seconds: up to a month.
const DURATION_SECONDS: [f64; 12] = [
    10.0,
    60.0,
    300.0,
    900.0,
    3600.0,
    7200.0,
    14400.0,
    43200.0,
    86400.0,
    259_200.0,
    604_800.0,
    2_592_000.0,
];

/// The jobs of one kind in their phases.
#[derive(Clone, Debug, Default)]
pub struct KindPhases {
    /// The kind.
    pub kind: String,
    /// The number of jobs by namespace and phase.
    pub counts: BTreeMap<(Arc<str>, Phase), usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindResult {
    kind: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindReason {
    kind: String,
    reason: &'static str,
}

/// The metrics of jobs.
#[derive(Debug)]
pub(super) struct JobMetrics {
    phases: Phases,
    start: Family<Kind, Histogram>,
    duration: Family<KindResult, Histogram>,
    restarts: Family<KindReason, Counter>,
}

/// The latest counts of jobs. They are replaced together, so that every scrape sees each job once.
#[derive(Clone, Debug, Default)]
struct Phases(Arc<Mutex<Vec<KindPhases>>>);

impl JobMetrics {
    /// Creates and registers the metrics.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            phases: Phases::default(),
            start: Family::new_with_constructor(|| Histogram::new(START_SECONDS)),
            duration: Family::new_with_constructor(|| Histogram::new(DURATION_SECONDS)),
            restarts: Family::default(),
        };
        registry.register_collector(Box::new(metrics.phases.clone()));
        registry.register(
            "trainyard_job_start_seconds",
            "Time from a job's start or resumption until it runs, without restarts",
            metrics.start.clone(),
        );
        registry.register(
            "trainyard_job_duration_seconds",
            "Time from a job's last start or resumption until its end",
            metrics.duration.clone(),
        );
        registry.register(
            "trainyard_job_restarts",
            "Restarts of replicas and gangs by the reason of the failure",
            metrics.restarts.clone(),
        );
        metrics
    }

    /// Sets the counts of all jobs. The other series of a kind begin at 0, because an increase from nothing is not seen.
    pub fn set_phases(&self, phases: Vec<KindPhases>) {
        for KindPhases { kind, .. } in &phases {
            self.begin(kind);
        }
        *self.phases.0.lock() = phases;
    }

    fn begin(&self, kind: &str) {
        let kind = || kind.to_owned();
        drop(self.start.get_or_create(&Kind { kind: kind() }));
        for result in [Phase::Succeeded, Phase::Failed].map(Phase::as_str) {
            let labels = KindResult {
                kind: kind(),
                result,
            };
            drop(self.duration.get_or_create(&labels));
        }
        for reason in FailureReason::ALL.map(FailureReason::as_str) {
            let labels = KindReason {
                kind: kind(),
                reason,
            };
            drop(self.restarts.get_or_create(&labels));
        }
    }

    /// Counts a restart.
    pub fn restarted(&self, kind: &str, reason: FailureReason) {
        let (kind, reason) = (kind.to_owned(), reason.as_str());
        let labels = KindReason { kind, reason };
        self.restarts.get_or_create(&labels).inc();
    }

    /// Records the times that a change of a status ends.
    pub fn progressed(&self, kind: &str, before: &Progress, after: &Progress, now: Timestamp) {
        let seconds = |until: Timestamp| {
            let since = after.started?;
            Some(until.duration_since(since).as_secs_f64().max(0.0))
        };
        let kind = || kind.to_owned();
        // It may wait for some of its pods although it runs.
        let runs = matches!(after.phase, Phase::Running | Phase::Waiting(_));
        let runs = runs && after.has_run && !before.has_run;
        if let Some(seconds) = seconds(now).filter(|_| runs) {
            let labels = Kind { kind: kind() };
            self.start.get_or_create(&labels).observe(seconds);
        }
        let ends = after.phase.is_finished() && !before.phase.is_finished();
        if ends {
            // A job that never started failed at once.
            let seconds = seconds(after.ended.unwrap_or(now)).unwrap_or_default();
            let result = after.phase.as_str();
            let labels = KindResult {
                kind: kind(),
                result,
            };
            self.duration.get_or_create(&labels).observe(seconds);
        }
    }
}

impl Collector for Phases {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let kinds = self.0.lock();
        let mut jobs: BTreeMap<[(&str, &str); 3], usize> = BTreeMap::new();
        let mut waiting: BTreeMap<[(&str, &str); 3], usize> = BTreeMap::new();
        for KindPhases { kind, counts } in kinds.iter() {
            for ((namespace, phase), count) in counts {
                let of = |label: &'static str, value| {
                    [
                        ("kind", &**kind),
                        ("job_namespace", &**namespace),
                        (label, value),
                    ]
                };
                *jobs.entry(of("phase", phase.as_str())).or_default() += count;
                if let Phase::Waiting(reason) = phase {
                    *waiting.entry(of("reason", reason.as_str())).or_default() += count;
                }
            }
        }
        let all = [
            ("trainyard_jobs", "Jobs by phase", jobs),
            (
                "trainyard_jobs_waiting",
                "Jobs that wait, by the reason of their condition Stalled",
                waiting,
            ),
        ];
        for (name, help, counts) in all {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, count) in &counts {
                let count = i64::try_from(*count).unwrap_or(i64::MAX);
                ConstGauge::new(count).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use training_core::reasons::WaitingReason;

    use super::*;
    use crate::metrics::Metrics;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn assert_shows(metrics: &Metrics, lines: &[&str]) {
        let text = metrics.render().unwrap();
        for line in lines {
            assert!(text.lines().any(|l| l == *line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn jobs_are_counted_by_kind_namespace_and_phase() {
        let metrics = Metrics::new("pytorch");
        let waits = |reason| Phase::Waiting(WaitingReason::find(reason));
        let counts = [
            (("a", Phase::Running), 3),
            (("a", waits("NodeLost")), 1),
            (("a", waits("QuotaExceeded")), 2),
            (("b", Phase::Failed), 1),
        ];
        let counts = counts.map(|((namespace, phase), n)| ((Arc::from(namespace), phase), n));
        metrics.phases(vec![KindPhases {
            kind: "PyTorchJob".to_owned(),
            counts: counts.into(),
        }]);
        let jobs = |rest: &str| format!("trainyard_jobs{{kind=\"PyTorchJob\",job_namespace={rest}");
        let waiting = |rest: &str| {
            format!("trainyard_jobs_waiting{{kind=\"PyTorchJob\",job_namespace={rest}")
        };
        for line in [
            jobs("\"a\",phase=\"running\"} 3"),
            jobs("\"a\",phase=\"waiting\"} 3"),
            jobs("\"b\",phase=\"failed\"} 1"),
            waiting("\"a\",reason=\"NodeLost\"} 1"),
            waiting("\"a\",reason=\"QuotaExceeded\"} 2"),
        ] {
            assert_shows(&metrics, &[&line]);
        }
        metrics.phases(Vec::new());
        assert!(
            !metrics.render().unwrap().contains("phase="),
            "they are gone"
        );
    }

    #[test]
    fn the_first_start_of_a_run_and_the_end_of_a_job_are_timed() {
        let metrics = Metrics::new("pytorch");
        let created = Progress {
            phase: Phase::Starting,
            started: Some(at(100)),
            ..Progress::default()
        };
        let running = Progress {
            phase: Phase::Running,
            has_run: true,
            ..created
        };
        let short = Progress {
            phase: Phase::Waiting(WaitingReason::find("Unschedulable")),
            ..running
        };
        let restarting = Progress {
            phase: Phase::Restarting,
            ..running
        };
        let succeeded = Progress {
            phase: Phase::Succeeded,
            ended: Some(at(170)),
            ..running
        };
        let invalid = Progress {
            phase: Phase::Failed,
            ..Progress::default()
        };
        let nothing = Progress::default();
        for (before, after, now) in [
            (nothing, created, 100),
            (created, short, 107),
            (short, running, 110),
            (running, restarting, 120),
            (restarting, running, 130),
            (running, succeeded, 171),
            (succeeded, succeeded, 180),
            (nothing, invalid, 190),
        ] {
            metrics.progressed("PyTorchJob", &before, &after, at(now));
        }
        assert_shows(
            &metrics,
            &[
                "trainyard_job_start_seconds_sum{kind=\"PyTorchJob\"} 7.0",
                "trainyard_job_start_seconds_count{kind=\"PyTorchJob\"} 1",
                "trainyard_job_duration_seconds_sum{kind=\"PyTorchJob\",result=\"succeeded\"} 70.0",
                "trainyard_job_duration_seconds_count{kind=\"PyTorchJob\",result=\"succeeded\"} 1",
                "trainyard_job_duration_seconds_sum{kind=\"PyTorchJob\",result=\"failed\"} 0.0",
                "trainyard_job_duration_seconds_count{kind=\"PyTorchJob\",result=\"failed\"} 1",
            ],
        );
    }

    #[test]
    fn restarts_are_counted_by_reason() {
        let metrics = Metrics::new("pytorch");
        metrics.phases(vec![KindPhases {
            kind: "PyTorchJob".to_owned(),
            ..KindPhases::default()
        }]);
        let killed = FailureReason::find("OOMKilled");
        metrics.restarted("PyTorchJob", killed);
        metrics.restarted("PyTorchJob", killed);
        metrics.restarted("PyTorchJob", FailureReason::REQUESTED);
        assert_shows(
            &metrics,
            &[
                "trainyard_job_restarts_total{kind=\"PyTorchJob\",reason=\"OOMKilled\"} 2",
                "trainyard_job_restarts_total{kind=\"PyTorchJob\",reason=\"Requested\"} 1",
                "trainyard_job_restarts_total{kind=\"PyTorchJob\",reason=\"NodeLost\"} 0",
                "trainyard_job_start_seconds_count{kind=\"PyTorchJob\"} 0",
            ],
        );
    }
}
