//! The table beside the published Go operators.

use std::fmt::Write as _;

use training_testkit::builders::Kind;

use super::{PEERS, counted, former, quiet, shown};
use crate::metric::job_counts;
use crate::stats::estimate;
use crate::store::{Pair, Record, Side};

/// One line of the table.
struct Line {
    /// The letter of its row in the main table.
    id: &'static str,
    what: String,
    figure: &'static str,
    unit: &'static str,
    more_is_better: bool,
}

fn lines(kind: &Kind) -> Vec<Line> {
    let counts = job_counts(kind);
    let line = |id, what: &str, figure, unit| Line {
        id,
        what: what.to_owned(),
        figure,
        unit,
        more_is_better: false,
    };
    let at_once = format!("{} jobs at once, median", counts.at_once);
    let pace = Line {
        more_is_better: true,
        ..line(
            "b",
            &format!("jobs per second, {} in flight", counts.in_flight),
            "jobs_per_s",
            "/s",
        )
    };
    vec![
        line("a", "requests per job, with events", REQUESTS, ""),
        pace,
        line("c", "one job: creation → last pod, median", "one_p50", "ms"),
        line("c", &at_once, "hundred_p50", "ms"),
        line("d", "own CPU per job", "all_cpu_ms_per_job", "ms"),
        line(
            "d",
            "CPU of API server and etcd per job",
            "server_cpu_ms_per_job",
            "ms",
        ),
        line("e", "resident memory after these jobs", "rss_mb", "MB"),
        line(
            "f",
            "pod failed → replacement seen, median",
            "failed_p50",
            "ms",
        ),
    ]
}

/// The sum of reads, writes and events per job.
const REQUESTS: &str = "requests_per_job";

/// Returns a figure of one side.
fn figure(pair: &Pair, side: Side, name: &str) -> Option<f64> {
    let figures = pair.of(side);
    if name != REQUESTS {
        return figures.get(name).copied();
    }
    let reads = figures.get("reads")? / figures.get("jobs")?;
    Some(figures.get("writes_per_job")? + figures.get("events_per_job")? + reads)
}

/// Returns how much better ours is than a side, in every round.
fn advantage(pairs: &[&Pair], side: Side, line: &Line) -> String {
    let of = |pair: &&Pair| {
        let (ours, other) = (
            figure(pair, Side::Ours, line.figure)?,
            figure(pair, side, line.figure)?,
        );
        let (good, bad) = if line.more_is_better {
            (ours, other)
        } else {
            (other, ours)
        };
        (bad > 0.0).then(|| good / bad)
    };
    let ratios: Vec<f64> = pairs.iter().filter_map(of).collect();
    estimate(&ratios).map_or_else(String::new, |of| of.text(1, " ×"))
}

/// Renders the rounds of several kinds as one Markdown table. A kind without results keeps its rows in the page.
pub fn table<'a>(kinds: impl IntoIterator<Item = (&'a Kind, &'a Record)>, page: &str) -> String {
    let mut text = String::from(
        "| Id | Kind | Metric | Floor | Ours | Go, tuned | Go, default flags | Ours better than tuned Go (95 % interval) | than default Go | Rounds |\n\
         | --- | --- | --- | ---: | ---: | ---: | ---: | --- | --- | ---: |\n",
    );
    for (kind, record) in kinds {
        for line in former(page, PEERS, kind.name) {
            if record.pairs.is_empty() {
                let _ = writeln!(text, "{line}");
            }
        }
        let (pairs, left_out) = quiet(record);
        for line in lines(kind) {
            let show = |side| {
                let values = pairs
                    .iter()
                    .filter_map(|pair| figure(pair, side, line.figure));
                shown(&values.collect::<Vec<_>>(), line.unit)
            };
            let ours = show(Side::Ours);
            if ours.is_empty() {
                continue;
            }
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {ours} | {} | {} | {} | {} | {} |",
                line.id,
                kind.name,
                line.what,
                show(Side::Floor),
                show(Side::Tuned),
                show(Side::Go),
                advantage(&pairs, Side::Tuned, &line),
                advantage(&pairs, Side::Go, &line),
                counted(pairs.len(), left_out)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use training_testkit::builders::{MPI, PYTORCH};

    use super::*;
    use crate::store::Figures;

    fn figures(list: &[(&str, f64)]) -> Figures {
        list.iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    }

    fn round(tuned: f64) -> Pair {
        let mut pair = Pair::default();
        pair.set(Side::Floor, figures(&[("one_p50", 5.0)]));
        pair.set(
            Side::Ours,
            figures(&[("one_p50", 10.0), ("jobs_per_s", 30.0)]),
        );
        pair.set(
            Side::Tuned,
            figures(&[("one_p50", tuned), ("jobs_per_s", 15.0)]),
        );
        pair
    }

    fn rows(rounds: &[f64]) -> Vec<String> {
        let record = Record {
            pairs: rounds.iter().map(|tuned| round(*tuned)).collect(),
            faults: Vec::new(),
        };
        let text = table([(&PYTORCH, &record)], "");
        text.lines().skip(2).map(str::to_owned).collect()
    }

    #[test]
    fn less_time_and_more_jobs_are_better() {
        assert_eq!(
            rows(&[40.0]),
            [
                "| b | PyTorchJob | jobs per second, 16 in flight |  | 30.0 /s | 15.0 /s |  | **2.0 ×** |  | 1 |",
                "| c | PyTorchJob | one job: creation → last pod, median | 5.0 ms | 10.0 ms | 40.0 ms |  | **4.0 ×** |  | 1 |",
            ]
        );
    }

    #[test]
    fn several_rounds_have_an_interval() {
        let [_, created] = &rows(&[20.0, 40.0, 60.0])[..] else {
            panic!("not two rows")
        };
        assert!(
            created.ends_with("| **4.0 ×** (2.0–6.0) |  | 3 |"),
            "{created}"
        );
    }

    #[test]
    fn a_kind_without_results_keeps_its_rows() {
        let [begin, end] = PEERS;
        let old = "| a | MPIJob | requests per job, with events | 1 | 2 | 3 | 4 | | | 5 |";
        let page = format!("{begin}\n{old}\n{end}");
        let none = Record::default();
        let text = table([(&PYTORCH, &none), (&MPI, &none)], &page);
        assert_eq!(text.lines().skip(2).collect::<Vec<_>>(), [old]);
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
        assert_eq!(figure(&pair, Side::Ours, REQUESTS), Some(16.0));
        assert_eq!(figure(&pair, Side::Go, REQUESTS), None);
    }
}
