//! Scripts that decide the states of each pod in advance.

use std::sync::Arc;
use std::time::Duration;

use super::{Replica, State};

/// What a step of a script does to the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Sets its status.
    Become(State),
    /// Removes the object immediately, as a forced deletion does.
    Disappear,
    /// Deletes it gracefully.
    Delete,
}

/// One step in a pod's life cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The delay after the previous step.
    pub after: Duration,
    /// The action.
    pub act: Act,
}

impl Step {
    /// A step some milliseconds after the previous one.
    pub fn after_ms(ms: u64, act: Act) -> Self {
        Self {
            after: Duration::from_millis(ms),
            act,
        }
    }
}

/// Decides the steps of each pod when it is first seen. Without steps a pod stays pending until the test changes it.
pub type Script = Arc<dyn Fn(&Replica) -> Vec<Step> + Send + Sync>;

/// Leaves every pod to the test.
pub fn lockstep() -> Script {
    Arc::new(|_| Vec::new())
}

/// Runs every pod and then makes it succeed.
pub fn run_and_succeed(run_ms: u64, succeed_ms: u64) -> Script {
    Arc::new(move |_| {
        vec![
            Step::after_ms(run_ms, Act::Become(State::Running)),
            Step::after_ms(succeed_ms, Act::Become(State::Succeeded)),
        ]
    })
}
