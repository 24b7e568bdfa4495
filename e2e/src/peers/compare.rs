//! Differences between two histories, and the reasons for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;
use training_manifests::differences::{ABSENT, Pattern, Rule};

use super::history::{History, JOB, Stage};

/// Something of a job that the Go operator and ours do differently.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The kind of the object: `Pod`, `job`, `event`; `end` if one of them refuses the job or never rests.
    pub object: String,
    /// The path of the field.
    pub path: String,
    /// The Go operator's value; `None` if it has none.
    pub peer: Option<String>,
    /// Ours.
    pub ours: Option<String>,
    /// The job.
    pub job: String,
    /// The first act after which they differ.
    pub act: String,
    /// The object's name.
    pub name: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}: Go {} ours {} [{}, {}, {}]",
            self.object,
            self.path,
            text(self.peer.as_ref()),
            text(self.ours.as_ref()),
            self.job,
            self.act,
            self.name
        )
    }
}

/// Returns true if a rule is about jobs like the difference's.
fn is_about(rule: &Rule, kind: &str, difference: &Difference) -> bool {
    (rule.kinds.is_empty() || rule.kinds.iter().any(|k| k == kind))
        && (rule.jobs.is_empty() || rule.jobs.contains(&difference.job))
}

fn describes(pattern: &Pattern, difference: &Difference) -> bool {
    pattern.object == difference.object
        && matches(pattern.path.as_deref(), &difference.path)
        && matches(pattern.peer.as_deref(), text(difference.peer.as_ref()))
        && matches(pattern.ours.as_deref(), text(difference.ours.as_ref()))
}

fn text(value: Option<&String>) -> &str {
    value.map_or(ABSENT, String::as_str)
}

/// Returns true if a pattern matches a whole text.
fn matches(pattern: Option<&str>, text: &str) -> bool {
    let Some(pattern) = pattern else { return true };
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Returns what differs between the Go operator's history and ours, each once.
pub fn differences(peer: &History, ours: &History) -> Vec<Difference> {
    let mut all = Vec::new();
    let jobs: BTreeSet<&String> = peer.0.keys().chain(ours.0.keys()).collect();
    for job in jobs {
        match (peer.0.get(job), ours.0.get(job)) {
            (Some(peer), Some(ours)) => of_job(job, peer, ours, &mut all),
            (peer, ours) => all.push(Difference {
                object: "recording".to_owned(),
                path: String::new(),
                peer: peer.map(|_| "exists".to_owned()),
                ours: ours.map(|_| "exists".to_owned()),
                job: job.clone(),
                act: "created".to_owned(),
                name: String::new(),
            }),
        }
    }
    all
}

/// Adds what differs between a job's stages, each once.
pub fn of_job(job: &str, peer: &[Stage], ours: &[Stage], all: &mut Vec<Difference>) {
    let (mut was, mut is) = (State::default(), State::default());
    let mut told = BTreeSet::new();
    for number in 0..peer.len().max(ours.len()) {
        let (peer, ours) = (peer.get(number), ours.get(number));
        let act = peer.or(ours).map(|stage| stage.act.clone());
        let act = act.unwrap_or_default();
        let mut add = |object: &str, name: &str, path: &str, peer, ours| {
            let difference = Difference {
                object: object.to_owned(),
                path: path.to_owned(),
                peer,
                ours,
                job: job.to_owned(),
                act: String::new(),
                name: name.to_owned(),
            };
            if told.insert(difference.clone()) {
                all.push(Difference {
                    act: act.clone(),
                    ..difference
                });
            }
        };
        let end = |stage: Option<&Stage>| match stage {
            Some(stage) if stage.restless => Some("never rests".to_owned()),
            stage => stage.and_then(|stage| stage.refused.clone()),
        };
        if end(peer).is_some() || end(ours).is_some() {
            let end = |stage| end(stage).or(Some("goes on".to_owned()));
            if end(peer) != end(ours) {
                add("end", "", "", end(peer), end(ours));
            }
            return;
        }
        was.apply(job, peer);
        is.apply(job, ours);
        for event in was.events.symmetric_difference(&is.events) {
            let sent = |state: &State| state.events.get(event).map(|_| "sent".to_owned());
            add("event", "", event, sent(&was), sent(&is));
        }
        let keys: BTreeSet<&String> = was.objects.keys().chain(is.objects.keys()).collect();
        for key in keys {
            let (kind, name) = key.split_once(' ').unwrap_or((JOB, ""));
            match (was.objects.get(key), is.objects.get(key)) {
                (Some((peer, times)), Some((ours, own))) => {
                    let (times, own) = (Value::from(*times), Value::from(*own));
                    compare("created", &times, &own, &mut |path, peer, ours| {
                        add(kind, name, path, peer, ours);
                    });
                    compare("", peer, ours, &mut |path, peer, ours| {
                        add(kind, name, path, peer, ours);
                    });
                }
                (peer, ours) => {
                    let exists = |side: Option<_>| side.map(|_| "exists".to_owned());
                    add(kind, name, "", exists(peer), exists(ours));
                }
            }
        }
    }
}

/// What there is of a job after some stages. `JOB` stands for its name.
#[derive(Default)]
struct State {
    /// Each with the number of its creations.
    objects: BTreeMap<String, (Value, u32)>,
    lives: BTreeMap<String, u32>,
    events: BTreeSet<String>,
}

impl State {
    fn apply(&mut self, job: &str, stage: Option<&Stage>) {
        let named = |text: &str| text.replace(job, "JOB");
        for (key, object) in stage.iter().flat_map(|stage| &stage.objects) {
            let key = named(key);
            if object.is_null() {
                self.objects.remove(&key);
                continue;
            }
            let times = self.lives.entry(key.clone()).or_default();
            if !self.objects.contains_key(&key) {
                *times += 1;
            }
            self.objects.insert(key, (renamed(object, &named), *times));
        }
        for key in stage.iter().flat_map(|stage| &stage.recreated) {
            let key = named(key);
            let times = self.lives.entry(key.clone()).or_default();
            *times += 1;
            if let Some((_, of)) = self.objects.get_mut(&key) {
                *of = *times;
            }
        }
        let events = stage.iter().flat_map(|stage| &stage.events);
        self.events.extend(events.map(|event| named(event)));
    }
}

/// Renames in all texts and keys.
fn renamed(value: &Value, named: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (named(key), renamed(value, named)))
            .collect(),
        Value::Array(values) => values.iter().map(|value| renamed(value, named)).collect(),
        Value::String(text) => Value::String(named(text)),
        other => other.clone(),
    }
}

/// Reports each difference between two values, with its path and the texts of both sides. What only one side has is one difference.
fn compare(
    path: &str,
    peer: &Value,
    ours: &Value,
    report: &mut impl FnMut(&str, Option<String>, Option<String>),
) {
    if peer == ours {
        return;
    }
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut fields =
        |keys: BTreeSet<&str>, get: &dyn Fn(&str) -> [Option<Value>; 2], begin, end| {
            for key in keys {
                let path = format!("{path}{begin}{key}{end}");
                match get(key) {
                    [Some(peer), Some(ours)] => compare(&path, &peer, &ours, report),
                    [peer, ours] => report(&path, peer.as_ref().map(text), ours.as_ref().map(text)),
                }
            }
        };
    match (peer, ours) {
        (Value::Object(peer), Value::Object(ours)) => {
            let keys = peer.keys().chain(ours.keys()).map(String::as_str);
            let dot = if path.is_empty() { "" } else { "." };
            let get = |key: &str| [peer.get(key).cloned(), ours.get(key).cloned()];
            fields(keys.collect(), &get, dot, "");
        }
        (Value::Array(peer), Value::Array(ours)) if is_named(peer) && is_named(ours) => {
            // By name, so that an added element is one difference and doesn't shift all that follow.
            let keys = peer.iter().chain(ours).filter_map(name);
            let find =
                |list: &[Value], key: &str| list.iter().find(|e| name(e) == Some(key)).cloned();
            let get = |key: &str| [find(peer, key), find(ours, key)];
            fields(keys.collect(), &get, "[", "]");
            let order = |list: &[Value], other: &[Value]| {
                let both = list.iter().filter_map(name);
                let both = both.filter(|key| find(other, key).is_some());
                both.collect::<Vec<_>>().join(" ")
            };
            let (was, is) = (order(peer, ours), order(ours, peer));
            if was != is {
                report(&format!("{path} order"), Some(was), Some(is));
            }
        }
        _ => report(path, Some(text(peer)), Some(text(ours))),
    }
}

fn name(element: &Value) -> Option<&str> {
    ["name", "type"]
        .iter()
        .find_map(|key| element[key].as_str())
}

/// Returns true if the elements have different names.
fn is_named(list: &[Value]) -> bool {
    let names: BTreeSet<&str> = list.iter().filter_map(name).collect();
    names.len() == list.len()
}

/// Returns true if a rule explains the difference in a job of this kind.
pub fn is_explained(rules: &[Rule], kind: &str, difference: &Difference) -> bool {
    let mut about = rules.iter().filter(|rule| is_about(rule, kind, difference));
    about.any(|rule| {
        rule.differ
            .iter()
            .any(|pattern| describes(pattern, difference))
    })
}

/// Returns the differences that no rule explains, and the patterns that match none, with their reasons.
pub fn judge(
    rules: &[Rule],
    found: &BTreeMap<String, Vec<Difference>>,
) -> (Vec<String>, Vec<String>) {
    let mut unexplained = Vec::new();
    let mut used = BTreeSet::new();
    for (kind, differences) in found {
        for difference in differences {
            for (number, rule) in rules.iter().enumerate() {
                if !is_about(rule, kind, difference) {
                    continue;
                }
                let matching = rule.differ.iter().enumerate();
                let matching = matching.filter(|(_, pattern)| describes(pattern, difference));
                used.extend(matching.map(|(at, _)| (number, at)));
            }
            if !is_explained(rules, kind, difference) {
                unexplained.push(format!("{kind}: {difference}"));
            }
        }
    }
    let mut unused = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        for (at, pattern) in rule.differ.iter().enumerate() {
            // Which events are sent depends on how many there are in a minute.
            let varies = rule.sometimes || pattern.object == "event";
            if !varies && !used.contains(&(number, at)) {
                unused.push(format!("{}: {pattern:?}", rule.why));
            }
        }
    }
    (unexplained, unused)
}
