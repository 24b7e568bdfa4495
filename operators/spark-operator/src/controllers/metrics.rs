//! The published metrics, with their published names.
//!
//! OpenMetrics counters end in `_total`, and these names don't. They are therefore exposed with type unknown; their values are
//! unchanged.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use training_runtime::key::JobKey;

use crate::api::{ExecutorState, SparkApplication, SparkApplicationStatus, State};

/// The label value for an application without that label. Source: the published value.
const UNKNOWN: &str = "Unknown";
/// The label value once there are too many values.
const OTHER: &str = "other";

/// Names and labels of the metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Naming {
    /// The prefix of every name.
    pub prefix: String,
    /// Labels of applications.
    pub labels: Vec<String>,
    /// The maximum number of values of a label; further ones count as one.
    pub most_values: usize,
    /// Buckets of submission latencies. Units: seconds.
    pub submit: Vec<f64>,
    /// Buckets of start latencies. Units: seconds.
    pub start: Vec<f64>,
}

impl Default for Naming {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            labels: Vec::new(),
            most_values: 100,
            submit: vec![0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0],
            start: (1..=10).map(|n| f64::from(n * 30)).collect(),
        }
    }
}

/// The metrics of applications.
#[derive(Clone, Debug)]
pub struct SparkMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    naming: Naming,
    state: Mutex<Counts>,
}

/// Label values, in the order of the label names.
type Values = Vec<String>;

#[derive(Debug, Default)]
struct Counts {
    known: Vec<Vec<String>>,
    counters: BTreeMap<(&'static str, Values), f64>,
    times: BTreeMap<(&'static str, Values), f64>,
    buckets: BTreeMap<(&'static str, Values), Vec<u64>>,
    running: HashMap<JobKey, Running>,
}

#[derive(Debug)]
struct Running {
    values: Values,
    applications: u64,
    executors: u64,
}

/// Every counter, with its help text.
const COUNTERS: [(&str, &str); 7] = [
    (
        "spark_application_count",
        "Applications seen for the first time",
    ),
    ("spark_application_submit_count", "Submissions"),
    (
        "spark_application_failed_submission_count",
        "Submissions that failed for good",
    ),
    (
        "spark_application_success_count",
        "Applications that ended well",
    ),
    (
        "spark_application_failure_count",
        "Applications that ended badly",
    ),
    ("spark_executor_success_count", "Executors that ended well"),
    ("spark_executor_failure_count", "Executors that ended badly"),
];
/// Every sum of durations, with its help text. Units: seconds.
const TIMES: [(&str, &str); 4] = [
    (
        "spark_application_success_execution_time_seconds",
        "Times of runs that ended well",
    ),
    (
        "spark_application_failure_execution_time_seconds",
        "Times of runs that ended badly",
    ),
    (
        "spark_application_submit_latency_seconds",
        "Times from creation to the first submission",
    ),
    (
        "spark_application_start_latency_seconds",
        "Times from creation to the first run",
    ),
];
const SUBMIT: &str = "spark_application_submit_latency_seconds";
const START: &str = "spark_application_start_latency_seconds";
/// Durations that are also exposed as histograms. Units: seconds.
const HISTOGRAMS: [(&str, &str); 2] = [TIMES[2], TIMES[3]];

/// A gauge of running applications: its name, its help text, and its value for one application.
type Gauge = (&'static str, &'static str, fn(&Running) -> u64);

/// The gauges of running applications.
const RUNNING: [Gauge; 2] = [
    (
        "spark_application_running_count",
        "Applications that run",
        |running| running.applications,
    ),
    (
        "spark_executor_running_count",
        "Executors that run",
        |running| running.executors,
    ),
];

/// A metric, for the docs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The names of its series, without the configurable prefix.
    pub series: Vec<String>,
    /// Its type in the text format.
    pub kind: &'static str,
    /// Its help text.
    pub help: &'static str,
}

/// Returns every metric.
pub fn described() -> Vec<Described> {
    let named = |name: &str, ends: &[&str], kind, help| Described {
        series: ends.iter().map(|end| format!("{name}{end}")).collect(),
        kind,
        help,
    };
    let counters = COUNTERS.map(|(name, help)| named(name, &[""], "unknown", help));
    let times = TIMES.map(|(name, help)| named(name, &["_sum", "_count"], "unknown", help));
    let ends = ["_histogram_bucket", "_histogram_sum", "_histogram_count"];
    let buckets = HISTOGRAMS.map(|(name, help)| named(name, &ends, "histogram", help));
    let running = RUNNING.map(|(name, help, _)| named(name, &[""], "gauge", help));
    let all = counters.into_iter().chain(times);
    all.chain(buckets).chain(running).collect()
}

impl SparkMetrics {
    /// Creates empty metrics.
    pub fn new(naming: Naming) -> Self {
        let known = vec![Vec::new(); naming.labels.len()];
        let state = Mutex::new(Counts {
            known,
            ..Counts::default()
        });
        Self(Arc::new(Inner { naming, state }))
    }

    /// Updates the gauges for an application.
    pub fn observe(&self, key: &JobKey, app: &SparkApplication) {
        let status = app.status.as_ref();
        let runs = status.is_some_and(|s| s.application_state.state == State::Running);
        let executors = status.into_iter().flat_map(|s| s.executor_state.values());
        let executors = executors.filter(|e| **e == ExecutorState::Running).count();
        let executors = u64::try_from(executors).unwrap_or(u64::MAX);
        let mut counts = self.0.state.lock();
        if !runs && executors == 0 {
            counts.running.remove(key);
            return;
        }
        let values = counts.values(&self.0.naming, app);
        let running = Running {
            values,
            applications: u64::from(runs),
            executors,
        };
        counts.running.insert(key.clone(), running);
    }

    /// Clears the gauges, because another process leads.
    pub fn stand_by(&self) {
        self.0.state.lock().running.clear();
    }

    /// Removes a deleted application from the gauges.
    pub fn forget(&self, key: &JobKey) {
        self.0.state.lock().running.remove(key);
    }

    /// Counts a status write over the application's present status.
    pub fn written(&self, app: &SparkApplication, next: &SparkApplicationStatus, now: i64) {
        let old = app.status.clone().unwrap_or_default();
        let mut counts = self.0.state.lock();
        let values = counts.values(&self.0.naming, app);
        let mut executors = 0;
        for (name, state) in &next.executor_state {
            let counter = match state {
                ExecutorState::Completed => "spark_executor_success_count",
                ExecutorState::Failed => "spark_executor_failure_count",
                _ => continue,
            };
            if old.executor_state.get(name) != Some(state) {
                counts.add(counter, &values, 1.0);
                executors += 1;
            }
        }
        let (from, to) = (&old.application_state.state, &next.application_state.state);
        if from == to && executors == 0 {
            return;
        }
        if *from == State::New && *to != State::New {
            counts.add("spark_application_count", &values, 1.0);
        }
        let since = |then: Option<i64>, until: i64| {
            let seconds = until - then.unwrap_or(until);
            f64::from(i32::try_from(seconds.max(0)).unwrap_or(i32::MAX))
        };
        let created = app
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|t| t.0.as_second());
        let begun = next
            .last_submission_attempt_time
            .as_ref()
            .map(|t| t.0.as_second());
        let ended = next
            .termination_time
            .as_ref()
            .map_or(now, |t| t.0.as_second());
        let naming = &self.0.naming;
        match to {
            State::Submitted if from != to => {
                counts.add("spark_application_submit_count", &values, 1.0);
                if next.submission_attempts == Some(1) {
                    counts.time(SUBMIT, &values, since(created, now));
                    counts.bucket(SUBMIT, &values, &naming.submit, since(created, now));
                }
            }
            State::Running if from != to && next.execution_attempts == Some(1) => {
                counts.time(START, &values, since(created, now));
                counts.bucket(START, &values, &naming.start, since(created, now));
            }
            State::SubmissionFailed if from != to => {
                counts.add("spark_application_failed_submission_count", &values, 1.0);
            }
            State::Completed if from != to => {
                counts.add("spark_application_success_count", &values, 1.0);
                let name = "spark_application_success_execution_time_seconds";
                counts.time(name, &values, since(begun, ended));
            }
            State::Failed if from != to => {
                counts.add("spark_application_failure_count", &values, 1.0);
                let name = "spark_application_failure_execution_time_seconds";
                counts.time(name, &values, since(begun, ended));
            }
            _ => {}
        }
    }
}

impl Counts {
    /// Returns the label values of an application.
    fn values(&mut self, naming: &Naming, app: &SparkApplication) -> Values {
        let own = app.metadata.labels.as_ref();
        let of = |label: &String| {
            // As published: names are compared in the form used in metrics.
            let said = own.and_then(|own| {
                let mut all = own.iter();
                all.find(|(key, _)| underscored(key) == underscored(label))
                    .map(|(_, v)| v.clone())
            });
            let namespace = || {
                app.metadata
                    .namespace
                    .clone()
                    .filter(|_| label == "namespace")
            };
            said.or_else(namespace)
                .unwrap_or_else(|| UNKNOWN.to_owned())
        };
        let mut values = Vec::with_capacity(naming.labels.len());
        for (label, known) in naming.labels.iter().zip(&mut self.known) {
            let value = of(label);
            if !known.contains(&value) {
                if known.len() >= naming.most_values {
                    values.push(OTHER.to_owned());
                    continue;
                }
                known.push(value.clone());
            }
            values.push(value);
        }
        values
    }

    fn add(&mut self, name: &'static str, values: &Values, by: f64) {
        *self.counters.entry((name, values.clone())).or_default() += by;
    }

    fn time(&mut self, name: &'static str, values: &Values, seconds: f64) {
        self.add(name, values, seconds);
        *self.times.entry((name, values.clone())).or_default() += 1.0;
    }

    fn bucket(&mut self, name: &'static str, values: &Values, bounds: &[f64], seconds: f64) {
        let seen = self.buckets.entry((name, values.clone())).or_default();
        seen.resize(bounds.len() + 1, 0);
        let at = bounds.iter().position(|bound| seconds <= *bound);
        seen[at.unwrap_or(bounds.len())] += 1;
    }
}

impl Inner {
    fn labels(&self, values: &Values) -> Vec<(String, String)> {
        let names = self.naming.labels.iter().map(|label| underscored(label));
        names.zip(values.iter().cloned()).collect()
    }

    fn name(&self, name: &str) -> String {
        underscored(&format!("{}{name}", self.naming.prefix))
    }

    /// Encodes one metric with all its series.
    fn encode_metric(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help, kind): (&str, &str, MetricType),
        series: &[(&Values, f64)],
    ) -> fmt::Result {
        if series.is_empty() {
            return Ok(());
        }
        let name = self.name(name);
        let mut metric = encoder.encode_descriptor(&name, help, None, kind)?;
        for (values, value) in series {
            let value = ConstGauge::new(*value);
            let labels = self.labels(values);
            if labels.is_empty() {
                // An empty family would encode an empty label set.
                return value.encode(metric);
            }
            value.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn of<'a, V: Copy>(
        all: &'a BTreeMap<(&'static str, Values), V>,
        name: &str,
    ) -> Vec<(&'a Values, V)> {
        let mine = all.iter().filter(|((of, _), _)| *of == name);
        mine.map(|((_, values), value)| (values, *value)).collect()
    }
}

impl Collector for SparkMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Inner { naming, state } = &*self.0;
        let counts = state.lock();
        let unknown = || MetricType::Unknown;
        for (name, help) in COUNTERS {
            let series = Inner::of(&counts.counters, name);
            self.0
                .encode_metric(&mut encoder, (name, help, unknown()), &series)?;
        }
        for (name, help) in TIMES {
            let series = Inner::of(&counts.counters, name);
            let sum = format!("{name}_sum");
            self.0
                .encode_metric(&mut encoder, (&sum, help, unknown()), &series)?;
            let count = format!("{name}_count");
            let number: Vec<(&Values, f64)> = Inner::of(&counts.times, name);
            self.0
                .encode_metric(&mut encoder, (&count, help, unknown()), &number)?;
        }
        for ((name, help), bounds) in HISTOGRAMS.into_iter().zip([&naming.submit, &naming.start]) {
            let mine = counts.buckets.iter().filter(|((of, _), _)| *of == name);
            let series: Vec<_> = mine.collect();
            if series.is_empty() {
                continue;
            }
            let full_name = self.0.name(&format!("{name}_histogram"));
            let kind = MetricType::Histogram;
            let mut metric = encoder.encode_descriptor(&full_name, help, None, kind)?;
            for ((_, values), seen) in series {
                let sum = counts.counters.get(&(name, values.clone()));
                let ends = bounds.iter().copied().chain([f64::INFINITY]);
                let buckets: Vec<(f64, u64)> = ends.zip(seen.iter().copied()).collect();
                let labels = self.0.labels(values);
                let (sum, count) = (sum.copied().unwrap_or(0.0), seen.iter().sum());
                if labels.is_empty() {
                    metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                } else {
                    metric
                        .encode_family(&labels)?
                        .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
            }
        }
        for (name, help, of) in RUNNING {
            let mut sums: BTreeMap<&Values, f64> = BTreeMap::new();
            for running in counts.running.values() {
                let more = u32::try_from(of(running)).unwrap_or(u32::MAX);
                *sums.entry(&running.values).or_default() += f64::from(more);
            }
            // Report zero where nothing runs any more.
            for (of, values) in counts.counters.keys() {
                if *of == "spark_application_submit_count" {
                    sums.entry(values).or_default();
                }
            }
            let series: Vec<(&Values, f64)> = sums.into_iter().collect();
            self.0
                .encode_metric(&mut encoder, (name, help, MetricType::Gauge), &series)?;
        }
        Ok(())
    }
}

/// Converts a name to a metric name. Source: the published rule, which keeps other characters; those would be invalid.
fn underscored(name: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    name.chars().map(legal).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use training_runtime::metrics::Metrics;

    use super::*;

    fn app(labels: &Value, status: &Value) -> SparkApplication {
        let stored = json!({
            "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
            "metadata": {
                "name": "pi", "namespace": "ns", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"sparkVersion": "4.0.0", "mainApplicationFile": "local:///pi.py", "driver": {}, "executor": {}},
            "status": status,
        });
        serde_json::from_value(stored).unwrap()
    }

    fn status(state: &str) -> Value {
        json!({
            "applicationState": {"state": state}, "submissionAttempts": 1, "executionAttempts": 1,
            "lastSubmissionAttemptTime": "2026-01-01T00:00:03Z", "terminationTime": "2026-01-01T00:01:00Z",
            "executorState": match state {
                "SUBMITTED" => json!({}),
                "RUNNING" => json!({"e-1": "RUNNING"}),
                _ => json!({"e-1": "COMPLETED"}),
            },
        })
    }

    fn lives(metrics: &SparkMetrics, labels: &Value, end: &str) {
        let key = JobKey::new("ns", "pi");
        let created = 1_767_225_600;
        let mut now = app(labels, &json!({}));
        for (state, at) in [("SUBMITTED", 3), ("RUNNING", 40), (end, 60)] {
            let next = app(labels, &status(state));
            metrics.written(&now, next.status.as_ref().unwrap(), created + at);
            metrics.observe(&key, &next);
            now = next;
        }
    }

    fn shown(metrics: &SparkMetrics) -> String {
        let all = Metrics::process().with_collector(Box::new(metrics.clone()));
        all.render().unwrap()
    }

    #[test]
    fn a_life_is_counted_under_the_published_names() {
        let metrics = SparkMetrics::new(Naming::default());
        lives(&metrics, &json!({}), "COMPLETED");
        let text = shown(&metrics);
        for line in [
            "spark_application_count 1.0",
            "spark_application_submit_count 1.0",
            "spark_application_success_count 1.0",
            "spark_application_success_execution_time_seconds_sum 57.0",
            "spark_application_success_execution_time_seconds_count 1.0",
            "spark_application_submit_latency_seconds_sum 3.0",
            "spark_application_submit_latency_seconds_histogram_bucket{le=\"2.0\"} 0",
            "spark_application_submit_latency_seconds_histogram_bucket{le=\"4.0\"} 1",
            "spark_application_submit_latency_seconds_histogram_bucket{le=\"+Inf\"} 1",
            "spark_application_start_latency_seconds_histogram_sum 40.0",
            "spark_application_running_count 0.0",
            "spark_executor_running_count 0.0",
            "spark_executor_success_count 1.0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("spark_application_failure_count"), "{text}");
    }

    #[test]
    fn labels_are_those_of_applications_and_their_values_are_bounded() {
        let metrics = SparkMetrics::new(Naming {
            prefix: "my-".to_owned(),
            labels: vec!["app-type".to_owned(), "namespace".to_owned()],
            most_values: 1,
            ..Naming::default()
        });
        lives(&metrics, &json!({"app-type": "batch"}), "FAILED");
        lives(&metrics, &json!({}), "FAILED");
        let text = shown(&metrics);
        for values in ["app_type=\"batch\"", "app_type=\"other\""] {
            let line =
                format!("my_spark_application_failure_count{{{values},namespace=\"ns\"}} 1.0");
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }
}
