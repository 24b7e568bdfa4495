//! The invariants of a job's status between events.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::job::is_true;

/// The longest message of a condition. Unit: bytes.
const MESSAGE: usize = 1024;
/// A write that follows its decision later than this has another reason than a proxy that held it, in seconds.
const HELD: i64 = 30;

/// Checks a job and its last change. `before` is the same object (by uid) at the previous event.
pub(super) fn job(before: Option<&Value>, now: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    conditions(before, now, &mut wrong);
    for (a, b) in [
        ("Succeeded", "Failed"),
        ("Running", "Restarting"),
        ("Running", "Suspended"),
        ("Running", "Succeeded"),
        ("Running", "Failed"),
    ] {
        if is_true(now, a) && is_true(now, b) {
            let id = if a == "Succeeded" { "I-12" } else { "I-13" };
            wrong.push(format!("{id}: {a} and {b} are both True"));
        }
    }
    times(before, now, &mut wrong);
    wrong.extend(generations(before, now));
    if let Some(before) = before {
        wrong.extend(super::rest::restarts(before, now));
    }
    wrong
}

/// I-19: `observedGeneration` is never ahead of the spec and never decreases. It is unset if the spec must be acted on again.
pub(super) fn generations(before: Option<&Value>, now: &Value) -> Vec<String> {
    let observed = |job: &Value| job["status"]["observedGeneration"].as_i64();
    let mut wrong = Vec::new();
    let (seen, generation) = (observed(now), now["metadata"]["generation"].as_i64());
    if seen > generation {
        wrong.push(format!(
            "I-19: observed {seen:?} of generation {generation:?}"
        ));
    }
    if let (Some(was), Some(is)) = (before.and_then(observed), seen)
        && is < was
    {
        wrong.push(format!("I-19: observedGeneration fell from {was} to {is}"));
    }
    wrong
}

fn by_type(job: &Value) -> BTreeMap<&str, &Value> {
    let list = job["status"]["conditions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    list.iter()
        .filter_map(|c| Some((c["type"].as_str()?, c)))
        .collect()
}

pub(super) fn conditions(before: Option<&Value>, now: &Value, wrong: &mut Vec<String>) {
    let old = before.map(by_type).unwrap_or_default();
    let new = by_type(now);
    let listed = now["status"]["conditions"].as_array().map_or(0, Vec::len);
    if listed != new.len() {
        wrong.push("I-14: a condition type is listed twice".to_owned());
    }
    for (kind, condition) in &new {
        let reason = condition["reason"].as_str().unwrap_or_default();
        let message = condition["message"].as_str().unwrap_or_default();
        // A launcher's Job combines its reason with its pod's, as published: `BackoffLimitExceeded/Evicted`.
        let camel = reason.starts_with(|c: char| c.is_ascii_uppercase())
            && reason
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '/');
        if !camel {
            wrong.push(format!("I-14: {kind} has the reason {reason:?}"));
        }
        if message.is_empty() || message.len() > MESSAGE {
            wrong.push(format!(
                "I-14: the message of {kind} has {} bytes",
                message.len()
            ));
        }
        if let Some(was) = old.get(kind) {
            let flipped = was["status"] != condition["status"];
            let moved = was["lastTransitionTime"] != condition["lastTransitionTime"];
            // Times have whole seconds, so a second flip within the same second changes nothing.
            let must_move = flipped && !may_keep(&condition["lastTransitionTime"], now);
            if moved && !flipped || must_move && !moved {
                wrong.push(format!(
                    "I-14: {kind} flipped: {flipped}, its time moved: {moved}"
                ));
            }
        }
    }
    for terminal in ["Succeeded", "Failed"] {
        let was = old.get(terminal).is_some_and(|c| c["status"] == "True");
        if was && !is_true(now, terminal) {
            wrong.push(format!("I-12: {terminal} was True and is no longer"));
        }
    }
}

/// Returns true if a condition flipped twice within this second: no condition was updated later, and the write was not much later either.
fn may_keep(transition: &Value, now: &Value) -> bool {
    let conditions = by_type(now).into_values();
    let decided = conditions.filter_map(|c| time(&c["lastUpdateTime"])).max();
    let held = |at: Timestamp| written(now).duration_since(at).as_secs() <= HELD;
    time(transition).is_some_and(|at| decided == Some(at) && held(at))
}

/// The time of the last status write, from the API server; the auditor itself may see it late.
fn written(job: &Value) -> Timestamp {
    let managers = job["metadata"]["managedFields"].as_array();
    let times = managers
        .into_iter()
        .flatten()
        .filter(|manager| manager["subresource"] == "status")
        .filter_map(|manager| time(&manager["time"]));
    times.max().unwrap_or_else(Timestamp::now)
}

fn times(before: Option<&Value>, now: &Value, wrong: &mut Vec<String>) {
    let status = &now["status"];
    let finished = is_true(now, "Succeeded") || is_true(now, "Failed");
    if finished == status["completionTime"].is_null() {
        let is = &status["completionTime"];
        wrong.push(format!(
            "I-17: finished is {finished}, and completionTime is {is}"
        ));
    }
    if let (Some(start), Some(end)) = (time(&status["startTime"]), time(&status["completionTime"]))
        && end < start
    {
        wrong.push(format!(
            "I-17: completed at {end}, before it was started at {start}"
        ));
    }
    let Some(before) = before else { return };
    let was = &before["status"];
    if !was["completionTime"].is_null() && was["completionTime"] != status["completionTime"] {
        wrong.push("I-17: completionTime changed".to_owned());
    }
    // A new activation starts at the end of a suspension.
    let resumed = is_true(before, "Suspended") && !is_true(now, "Suspended");
    if !was["startTime"].is_null() && was["startTime"] != status["startTime"] && !resumed {
        wrong.push(format!(
            "I-17: startTime changed to {}",
            status["startTime"]
        ));
    }
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const OLD: &str = "2020-01-01T00:00:00Z";
    const NEW: &str = "2020-01-01T00:01:00Z";

    fn with(conditions: &[(&str, &str, &str)], times: &Value) -> Value {
        let list: Vec<Value> = conditions
            .iter()
            .map(|(kind, status, at)| {
                json!({
                    "type": kind, "status": status, "lastTransitionTime": at, "lastUpdateTime": at,
                    "reason": "SomeReason", "message": "m",
                })
            })
            .collect();
        let mut status = times.clone();
        status["conditions"] = json!(list);
        json!({ "status": status })
    }

    #[test]
    fn an_ordinary_life_breaks_nothing() {
        let mut life = vec![
            with(&[("Created", "True", OLD)], &json!({"startTime": OLD})),
            with(
                &[("Created", "True", OLD), ("Running", "True", OLD)],
                &json!({"startTime": OLD}),
            ),
        ];
        life.push(with(
            &[
                ("Created", "True", OLD),
                ("Running", "False", NEW),
                ("Succeeded", "True", NEW),
            ],
            &json!({"startTime": OLD, "completionTime": NEW}),
        ));
        assert_eq!(job(None, &life[0]), Vec::<String>::new());
        for pair in life.windows(2) {
            assert_eq!(job(Some(&pair[0]), &pair[1]), Vec::<String>::new());
        }
    }

    #[test]
    fn i_12_to_i_17_each_broken_invariant_is_told_by_its_id() {
        let done = json!({"startTime": OLD, "completionTime": NEW});
        let succeeded = with(&[("Succeeded", "True", OLD)], &done);
        let running = with(&[("Running", "True", OLD)], &json!({}));
        let at = |at: &str, mut job: Value| {
            job["metadata"]["managedFields"] = json!([{ "subresource": "status", "time": at }]);
            job
        };
        let ended = |running: &str, succeeded: &str| {
            let conditions = [
                ("Running", "False", running),
                ("Succeeded", "True", succeeded),
            ];
            let times = json!({"startTime": OLD, "completionTime": succeeded});
            at(succeeded, with(&conditions, &times))
        };
        let stopped = at(NEW, with(&[("Running", "False", OLD)], &json!({})));
        assert_eq!(
            job(Some(&running), &ended(OLD, OLD)),
            Vec::<String>::new(),
            "two flips within a second"
        );
        let started = |at: &str| with(&[("Created", "True", OLD)], &json!({"startTime": at}));
        for (before, now, id) in [
            (
                Some(&succeeded),
                with(&[("Succeeded", "False", NEW)], &json!({})),
                "I-12",
            ),
            (
                None,
                with(
                    &[("Succeeded", "True", OLD), ("Failed", "True", OLD)],
                    &done,
                ),
                "I-12",
            ),
            (
                None,
                with(
                    &[("Running", "True", OLD), ("Restarting", "True", OLD)],
                    &json!({}),
                ),
                "I-13",
            ),
            (
                Some(&succeeded),
                with(&[("Succeeded", "True", NEW)], &done),
                "I-14",
            ),
            (Some(&running), ended(OLD, NEW), "I-14"),
            (Some(&running), stopped, "I-14"),
            (
                None,
                with(
                    &[("Created", "True", OLD), ("Created", "True", OLD)],
                    &json!({}),
                ),
                "I-14",
            ),
            (
                None,
                with(&[("Succeeded", "True", OLD)], &json!({})),
                "I-17",
            ),
            (Some(&started(OLD)), started(NEW), "I-17"),
            (
                None,
                with(
                    &[("Failed", "True", OLD)],
                    &json!({"startTime": NEW, "completionTime": OLD}),
                ),
                "I-17",
            ),
        ] {
            let wrong = job(before, &now);
            assert!(
                wrong.iter().any(|w| w.starts_with(id)),
                "{id}: {wrong:?} for {now}"
            );
        }
    }
}
