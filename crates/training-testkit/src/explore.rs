//! Explicit-state search: every state that some moves lead to, each of them once, those after few moves first.
//!
//! Random histories are long and few of all that there are. This is the opposite: all histories, up to a length.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use training_core::Uid;

/// Numbers from here on are versions and uids. No count, code or part of a time is as large.
pub const FIRST_VERSION: u64 = 1_000_000_000;

/// How many states a test visits, unless it is asked for more.
pub const FEW_STATES: usize = 2_500;

/// How many states a test visits: some, or ten for each history that `PROPTEST_CASES` asks for.
pub fn states() -> usize {
    let histories = std::env::var("PROPTEST_CASES").ok();
    let histories = histories.and_then(|text| text.parse::<usize>().ok());
    histories.map_or(FEW_STATES, |histories| 10 * histories)
}

/// What can be searched.
pub trait Model: Clone {
    /// One thing that happens.
    type Move: Copy + Debug;

    /// What may happen in any state. A move that finds nothing to move changes nothing.
    fn moves() -> Vec<Self::Move>;

    /// Makes a move.
    fn happen(&mut self, what: Self::Move);

    /// From now on nothing is disturbed any more.
    fn calm(&mut self);

    /// The next step of a state that is left alone, in which pods may or may not end. False at rest, where what must hold at rest
    /// has been checked.
    fn settle(&mut self, finish: bool) -> bool;

    /// The breaches of law so far.
    fn breaches(&self) -> &[String];

    /// The state in words, without its history. States with the same words, but for the values of versions, are the same.
    fn words(&self) -> String;
}

/// What a search came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// States that are not the same.
    pub states: usize,
    /// Moves that were made from these.
    pub transitions: usize,
    /// States on the way to rest.
    pub settled: usize,
    /// Moves from a start to the state that is farthest away.
    pub depth: usize,
}

/// How a state was reached: from which one, by which move.
struct Reached<M> {
    from: usize,
    by: Option<M>,
    depth: usize,
}

/// Visits so many states, or all there are. Each keeps the laws, and so does each on its way to rest.
///
/// # Errors
///
/// The first breach, with the moves that lead to it.
pub fn explore<M: Model>(starts: &[M], most: usize) -> Result<Explored, String> {
    let moves = M::moves();
    let mut explored = Explored::default();
    // States are not kept but made again from the moves that led to them: a million of them would take gigabytes.
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

/// Leaves a state alone until it is at rest, or at a state that is known to come there.
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

/// A number that states have in common that are the same. Of versions and uids only their order counts.
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

/// Where versions and uids stand in a text, and which.
fn versions(words: &str) -> Vec<(usize, usize, u128)> {
    const UUID: usize = 36;
    let bytes = words.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let token = bytes[at..].iter();
        let token = token.take_while(|b| b.is_ascii_alphanumeric()).count();
        let uid = || Uid::parse(words.get(at..at + UUID)?).map(|uid| (UUID, uid.0));
        let number = || Some((token, words.get(at..at + token)?.parse().ok()?));
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

    /// A counter up to a hundred that must not be seven, with a version that grows.
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
