//! The published rules for the list of conditions. Users' tools compare whole lists and read the job's state from the last element.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use training_api::{ConditionType, JobCondition};

/// Sets a condition.
///
/// - Once `Failed` is true, nothing more is set.
/// - The same status and reason change nothing, neither message nor times.
/// - The same status with another reason keeps `lastTransitionTime`.
/// - A changed condition moves to the end. Exceptions: [`ConditionType::Stalled`] is always first, so that the last element keeps
///   its published meaning. [`ConditionType::Created`] comes right after it, also when it is added again.
/// - Restarting removes Running, and Running removes Restarting.
/// - Succeeded and Failed set Running and Stalled to False in place, and remove Restarting.
pub fn set(
    list: &mut Vec<JobCondition>,
    type_: ConditionType,
    holds: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    if list.iter().any(|c| c.holds(ConditionType::Failed)) {
        return;
    }
    let name = type_.as_str();
    let status = if holds { "True" } else { "False" };
    let old = list
        .iter()
        .position(|c| c.type_ == name)
        .map(|at| list[at].clone());
    if old
        .as_ref()
        .is_some_and(|c| c.status == status && c.reason.as_deref() == Some(reason))
    {
        return;
    }
    let transition = match &old {
        Some(c) if c.status == status => c.last_transition_time.clone().unwrap_or(Time(now)),
        _ => Time(now),
    };
    list.retain(|c| c.type_ != name);
    match type_ {
        ConditionType::Restarting => list.retain(|c| c.type_ != ConditionType::Running.as_str()),
        ConditionType::Running => list.retain(|c| c.type_ != ConditionType::Restarting.as_str()),
        ConditionType::Succeeded | ConditionType::Failed => {
            list.retain(|c| c.type_ != ConditionType::Restarting.as_str());
            let over = |c: &&mut JobCondition| {
                c.holds(ConditionType::Running) || c.holds(ConditionType::Stalled)
            };
            for c in list.iter_mut().filter(over) {
                "False".clone_into(&mut c.status);
                c.last_transition_time = Some(Time(now));
            }
        }
        ConditionType::Stalled | ConditionType::Created | ConditionType::Suspended => {}
    }
    let condition = JobCondition {
        type_: name.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(transition),
    };
    match type_ {
        ConditionType::Stalled => list.insert(0, condition),
        ConditionType::Created => {
            let stalled = ConditionType::Stalled.as_str();
            list.insert(
                list.iter().take_while(|c| c.type_ == stalled).count(),
                condition,
            );
        }
        ConditionType::Running
        | ConditionType::Restarting
        | ConditionType::Suspended
        | ConditionType::Succeeded
        | ConditionType::Failed => list.push(condition),
    }
}

/// Replaces only the message of a condition. Returns false if it has this message. For Trainyard's own conditions: the messages of
/// published ones are fixed.
pub fn reword(
    list: &mut [JobCondition],
    type_: ConditionType,
    message: &str,
    now: Timestamp,
) -> bool {
    let mut own = list.iter_mut().filter(|c| c.type_ == type_.as_str());
    let Some(condition) = own.find(|c| c.message.as_deref() != Some(message)) else {
        return false;
    };
    condition.message = Some(message.to_owned());
    condition.last_update_time = Some(Time(now));
    true
}

/// Keeps the last transition time of each condition whose status equals the stored one. Such a condition may have flipped and
/// flipped back, but nobody saw that.
pub fn keep_times(list: &mut [JobCondition], stored: &[JobCondition]) {
    for c in list {
        let same = |was: &&JobCondition| was.type_ == c.type_ && was.status == c.status;
        if let Some(was) = stored.iter().find(same) {
            c.last_transition_time.clone_from(&was.last_transition_time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConditionType::{Created, Failed, Restarting, Running, Stalled, Succeeded, Suspended};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn shape(list: &[JobCondition]) -> Vec<String> {
        list.iter()
            .map(|c| format!("{}={}", c.type_, c.status))
            .collect()
    }

    fn build(sets: &[(ConditionType, bool)]) -> Vec<JobCondition> {
        let mut list = Vec::new();
        for (second, (type_, holds)) in (0i64..).zip(sets) {
            set(
                &mut list,
                *type_,
                *holds,
                &format!("{}{holds}", type_.as_str()),
                "m",
                at(second),
            );
        }
        list
    }

    #[test]
    fn i_14_a_condition_that_was_set_to_and_fro_keeps_its_time() {
        let stored = build(&[(Created, true), (Running, true), (Running, false)]);
        let mut list = stored.clone();
        set(&mut list, Running, true, "Runs", "m", at(9));
        set(&mut list, Succeeded, true, "Ends", "m", at(9));
        keep_times(&mut list, &stored);
        assert_eq!(list[1].status, "False");
        assert_eq!(list[1].last_transition_time, Some(Time(at(2))));
        assert_eq!(list[2].last_transition_time, Some(Time(at(9))), "a new one");
    }

    #[test]
    fn running_and_restarting_replace_each_other_and_a_failure_ends_the_list() {
        let steps = [
            (Created, true, vec!["Created=True"]),
            (Running, true, vec!["Created=True", "Running=True"]),
            (Restarting, true, vec!["Created=True", "Restarting=True"]),
            (Running, true, vec!["Created=True", "Running=True"]),
            (
                Failed,
                true,
                vec!["Created=True", "Running=False", "Failed=True"],
            ),
            (
                Running,
                true,
                vec!["Created=True", "Running=False", "Failed=True"],
            ),
        ];
        let mut sets = Vec::new();
        for (type_, holds, expected) in steps {
            sets.push((type_, holds));
            assert_eq!(shape(&build(&sets)), expected);
        }
    }

    #[test]
    fn a_suspended_and_resumed_job_shows_running_last() {
        let list = build(&[
            (Created, true),
            (Running, true),
            (Running, false),
            (Suspended, true),
            (Suspended, false),
            (Running, true),
        ]);
        assert_eq!(
            shape(&list),
            ["Created=True", "Suspended=False", "Running=True"]
        );
    }

    #[test]
    fn a_success_never_leaves_a_restart_behind() {
        assert_eq!(
            shape(&build(&[
                (Created, true),
                (Restarting, true),
                (Succeeded, true)
            ])),
            ["Created=True", "Succeeded=True"]
        );
    }

    #[test]
    fn stalled_stands_first_so_that_the_last_element_keeps_its_meaning() {
        assert_eq!(
            shape(&build(&[(Created, true), (Stalled, true)])),
            ["Stalled=True", "Created=True"]
        );
        assert_eq!(
            shape(&build(&[
                (Stalled, true),
                (Created, true),
                (Stalled, false)
            ])),
            ["Stalled=False", "Created=True"]
        );
    }

    #[test]
    fn a_condition_created_that_was_lost_does_not_become_the_state() {
        assert_eq!(
            shape(&build(&[(Running, true), (Stalled, true), (Created, true)])),
            ["Stalled=True", "Created=True", "Running=True"]
        );
    }

    #[test]
    fn nothing_is_stalled_after_the_end() {
        assert_eq!(
            shape(&build(&[(Stalled, true), (Created, true), (Failed, true)])),
            ["Stalled=False", "Created=True", "Failed=True"]
        );
    }

    #[test]
    fn the_transition_time_moves_only_when_the_status_flips() {
        let mut list = Vec::new();
        set(&mut list, Stalled, true, "QuotaExceeded", "a", at(1));
        set(&mut list, Stalled, true, "NameConflict", "b", at(2));
        assert_eq!(list[0].last_transition_time, Some(Time(at(1))));
        assert_eq!(list[0].last_update_time, Some(Time(at(2))));
        set(&mut list, Stalled, true, "NameConflict", "c", at(3));
        assert_eq!(
            list[0].message.as_deref(),
            Some("b"),
            "same status and reason is no change"
        );
        set(&mut list, Stalled, false, "NameConflict", "d", at(4));
        assert_eq!(list[0].last_transition_time, Some(Time(at(4))));
    }
}
