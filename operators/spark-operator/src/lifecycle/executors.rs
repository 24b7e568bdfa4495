//! Executors in the status.

use std::collections::BTreeMap;

use training_core::{Note, PodPhase};

use super::observed::Executor;
use crate::api::{ExecutorState, SparkApplicationStatus, State};

/// The most space for names and states in a status. Units: bytes. The API server refuses objects of more than 1.5 MB, and each
/// write of a status sends all of it to every watch.
const MAX_BYTES: usize = 128 * 1024;
/// The space of one executor in addition to its name: quotes, colon, comma, the longest state.
const PER_EXECUTOR: usize = 16;

/// Updates the states of executors and returns the events to record.
///
/// `most` is the maximum number of executors listed.
pub fn track(
    status: &mut SparkApplicationStatus,
    executors: &[Executor],
    asked: Option<i32>,
    most: usize,
) -> Vec<Note> {
    let id = status.submission_id.clone().unwrap_or_default();
    let mine = || executors.iter().filter(|e| e.submission_id == id);
    let mut all: BTreeMap<String, (ExecutorState, i64)> = BTreeMap::new();
    for (name, then) in &status.executor_state {
        all.insert(
            name.clone(),
            (lost(then, &status.application_state.state), i64::MIN),
        );
    }
    for executor in mine() {
        let now = state(executor.phase);
        all.insert(executor.name.clone(), (now, executor.created.as_second()));
    }
    if let Some(app_id) = mine().map(|e| &e.app_id).find(|id| !id.is_empty()) {
        status.spark_application_id = Some(app_id.clone());
    }
    let running = all
        .values()
        .filter(|(s, _)| *s == ExecutorState::Running)
        .count();
    status.executors = match (all.is_empty(), asked) {
        (true, None) => None,
        (_, Some(asked)) => Some(format!("{running}/{asked}")),
        (false, None) => Some(running.to_string()),
    };
    let total = all.len();
    let then = std::mem::replace(&mut status.executor_state, listed(all, most));
    // Record events only for listed executors: nothing remembers which events the others had.
    let news = mine().filter_map(|executor| {
        let now = status.executor_state.get(&executor.name)?;
        (then.get(&executor.name) != Some(now)).then(|| note(executor, now))
    });
    let notes = news.collect();
    let left_out = total - status.executor_state.len();
    status.executors_not_listed = i32::try_from(left_out).ok().filter(|n| *n > 0);
    notes
}

fn state(phase: PodPhase) -> ExecutorState {
    match phase {
        PodPhase::Pending => ExecutorState::Pending,
        PodPhase::Running => ExecutorState::Running,
        PodPhase::Succeeded => ExecutorState::Completed,
        PodPhase::Failed => ExecutorState::Failed,
        PodPhase::Unknown => ExecutorState::Unknown,
    }
}

/// The state of an executor whose pod is gone. Source: the published rule.
fn lost(then: &ExecutorState, application: &State) -> ExecutorState {
    match (then, application) {
        (ExecutorState::Completed | ExecutorState::Failed, _) => then.clone(),
        (_, State::Running) => ExecutorState::Unknown,
        (_, State::Completed) => ExecutorState::Completed,
        _ => ExecutorState::Failed,
    }
}

/// Returns the executors that fit: live ones, then failed ones, then the newest of the others.
fn listed(
    all: BTreeMap<String, (ExecutorState, i64)>,
    most: usize,
) -> BTreeMap<String, ExecutorState> {
    let rank = |state: &ExecutorState| match state {
        ExecutorState::Running | ExecutorState::Pending => 0,
        ExecutorState::Failed => 1,
        ExecutorState::Unknown | ExecutorState::Completed | ExecutorState::Other(_) => 2,
    };
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, (state, created))| (rank(state), std::cmp::Reverse(*created)));
    let mut room = MAX_BYTES;
    let fits = |(name, _): &(String, _)| {
        let takes = name.len() + PER_EXECUTOR;
        let fits = takes <= room;
        room = room.saturating_sub(takes);
        fits
    };
    all.into_iter()
        .take(most)
        .take_while(fits)
        .map(|(name, (state, _))| (name, state))
        .collect()
}

fn note(executor: &Executor, now: &ExecutorState) -> Note {
    let name = &executor.name;
    match now {
        ExecutorState::Pending => Note::normal(
            "SparkExecutorPending",
            format!("Executor {name} is pending"),
        ),
        ExecutorState::Running => Note::normal(
            "SparkExecutorRunning",
            format!("Executor {name} is running"),
        ),
        ExecutorState::Completed => Note::normal(
            "SparkExecutorCompleted",
            format!("Executor {name} completed"),
        ),
        ExecutorState::Failed => {
            let missing = (-1, "Unknown (Container not Found)");
            let end = executor.end.as_ref();
            let (code, reason) = end.map_or(missing, |end| (end.code, end.reason.as_str()));
            let text = format!(
                "Executor {name} failed with ExitCode: {code}, Reason: {reason}, Pod Message: {}",
                executor.message
            );
            Note::warning("SparkExecutorFailed", text)
        }
        ExecutorState::Unknown | ExecutorState::Other(_) => Note::warning(
            "SparkExecutorUnknown",
            format!("Executor {name} in unknown state"),
        ),
    }
}
