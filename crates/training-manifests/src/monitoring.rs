//! Generates alerts for Prometheus and dashboards for Grafana, and the page that explains the alerts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::yaml;

/// The page that explains the alerts.
pub const PAGE: &str = "docs/reference/alerts.md";

/// An alert.
#[derive(Clone, Copy, Debug)]
pub struct Alert {
    /// Its name.
    pub name: &'static str,
    /// The expression that has results while something is wrong.
    pub expr: &'static str,
    /// How long it has to hold.
    pub hold: &'static str,
    /// `critical`, `warning` or `info`.
    pub severity: &'static str,
    /// What is wrong, in one line, with Prometheus' placeholders.
    pub summary: &'static str,
    /// What to do about it.
    pub action: &'static str,
}

/// Every alert.
pub const ALERTS: [Alert; 12] = [
    Alert {
        name: "TrainyardDown",
        expr: "absent(trainyard_leader)",
        hold: "5m",
        severity: "critical",
        summary: "Prometheus scrapes no operator of Trainyard",
        action: "`kubectl get pods -A -l app.kubernetes.io/part-of=trainyard` shows whether the operators run. If they do, check that Prometheus selects the ServiceMonitor, and that the network policy lets Prometheus in.",
    },
    Alert {
        name: "TrainyardOperatorDown",
        expr: "group by (namespace, job) (last_over_time(trainyard_leader[1d])) unless group by (namespace, job) (trainyard_leader)",
        hold: "5m",
        severity: "critical",
        summary: "Prometheus no longer scrapes {{ $labels.job }}: its jobs may not be reconciled",
        action: "`kubectl -n NAMESPACE get pods -l app.kubernetes.io/part-of=trainyard` shows whether the operator runs. The alert ends a day after the last scrape, also if you removed the operator, or its label `job` has changed. It doesn't see an operator that Prometheus has never scraped.",
    },
    Alert {
        name: "TrainyardNoLeader",
        expr: "sum by (namespace, job) (trainyard_leader) == 0",
        hold: "2m",
        severity: "critical",
        summary: "No replica of {{ $labels.job }} leads: jobs are not reconciled",
        action: "Look at the log of the pods: `kubectl logs` says why the Lease can't be renewed. Check that the API server is reachable and that the role allows Leases.",
    },
    Alert {
        name: "TrainyardSeveralLeaders",
        expr: "sum by (namespace, job) (trainyard_leader) > 1",
        hold: "2m",
        severity: "critical",
        summary: "{{ $value | printf \"%.0f\" }} processes of {{ $labels.job }} lead at the same time",
        action: "Two Deployments serve the same jobs, or one process can't tell that it lost the Lease. Delete the one that doesn't hold it: `kubectl get leases -A` names the holder. Instances for different namespaces each have a leader: scrape them as different jobs.",
    },
    Alert {
        name: "TrainyardWatchDown",
        expr: "trainyard_watch_up == 0 and on (instance) trainyard_leader == 1",
        hold: "5m",
        severity: "critical",
        summary: "{{ $labels.job }} has no watch of {{ $labels.watch }}: it works from old data",
        action: "The log names the error. With 403 the role is older than the operator: apply the present manifests. With `--namespace`, the label `exported_namespace` names the namespace whose role is missing.",
    },
    Alert {
        name: "TrainyardPanics",
        expr: "increase(trainyard_panics_total[1h]) > 0",
        hold: "0m",
        severity: "warning",
        summary: "A reconcile of {{ $labels.job }} panicked",
        action: "A defect of the operator. The job is retried and others go on. Report it with the log.",
    },
    Alert {
        name: "TrainyardReconcileErrors",
        expr: "sum by (namespace, job, outcome) (increase(trainyard_reconciles_total{outcome=~\"denied|rejected|bug\"}[15m])) > 5",
        hold: "15m",
        severity: "warning",
        summary: "Reconciles of {{ $labels.job }} end as {{ $labels.outcome }} repeatedly",
        action: "`denied`: apply the present RBAC manifests, or look for a policy that refuses requests. `rejected`: the API server finds an object invalid. `bug`: report it. The log names the jobs.",
    },
    Alert {
        name: "TrainyardQueueGrows",
        expr: "trainyard_queue_depth > 100",
        hold: "15m",
        severity: "warning",
        summary: "{{ $value | printf \"%.0f\" }} jobs have waited for a reconcile of {{ $labels.job }} for 15 minutes",
        action: "Raise `--controller-threads`, and look at the CPU limit and at the latency of the API server.",
    },
    Alert {
        name: "TrainyardEventsLost",
        expr: "sum by (namespace, job) (increase(trainyard_events_total{outcome=~\"failed|overflowed\"}[15m])) > 0",
        hold: "15m",
        severity: "info",
        summary: "{{ $labels.job }} could not write all Kubernetes events",
        action: "The API server rejects events, or is too slow for them. Jobs don't depend on events, but their users see less.",
    },
    Alert {
        name: "TrainyardJobsWaiting",
        expr: "sum by (kind, job_namespace, reason) (trainyard_jobs_waiting) > 0",
        hold: "30m",
        severity: "warning",
        summary: "{{ $value | printf \"%.0f\" }} jobs of kind {{ $labels.kind }} in namespace {{ $labels.job_namespace }} wait: {{ $labels.reason }}",
        action: "`kubectl trainyard why -n NAMESPACE` names the jobs, the causes and the remedies. The [reasons](events.md) say what each one needs.",
    },
    Alert {
        name: "TrainyardJobsFail",
        expr: "sum by (kind) (increase(trainyard_job_duration_seconds_count{result=\"failed\"}[1h])) > 5 and sum by (kind) (increase(trainyard_job_duration_seconds_count{result=\"failed\"}[1h])) > 0.5 * sum by (kind) (increase(trainyard_job_duration_seconds_count[1h]))",
        hold: "10m",
        severity: "warning",
        summary: "More than half of the jobs of kind {{ $labels.kind }} that ended within an hour failed",
        action: "Many users rarely make mistakes at once: look for a common cause, such as a node, an image or a volume. `kubectl trainyard why -n NAMESPACE` shows the failures.",
    },
    Alert {
        name: "TrainyardNodesLost",
        expr: "sum by (kind, reason) (increase(trainyard_job_restarts_total{reason=~\"NodeLost|NodeShutdown|Terminated|Disrupted|Evicted\"}[1h])) > 10",
        hold: "0m",
        severity: "warning",
        summary: "{{ $value | printf \"%.0f\" }} restarts of kind {{ $labels.kind }} within an hour: {{ $labels.reason }}",
        action: "Nodes fail, are drained or shut down, or run out of memory or disk; or pods of a higher priority preempt the jobs (`Disrupted`). `kubectl get nodes` and the events of the pods say which.",
    },
];

/// A panel of a dashboard.
#[derive(Clone, Copy, Debug)]
pub struct Panel {
    /// Its title.
    pub title: &'static str,
    /// Grafana's unit.
    pub unit: &'static str,
    /// Expressions and legends.
    pub queries: &'static [(&'static str, &'static str)],
}

const fn panel(
    title: &'static str,
    unit: &'static str,
    queries: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel {
        title,
        unit,
        queries,
    }
}

/// A dashboard.
#[derive(Clone, Copy, Debug)]
pub struct Dashboard {
    /// The name of its file, and its uid.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Its variables: names, and the metric whose label of that name has the values.
    pub variables: &'static [(&'static str, &'static str)],
    /// Its panels.
    pub panels: &'static [Panel],
}

/// Every dashboard.
pub const DASHBOARDS: [Dashboard; 3] = [
    Dashboard {
        name: "trainyard-jobs",
        title: "Trainyard: jobs",
        variables: &[
            ("kind", "trainyard_jobs"),
            ("job_namespace", "trainyard_jobs"),
        ],
        panels: &[
            panel(
                "Jobs by phase",
                "short",
                &[(
                    "sum by (phase) (trainyard_jobs{kind=~\"$kind\",kind!=\"ScheduledSparkApplication\",job_namespace=~\"$job_namespace\"})",
                    "{{phase}}",
                )],
            ),
            panel(
                "Waiting jobs by reason",
                "short",
                &[(
                    "sum by (reason) (trainyard_jobs_waiting{kind=~\"$kind\",job_namespace=~\"$job_namespace\"})",
                    "{{reason}}",
                )],
            ),
            panel(
                "Namespaces with the most active jobs",
                "short",
                &[(
                    "topk(10, sum by (job_namespace) (trainyard_jobs{kind=~\"$kind\",kind!=\"ScheduledSparkApplication\",job_namespace=~\"$job_namespace\",phase=~\"starting|running|restarting\"}))",
                    "{{job_namespace}}",
                )],
            ),
            panel(
                "Restarts by reason",
                "short",
                &[(
                    "sum by (reason) (increase(trainyard_job_restarts_total{kind=~\"$kind\"}[$__rate_interval])) > 0",
                    "{{reason}}",
                )],
            ),
            panel(
                "Time from start to running",
                "s",
                &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(trainyard_job_start_seconds_bucket{kind=~\"$kind\"}[$__rate_interval])))",
                        "median",
                    ),
                    (
                        "histogram_quantile(0.95, sum by (le) (rate(trainyard_job_start_seconds_bucket{kind=~\"$kind\"}[$__rate_interval])))",
                        "95 %",
                    ),
                ],
            ),
            panel(
                "Time from start to end",
                "s",
                &[
                    (
                        "histogram_quantile(0.5, sum by (le, result) (rate(trainyard_job_duration_seconds_bucket{kind=~\"$kind\"}[$__rate_interval])))",
                        "median, {{result}}",
                    ),
                    (
                        "histogram_quantile(0.95, sum by (le, result) (rate(trainyard_job_duration_seconds_bucket{kind=~\"$kind\"}[$__rate_interval])))",
                        "95 %, {{result}}",
                    ),
                ],
            ),
            panel(
                "Ended jobs by result",
                "short",
                &[(
                    "sum by (result) (increase(trainyard_job_duration_seconds_count{kind=~\"$kind\"}[$__rate_interval]))",
                    "{{result}}",
                )],
            ),
        ],
    },
    Dashboard {
        name: "trainyard-operators",
        title: "Trainyard: operators",
        variables: &[("job", "trainyard_leader")],
        panels: &[
            panel(
                "Leaders",
                "short",
                &[("sum by (job) (trainyard_leader{job=~\"$job\"})", "{{job}}")],
            ),
            panel(
                "Jobs that wait for a reconcile",
                "short",
                &[(
                    "max by (job) (trainyard_queue_depth{job=~\"$job\"})",
                    "{{job}}",
                )],
            ),
            panel(
                "Reconciles by outcome",
                "reqps",
                &[(
                    "sum by (outcome) (rate(trainyard_reconciles_total{job=~\"$job\"}[$__rate_interval]))",
                    "{{outcome}}",
                )],
            ),
            panel(
                "Duration of reconciles",
                "s",
                &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(trainyard_pass_seconds_bucket{job=~\"$job\"}[$__rate_interval])))",
                        "median",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(trainyard_pass_seconds_bucket{job=~\"$job\"}[$__rate_interval])))",
                        "99 %",
                    ),
                ],
            ),
            panel(
                "Requests",
                "reqps",
                &[(
                    "sum by (verb, resource) (rate(trainyard_requests_total{job=~\"$job\"}[$__rate_interval]))",
                    "{{verb}} {{resource}}",
                )],
            ),
            panel(
                "Responses that are errors",
                "reqps",
                &[(
                    "sum by (code, resource) (rate(trainyard_requests_total{job=~\"$job\",code!~\"2..\"}[$__rate_interval]))",
                    "{{code}} {{resource}}",
                )],
            ),
            panel(
                "Age of the watches",
                "s",
                &[(
                    "max by (job, watch) (trainyard_watch_age_seconds{job=~\"$job\"})",
                    "{{job}} {{watch}}",
                )],
            ),
            panel(
                "Objects in memory",
                "short",
                &[(
                    "max by (job, index) (trainyard_index_objects{job=~\"$job\"})",
                    "{{job}} {{index}}",
                )],
            ),
            panel(
                "Kubernetes events by outcome",
                "reqps",
                &[(
                    "sum by (outcome) (rate(trainyard_events_total{job=~\"$job\"}[$__rate_interval]))",
                    "{{outcome}}",
                )],
            ),
            panel(
                "Resident memory",
                "bytes",
                &[(
                    "process_resident_memory_bytes{job=~\"$job\"} and on (instance) trainyard_leader",
                    "{{job}} {{pod}}",
                )],
            ),
            panel(
                "CPU",
                "short",
                &[(
                    "rate(process_cpu_seconds_total{job=~\"$job\"}[$__rate_interval]) and on (instance) trainyard_leader",
                    "{{job}} {{pod}}",
                )],
            ),
        ],
    },
    Dashboard {
        name: "trainyard-spark",
        title: "Trainyard: Spark applications",
        variables: &[],
        // The published counters don't exist before their first increment.
        panels: &[
            panel(
                "Running applications and executors",
                "short",
                &[
                    ("sum(spark_application_running_count)", "applications"),
                    ("sum(spark_executor_running_count)", "executors"),
                ],
            ),
            panel(
                "Submissions",
                "short",
                &[
                    (
                        "sum(increase(spark_application_submit_count[$__rate_interval])) or vector(0)",
                        "submitted",
                    ),
                    (
                        "sum(increase(spark_application_failed_submission_count[$__rate_interval])) or vector(0)",
                        "failed",
                    ),
                ],
            ),
            panel(
                "Ended applications",
                "short",
                &[
                    (
                        "sum(increase(spark_application_success_count[$__rate_interval])) or vector(0)",
                        "succeeded",
                    ),
                    (
                        "sum(increase(spark_application_failure_count[$__rate_interval])) or vector(0)",
                        "failed",
                    ),
                ],
            ),
            panel(
                "Ended executors",
                "short",
                &[
                    (
                        "sum(increase(spark_executor_success_count[$__rate_interval])) or vector(0)",
                        "succeeded",
                    ),
                    (
                        "sum(increase(spark_executor_failure_count[$__rate_interval])) or vector(0)",
                        "failed",
                    ),
                ],
            ),
            panel(
                "Time from creation to the first run",
                "s",
                &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(spark_application_start_latency_seconds_histogram_bucket[$__rate_interval])))",
                        "median",
                    ),
                    (
                        "histogram_quantile(0.95, sum by (le) (rate(spark_application_start_latency_seconds_histogram_bucket[$__rate_interval])))",
                        "95 %",
                    ),
                ],
            ),
        ],
    },
];

/// Returns the manifests and the page.
///
/// # Errors
/// If an object can't be written as YAML.
pub fn files() -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let directory = Path::new("manifests/monitoring");
    let mut files = BTreeMap::new();
    for dashboard in &DASHBOARDS {
        let json = serde_json::to_string_pretty(&grafana(dashboard))? + "\n";
        files.insert(directory.join(file(dashboard)), json);
    }
    let mut add = |name: &str, object: &Value| {
        let text = yaml::documents(std::slice::from_ref(object))?;
        files.insert(directory.join(name), text);
        anyhow::Ok(())
    };
    add("kustomization.yaml", &kustomization())?;
    add("prometheus-rule.yaml", &rule())?;
    add("service-monitor.yaml", &service_monitor())?;
    files.insert(PAGE.into(), page());
    Ok(files)
}

fn file(dashboard: &Dashboard) -> String {
    format!("{}.json", dashboard.name)
}

fn kustomization() -> Value {
    let maps = DASHBOARDS.iter().map(|dashboard| {
        json!({
            "name": dashboard.name,
            "files": [file(dashboard)],
            // The label by which Grafana's chart finds dashboards.
            "options": { "disableNameSuffixHash": true, "labels": { "grafana_dashboard": "1" } },
        })
    });
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "trainyard-system",
        "resources": ["prometheus-rule.yaml", "service-monitor.yaml"],
        "configMapGenerator": maps.collect::<Vec<_>>(),
    })
}

fn metadata() -> Value {
    json!({ "name": "trainyard", "labels": { "app.kubernetes.io/part-of": "trainyard" } })
}

fn service_monitor() -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": metadata(),
        "spec": {
            "endpoints": [{ "port": "metrics", "interval": "30s" }],
            "jobLabel": "app.kubernetes.io/name",
            "namespaceSelector": { "any": true },
            "selector": { "matchLabels": { "app.kubernetes.io/part-of": "trainyard" } },
        },
    })
}

fn rule() -> Value {
    let rules = ALERTS.iter().map(|alert| {
        let page = format!("{PAGE}#{}", alert.name.to_lowercase());
        json!({
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.hold,
            "labels": { "severity": alert.severity },
            "annotations": { "summary": alert.summary, "runbook": page },
        })
    });
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(),
        "spec": { "groups": [{ "name": "trainyard", "rules": rules.collect::<Vec<_>>() }] },
    })
}

fn grafana(dashboard: &Dashboard) -> Value {
    let source = json!({ "type": "prometheus", "uid": "${datasource}" });
    let mut variables = vec![json!({
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
    })];
    variables.extend(dashboard.variables.iter().map(|(label, metric)| {
        json!({
            "name": label,
            "type": "query",
            "datasource": source,
            "query": format!("label_values({metric}, {label})"),
            "multi": true,
            "includeAll": true,
            "allValue": ".*",
            "refresh": 2,
        })
    }));
    let panels = dashboard.panels.iter().zip(0_u32..).map(|(panel, at)| {
        let targets = panel.queries.iter().zip("ABC".chars());
        let targets = targets.map(|((expr, legend), id)| {
            json!({ "refId": id, "datasource": source, "expr": expr, "legendFormat": legend })
        });
        json!({
            "id": at + 1,
            "type": "timeseries",
            "title": panel.title,
            "datasource": source,
            "gridPos": { "h": 8, "w": 12, "x": 12 * (at % 2), "y": 8 * (at / 2) },
            "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
            "targets": targets.collect::<Vec<_>>(),
        })
    });
    json!({
        "uid": dashboard.name,
        "title": dashboard.title,
        "tags": ["trainyard"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "1m",
        "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": variables },
        "panels": panels.collect::<Vec<_>>(),
    })
}

fn page() -> String {
    let mut page = format!(
        "{}# Alerts\n\n`manifests/monitoring` has them as a PrometheusRule. [Metrics](../metrics.md#alerts-and-dashboards) says how to install it.\n",
        crate::reference::HEADER
    );
    for alert in &ALERTS {
        let Alert {
            name,
            expr,
            hold,
            severity,
            summary,
            action,
        } = alert;
        let summary = summary.replace("{{ $value | printf \"%.0f\" }}", "N");
        let summary = summary.replace("{{ $labels.", "`").replace(" }}", "`");
        let after = match *hold {
            "0m" => String::new(),
            hold => format!(", after {hold}"),
        };
        // Writing to a String can't fail.
        let _ = write!(
            page,
            "\n## {name}\n\n{summary}.\n\nSeverity: {severity}{after}.\n\n```promql\n{expr}\n```\n\n{action}\n"
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the metrics in an expression: the words with an underscore before a label set, a range or the end.
    fn metrics(expr: &str) -> BTreeSet<&str> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = expr.split(|c| !is_name(c));
        let prefixes = ["trainyard_", "training_operator_", "spark_", "process_"];
        words
            .filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix)))
            .collect()
    }

    #[test]
    fn alerts_and_dashboards_use_only_metrics_that_exist() {
        let known = crate::reference::metrics::page().unwrap();
        let panels = DASHBOARDS.iter().flat_map(|d| d.panels);
        let queries = panels
            .flat_map(|panel| panel.queries)
            .map(|(expr, _)| *expr);
        for expr in queries.chain(ALERTS.iter().map(|alert| alert.expr)) {
            let used = metrics(expr);
            assert!(!used.is_empty(), "{expr}");
            for name in used {
                assert!(known.contains(&format!("`{name}`")), "{name} in {expr}");
            }
        }
    }

    #[test]
    fn every_alert_is_explained_and_every_severity_is_known() {
        let page = page();
        for alert in &ALERTS {
            assert!(page.contains(&format!("## {}\n", alert.name)));
            assert!(["critical", "warning", "info"].contains(&alert.severity));
        }
    }
}
