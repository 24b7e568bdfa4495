//! The rows of applications.

use super::{BURST, CREATION, Line, Row, SERVER_CPU, Target, compared, most, ratio, single, worst};
use crate::store::Record;
use crate::submission::UNMEASURED;

const COMPLETED: Line = Line(
    "b",
    "applications completed per second, 1,000 at once",
    "thousand_per_s",
    "/s",
    Some(Target::AtLeast(0.85)),
);
const SUBMITTED: Line = Line(
    "b",
    "drivers made per second, 1,000 applications at once",
    "thousand_made_per_s",
    "/s",
    None,
);
const OWN_CPU: Line = Line("d", "own CPU per application", "cpu_ms_per_job", "ms", None);
const OWN_CPU_MS: Line = Line(
    "d",
    "own CPU per application, ms",
    "cpu_ms_per_job",
    "",
    Some(most(5.0)),
);
const MEMORY: [Line; 2] = [
    Line(
        "e",
        "resident memory after 1,000 applications at once, MB",
        "after_rss_mb",
        "",
        None,
    ),
    Line(
        "e",
        "the same at its highest, MB",
        "after_peak_mb",
        "",
        None,
    ),
];
/// The rows whose floor is `spark-submit`.
const SPARK_SUBMIT: [Line; 4] = [
    Line(
        "h",
        "one submission: spark-submit's time (Floor) over ours",
        "submit_ms",
        "ms",
        None,
    ),
    Line(
        "h",
        "two at once: spark-submit's time (Floor) over ours",
        "submit_two_ms",
        "ms",
        None,
    ),
    Line(
        "h",
        "CPU: spark-submit's per submission (Floor) over ours per whole life",
        "submit_cpu_ms",
        "ms",
        None,
    ),
    Line(
        "h",
        "memory at its highest: one spark-submit's (Floor) over the operator's",
        "submit_peak_mb",
        "MB",
        None,
    ),
];
const KILLS: [Line; 2] = [
    Line(
        "i",
        "kills of the operator (kill -9) while applications were under way",
        "kills",
        "",
        None,
    ),
    Line("i", "applications meanwhile", "applications", "", None),
];

/// Returns all rows except those about requests.
pub fn rows(latency: &Record, burst: &Record, submission: &Record, killed: &Record) -> Vec<Row> {
    let mut rows = vec![ratio((COMPLETED, burst)), ratio((SUBMITTED, burst))];
    let creation = CREATION.into_iter().map(|line| (line, latency));
    let creation = creation.chain(BURST.into_iter().map(|line| (line, burst)));
    rows.extend(creation.map(in_other_words));
    rows.push(single(OWN_CPU_MS, burst));
    rows.extend([(OWN_CPU, burst), (SERVER_CPU, burst)].map(in_other_words));
    rows.extend(MEMORY.map(|line| single(line, burst)));
    rows.extend(SPARK_SUBMIT.map(|line| beside(line, submission)));
    rows.push(worst("h", "child processes", &["children"], burst));
    rows.extend(KILLS.map(|line| single(line, killed)));
    rows.push(worst("i", "drivers made twice", &["doubles"], killed));
    let left = "objects left beside drivers";
    rows.push(worst("i", left, &["left_over"], killed));
    rows
}

/// Rewords a row about jobs for applications.
fn in_other_words((line, record): (Line, &Record)) -> Row {
    let mut row = ratio((line, record));
    row.what = row.what.replace("last pod", "driver");
    row.what = row.what.replace("job", "application");
    row
}

/// Returns the row with the ratio of `spark-submit` to the operator.
fn beside(line: Line, submission: &Record) -> Row {
    let mut row = compared((line, submission), |ratio| 1.0 / ratio);
    let unmeasured = |pair: &crate::store::Pair| pair.floor.contains_key(UNMEASURED);
    if submission.pairs.iter().any(unmeasured) {
        "needs root, and the image in the cache".clone_into(&mut row.floor);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;
    use crate::store::{Figures, Pair};

    fn figures(all: &[(&str, f64)]) -> Figures {
        let all = all.iter().map(|(name, value)| ((*name).to_owned(), *value));
        all.collect()
    }

    fn record(floor: &[(&str, f64)], ours: &[(&str, f64)]) -> Record {
        let pair = Pair::new(figures(floor), figures(ours));
        Record {
            pairs: vec![pair],
            faults: Vec::new(),
        }
    }

    fn of(what: &str, submission: &Record, killed: &Record) -> Row {
        let none = Record::default();
        let mut all = rows(&none, &none, submission, killed).into_iter();
        all.find(|row| row.what.starts_with(what)).unwrap()
    }

    #[test]
    fn a_submission_is_told_as_a_multiple_of_ours() {
        let both = record(&[("submit_ms", 5000.0)], &[("submit_ms", 25.0)]);
        let row = of("one submission", &both, &Record::default());
        assert_eq!(row.value.unwrap().median, 200.0);
        assert_eq!(
            (row.floor.as_str(), row.ours.as_str()),
            ("5000 ms", "25.0 ms")
        );
    }

    #[test]
    fn without_an_image_the_row_says_so_and_counts_as_not_measured() {
        let alone = record(&[(UNMEASURED, 1.0)], &[("submit_ms", 25.0)]);
        let row = of("one submission", &alone, &Record::default());
        assert_eq!(row.outcome(), Outcome::NotMeasured);
        assert!(row.floor.contains("image in the cache") && row.ours == "25.0 ms");
    }

    #[test]
    fn one_driver_too_many_is_a_miss() {
        let killed = |doubles| record(&[], &[("doubles", doubles)]);
        let outcome =
            |doubles| of("drivers made twice", &Record::default(), &killed(doubles)).outcome();
        assert_eq!(outcome(0.0), Outcome::Met);
        assert_eq!(outcome(1.0), Outcome::Missed);
    }
}
