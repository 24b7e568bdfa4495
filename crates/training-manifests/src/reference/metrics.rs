//! Generates `docs/reference/metrics.md`: every metric, from the process's registry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, ensure};
use training_core::Phase;
use training_core::reasons::WaitingReason;
use training_runtime::metrics::{EventOutcome, KindPhases, Metrics, Transition};

/// A metric, parsed from the text format.
#[derive(Debug, Default)]
struct Shown {
    kind: String,
    help: String,
    samples: BTreeSet<String>,
    labels: BTreeSet<String>,
}

/// Renders the page.
///
/// # Errors
/// If a metric can't be shown, or has no sample to read its labels from.
pub fn page() -> anyhow::Result<String> {
    let metrics = sampled();
    // A watch is shown only while its handle exists.
    let watch = metrics
        .watches()
        .want("pods", Some("default"), "/api/v1/pods");
    watch.complete();
    let text = metrics.render().context("metrics as text")?;
    let shown = read(&text);
    let mut page = format!(
        "{}# Metrics\n\nOpenMetrics text on `/metrics`. [Metrics](../metrics.md) explains them.\n\n\
         | Series | Type | Labels | Meaning |\n| --- | --- | --- | --- |\n",
        super::HEADER
    );
    for (name, metric) in shown {
        ensure!(
            !metric.samples.is_empty(),
            "{name} has no sample: count something on it in reference/metrics.rs"
        );
        let join = |set: &BTreeSet<String>| {
            let marked: Vec<String> = set.iter().map(|s| format!("`{s}`")).collect();
            marked.join(", ")
        };
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} |",
            join(&metric.samples),
            metric.kind,
            join(&metric.labels),
            metric.help.trim_end_matches('.')
        );
    }
    page.push_str(
        "\n## spark-operator\n\nThe published names of counters don't end in `_total`, as OpenMetrics requires. Labels are those of `--metrics-labels`.\n\n\
         | Series | Type | Meaning |\n| --- | --- | --- |\n",
    );
    for metric in spark_operator::controllers::metrics::described() {
        let series: Vec<String> = metric.series.iter().map(|s| format!("`{s}`")).collect();
        let (series, kind, help) = (series.join(", "), metric.kind, metric.help);
        let _ = writeln!(page, "| {series} | {kind} | {help} |");
    }
    Ok(page)
}

/// Returns metrics with at least one sample per series: series without samples don't show their labels.
fn sampled() -> Metrics {
    let metrics = Metrics::new("framework").with_own("mpi_operator");
    metrics.launches("namespace", "launcher");
    for transition in [
        Transition::Created,
        Transition::Deleted,
        Transition::Successful,
        Transition::Failed,
        Transition::Restarted,
    ] {
        metrics.job(transition, "namespace");
    }
    metrics.reconcile("done", Duration::ZERO);
    metrics.request("create", "pods", Some(201));
    metrics.queue_depth(0);
    metrics.index_objects("pods", 0);
    metrics.leader(true);
    metrics.panicked();
    metrics.events(EventOutcome::Posted, 1);
    let waiting = Phase::Waiting(WaitingReason::find("NodeLost"));
    metrics.phases(vec![KindPhases {
        kind: "Kind".to_owned(),
        counts: [(("namespace".into(), waiting), 1)].into(),
    }]);
    metrics
}

fn read(text: &str) -> BTreeMap<String, Shown> {
    let mut shown: BTreeMap<String, Shown> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            help.clone_into(&mut shown.entry(name.to_owned()).or_default().help);
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' '))
        {
            kind.clone_into(&mut shown.entry(name.to_owned()).or_default().kind);
        } else if !line.starts_with('#') {
            let series = line.split(' ').next().unwrap_or_default();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            // The longest name wins: one metric's name may be a prefix of another's.
            let owner = shown
                .iter_mut()
                .filter(|(metric, _)| name.starts_with(metric.as_str()))
                .max_by_key(|(metric, _)| metric.len());
            if let Some((_, metric)) = owner {
                metric.samples.insert(name.to_owned());
                let keys = labels.trim_end_matches('}').split(',');
                let keys = keys.filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()));
                metric.labels.extend(keys);
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_read_with_their_labels() {
        let text = "# HELP a_b Things.\n# TYPE a_b counter\na_b_total{x=\"1\",y=\"2\"} 3\n\
                    # HELP a_b_c OtherTypes.\n# TYPE a_b_c gauge\na_b_c 1\n# EOF\n";
        let shown = read(text);
        let things = &shown["a_b"];
        assert_eq!(
            (things.kind.as_str(), things.help.as_str()),
            ("counter", "Things.")
        );
        assert_eq!(things.samples.iter().collect::<Vec<_>>(), ["a_b_total"]);
        assert_eq!(things.labels.iter().collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(shown["a_b_c"].samples.len(), 1);
    }
}
