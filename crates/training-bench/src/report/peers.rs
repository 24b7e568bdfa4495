//! The table beside the published Go operators.

use std::fmt::Write as _;

use super::quiet;
use crate::stats::{Estimate, estimate, median};
use crate::store::{Pair, Record, Side};

/// What is compared: the metric, its figure, its unit, and whether more is better.
const LINES: [(&str, &str, &str, bool); 8] = [
    (
        "one job: creation → last pod, median",
        "one_p50",
        "ms",
        false,
    ),
    (
        "20 jobs at once: creation → last pod, median",
        "hundred_p50",
        "ms",
        false,
    ),
    (
        "pod failed → replacement seen, median",
        "failed_p50",
        "ms",
        false,
    ),
    ("jobs per second, 16 in flight", "jobs_per_s", "/s", true),
    (
        "requests per job, with events",
        "requests_per_job",
        "",
        false,
    ),
    ("own CPU per job", "all_cpu_ms_per_job", "ms", false),
    (
        "CPU of API server and etcd per job",
        "server_cpu_ms_per_job",
        "ms",
        false,
    ),
    ("resident memory after these jobs", "rss_mb", "MB", false),
];

/// Returns a figure of one side. Requests are reads, writes and events.
fn figure(pair: &Pair, side: Side, name: &str) -> Option<f64> {
    let figures = pair.of(side);
    if name != "requests_per_job" {
        return figures.get(name).copied();
    }
    let reads = figures.get("reads")? / figures.get("jobs")?;
    Some(figures.get("writes_per_job")? + figures.get("events_per_job")? + reads)
}

/// Returns how much better ours is than a side, in every round.
fn advantage(pairs: &[&Pair], side: Side, name: &str, more: bool) -> Option<Estimate> {
    let of = |pair: &&Pair| {
        let (ours, other) = (figure(pair, Side::Ours, name)?, figure(pair, side, name)?);
        let (good, bad) = if more { (ours, other) } else { (other, ours) };
        (bad > 0.0).then(|| good / bad)
    };
    estimate(&pairs.iter().filter_map(of).collect::<Vec<_>>())
}

/// Renders the rounds of several kinds as one Markdown table.
pub fn table<'a>(kinds: impl IntoIterator<Item = (&'a str, &'a Record)>) -> String {
    let mut text = String::from(
        "| Kind | Metric | Floor | Ours | Go, tuned | Go, default flags | Ours better than tuned Go (95 % interval) | than default Go | Rounds |\n\
         | --- | --- | ---: | ---: | ---: | ---: | --- | --- | ---: |\n",
    );
    for (kind, record) in kinds {
        let (pairs, _) = quiet(record);
        for (what, name, unit, more) in LINES {
            let show = |side| {
                let values = pairs.iter().filter_map(|pair| figure(pair, side, name));
                let values: Vec<f64> = values.collect();
                let digits = usize::from(median(&values) < 100.0);
                let shown = format!("{:.digits$} {unit}", median(&values));
                if values.is_empty() {
                    String::new()
                } else {
                    shown.trim_end().to_owned()
                }
            };
            if show(Side::Ours).is_empty() {
                continue;
            }
            let better = |side| {
                let of = advantage(&pairs, side, name, more);
                of.map_or_else(String::new, |of| {
                    format!("**{:.1} ×** ({:.1}–{:.1})", of.median, of.low, of.high)
                })
            };
            let _ = writeln!(
                text,
                "| {kind} | {what} | {} | {} | {} | {} | {} | {} | {} |",
                show(Side::Floor),
                show(Side::Ours),
                show(Side::Tuned),
                show(Side::Go),
                better(Side::Tuned),
                better(Side::Go),
                pairs.len()
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Figures;

    fn figures(list: &[(&str, f64)]) -> Figures {
        list.iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    }

    #[test]
    fn less_time_and_more_jobs_are_better() {
        let mut pair = Pair::default();
        pair.set(Side::Floor, figures(&[("one_p50", 5.0)]));
        pair.set(
            Side::Ours,
            figures(&[("one_p50", 10.0), ("jobs_per_s", 30.0)]),
        );
        pair.set(
            Side::Tuned,
            figures(&[("one_p50", 40.0), ("jobs_per_s", 15.0)]),
        );
        let record = Record {
            pairs: vec![pair],
            faults: Vec::new(),
        };
        let text = table([("PyTorchJob", &record)]);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| PyTorchJob | one job: creation → last pod, median | 5.0 ms | 10.0 ms | 40.0 ms |  | **4.0 ×** (4.0–4.0) |  | 1 |",
                "| PyTorchJob | jobs per second, 16 in flight |  | 30.0 /s | 15.0 /s |  | **2.0 ×** (2.0–2.0) |  | 1 |",
            ]
        );
    }

    #[test]
    fn requests_are_writes_events_and_reads() {
        let mut pair = Pair::default();
        let of = [
            ("writes_per_job", 11.0),
            ("events_per_job", 3.0),
            ("reads", 20.0),
            ("jobs", 10.0),
        ];
        pair.set(Side::Ours, figures(&of));
        assert_eq!(figure(&pair, Side::Ours, "requests_per_job"), Some(16.0));
        assert_eq!(figure(&pair, Side::Go, "requests_per_job"), None);
    }
}
