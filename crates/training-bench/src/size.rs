//! How much is measured.

use std::time::Duration;

use training_testkit::builders::Kind;

use crate::kind::{WHOLE, launches, submits};

/// The figures of one size of run.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Its name, under which results are kept.
    pub name: &'static str,
    /// Pairs of runs, floor and ours, per metric.
    pub pairs: usize,
    /// Pairs of the two metrics that take longest.
    pub long_pairs: usize,
    /// Pairs per metric of a kind of which only a part is measured.
    pub part_pairs: usize,
    /// Jobs before a measurement begins.
    pub warm_up: usize,
    /// Jobs of the run that counts requests.
    pub life_jobs: usize,
    /// Jobs that the closed loop completes.
    pub pace_jobs: usize,
    /// Jobs of the closed loop that are in flight at once.
    pub in_flight: usize,
    /// Pods of others in the crowded namespace.
    pub crowd: usize,
    /// Jobs one by one.
    pub ones: usize,
    /// Jobs of a small burst, and how often.
    pub hundred: (usize, usize),
    /// Jobs of the large burst.
    pub thousand: usize,
    /// Submissions by `spark-submit`, one after the other.
    pub spark_submits: usize,
    /// Applications while whose operator is killed, and how often that is.
    pub killed: (usize, usize),
    /// Jobs whose three workers fail, one after the other.
    pub failing_jobs: usize,
    /// Finished jobs at the measured starts, and at the measured memory.
    pub finished: (usize, usize),
    /// Measured starts, in pairs.
    pub starts: usize,
    /// Jobs that run while the operator is idle.
    pub idle_jobs: usize,
    /// How long it is watched while idle.
    pub idle: Duration,
    /// How long a process rests before its memory is read.
    pub rest: Duration,
    /// After this time no further pair is begun.
    pub budget: Duration,
}

const SMOKE: Size = Size {
    name: "smoke",
    pairs: 1,
    long_pairs: 1,
    part_pairs: 1,
    warm_up: 5,
    life_jobs: 5,
    pace_jobs: 40,
    in_flight: 16,
    crowd: 300,
    ones: 8,
    hundred: (20, 1),
    thousand: 60,
    spark_submits: 2,
    killed: (60, 4),
    failing_jobs: 2,
    finished: (50, 100),
    starts: 2,
    idle_jobs: 5,
    idle: Duration::from_secs(5),
    rest: Duration::from_secs(2),
    budget: Duration::from_mins(15),
};

const REDUCED: Size = Size {
    name: "reduced",
    pairs: 5,
    long_pairs: 3,
    part_pairs: 1,
    warm_up: 50,
    life_jobs: 25,
    pace_jobs: 400,
    in_flight: 64,
    crowd: 15_000,
    ones: 60,
    hundred: (100, 2),
    thousand: 1_000,
    spark_submits: 10,
    killed: (300, 10),
    failing_jobs: 6,
    finished: (5_000, 10_000),
    starts: 5,
    idle_jobs: 50,
    idle: Duration::from_secs(30),
    rest: Duration::from_secs(10),
    budget: Duration::from_mins(26),
};

const FULL: Size = Size {
    name: "full",
    pairs: 9,
    long_pairs: 7,
    part_pairs: 5,
    ones: 150,
    hundred: (100, 3),
    failing_jobs: 12,
    starts: 7,
    idle_jobs: 1_000,
    idle: Duration::from_mins(5),
    budget: Duration::from_hours(6),
    ..REDUCED
};

impl Size {
    /// The size that `BENCH` names; nothing named is the reduced one.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "" | "reduced" => Some(REDUCED),
            "full" => Some(FULL),
            "smoke" => Some(SMOKE),
            _ => None,
        }
    }
}

/// A kind of jobs, and how much of it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The kind.
    pub kind: Kind,
    /// Its runs.
    pub size: Size,
    /// The letters of the rows that the table shows of it.
    pub rows: &'static str,
}

impl Setting {
    /// One kind whole; of the others what a job's life costs and how long its pods take, with fewer pairs. One of them goes its own
    /// way with its jobs, so that its own CPU is measured as well. Applications have rows of their own.
    pub fn new(kind: Kind, size: Size) -> Self {
        if kind == WHOLE {
            let rows = "abcdefgjk";
            return Self { kind, size, rows };
        }
        if submits(&kind) {
            // It has little in common with the others; its decision and its floor client are its own.
            let rows = "abcdehi";
            let pairs = size.long_pairs;
            let size = Size { pairs, ..size };
            return Self { kind, size, rows };
        }
        let size = Size {
            pairs: size.part_pairs,
            long_pairs: size.part_pairs,
            ..size
        };
        let rows = if launches(&kind) { "abcd" } else { "abc" };
        Self { kind, size, rows }
    }

    /// Whether the table shows a row of it.
    pub fn shows(&self, row: &str) -> bool {
        self.rows.contains(row)
    }
}

#[cfg(test)]
mod tests {
    use training_testkit::builders::PYTORCH;

    use super::*;
    use crate::kind::KINDS;

    #[test]
    fn one_kind_is_measured_whole_and_the_others_never_more_often() {
        for name in ["", "full", "smoke"] {
            let size = Size::named(name).unwrap();
            for setting in KINDS.map(|kind| Setting::new(kind, size)) {
                assert_eq!(setting.shows("f"), setting.kind == PYTORCH);
                assert!(setting.shows("a") && setting.shows("b") && setting.shows("c"));
                assert!(setting.size.pairs <= size.pairs);
                assert!(setting.size.long_pairs <= size.long_pairs);
            }
        }
    }
}
