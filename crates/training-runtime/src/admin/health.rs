//! The liveness and readiness of the process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The age at which a reconcile, or the main loop's last heartbeat, counts as stuck. Reconciles have a deadline of a minute, so the
/// deadline itself has failed.
const STUCK: Duration = Duration::from_mins(3);

/// How many namespaces readiness names per component.
const MAX_NAMES: usize = 3;

/// The state behind the probes. All clones share it.
///
/// An unreachable API server or a missing CRD makes the process unready, not dead: a restart would not help. A standby is ready.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// What each component that is not ready is missing.
    components: BTreeMap<&'static str, Option<String>>,
    beat: Option<Instant>,
    next: u64,
    /// By number, so the first one is the oldest.
    reconciles: BTreeMap<u64, Instant>,
}

impl Health {
    /// Creates the state of a process that is ready once all components are.
    pub fn new(components: &[&'static str]) -> Self {
        let missing = |name: &&'static str| (*name, Some((*name).to_owned()));
        let components = components.iter().map(missing).collect();
        Self(Arc::new(Mutex::new(State {
            components,
            ..State::default()
        })))
    }

    /// Sets whether a component is ready; adds a new component.
    pub fn set_ready(&self, component: &'static str, ready: bool) {
        let missing = (!ready).then(|| component.to_owned());
        self.0.lock().components.insert(component, missing);
    }

    /// Marks a component as not ready in these namespaces.
    pub fn set_unready_in(&self, component: &'static str, namespaces: &[&str]) {
        let named = &namespaces[..namespaces.len().min(MAX_NAMES)];
        let more = match namespaces.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let missing = format!("{component} (namespaces: {}{more})", named.join(", "));
        self.0.lock().components.insert(component, Some(missing));
    }

    /// Removes a component, as a standby does with the leader's caches.
    pub fn forget(&self, component: &'static str) {
        self.0.lock().components.remove(component);
    }

    /// Records a heartbeat of the main loop. After the first call, each must follow within three minutes.
    pub fn heartbeat(&self) {
        self.0.lock().beat = Some(Instant::now());
    }

    /// Registers a reconcile. It ends when the guard is dropped, also by a panic.
    pub fn reconcile_started(&self) -> ReconcileGuard {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.reconciles.insert(number, Instant::now());
        ReconcileGuard {
            health: self.clone(),
            number,
        }
    }

    /// Returns the number of running reconciles.
    pub fn reconciles(&self) -> usize {
        self.0.lock().reconciles.len()
    }

    /// Checks that the process is alive.
    ///
    /// # Errors
    /// Names what is stuck.
    pub fn live(&self) -> Result<(), String> {
        let state = self.0.lock();
        let stuck = |since: &Instant| since.elapsed() > STUCK;
        let held = state
            .reconciles
            .values()
            .filter(|since| stuck(since))
            .count();
        if held > 0 {
            return Err(format!(
                "{held} reconciles are stuck for more than {} s",
                STUCK.as_secs()
            ));
        }
        match &state.beat {
            Some(beat) if stuck(beat) => Err(format!(
                "the main loop has been stuck for {} s",
                beat.elapsed().as_secs()
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the process is ready.
    ///
    /// # Errors
    /// Names what is missing.
    pub fn ready(&self) -> Result<(), String> {
        let state = self.0.lock();
        let missing = state.components.values().flatten();
        let missing: Vec<&str> = missing.map(String::as_str).collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("not ready: {}", missing.join(", ")))
        }
    }
}

/// A running reconcile.
#[derive(Debug)]
#[must_use = "the reconcile ends when this is dropped"]
pub struct ReconcileGuard {
    health: Health,
    number: u64,
}

impl Drop for ReconcileGuard {
    fn drop(&mut self) {
        self.health.0.lock().reconciles.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn i_38_a_pass_held_for_three_minutes_means_not_alive() {
        let health = Health::new(&[]);
        let held = health.reconcile_started();
        for _ in 0..100 {
            drop(health.reconcile_started());
        }
        tokio::time::advance(STUCK).await;
        assert_eq!(health.live(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(health.live().unwrap_err().contains("1 reconciles are"));
        drop(held);
        assert_eq!(health.live(), Ok(()));
        assert_eq!(health.reconciles(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn i_38_a_loop_that_stands_still_means_not_alive() {
        let health = Health::new(&[]);
        tokio::time::advance(STUCK * 2).await;
        assert_eq!(
            health.live(),
            Ok(()),
            "no heartbeat is expected before the first one"
        );
        health.heartbeat();
        tokio::time::advance(STUCK * 2).await;
        assert!(health.live().unwrap_err().contains("has been stuck"));
        health.heartbeat();
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
        health.set_unready_in("pods", &["a", "b", "c"]);
        health.set_unready_in("jobs", &["a", "b", "c", "d", "e"]);
        assert_eq!(
            health.ready(),
            Err(
                "not ready: jobs (namespaces: a, b, c and 2 more), pods (namespaces: a, b, c)"
                    .to_owned()
            )
        );
        health.set_ready("jobs", true);
        health.set_ready("pods", false);
        assert_eq!(health.ready(), Err("not ready: pods".to_owned()));
    }
}
