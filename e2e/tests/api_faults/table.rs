//! The faults that are tested for every kind.

use std::time::Duration;

use serde_json::{Value, json};
use training_testkit::proxy::{Action, Answer, Change, Effect, Filter};

use super::driver::Phase;
use super::life::{Life, Target};

/// Short enough to wait for, much longer than an answer of a busy machine.
pub const DEADLINE: &[(&str, &str)] = &[("call-deadline", "3s")];

/// A fault of requests.
#[derive(Debug)]
pub struct Fault {
    /// The prefix of its namespaces.
    pub name: &'static str,
    /// Flags that the operator needs for it.
    pub flags: &'static [(&'static str, &'static str)],
    /// Which of a phase's requests it hits.
    aim: Aim,
    /// What it does to them.
    pub action: fn() -> Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    All,
    /// Requests that change something.
    Writes,
    /// Requests whose response ends, and so can be cut off; a watch has no end.
    Finite,
    Status,
    Creates,
    Deletes,
}

impl Fault {
    const fn new(name: &'static str, aim: Aim, action: fn() -> Action) -> Self {
        Self {
            name,
            flags: &[],
            aim,
            action,
        }
    }

    /// A fault that ends with the operator's own deadline.
    const fn slow(name: &'static str, aim: Aim, action: fn() -> Action) -> Self {
        let mut fault = Self::new(name, aim, action);
        fault.flags = DEADLINE;
        fault
    }

    /// The requests that it hits in a phase.
    pub fn targets(&self, life: Life, phase: Phase) -> Vec<Target> {
        let takes = |(verb, resource): &Target| match self.aim {
            Aim::All => true,
            Aim::Writes => !matches!(*verb, "list" | "watch"),
            Aim::Finite => *verb != "watch",
            Aim::Status => *resource == life.status(),
            Aim::Creates => *verb == "create",
            Aim::Deletes => *verb == "delete",
        };
        life.targets(phase).into_iter().filter(takes).collect()
    }

    /// Whether a request that it hits takes effect nevertheless.
    pub fn has_effect(&self) -> bool {
        !matches!(
            (self.action)(),
            Action::ResetBefore
                | Action::Silence(Effect::Without)
                | Action::Answer(Effect::Without, _)
        )
    }
}

fn answer(effect: Effect, code: u16, reason: &str, message: &str) -> Action {
    Action::Answer(effect, Answer::new(code, reason, message))
}

/// Overload, with a `Retry-After`.
pub fn overload(retry_after: Option<&str>) -> Action {
    let mut answer = Answer::new(429, "TooManyRequests", "too many requests");
    answer.retry_after = retry_after.map(str::to_owned);
    Action::Answer(Effect::Without, answer)
}

/// The API server is unavailable.
pub fn away() -> Action {
    answer(Effect::Without, 503, "ServiceUnavailable", "away")
}

/// A write that timed out although it took effect.
pub fn timeout() -> Action {
    let message = "the server did not answer in time";
    answer(Effect::With, 504, "Timeout", message)
}

/// Another writer was faster.
pub fn conflict() -> Action {
    let message = "the object has been modified";
    answer(Effect::Without, 409, "Conflict", message)
}

pub const F_02: Fault = Fault::new("f02", Aim::All, || Action::ResetBefore);
pub const F_03: Fault = Fault::new("f03", Aim::Finite, || Action::ResetAfter);
pub const F_04: Fault = Fault::slow("f04", Aim::All, || Action::Silence(Effect::Without));
pub const F_04_DONE: Fault = Fault::slow("f04b", Aim::Writes, || Action::Silence(Effect::With));
pub const F_05: Fault = Fault::slow("f05", Aim::Finite, || {
    Action::Trickle(Duration::from_secs(1))
});
pub const F_06_CUT: Fault = Fault::new("f06cut", Aim::Finite, || Action::CutAnswer);
pub const F_06_LENGTH: Fault = Fault::new("f06length", Aim::Finite, || Action::WrongLength);
pub const F_06_JSON: Fault = Fault::new("f06json", Aim::Finite, || {
    Action::AlterAnswer(Change::new(|body| Some(body[..body.len() / 2].to_vec())))
});
pub const F_10: Fault = Fault::new("f10", Aim::All, || overload(Some("1")));
pub const F_10_NONE: Fault = Fault::new("f10none", Aim::Writes, || overload(None));
pub const F_10_MINUS: Fault = Fault::new("f10minus", Aim::Writes, || overload(Some("-5")));
pub const F_10_TEXT: Fault = Fault::new("f10text", Aim::Writes, || overload(Some("soon")));
pub const F_11: Fault = Fault::new("f11", Aim::All, || {
    answer(Effect::Without, 500, "InternalError", "something broke")
});
pub const F_12: Fault = Fault::new("f12", Aim::Writes, || {
    let message = "etcdserver: request timed out";
    answer(Effect::With, 500, "InternalError", message)
});
pub const F_13: Fault = Fault::new("f13", Aim::All, away);
pub const F_14: Fault = Fault::new("f14", Aim::Writes, timeout);
pub const F_15: Fault = Fault::new("f15", Aim::Status, conflict);
pub const F_16: Fault = Fault::new("f16", Aim::Creates, || {
    answer(Effect::With, 409, "AlreadyExists", "it exists already")
});
pub const F_18: Fault = Fault::new("f18", Aim::Deletes, || {
    answer(Effect::With, 404, "NotFound", "not found")
});
pub const F_18_STATUS: Fault = Fault::new("f18status", Aim::Status, || {
    answer(Effect::Without, 404, "NotFound", "not found")
});

/// All faults of requests.
pub const REQUESTS: [&Fault; 20] = [
    &F_02,
    &F_03,
    &F_04,
    &F_04_DONE,
    &F_05,
    &F_06_CUT,
    &F_06_LENGTH,
    &F_06_JSON,
    &F_10,
    &F_10_NONE,
    &F_10_MINUS,
    &F_10_TEXT,
    &F_11,
    &F_12,
    &F_13,
    &F_14,
    &F_15,
    &F_16,
    &F_18,
    &F_18_STATUS,
];

/// How a watch fault ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The operator recovers by itself while the fault goes on.
    None,
    /// The fault ends, and the operator notices by itself.
    End,
    /// The fault ends, and the watches reconnect.
    Reopen,
    /// The watches start from a list.
    Relist,
}

/// A watch fault.
#[derive(Debug)]
pub struct WatchFault {
    /// The prefix of its namespaces.
    pub name: &'static str,
    /// Which watches it breaks.
    on: Whose,
    /// What it does to the watch of a resource; the version is an old one.
    pub action: fn(Life, &str, &str) -> Action,
    /// How it ends.
    pub recovery: Recovery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    All,
    Jobs,
    Pods,
}

impl WatchFault {
    const fn new(
        name: &'static str,
        on: Whose,
        action: fn(Life, &str, &str) -> Action,
        recovery: Recovery,
    ) -> Self {
        Self {
            name,
            on,
            action,
            recovery,
        }
    }

    /// Flags that the operator needs for it.
    pub fn flags(&self) -> &'static [(&'static str, &'static str)] {
        // The operator notices silence only if it knows how long a watch may be silent.
        if self.recovery == Recovery::End {
            &[("watch-timeout", "2s")]
        } else {
            &[]
        }
    }

    /// The number of events before the first lost one, if the fault counts them.
    pub fn spared(&self, life: Life) -> usize {
        match (self.action)(life, "pods", "") {
            Action::DropEvery(n) => n - 1,
            _ => 0,
        }
    }

    /// The resources whose watches it breaks.
    pub fn resources(&self, life: Life) -> Vec<&'static str> {
        match self.on {
            Whose::All => life.watched(),
            Whose::Jobs => vec![life.0.plural],
            Whose::Pods => vec!["pods"],
        }
    }
}

/// Drops the events that contain all of these words.
pub fn events_with(words: &'static [&'static str]) -> Action {
    Action::DropWhere(Filter::new(move |line| {
        let text = String::from_utf8_lossy(line);
        words.iter().all(|word| text.contains(word))
    }))
}

fn injected(event: &Value) -> Action {
    Action::InjectEvent(1, format!("{event}\n").into())
}

fn bookmark(life: Life, plural: &str, version: &str) -> Action {
    let resource = life.resource(plural);
    let event = json!({ "type": "BOOKMARK", "object": {
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": { "resourceVersion": version },
        "spec": { "containers": [], life.0.replica_map: {} }, "status": {},
    }});
    Action::InjectEvent(2, format!("{event}\n{event}\n").into())
}

/// The error of a resource version that is too old.
fn expired() -> Value {
    json!({ "type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version: 1 (2)", "reason": "Expired", "code": 410,
    }})
}

pub const F_30_TWO: WatchFault = WatchFault::new(
    "f30two",
    Whose::All,
    |_, _, _| Action::DropEvery(2),
    Recovery::Relist,
);
pub const F_30_THREE: WatchFault = WatchFault::new(
    "f30three",
    Whose::All,
    |_, _, _| Action::DropEvery(3),
    Recovery::Relist,
);
pub const F_30_SEVEN: WatchFault = WatchFault::new(
    "f30seven",
    Whose::Pods,
    |_, _, _| Action::DropEvery(7),
    Recovery::Relist,
);
pub const F_31: WatchFault = WatchFault::new(
    "f31jobs",
    Whose::Jobs,
    |_, _, _| events_with(&["\"type\":\"MODIFIED\""]),
    Recovery::Relist,
);
pub const F_32_TWO: WatchFault = WatchFault::new(
    "f32two",
    Whose::All,
    |_, _, _| Action::RepeatEvents(2),
    Recovery::None,
);
pub const F_32_FIVE: WatchFault = WatchFault::new(
    "f32five",
    Whose::All,
    |_, _, _| Action::RepeatEvents(5),
    Recovery::None,
);
pub const F_33_JOBS: WatchFault =
    WatchFault::new("f33jobs", Whose::Jobs, |_, _, _| late(700), Recovery::None);
pub const F_33_PODS: WatchFault =
    WatchFault::new("f33pods", Whose::Pods, |_, _, _| late(700), Recovery::None);
pub const F_34_1: WatchFault =
    WatchFault::new("f34", Whose::All, |_, _, _| late(1000), Recovery::None);
pub const F_34_4: WatchFault =
    WatchFault::new("f34", Whose::All, |_, _, _| late(4000), Recovery::None);
pub const F_34_10: WatchFault =
    WatchFault::new("f34", Whose::All, |_, _, _| late(10_000), Recovery::None);
pub const F_34_60: WatchFault =
    WatchFault::new("f34", Whose::All, |_, _, _| late(60_000), Recovery::None);
pub const F_35: WatchFault = WatchFault::new(
    "f35",
    Whose::All,
    |_, _, _| Action::CloseWatchAfter(1),
    Recovery::None,
);
pub const F_36: WatchFault = WatchFault::new(
    "f36",
    Whose::All,
    |_, _, _| Action::StallWatch,
    Recovery::End,
);
pub const F_37: WatchFault = WatchFault::new(
    "f37",
    Whose::All,
    |_, _, _| injected(&expired()),
    Recovery::Reopen,
);
pub const F_38: WatchFault = WatchFault::new("f38", Whose::All, bookmark, Recovery::Reopen);
pub const F_39: WatchFault = WatchFault::new(
    "f39",
    Whose::All,
    |_, _, _| Action::InjectEvent(1, "{\"type\": nonsense}\n".into()),
    Recovery::Reopen,
);

/// Events with Failed or Succeeded, or with a pod's node, can't be decoded.
pub const F_39_LOST: WatchFault = WatchFault::new(
    "f39lost",
    Whose::Pods,
    |_, _, _| {
        Action::AlterEvents(Change::new(|line| {
            let text = String::from_utf8_lossy(line);
            let matters = [
                "\"phase\":\"Failed\"",
                "\"phase\":\"Succeeded\"",
                "\"nodeName\"",
            ];
            let hit = matters.iter().any(|word| text.contains(word));
            hit.then(|| b"{\"type\": nonsense}\n".to_vec())
        }))
    },
    Recovery::None,
);

/// All watch faults that are tested for each kind.
pub const WATCHES: [&WatchFault; 12] = [
    &F_30_TWO,
    &F_30_THREE,
    &F_31,
    &F_32_TWO,
    &F_33_JOBS,
    &F_33_PODS,
    &F_34_1,
    &F_35,
    &F_36,
    &F_37,
    &F_38,
    &F_39,
];

fn late(milliseconds: u64) -> Action {
    Action::DelayEvents(Duration::from_millis(milliseconds))
}
