//! What becomes of each pod, decided beforehand.

use std::sync::Arc;
use std::time::Duration;

use super::{Replica, State};

/// What a step of a script does to the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Its status changes.
    Become(State),
    /// The object vanishes at once, as after a forced deletion.
    Disappear,
    /// Somebody deletes it in the ordinary way.
    Delete,
}

/// One step of a pod's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How long after the step before it.
    pub after: Duration,
    /// What happens then.
    pub act: Act,
}

impl Step {
    /// A step some milliseconds after the one before.
    pub fn after_ms(ms: u64, act: Act) -> Self {
        Self {
            after: Duration::from_millis(ms),
            act,
        }
    }
}

/// The life of each pod, decided when it is first seen. No steps: it stays pending until the test
/// says otherwise.
pub type Script = Arc<dyn Fn(&Replica) -> Vec<Step> + Send + Sync>;

/// Every pod waits for the test.
pub fn lockstep() -> Script {
    Arc::new(|_| Vec::new())
}

/// Every pod runs and then succeeds.
pub fn run_and_succeed(run_ms: u64, succeed_ms: u64) -> Script {
    Arc::new(move |_| {
        vec![
            Step::after_ms(run_ms, Act::Become(State::Running)),
            Step::after_ms(succeed_ms, Act::Become(State::Succeeded)),
        ]
    })
}
