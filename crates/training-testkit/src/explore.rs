//! Explicit-state search: visits every state that some moves reach once, in breadth-first order.
//!
//! Random histories are long and cover few of all histories. This covers all histories up to a length.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use training_core::Uid;

/// Numbers from here on are versions and uids. No count, code or part of a time is this large.
pub const FIRST_VERSION: u64 = 1_000_000_000;

/// The default number of states that a test visits.
pub const FEW_STATES: usize = 1_500;

/// Returns the number of states to visit: the default, or ten for each of the histories that `PROPTEST_CASES` sets.
pub fn states() -> usize {
    let histories = std::env::var("PROPTEST_CASES").ok();
    let histories = histories.and_then(|text| text.parse::<usize>().ok());
    histories.map_or(FEW_STATES, |histories| 10 * histories)
}

/// A model to search.
pub trait Model: Clone {
    /// One event.
    type Move: Copy + Debug;

    /// The possible moves, the same in all states. A move without a target changes nothing.
    fn moves() -> Vec<Self::Move>;

    /// Makes a move.
    fn happen(&mut self, what: Self::Move);

    /// Ends all disturbances.
    fn calm(&mut self);

    /// Takes the next step of an undisturbed state, in which pods may or may not end. Returns false once settled, after checking
    /// the invariants of a settled state.
    fn settle(&mut self, finish: bool) -> bool;

    /// The violations so far.
    fn breaches(&self) -> &[String];

    /// Describes the state without its history. States are equal if their descriptions are, ignoring the values of versions.
    fn words(&self) -> String;
}

/// The result of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// Distinct states.
    pub states: usize,
    /// Moves made from them.
    pub transitions: usize,
    /// States on the way to settling.
    pub settled: usize,
    /// The distance of the farthest state from a start, in moves.
    pub depth: usize,
}

/// How a state was reached: the previous state and the move.
struct Reached<M> {
    from: usize,
    by: Option<M>,
    depth: usize,
}

/// Visits up to `most` states. Each must keep the laws, and so must each state while settling.
///
/// # Errors
///
/// The first breach, with the moves that lead to it.
pub fn explore<M: Model>(starts: &[M], most: usize) -> Result<Explored, String> {
    let moves = M::moves();
    let mut explored = Explored::default();
    // States are recomputed from their moves: keeping a million of them would take gigabytes.
    let mut reached: Vec<Reached<M::Move>> = Vec::new();
    let mut known = HashSet::new();
    let mut settled = [HashSet::new(), HashSet::new()];
    for (at, start) in starts.iter().enumerate() {
        known.insert(fingerprint(start));
        reached.push(Reached {
            from: at,
            by: None,
            depth: 0,
        });
    }
    let mut at = 0;
    while at < reached.len() && known.len() < most {
        let state = replay(starts, &reached, at);
        for what in &moves {
            let mut next = state.clone();
            next.happen(*what);
            explored.transitions += 1;
            let told = |next: &M, then: &str| {
                let mut path = path(&reached, at);
                path.push(*what);
                format!("{:?}\nafter {path:?}{then}", next.breaches())
            };
            if !next.breaches().is_empty() {
                return Err(told(&next, ""));
            }
            if !known.insert(fingerprint(&next)) {
                continue;
            }
            for (finish, settled) in [false, true].into_iter().zip(&mut settled) {
                let mut left = next.clone();
                if let Err(why) = rest(&mut left, finish, settled) {
                    let then = format!(", left alone (pods end: {finish}): {why}");
                    return Err(told(&left, &then));
                }
            }
            let depth = reached[at].depth + 1;
            explored.depth = explored.depth.max(depth);
            reached.push(Reached {
                from: at,
                by: Some(*what),
                depth,
            });
        }
        at += 1;
    }
    explored.states = known.len();
    explored.settled = settled.iter().map(HashSet::len).sum();
    Ok(explored)
}

/// Lets a state settle, or reach a state that is known to settle.
fn rest<M: Model>(state: &mut M, finish: bool, settled: &mut HashSet<u64>) -> Result<(), String> {
    let mut way = HashSet::new();
    state.calm();
    loop {
        let now = fingerprint(state);
        if settled.contains(&now) {
            break;
        }
        if !way.insert(now) {
            return Err("it goes in a circle".to_owned());
        }
        let moved = state.settle(finish);
        if !state.breaches().is_empty() {
            return Err(String::new());
        }
        if !moved {
            break;
        }
    }
    settled.extend(way);
    Ok(())
}

/// The moves from a start to a state.
fn path<M: Copy>(reached: &[Reached<M>], mut at: usize) -> Vec<M> {
    let mut path = Vec::new();
    while let Some(by) = reached[at].by {
        path.push(by);
        at = reached[at].from;
    }
    path.reverse();
    path
}

fn replay<M: Model>(starts: &[M], reached: &[Reached<M::Move>], mut at: usize) -> M {
    let path = path(reached, at);
    while reached[at].by.is_some() {
        at = reached[at].from;
    }
    let mut state = starts[reached[at].from].clone();
    for what in path {
        state.happen(what);
    }
    state
}

/// A hash that equal states share. Of versions and uids only the order counts.
fn fingerprint<M: Model>(state: &M) -> u64 {
    let words = state.words();
    let versions = versions(&words);
    let mut values: Vec<u128> = versions.iter().map(|(_, _, value)| *value).collect();
    values.sort_unstable();
    values.dedup();
    let ranks: HashMap<u128, usize> = values.into_iter().zip(0..).collect();
    let mut hasher = DefaultHasher::new();
    let mut after = 0;
    for (from, to, value) in versions {
        hasher.write(&words.as_bytes()[after..from]);
        ranks[&value].hash(&mut hasher);
        after = to;
    }
    hasher.write(&words.as_bytes()[after..]);
    hasher.finish()
}

/// The positions and values of versions and uids in a text.
fn versions(words: &str) -> Vec<(usize, usize, u128)> {
    const UUID: usize = 36;
    /// The first group of a UUID.
    const GROUP: usize = 8;
    let bytes = words.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let token = bytes[at..].iter();
        let token = token.take_while(|b| b.is_ascii_alphanumeric()).count();
        // Most words are neither, and parsing all of them takes long.
        let (may_be_uid, may_be_number) = (token == GROUP, bytes[at].is_ascii_digit());
        let text = |length, may_be: bool| words.get(at..at + length).filter(|_| may_be);
        let uid = || Uid::parse(text(UUID, may_be_uid)?).map(|uid| (UUID, uid.0));
        let number = || Some((token, text(token, may_be_number)?.parse().ok()?));
        match uid().or_else(number) {
            Some((length, value)) => {
                if value >= u128::from(FIRST_VERSION) {
                    found.push((at, at + length, value));
                }
                at += length;
            }
            None => at += token.max(1),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter up to a hundred that must not be seven, with a growing version.
    #[derive(Clone)]
    struct Counter {
        at: u64,
        version: u64,
        bad: u64,
        endless: bool,
        breaches: Vec<String>,
    }

    impl Model for Counter {
        type Move = u64;

        fn moves() -> Vec<u64> {
            vec![0, 1, 3]
        }

        fn happen(&mut self, by: u64) {
            self.version += 1;
            self.at = (self.at + by).min(100);
            if self.at == self.bad {
                self.breaches.push(format!("{}", self.at));
            }
        }

        fn calm(&mut self) {}

        fn settle(&mut self, _: bool) -> bool {
            self.at = self.at.saturating_sub(1);
            if self.endless && self.at == 0 {
                self.at = 2;
            }
            self.at > 0
        }

        fn breaches(&self) -> &[String] {
            &self.breaches
        }

        fn words(&self) -> String {
            format!("{} {} {}", self.at, self.version, Uid(self.version.into()))
        }
    }

    fn counter(bad: u64) -> Counter {
        Counter {
            at: 0,
            version: FIRST_VERSION,
            bad,
            endless: false,
            breaches: Vec::new(),
        }
    }

    #[test]
    fn every_state_is_visited_once() {
        let explored = explore(&[counter(1000)], usize::MAX).unwrap();
        assert_eq!((explored.states, explored.transitions), (101, 303));
        let few = explore(&[counter(1000)], 10).unwrap();
        assert!((10..=12).contains(&few.states), "{few:?}");
    }

    #[test]
    fn a_breach_is_told_with_the_shortest_way_to_it() {
        let why = explore(&[counter(7)], usize::MAX).unwrap_err();
        assert_eq!(why, "[\"7\"]\nafter [1, 3, 3]");
    }

    #[test]
    fn a_circle_is_no_rest() {
        let endless = Counter {
            endless: true,
            ..counter(1000)
        };
        let why = explore(&[endless], usize::MAX).unwrap_err();
        assert!(why.contains("a circle"), "{why}");
    }

    #[test]
    fn of_versions_only_the_order_counts() {
        let words = |text: &str| {
            let mut out = Vec::new();
            out.extend(versions(text).into_iter().map(|(_, _, value)| value));
            out
        };
        assert_eq!(
            words("pi-launcher-1000000007 x \"1000000003\""),
            [1_000_000_007, 1_000_000_003]
        );
        let uid = Uid(1_000_000_005).to_string();
        assert_eq!(
            words(&format!("{uid} 2024-01-01T00:00:00Z 137")),
            [1_000_000_005]
        );
    }
}
