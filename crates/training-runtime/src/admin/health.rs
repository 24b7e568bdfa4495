//! Whether the process lives and is ready.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time after which a pass, or a loop that should turn, counts as stuck. Passes have a deadline of
/// a minute, so this means that the deadline itself no longer works.
const STUCK: Duration = Duration::from_mins(3);

/// What the probes tell. Cheap to clone; all clones are one.
///
/// An API server that can't be reached or a kind that isn't installed makes the process unready, not
/// dead: restarting it would help nobody. A standby is ready, since it does what it is for.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    components: BTreeMap<&'static str, bool>,
    beat: Option<Instant>,
    next: u64,
    /// By their number, so the first one is the oldest.
    passes: BTreeMap<u64, Instant>,
}

impl Health {
    /// A process that is ready once all of these components are.
    pub fn new(components: &[&'static str]) -> Self {
        let components = components.iter().map(|name| (*name, false)).collect();
        Self(Arc::new(Mutex::new(State {
            components,
            ..State::default()
        })))
    }

    /// Sets whether a component is ready; one that was unknown counts from now on.
    pub fn set_ready(&self, component: &'static str, ready: bool) {
        self.0.lock().components.insert(component, ready);
    }

    /// Leaves a component out, as a standby does with the caches of a leader.
    pub fn forget(&self, component: &'static str) {
        self.0.lock().components.remove(component);
    }

    /// The main loop turns. Once called, it must be called again within three minutes.
    pub fn beat(&self) {
        self.0.lock().beat = Some(Instant::now());
    }

    /// A pass begins; it ends when the guard is dropped, also by a panic.
    pub fn pass_started(&self) -> PassGuard {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.passes.insert(number, Instant::now());
        PassGuard {
            health: self.clone(),
            number,
        }
    }

    /// Passes under way.
    pub fn passes(&self) -> usize {
        self.0.lock().passes.len()
    }

    /// Whether the process lives.
    ///
    /// # Errors
    /// Says what is stuck.
    pub fn live(&self) -> Result<(), String> {
        let state = self.0.lock();
        let stuck = |since: &Instant| since.elapsed() > STUCK;
        let held = state.passes.values().filter(|since| stuck(since)).count();
        if held > 0 {
            return Err(format!(
                "{held} passes are held for more than {} s",
                STUCK.as_secs()
            ));
        }
        match &state.beat {
            Some(beat) if stuck(beat) => Err(format!(
                "the main loop stands still for {} s",
                beat.elapsed().as_secs()
            )),
            _ => Ok(()),
        }
    }

    /// Whether the process is ready.
    ///
    /// # Errors
    /// Names what is missing.
    pub fn ready(&self) -> Result<(), String> {
        let state = self.0.lock();
        let missing: Vec<_> = state
            .components
            .iter()
            .filter(|(_, ready)| !**ready)
            .map(|(name, _)| *name)
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("not ready: {}", missing.join(", ")))
        }
    }
}

/// A pass under way.
#[derive(Debug)]
#[must_use = "the pass ends when this is dropped"]
pub struct PassGuard {
    health: Health,
    number: u64,
}

impl Drop for PassGuard {
    fn drop(&mut self) {
        self.health.0.lock().passes.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn i_38_a_pass_held_for_three_minutes_means_not_alive() {
        let health = Health::new(&[]);
        let held = health.pass_started();
        for _ in 0..100 {
            drop(health.pass_started());
        }
        tokio::time::advance(STUCK).await;
        assert_eq!(health.live(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(health.live().unwrap_err().contains("1 passes are held"));
        drop(held);
        assert_eq!(health.live(), Ok(()));
        assert_eq!(health.passes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn i_38_a_loop_that_stands_still_means_not_alive() {
        let health = Health::new(&[]);
        tokio::time::advance(STUCK * 2).await;
        assert_eq!(
            health.live(),
            Ok(()),
            "nothing is expected before the first beat"
        );
        health.beat();
        tokio::time::advance(STUCK * 2).await;
        assert!(health.live().unwrap_err().contains("stands still"));
        health.beat();
        assert_eq!(health.live(), Ok(()));
    }

    #[test]
    fn readiness_names_everything_that_is_missing() {
        let health = Health::new(&["jobs", "pods", "api-server"]);
        assert_eq!(
            health.ready(),
            Err("not ready: api-server, jobs, pods".to_owned())
        );
        health.set_ready("pods", true);
        health.set_ready("api-server", true);
        assert_eq!(health.ready(), Err("not ready: jobs".to_owned()));
        health.forget("jobs");
        assert_eq!(health.ready(), Ok(()));
        health.set_ready("pods", false);
        assert!(health.ready().is_err());
    }
}
