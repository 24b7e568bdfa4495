//! Recent facts about objects, which expire.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use training_core::Uid;

/// The minimum time to keep a fact: watches are never that late.
pub const KEPT: Duration = Duration::from_secs(30);

/// Up to this many are never swept, as it isn't worth it.
const FEW: usize = 1024;

/// Facts about objects, each kept for a while.
#[derive(Debug)]
pub struct Recent<T> {
    all: HashMap<Uid, (Instant, T)>,
    /// Number of objects at which the next sweep runs.
    sweep_at: usize,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self {
            all: HashMap::new(),
            sweep_at: FEW,
        }
    }
}

impl<T> Recent<T> {
    /// Stores a fact about an object.
    pub fn insert(&mut self, uid: Uid, what: T, now: Instant) {
        self.all.insert(uid, (now, what));
        if self.all.len() > self.sweep_at {
            self.sweep(now);
            self.all.shrink_to(FEW);
            // Twice the remaining number, so that a sweep costs little per entry even if thousands arrive within seconds.
            self.sweep_at = FEW.max(self.all.len() * 2);
        }
    }

    /// Returns the fact about an object.
    pub fn get(&self, uid: Uid) -> Option<&T> {
        self.all.get(&uid).map(|(_, what)| what)
    }

    /// Removes and returns the fact about an object.
    pub fn remove(&mut self, uid: Uid) -> Option<T> {
        self.all.remove(&uid).map(|(_, what)| what)
    }

    /// Drops expired facts.
    pub fn sweep(&mut self, now: Instant) {
        self.all.retain(|_, (since, _)| now < *since + KEPT);
    }

    /// Returns the number of objects.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_old_goes_when_there_is_much_of_it_and_what_is_new_stays() {
        let mut lately = Recent::default();
        let begun = Instant::now();
        for n in 0..3_000 {
            lately.insert(Uid(n), n, begun);
        }
        assert_eq!(lately.len(), 3_000, "all of it is new");
        let later = begun + KEPT;
        for n in 3_000..6_000 {
            lately.insert(Uid(n), n, later);
        }
        assert!(lately.len() < 4_200, "{}", lately.len());
        assert_eq!(lately.get(Uid(5_999)), Some(&5_999));
        assert_eq!(
            (lately.remove(Uid(5_999)), lately.get(Uid(5_999))),
            (Some(5_999), None)
        );
        lately.sweep(later + KEPT);
        assert_eq!(lately.len(), 0);
    }
}
