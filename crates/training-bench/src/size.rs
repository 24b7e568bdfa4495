//! The number and size of measurements.

use std::time::Duration;

use training_testkit::builders::Kind;

use crate::kind::{WHOLE, launches, submits};

/// The parameters of one run size.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Its name, which is part of the results' path.
    pub name: &'static str,
    /// Pairs of runs (floor and ours) per metric.
    pub pairs: usize,
    /// Pairs of the two longest metrics.
    pub long_pairs: usize,
    /// Pairs per metric of a partly measured kind.
    pub part_pairs: usize,
    /// Warm-up jobs.
    pub warm_up: usize,
    /// Jobs of the run that counts requests.
    pub life_jobs: usize,
    /// Jobs in the closed loop.
    pub pace_jobs: usize,
    /// Parallel jobs in the closed loop.
    pub in_flight: usize,
    /// Foreign pods in the crowded namespace.
    pub crowd: usize,
    /// Rounds beside the Go operators.
    pub rounds: usize,
    /// Jobs that run one by one.
    pub ones: usize,
    /// Jobs in a small burst, and the number of bursts.
    pub hundred: (usize, usize),
    /// Jobs in the large burst.
    pub thousand: usize,
    /// Sequential submissions by `spark-submit`.
    pub spark_submits: usize,
    /// Applications that run while the operator is killed, and the number of kills.
    pub killed: (usize, usize),
    /// Jobs whose three workers fail one after the other.
    pub failing_jobs: usize,
    /// Finished jobs for the measured starts, and for the measured memory.
    pub finished: (usize, usize),
    /// Pairs of measured starts.
    pub starts: usize,
    /// Jobs that run while the operator is idle.
    pub idle_jobs: usize,
    /// How long the idle operator is watched.
    pub idle: Duration,
    /// How long a process rests before its memory is read.
    pub rest: Duration,
    /// No pair starts after this time.
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
    rounds: 1,
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
    rounds: 3,
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
    rounds: 20,
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
    /// Returns the size with the name in `BENCH`; the default is the reduced one.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "" | "reduced" => Some(REDUCED),
            "full" => Some(FULL),
            "smoke" => Some(SMOKE),
            _ => None,
        }
    }
}

/// A kind of jobs with its measurements.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The kind.
    pub kind: Kind,
    /// The size of its runs.
    pub size: Size,
    /// The letters of its rows in the table.
    pub rows: &'static str,
}

impl Setting {
    /// Measures one kind completely, and of the others requests and latencies with fewer pairs. Also measures the CPU of the kind
    /// with launchers, because it has its own life cycle. Applications have their own rows.
    pub fn new(kind: Kind, size: Size) -> Self {
        if kind == WHOLE {
            let rows = "abcdefgjkl";
            return Self { kind, size, rows };
        }
        if submits(&kind) {
            // It has its own plan and its own floor client.
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

    /// Returns whether the table has this row for it.
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
