//! Differences between two histories, and the reasons for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Result, ensure};
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
    /// The act after which they differ.
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
        && (rule.acts.is_empty() || rule.acts.contains(&difference.act))
}

fn describes(pattern: &Pattern, difference: &Difference) -> bool {
    pattern.object == difference.object
        && matches(pattern.name.as_deref(), &difference.name)
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

/// Returns what differs between the Go operator's history and ours after each act.
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

/// Adds what differs between a job's stages.
fn of_job(job: &str, peer: &[Stage], ours: &[Stage], all: &mut Vec<Difference>) {
    let (mut was, mut is) = (State::default(), State::default());
    for number in 0..peer.len().max(ours.len()) {
        let (peer, ours) = (peer.get(number), ours.get(number));
        let act = peer.or(ours).map(|stage| stage.act.clone());
        let act = act.unwrap_or_default();
        let mut add = |object: &str, name: &str, path: &str, peer, ours| {
            all.push(Difference {
                object: object.to_owned(),
                path: path.to_owned(),
                peer,
                ours,
                job: job.to_owned(),
                act: act.clone(),
                name: name.to_owned(),
            });
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

/// Returns the rules and their patterns that match a difference in a job of this kind, by number.
fn matching<'a>(
    rules: &'a [Rule],
    kind: &'a str,
    difference: &'a Difference,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    let about = rules.iter().enumerate();
    let about = about.filter(move |(_, rule)| is_about(rule, kind, difference));
    about.flat_map(move |(number, rule)| {
        let patterns = rule.differ.iter().enumerate();
        let patterns = patterns.filter(move |(_, pattern)| describes(pattern, difference));
        patterns.map(move |(at, _)| (number, at))
    })
}

/// Returns true if a rule explains the difference in a job of this kind.
pub fn is_explained(rules: &[Rule], kind: &str, difference: &Difference) -> bool {
    matching(rules, kind, difference).next().is_some()
}

/// Returns true if rules explain everything that `counts` and differs after a job's last act. What was wrong before stays wrong.
pub fn is_expected(
    rules: &[Rule],
    kind: &str,
    go: &History,
    (job, ours): (&str, &[Stage]),
    counts: impl Fn(&Difference) -> bool,
) -> bool {
    let go = go.0.get(job).map_or(&[][..], Vec::as_slice);
    let mut found = Vec::new();
    of_job(job, &go[..ours.len().min(go.len())], ours, &mut found);
    found.retain(|found| ours.last().is_some_and(|last| last.act == found.act) && counts(found));
    found.iter().all(|found| is_explained(rules, kind, found))
}

/// Returns true if a rule says that the Go operator's behaviour is random there.
pub fn is_random(rules: &[Rule], kind: &str, difference: &Difference) -> bool {
    matching(rules, kind, difference).any(|(number, _)| rules[number].sometimes)
}

/// Fails with the differences that no rule explains, or with the patterns that match none and their reasons.
pub fn judge(rules: &[Rule], found: &BTreeMap<String, Vec<Difference>>) -> Result<()> {
    let mut unexplained = Vec::new();
    let mut used = BTreeSet::new();
    for (kind, differences) in found {
        for difference in differences {
            let matching: Vec<_> = matching(rules, kind, difference).collect();
            if matching.is_empty() {
                unexplained.push(format!("{kind}: {difference}"));
            }
            used.extend(matching);
        }
    }
    ensure!(
        unexplained.is_empty(),
        "unexplained:\n{}",
        unexplained.join("\n")
    );
    let mut unused = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        for (at, pattern) in rule.differ.iter().enumerate() {
            if !rule.sometimes && !used.contains(&(number, at)) {
                unused.push(format!("{}: {pattern:?}", rule.why));
            }
        }
    }
    ensure!(
        unused.is_empty(),
        "these rules explain nothing: {unused:#?}"
    );
    Ok(())
}
