//! The metrics, their order, and their number of runs.

use anyhow::Result;
use training_testkit::builders::Kind;

use crate::event::event;
use crate::killed::killed;
use crate::kind::{WHOLE, launches, submits};
use crate::life::life;
use crate::runs::{burst, latency, pace};
use crate::scale::scale;
use crate::size::{Setting, Size};
use crate::store::{Figures, Pair, Record, Side};
use crate::submission::submission;
use crate::why::why;

/// The numbers of jobs beside a Go operator.
#[derive(Clone, Copy, Debug)]
pub struct JobCounts {
    /// Warm-up jobs.
    pub warm_up: usize,
    /// Jobs that run one by one.
    pub ones: usize,
    /// Jobs that are created at once.
    pub at_once: usize,
    /// Jobs in the closed loop.
    pub pace_jobs: usize,
    /// Jobs in flight at the same time.
    pub in_flight: usize,
}

/// Returns the numbers of jobs of a kind that run beside a Go operator.
pub fn job_counts(kind: &Kind) -> JobCounts {
    if submits(kind) {
        // Each takes the Go operator seconds of CPU.
        return JobCounts {
            warm_up: 2,
            ones: 5,
            at_once: 5,
            pace_jobs: 15,
            in_flight: 5,
        };
    }
    // With default flags, a Go operator sends five or twenty requests a second.
    JobCounts {
        warm_up: 10,
        ones: 20,
        at_once: 20,
        pace_jobs: 40,
        in_flight: 16,
    }
}

/// A type of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Requests of a job's life cycle, from the audit log.
    Life,
    /// A closed loop.
    Pace,
    /// One job, small bursts, failures.
    Latency,
    /// A large burst.
    Burst,
    /// The closed loop of the operator alone, without and with a crowd of foreign pods.
    Crowd,
    /// A full store.
    Scale,
    /// Submissions, compared with `spark-submit`.
    Submission,
    /// Submissions by an operator that is killed again and again.
    Killed,
    /// Events of a large job.
    Event,
    /// `kubectl trainyard why`.
    Why,
    /// The closed loop and the latencies, also of the published Go operator.
    Peers,
}

/// All metrics of the main table. Each gets its first pair before any gets its second, so that an interrupted run has them all.
pub const ALL: [Metric; 10] = [
    Metric::Life,
    Metric::Pace,
    Metric::Latency,
    Metric::Burst,
    Metric::Scale,
    Metric::Crowd,
    Metric::Submission,
    Metric::Killed,
    Metric::Event,
    Metric::Why,
];

impl Metric {
    /// Returns its name, which is also its file's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Life => "life",
            Self::Pace => "pace",
            Self::Latency => "latency",
            Self::Burst => "burst",
            Self::Crowd => "crowd",
            Self::Scale => "scale",
            Self::Submission => "submission",
            Self::Killed => "killed",
            Self::Event => "event",
            Self::Why => "why",
            Self::Peers => "peers",
        }
    }

    /// Returns the rows of a kind that need it.
    pub fn letters(self, kind: &Kind) -> &'static str {
        match self {
            // For applications everything is measured in the burst.
            Self::Burst if submits(kind) => "abcdeh",
            Self::Life => "a",
            Self::Pace => "abd",
            Self::Latency => "cf",
            Self::Burst => "c",
            Self::Crowd => "d",
            Self::Scale => "egj",
            Self::Submission => "h",
            Self::Killed => "i",
            Self::Event => "k",
            Self::Why => "l",
            Self::Peers => "",
        }
    }

    /// Returns whether a kind uses this metric.
    pub fn is_of(self, kind: &Kind) -> bool {
        match self {
            Self::Life | Self::Latency | Self::Burst => true,
            Self::Crowd | Self::Event | Self::Why => *kind == WHOLE,
            Self::Pace | Self::Scale => !submits(kind),
            Self::Submission | Self::Killed => submits(kind),
            Self::Peers => *kind == WHOLE || launches(kind) || submits(kind),
        }
    }

    /// Returns whether one of its rows belongs to the kind and is selected; an empty selection means all.
    pub fn is_wanted(self, setting: &Setting, only: &str) -> bool {
        if !self.is_of(&setting.kind) {
            return false;
        }
        let all = !only.contains(|letter: char| letter.is_ascii_alphanumeric());
        let mut shown = self
            .letters(&setting.kind)
            .chars()
            .filter(|letter| setting.rows.contains(*letter));
        shown.any(|letter| all || only.contains(letter))
    }

    /// Returns the number of pairs.
    pub fn pairs(self, size: &Size) -> usize {
        match self {
            Self::Life | Self::Scale | Self::Submission | Self::Killed => 1,
            Self::Pace | Self::Latency | Self::Event | Self::Why => size.pairs,
            Self::Peers => size.rounds,
            Self::Burst | Self::Crowd => size.long_pairs,
        }
    }

    /// Runs one more pair, in alternating order, because the first run may meet a different state of the machine.
    pub async fn run(
        self,
        setting: &Setting,
        record: &mut Record,
        say: &dyn Fn(&str),
    ) -> Result<()> {
        let round = record.pairs.len();
        let ours_first = round % 2 == 1;
        let pair = match self {
            Self::Life => life(setting).await?,
            Self::Submission => submission(setting, say).await?,
            Self::Killed => killed(setting, say).await?,
            Self::Event => event(say)?,
            Self::Why => why(setting, say).await?,
            Self::Peers => peers(setting, round, say).await?,
            Self::Scale => {
                record.pairs = scale(setting, say).await?.pairs;
                return Ok(());
            }
            Self::Pace => {
                paired(ours_first, say, async |side| pace(side, setting, 0).await).await?
            }
            Self::Latency => {
                paired(ours_first, say, async |side| latency(side, setting).await).await?
            }
            Self::Burst => paired(ours_first, say, async |side| burst(side, setting).await).await?,
            Self::Crowd => {
                // The "floor" is the operator without the crowd.
                let crowd = |side| {
                    if side == Side::Floor {
                        0
                    } else {
                        setting.size.crowd
                    }
                };
                paired(ours_first, say, async |side| {
                    pace(Side::Ours, setting, crowd(side)).await
                })
                .await?
            }
        };
        record.pairs.push(pair);
        Ok(())
    }
}

/// Runs all four sides, each round in another order.
async fn peers(setting: &Setting, round: usize, say: &dyn Fn(&str)) -> Result<Pair> {
    let mut setting = *setting;
    let counts = job_counts(&setting.kind);
    setting.size.warm_up = counts.warm_up;
    setting.size.pace_jobs = counts.pace_jobs;
    setting.size.in_flight = counts.in_flight;
    setting.size.ones = counts.ones;
    setting.size.hundred = (counts.at_once, 1);
    let mut order = [Side::Floor, Side::Ours, Side::Go, Side::Tuned];
    order.rotate_left(round % 4);
    let mut pair = Pair::default();
    for side in order {
        let mut figures = latency(side, &setting).await?;
        for (name, value) in pace(side, &setting, 0).await? {
            // The worse of the two runs.
            let before = figures.get(&name).filter(|_| name == "foreign_share");
            let value = before.map_or(value, |before| before.max(value));
            figures.insert(name, value);
        }
        show(side, &figures, say);
        pair.set(side, figures);
    }
    Ok(pair)
}

fn show(side: Side, figures: &Figures, say: &dyn Fn(&str)) {
    let text: Vec<String> = figures
        .iter()
        .map(|(name, value)| format!("{name} {value:.2}"))
        .collect();
    say(&format!("{side:?}: {}", text.join(", ")));
}

async fn paired(
    ours_first: bool,
    say: &dyn Fn(&str),
    run: impl AsyncFn(Side) -> Result<Figures>,
) -> Result<Pair> {
    let mut pair = Pair::default();
    let order = if ours_first {
        [Side::Ours, Side::Floor]
    } else {
        [Side::Floor, Side::Ours]
    };
    for side in order {
        let figures = run(side).await?;
        show(side, &figures, say);
        pair.set(side, figures);
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use training_testkit::builders::{MPI, PYTORCH, SPARK, XGBOOST};

    use super::*;

    fn wanted(kind: Kind, only: &str) -> Vec<&'static str> {
        let setting = Setting::new(kind, Size::named("").unwrap());
        let wanted = ALL.iter().filter(|m| m.is_wanted(&setting, only));
        wanted.map(|m| m.name()).collect()
    }

    #[test]
    fn letters_choose_and_none_chooses_all() {
        let pods = [
            "life", "pace", "latency", "burst", "scale", "crowd", "event", "why",
        ];
        assert_eq!(wanted(PYTORCH, ""), pods);
        assert_eq!(wanted(PYTORCH, "a,d"), ["life", "pace", "crowd"]);
        assert_eq!(wanted(PYTORCH, "g"), ["scale"]);
        assert_eq!(wanted(PYTORCH, "l"), ["why"]);
    }

    #[test]
    fn applications_are_measured_in_bursts_and_in_ways_of_their_own() {
        let all = ["life", "latency", "burst", "submission", "killed"];
        assert_eq!(wanted(SPARK, ""), all);
        assert_eq!(wanted(SPARK, "b,d,e"), ["burst"]);
        assert_eq!(wanted(SPARK, "h"), ["burst", "submission"]);
        assert_eq!(wanted(SPARK, "i"), ["killed"]);
        assert_eq!(wanted(PYTORCH, "h,i"), [""; 0]);
    }

    #[test]
    fn of_the_other_kinds_nothing_is_run_for_rows_that_they_do_not_show() {
        assert_eq!(wanted(XGBOOST, ""), ["life", "pace", "latency", "burst"]);
        assert_eq!(wanted(XGBOOST, "a,d"), ["life", "pace"]);
        assert_eq!(wanted(XGBOOST, "d,f"), [""; 0]);
        assert_eq!(wanted(MPI, "d,f"), ["pace"]);
    }
}
