//! What is measured, in which order, and how often.

use anyhow::Result;

use crate::life::life;
use crate::runs::{burst, latency, pace};
use crate::scale::scale;
use crate::size::Size;
use crate::store::{Figures, Pair, Record, Side};

/// One sort of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Requests of a life, by the audit log.
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
}

/// All of them. Every metric gets its first pair before any gets its second, so that a run that is cut short has them all.
pub const ALL: [Metric; 6] = [
    Metric::Life,
    Metric::Pace,
    Metric::Latency,
    Metric::Burst,
    Metric::Scale,
    Metric::Crowd,
];

impl Metric {
    /// Its name, also of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Life => "life",
            Self::Pace => "pace",
            Self::Latency => "latency",
            Self::Burst => "burst",
            Self::Crowd => "crowd",
            Self::Scale => "scale",
        }
    }

    /// The rows of the table that it is for.
    pub fn letters(self) -> &'static str {
        match self {
            Self::Life => "a",
            Self::Pace => "abd",
            Self::Latency => "cf",
            Self::Burst => "c",
            Self::Crowd => "d",
            Self::Scale => "egj",
        }
    }

    /// Whether the run was told to leave it out.
    pub fn is_wanted(self, only: &str) -> bool {
        let mut letters = only.chars().filter(char::is_ascii_alphanumeric).peekable();
        letters.peek().is_none() || letters.any(|letter| self.letters().contains(letter))
    }

    /// Pairs to run.
    pub fn pairs(self, size: &Size) -> usize {
        match self {
            Self::Life | Self::Scale => 1,
            Self::Pace | Self::Latency => size.pairs,
            Self::Burst | Self::Crowd => size.long_pairs,
        }
    }

    /// Whether it has all its pairs.
    pub fn is_complete(self, record: &Record, size: &Size) -> bool {
        record.pairs.len() >= self.pairs(size)
    }

    /// Runs one more pair, in the order that is its turn: what is first may find a warmer or a busier machine.
    pub async fn run(self, size: &Size, record: &mut Record, say: &dyn Fn(&str)) -> Result<()> {
        let ours_first = record.pairs.len() % 2 == 1;
        let pair = match self {
            Self::Life => life(size).await?,
            Self::Scale => {
                record.pairs = scale(size, say).await?.pairs;
                return Ok(());
            }
            Self::Pace => paired(ours_first, say, async |side| pace(side, size, 0).await).await?,
            Self::Latency => {
                paired(ours_first, say, async |side| latency(side, size).await).await?
            }
            Self::Burst => paired(ours_first, say, async |side| burst(side, size).await).await?,
            Self::Crowd => {
                // Here "floor" is the operator without the crowd.
                let crowd = |side| if side == Side::Floor { 0 } else { size.crowd };
                paired(ours_first, say, async |side| {
                    pace(Side::Ours, size, crowd(side)).await
                })
                .await?
            }
        };
        record.pairs.push(pair);
        Ok(())
    }
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
        let text: Vec<String> = figures
            .iter()
            .map(|(name, value)| format!("{name} {value:.2}"))
            .collect();
        say(&format!("{side:?}: {}", text.join(", ")));
        match side {
            Side::Floor => pair.floor = figures,
            Side::Ours => pair.ours = figures,
        }
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_choose_and_none_chooses_all() {
        assert!(ALL.iter().all(|metric| metric.is_wanted("")));
        let chosen: Vec<&str> = ALL
            .iter()
            .filter(|m| m.is_wanted("a,d"))
            .map(|m| m.name())
            .collect();
        assert_eq!(chosen, ["life", "pace", "crowd"]);
        assert!(!Metric::Life.is_wanted("g"));
    }
}
