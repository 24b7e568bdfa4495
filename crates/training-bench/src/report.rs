//! Renders results as one table.

mod applications;
pub mod peers;

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde::Serialize;
use training_testkit::builders::Kind;

use crate::kind::{self, WHOLE, launches, submits};
use crate::metric::Metric;
use crate::runs::number;
use crate::size::Setting;
use crate::stats::{Estimate, estimate, median};
use crate::store::{Figures, Pair, Record, Store};

/// A pair counts as disturbed if other processes used more than this share of the machine.
const NOISY: f64 = 0.10;
/// Disturbed pairs are omitted only if at least so many others remain.
const ENOUGH: usize = 3;
/// The marks of the table.
pub const TABLE: [&str; 2] = ["<!-- bench: begin -->", "<!-- bench: end -->"];
/// The marks of the table beside the Go operators.
pub const PEERS: [&str; 2] = ["<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"];

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The letter of the target.
    pub id: &'static str,
    /// A description of the metric.
    pub what: String,
    /// The floor's figure.
    pub floor: String,
    /// The operator's figure.
    pub ours: String,
    /// The value to compare with the target.
    pub value: Option<Estimate>,
    /// The target, if there is one.
    pub target: Option<Target>,
    /// The number of omitted disturbed pairs.
    pub left_out: usize,
}

/// A target for a value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Target {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

/// The outcome of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// The whole interval meets the target.
    Met,
    /// The median meets the target, but not the whole interval.
    Likely,
    /// The median misses the target.
    Missed,
    /// There is no target.
    Shown,
    /// There is no result.
    NotMeasured,
}

impl Row {
    /// Returns whether the target is met.
    pub fn outcome(&self) -> Outcome {
        let Some(value) = self.value else {
            return Outcome::NotMeasured;
        };
        let (median, worst) = match self.target {
            None => return Outcome::Shown,
            Some(Target::AtMost(most)) => (value.median <= most, value.high <= most),
            Some(Target::AtLeast(least)) => (value.median >= least, value.low >= least),
        };
        match (median, worst) {
            (true, true) => Outcome::Met,
            (true, false) => Outcome::Likely,
            (false, _) => Outcome::Missed,
        }
    }

    fn line(&self, kind: &str) -> String {
        let value = self.value.map_or_else(|| "–".to_owned(), |v| v.text(2, ""));
        let target = match self.target {
            None => String::new(),
            Some(Target::AtMost(most)) => format!("≤ {most}"),
            Some(Target::AtLeast(least)) => format!("≥ {least}"),
        };
        let outcome = match self.outcome() {
            Outcome::Met => "met",
            Outcome::Likely => "met, not surely",
            Outcome::Missed => "**missed**",
            Outcome::Shown => "",
            Outcome::NotMeasured => "not measured",
        };
        let pairs = self
            .value
            .map_or_else(String::new, |v| counted(v.values, self.left_out));
        format!(
            "| {} | {kind} | {} | {} | {} | {value} | {target} | {outcome} | {pairs} |",
            self.id, self.what, self.floor, self.ours
        )
    }
}

/// Returns the rows of one kind from its stored results.
pub fn rows(store: &Store, setting: &Setting) -> Result<Vec<Row>> {
    let read = |metric: Metric| store.read(metric.name());
    let (life, pace, latency) = (
        read(Metric::Life)?,
        read(Metric::Pace)?,
        read(Metric::Latency)?,
    );
    let (burst, crowd) = (read(Metric::Burst)?, read(Metric::Crowd)?);
    let (once, starts) = split(read(Metric::Scale)?);
    let (event, why) = (read(Metric::Event)?, read(Metric::Why)?);
    if submits(&setting.kind) {
        let (submission, killed) = (read(Metric::Submission)?, read(Metric::Killed)?);
        let mut rows = requests(&life, &burst, &setting.kind);
        rows.extend(applications::rows(&latency, &burst, &submission, &killed));
        return Ok(rows);
    }
    let mut rows = requests(&life, &pace, &setting.kind);
    rows.extend([(JOBS_PER_SECOND, &pace)].map(ratio));
    rows.extend(CREATION.map(|line| ratio((line, &latency))));
    rows.extend(BURST.map(|line| ratio((line, &burst))));
    if launches(&setting.kind) {
        rows.extend([(OWN_CPU_BUT_KEYS, &pace), (KEYS_CPU, &pace)].map(ratio));
    } else {
        rows.push(ratio((OWN_CPU, &pace)));
    }
    if setting.kind == WHOLE {
        rows.push(ratio((CROWDED, &crowd)));
    }
    rows.push(ratio((SERVER_CPU, &pace)));
    rows.extend(MEMORY.map(|line| single(line, &once)));
    rows.extend(FAILURE.map(|line| ratio((line, &latency))));
    rows.push(ratio((START, &starts)));
    rows.push(worst(
        "g",
        "writes at such a start",
        &["writes", "events"],
        &starts,
    ));
    let idle = ["idle_writes", "idle_events", "idle_reads"];
    rows.push(worst(
        "j",
        "requests while idle, without the lease",
        &idle,
        &once,
    ));
    rows.extend(EVENT.map(|line| ratio((line, &event))));
    rows.push(ratio((WHY, &why)));
    rows.push(single(PLUGIN_SIZE, &why));
    rows.retain(|row| setting.shows(row.id));
    Ok(rows)
}

/// A row for one figure: id, name, figure, unit, target.
#[derive(Clone, Copy)]
struct Line(
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Option<Target>,
);

const fn most(most: f64) -> Target {
    Target::AtMost(most)
}

const JOBS_PER_SECOND: Line = Line(
    "b",
    "jobs per second, 64 in flight",
    "jobs_per_s",
    "/s",
    Some(Target::AtLeast(0.85)),
);
const CREATION: [Line; 4] = [
    Line(
        "c",
        "one job: creation → last pod, median",
        "one_p50",
        "ms",
        Some(most(1.4)),
    ),
    Line("c", "one job, 99th percentile", "one_p99", "ms", None),
    Line(
        "c",
        "100 jobs at once, median",
        "hundred_p50",
        "ms",
        Some(most(1.15)),
    ),
    Line(
        "c",
        "100 jobs at once, 99th percentile",
        "hundred_p99",
        "ms",
        None,
    ),
];
const BURST: [Line; 2] = [
    Line(
        "c",
        "1,000 jobs at once, median",
        "thousand_p50",
        "ms",
        Some(most(1.15)),
    ),
    Line(
        "c",
        "1,000 jobs at once, 99th percentile",
        "thousand_p99",
        "ms",
        None,
    ),
];
const OWN_CPU: Line = Line(
    "d",
    "own CPU per job",
    "cpu_ms_per_job",
    "ms",
    Some(most(1.8)),
);
const OWN_CPU_BUT_KEYS: Line = Line(
    "d",
    "own CPU per job, without making its SSH key",
    "cpu_ms_per_job",
    "ms",
    Some(most(1.8)),
);
const KEYS_CPU: Line = Line(
    "d",
    "CPU per job of making its SSH key",
    "key_cpu_ms_per_job",
    "ms",
    None,
);
const CROWDED: Line = Line(
    "d",
    "own CPU per job with 15,000 foreign pods in the namespace, over without",
    "cpu_ms_per_job",
    "ms",
    Some(most(1.05)),
);
const SERVER_CPU: Line = Line(
    "d",
    "CPU of API server and etcd per job",
    "server_cpu_ms_per_job",
    "ms",
    None,
);
const MEMORY: [Line; 3] = [
    Line(
        "e",
        "resident memory with nothing, MB",
        "nothing_rss_mb",
        "",
        Some(most(12.0)),
    ),
    Line(
        "e",
        "resident memory with 10,000 finished jobs, 40,000 pods and 40,000 services, MB",
        "full_rss_mb",
        "",
        Some(most(45.0)),
    ),
    Line("e", "the same at its highest, MB", "full_peak_mb", "", None),
];
const FAILURE: [Line; 2] = [
    Line(
        "f",
        "pod failed → replacement seen, median",
        "failed_p50",
        "ms",
        Some(most(1.5)),
    ),
    Line(
        "f",
        "pod failed → replacement seen, 99th percentile",
        "failed_p99",
        "ms",
        None,
    ),
];
const START: Line = Line(
    "g",
    "start → first pass, with 5,000 jobs, 20,000 pods and 20,000 services",
    "start_ms",
    "ms",
    Some(most(2.0)),
);

const WHY: Line = Line(
    "l",
    "kubectl trainyard why in a namespace of 500 jobs: start → first line",
    "why_ms",
    "ms",
    Some(most(1.5)),
);

const PLUGIN_SIZE: Line = Line(
    "l",
    "size of kubectl-trainyard, MB",
    "plugin_mb",
    "",
    Some(most(12.0)),
);

const EVENT: [Line; 3] = [
    Line(
        "k",
        "an event of a pod, 20,000 replicas over one",
        "changed_ns",
        "ns",
        Some(most(4.0)),
    ),
    Line(
        "k",
        "an event of a foreign pod, 20,000 replicas over one",
        "foreign_ns",
        "ns",
        Some(most(4.0)),
    ),
    Line(
        "k",
        "a listed pod, one job of 20,000 replicas over 20,000 jobs",
        "listed_ns",
        "ns",
        Some(most(4.0)),
    ),
];

/// Splits the record into single measurements and pairs of starts.
fn split(scale: Record) -> (Record, Record) {
    let mut pairs = scale.pairs.into_iter();
    let once = Record {
        pairs: pairs.next().into_iter().collect(),
        faults: Vec::new(),
    };
    (
        once,
        Record {
            pairs: pairs.collect(),
            faults: Vec::new(),
        },
    )
}

fn requests(life: &Record, pace: &Record, kind: &Kind) -> Vec<Row> {
    let least = kind::least(kind);
    let (job, with_events) = if submits(kind) {
        // Each of its four states causes an event, and they are rarely folded.
        ("application", None)
    } else {
        ("job", Some(most(1.35)))
    };
    let per_job = |sorts: &[&str]| -> Vec<f64> {
        let sum = |pair: &Pair| {
            sorts
                .iter()
                .map(|sort| pair.ours.get(*sort))
                .sum::<Option<f64>>()
        };
        life.pairs
            .iter()
            .chain(&pace.pairs)
            .filter_map(sum)
            .collect()
    };
    let floor = median_of(life, |pair| pair.floor.get("writes_per_job").copied());
    let row = |what: &str, sorts: &[&str], target: Option<Target>| {
        let counts = per_job(sorts);
        let ratios: Vec<f64> = counts.iter().map(|count| count / number(least)).collect();
        Row {
            id: "a",
            what: format!("requests per {job} over {least}, {what}"),
            floor: floor.map(|count| format!("{count:.2}")).unwrap_or_default(),
            ours: if counts.is_empty() {
                String::new()
            } else {
                format!("{:.2}", median(&counts))
            },
            value: estimate(&ratios),
            target,
            left_out: 0,
        }
    };
    vec![
        row("without events", &["writes_per_job"], Some(most(1.10))),
        row(
            "with folded events",
            &["writes_per_job", "events_per_job"],
            with_events,
        ),
        worst(
            "a",
            "GETs and LISTs",
            &["gets", "lists", "reads"],
            &both(life, pace),
        ),
        worst(
            "a",
            "conflicts",
            &["conflicts", "refused"],
            &both(life, pace),
        ),
    ]
}

fn both(life: &Record, pace: &Record) -> Record {
    let pairs = life.pairs.iter().chain(&pace.pairs).cloned().collect();
    Record {
        pairs,
        faults: Vec::new(),
    }
}

fn median_of(record: &Record, figure: impl Fn(&Pair) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = record.pairs.iter().filter_map(figure).collect();
    (!values.is_empty()).then(|| median(&values))
}

/// Returns the undisturbed pairs, and the number of omitted ones.
fn quiet(record: &Record) -> (Vec<&Pair>, usize) {
    let calm: Vec<&Pair> = record
        .pairs
        .iter()
        .filter(|pair| pair.foreign() <= NOISY)
        .collect();
    let out = record.pairs.len() - calm.len();
    if calm.len() >= ENOUGH {
        (calm, out)
    } else {
        (record.pairs.iter().collect(), 0)
    }
}

fn ratio((line, record): (Line, &Record)) -> Row {
    compared((line, record), |ratio| ratio)
}

/// Builds a row from both sides of a figure and the pairs' ratios.
fn compared(
    (Line(id, what, figure, unit, target), record): (Line, &Record),
    value: impl Fn(f64) -> f64,
) -> Row {
    let (pairs, left_out) = quiet(record);
    let ratios = pairs.iter().filter_map(|pair| pair.ratio(figure));
    let ratios: Vec<f64> = ratios.map(value).collect();
    let show = |of: fn(&Pair) -> &Figures| {
        let values = pairs.iter().filter_map(|pair| of(pair).get(figure));
        shown(&values.copied().collect::<Vec<_>>(), unit)
    };
    Row {
        id,
        what: what.to_owned(),
        floor: show(|pair| &pair.floor),
        ours: show(|pair| &pair.ours),
        value: estimate(&ratios),
        target,
        left_out,
    }
}

/// Returns the median of values with their unit; nothing without values.
fn shown(values: &[f64], unit: &str) -> String {
    let middle = median(values);
    let digits = usize::from(middle < 100.0);
    if values.is_empty() {
        String::new()
    } else {
        format!("{middle:.digits$} {unit}").trim_end().to_owned()
    }
}

/// Returns the number of pairs that count.
fn counted(pairs: usize, left_out: usize) -> String {
    match left_out {
        0 => pairs.to_string(),
        out => format!("{pairs} ({out} left out)"),
    }
}

fn single(Line(id, what, figure, _, target): Line, once: &Record) -> Row {
    let values: Vec<f64> = once
        .pairs
        .iter()
        .filter_map(|pair| pair.ours.get(figure).copied())
        .collect();
    Row {
        id,
        what: what.to_owned(),
        floor: String::new(),
        ours: String::new(),
        value: estimate(&values),
        target,
        left_out: 0,
    }
}

/// Builds a row of counts that must be 0; shows the worst run.
fn worst(id: &'static str, what: &str, figures: &[&str], record: &Record) -> Row {
    let sum = |pair: &Pair| {
        figures
            .iter()
            .filter_map(|figure| pair.ours.get(*figure))
            .sum::<f64>()
    };
    let most = record
        .pairs
        .iter()
        .map(sum)
        .fold(None, |most: Option<f64>, sum| {
            Some(most.map_or(sum, |most| most.max(sum)))
        });
    let value = most.map(|most| Estimate {
        median: most,
        low: most,
        high: most,
        values: record.pairs.len(),
    });
    Row {
        id,
        what: what.to_owned(),
        floor: String::new(),
        ours: String::new(),
        value,
        target: Some(Target::AtMost(0.0)),
        left_out: 0,
    }
}

/// Renders the rows of several kinds as one Markdown table. A kind without results keeps its rows in the page, which may be
/// from another machine or from earlier builds.
pub fn table<'a>(kinds: impl IntoIterator<Item = (&'a str, &'a [Row])>, page: &str) -> String {
    let mut text = String::from(
        "| Id | Kind | Metric | Floor | Ours | Value (95 % interval) | Target | | Pairs |\n\
         | --- | --- | --- | ---: | ---: | --- | ---: | --- | ---: |\n",
    );
    for (kind, rows) in kinds {
        let former = former(page, TABLE, kind);
        if is_known(rows) || former.is_empty() {
            for row in rows {
                let _ = writeln!(text, "{}", row.line(kind));
            }
        }
        for line in former.iter().filter(|_| !is_known(rows)) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// Returns whether a kind has results.
pub fn is_known(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.value.is_some())
}

/// Returns a kind's rows in a table of the page.
fn former<'a>(page: &'a str, marks: [&str; 2], kind: &str) -> Vec<&'a str> {
    let of = |line: &&str| line.starts_with("| ") && line.split(" | ").nth(1) == Some(kind);
    within(page, marks).lines().filter(of).collect()
}

/// Returns the page's text between two marks.
fn within<'a>(page: &'a str, [begin, end]: [&str; 2]) -> &'a str {
    let rest = page.split_once(begin).map_or("", |(_, rest)| rest);
    rest.split_once(end).map_or("", |(within, _)| within)
}

/// Describes when and where a table's figures were measured. Kinds that keep their rows also keep their note.
pub fn origin(known: &[&str], all: usize, run: &str, page: &str, marks: [&str; 2]) -> String {
    if known.len() == all {
        return format!("Measured {run}\n");
    }
    let lines = within(page, marks).lines();
    let former = lines.take_while(|line| !line.starts_with('|'));
    let is_new = |line: &&str| {
        let begins = |kind: &&str| line.starts_with(&format!("`{kind}`: "));
        known.iter().any(begins)
    };
    let former: Vec<&str> = former.filter(|line| !is_new(line)).collect();
    let mut text = former.join("\n").trim().to_owned();
    for kind in known {
        let _ = write!(text, "\n`{kind}`: {run}");
    }
    text.trim().to_owned() + "\n"
}

/// Inserts a text between two marks of the page.
pub fn insert(page: &str, [begin, end]: [&str; 2], text: &str) -> Result<String> {
    let (before, rest) = page
        .split_once(begin)
        .context("the page has no mark where the table begins")?;
    let (_, after) = rest
        .split_once(end)
        .context("the page has no mark where the table ends")?;
    Ok(format!("{before}{begin}\n{text}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use training_testkit::builders::{MPI, PYTORCH, SPARK, TENSORFLOW};

    use super::*;
    use crate::kind::KINDS;
    use crate::size::Size;

    fn pair(floor: f64, ours: f64, foreign: f64) -> Pair {
        let ours = [
            ("x".to_owned(), ours),
            ("foreign_share".to_owned(), foreign),
        ];
        Pair::new([("x".to_owned(), floor)].into(), ours.into())
    }

    fn record(pairs: &[(f64, f64, f64)]) -> Record {
        let pairs = pairs
            .iter()
            .map(|(floor, ours, foreign)| pair(*floor, *ours, *foreign))
            .collect();
        Record {
            pairs,
            faults: Vec::new(),
        }
    }

    #[test]
    fn a_target_is_met_only_with_the_whole_interval() {
        let calm = |ours: [f64; 3]| record(&ours.map(|ours| (1.0, ours, 0.0)));
        let outcome =
            |record: &Record, target| ratio((Line("x", "", "x", "", target), record)).outcome();
        let most = Some(Target::AtMost(1.5));
        assert_eq!(outcome(&calm([1.0, 1.1, 1.2]), most), Outcome::Met);
        assert_eq!(outcome(&calm([1.0, 1.1, 1.9]), most), Outcome::Likely);
        assert_eq!(outcome(&calm([1.0, 1.6, 1.9]), most), Outcome::Missed);
        assert_eq!(outcome(&calm([1.0, 1.6, 1.9]), None), Outcome::Shown);
        assert_eq!(
            outcome(&calm([1.0, 0.7, 0.6]), Some(Target::AtLeast(0.85))),
            Outcome::Missed
        );
        assert_eq!(outcome(&Record::default(), most), Outcome::NotMeasured);
    }

    #[test]
    fn disturbed_pairs_are_left_out_while_enough_others_remain() {
        let mixed = record(&[
            (1.0, 1.0, 0.0),
            (1.0, 9.0, 0.5),
            (1.0, 1.0, 0.1),
            (1.0, 1.0, 0.0),
        ]);
        let row = ratio((Line("x", "", "x", "", None), &mixed));
        assert_eq!((row.value.unwrap().high, row.left_out), (1.0, 1));
        let few = record(&[(1.0, 1.0, 0.0), (1.0, 9.0, 0.5)]);
        let row = ratio((Line("x", "", "x", "", None), &few));
        assert_eq!((row.value.unwrap().values, row.left_out), (2, 0));
    }

    #[test]
    fn counts_that_must_be_zero_show_the_worst_run() {
        let row = worst(
            "x",
            "",
            &["x"],
            &record(&[(0.0, 0.0, 0.0), (0.0, 2.0, 0.0)]),
        );
        assert_eq!(
            (row.value.unwrap().median, row.outcome()),
            (2.0, Outcome::Missed)
        );
        let row = worst("x", "", &["x"], &record(&[(0.0, 0.0, 0.0)]));
        assert_eq!(row.outcome(), Outcome::Met);
    }

    #[test]
    fn every_kind_has_its_rows_under_its_name_and_only_one_has_all() {
        let target = std::env::temp_dir().join(format!("bench-report-{}", std::process::id()));
        std::fs::create_dir_all(&target).unwrap();
        let binary = target.join("operator");
        std::fs::write(&binary, "a").unwrap();
        let size = Size::named("").unwrap();
        let all = KINDS.map(|kind| {
            let store = Store::open(&target, "x", kind.operator, &binary).unwrap();
            if kind == TENSORFLOW {
                let mut pair = Pair::default();
                pair.floor.insert("jobs_per_s".to_owned(), 20.0);
                pair.ours.insert("jobs_per_s".to_owned(), 18.0);
                let record = Record {
                    pairs: vec![pair],
                    faults: Vec::new(),
                };
                store.write(Metric::Pace.name(), &record).unwrap();
            }
            (kind, rows(&store, &Setting::new(kind, size)).unwrap())
        });
        std::fs::remove_dir_all(&target).unwrap();

        for (kind, rows) in &all {
            let mut ids: Vec<&str> = rows.iter().map(|row| row.id).collect();
            ids.dedup();
            let whole = ["a", "b", "c", "d", "e", "f", "g", "j", "k", "l"];
            let expected = match *kind {
                PYTORCH => &whole[..],
                MPI => &whole[..4],
                SPARK => &["a", "b", "c", "d", "e", "h", "i"],
                _ => &whole[..3],
            };
            assert_eq!(ids, expected, "{}", kind.name);
        }
        let table = table(all.iter().map(|(kind, rows)| (kind.name, &rows[..])), "");
        let paces: Vec<&str> = table.lines().filter(|l| l.starts_with("| b |")).collect();
        // Applications have two.
        assert_eq!(paces.len(), 6, "{table}");
        assert!(paces[0].starts_with("| b | PyTorchJob |") && paces[0].contains("not measured"));
        let tf = "| b | TFJob | jobs per second, 64 in flight | 20.0 /s | 18.0 /s | **0.90** | ≥ 0.85 | met | 1 |";
        assert_eq!(paces[1], tf);
        assert!(paces[2].starts_with("| b | XGBoostJob |") && paces[2].contains("not measured"));
        assert!(paces[4].starts_with("| b | SparkApplication | applications completed per second"));
        let cpu = table.lines().filter(|l| l.starts_with("| d | MPIJob |"));
        let what: Vec<&str> = cpu.filter_map(|l| l.split(" | ").nth(2)).collect();
        let [own, keys, server] = &what[..] else {
            panic!("{table}")
        };
        assert!(own.contains("without making its SSH key") && keys.ends_with("its SSH key"));
        assert!(server.contains("API server"), "{server}");
    }

    #[test]
    fn kinds_of_which_nothing_is_known_keep_their_rows() {
        let [begin, end] = TABLE;
        let old = "| b | TFJob | jobs | 1 | 2 | **0.90** | | met | 1 |";
        let page =
            format!("{begin}\n\nMeasured then.\n`XGBoostJob`: then.\n\n| Id |\n{old}\n\n{end}");
        let row = |value| Row {
            id: "b",
            what: "jobs".to_owned(),
            floor: String::new(),
            ours: String::new(),
            value,
            target: None,
            left_out: 0,
        };
        let (unknown, known) = ([row(None)], [row(estimate(&[2.0]))]);
        let text = table([("TFJob", &unknown[..]), ("XGBoostJob", &known[..])], &page);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(lines[0], old);
        assert!(lines[1].starts_with("| b | XGBoostJob |"), "{text}");
        let text = table([("TFJob", &known[..])], &page);
        assert!(!text.contains("0.90"), "{text}");
        let from = origin(&["XGBoostJob"], 2, "now.", &page, TABLE);
        assert_eq!(from, "Measured then.\n`XGBoostJob`: now.\n");
        assert_eq!(
            origin(&["TFJob", "XGBoostJob"], 2, "now.", &page, TABLE),
            "Measured now.\n"
        );
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let [begin, end] = TABLE;
        let page = format!("a\n{begin}\nold\n{end}\nb\n");
        assert_eq!(
            insert(&page, TABLE, "new\n").unwrap(),
            format!("a\n{begin}\nnew\n{end}\nb\n")
        );
        assert!(insert("a", TABLE, "new").is_err());
    }
}
