//! The points of a sweep: a request of a life cycle, and the cut around it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use training_testkit::builders::{EVERY_KIND, Kind};
use training_testkit::proxy::Call;

use super::change::Change;
use crate::lives::Life;

/// The name of a status change without a condition or state.
pub(super) const COUNTS: &str = "counts";
/// The length of a UUID.
const UUID: usize = 36;
/// At least so many hexadecimal digits count as derived from an id, or as a time in milliseconds.
const LEAST_DIGITS: usize = 12;

/// A request by its meaning, so that its name doesn't depend on the order of parallel requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// `create`, `patch`, `delete`; for reads `get`, `list`, `watch`.
    pub verb: String,
    /// The resource, with its subresource: `pods`, `pytorchjobs/status`.
    pub resource: String,
    /// The suffix of the object's name, `worker-1`; for a status its content, `Running`; empty for the job itself, and for lists and
    /// watches. Without digits that differ between runs.
    pub what: String,
    /// The index among requests with the same other fields, from one.
    pub nth: usize,
}

/// A fault around a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// C1: the process is killed before the write reaches the API server.
    Before,
    /// C2: it is killed after the write was executed and before the response.
    After,
    /// C3: it is killed after the response, and before its next write.
    Answered,
    /// C4: the write is executed, and the connection is reset instead of a response.
    Reset,
    /// C4: the write is executed, and the response is a timeout.
    Timeout,
    /// C5: the write is not executed, and the response is a conflict.
    Conflict,
    /// CS-7: the read gets this error.
    Refused(u16),
    /// CS-7: the read gets no response.
    Silence,
}

impl Plan {
    /// Returns the number of kills in it.
    pub(super) fn kills(&self) -> usize {
        let again = matches!(self.restart, Restart::Again(..));
        usize::from(self.cut.kills()) + usize::from(again)
    }
}

impl Cut {
    /// Every cut around a write, the most dangerous ones first.
    pub const ALL: [Self; 6] = [
        Self::After,
        Self::Before,
        Self::Conflict,
        Self::Reset,
        Self::Answered,
        Self::Timeout,
    ];

    /// CS-7: all faults of a read.
    pub const READS: [Self; 6] = [
        Self::Reset,
        Self::Refused(500),
        Self::Refused(429),
        Self::Refused(410),
        Self::Refused(403),
        Self::Silence,
    ];

    /// Returns whether it kills the process.
    pub fn kills(self) -> bool {
        Self::KILLS.contains(&self)
    }

    /// The cuts that kill.
    pub const KILLS: [Self; 3] = [Self::After, Self::Before, Self::Answered];

    /// Returns whether it takes effect before the write is executed.
    pub(super) fn comes_before(self) -> bool {
        !matches!(self, Self::After | Self::Answered)
    }
}

/// What follows after the operator was killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Restart {
    /// R1: the same operator restarts at once.
    #[default]
    Same,
    /// R2: a standby takes over.
    Standby,
    /// R3: the same operator restarts after this change.
    After(Change),
    /// CS-2: the same operator restarts, and is killed again in this way at its write with this index, from one.
    Again(Cut, usize),
    /// CS-4: the same operator restarts. Its lists show the state of so many writes before the kill, and its watches are held until
    /// it is idle.
    Stale(usize),
}

/// The plan of one run, which can be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The life cycle.
    pub life: Life,
    /// The cut.
    pub cut: Cut,
    /// The write.
    pub key: Key,
    /// The restart.
    pub restart: Restart,
}

/// A selection of runs: `S-02`, `TFJob/S-02`, `S-02,C1` or a whole plan.
#[derive(Clone, Debug)]
pub struct Choice {
    kind: Kind,
    life: Life,
    cut: Option<Cut>,
    key: Option<Key>,
    restart: Option<Restart>,
}

/// Counts writes.
#[derive(Debug, Default)]
pub(super) struct Keys {
    seen: BTreeMap<Key, usize>,
}

impl Key {
    /// Returns the key of a call for the job with this name, without its index.
    pub(super) fn of(call: &Call, job: &str) -> Self {
        let resource = match call.subresource.as_str() {
            "" => call.resource.clone(),
            sub => format!("{}/{sub}", call.resource),
        };
        let name = plain(&call.name);
        let rank = name.strip_prefix(job).unwrap_or(&name);
        let what = match call.subresource.as_str() {
            "status" => said(&call.body["status"]),
            _ => rank.trim_start_matches('-').to_owned(),
        };
        Self {
            verb: call.verb.to_owned(),
            resource,
            what,
            nth: 0,
        }
    }

    /// Returns whether it is a read.
    pub(super) fn is_read(&self) -> bool {
        ["get", "list", "watch"].contains(&self.verb.as_str())
    }

    /// Returns its class: verb and resource.
    pub(super) fn class(&self) -> (&str, &str) {
        (&self.verb, &self.resource)
    }

    /// Returns whether a call matches this key except for its index.
    pub(super) fn names(&self, call: &Call, job: &str) -> bool {
        let other = Self::of(call, job);
        (&self.verb, &self.resource, &self.what) == (&other.verb, &other.resource, &other.what)
    }
}

impl Keys {
    /// Counts a request and returns its key.
    pub(super) fn next(&mut self, call: &Call, job: &str) -> Key {
        let key = Key::of(call, job);
        let count = self.seen.entry(key.clone()).or_default();
        *count += 1;
        Key { nth: *count, ..key }
    }
}

/// Removes the digits and ids that differ between runs.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let token = rest.find(|c: char| !c.is_ascii_alphanumeric());
        let token = token.unwrap_or(rest.len());
        let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
        let uuid = rest.get(..UUID).is_some_and(is_uuid);
        let (length, kept) = if uuid {
            (UUID, None)
        } else if token == 0 {
            (next.len_utf8(), Some(next.len_utf8()))
        } else if token >= LEAST_DIGITS && hex(&rest[..token]) {
            (token, None)
        } else {
            (token, Some(token))
        };
        match kept {
            Some(kept) => out.push_str(&rest[..kept]),
            None => out.push('…'),
        }
        rest = &rest[length..];
    }
    out
}

/// Returns whether a text is like `01234567-89ab-cdef-0123-456789abcdef`.
fn is_uuid(text: &str) -> bool {
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

/// Names a status change: its state or last condition, or `counts`.
fn said(change: &Value) -> String {
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    if let Some(state) = change["applicationState"]["state"].as_str() {
        return state.to_owned();
    }
    let last = change["conditions"].as_array().and_then(|list| list.last());
    last.map_or_else(
        || COUNTS.to_owned(),
        |last| match text(&last["status"]).as_str() {
            "True" => text(&last["type"]),
            other => format!("{}={other}", text(&last["type"])),
        },
    )
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}:{}",
            self.verb, self.resource, self.what, self.nth
        )
    }
}

impl FromStr for Key {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let [verb, resource, what, nth] = parts[..] else {
            bail!("{text} is no write: verb:resource:what:number");
        };
        Ok(Self {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            what: what.to_owned(),
            nth: nth.parse().with_context(|| format!("{nth} is no number"))?,
        })
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "C1",
            Self::After => "C2",
            Self::Answered => "C3",
            Self::Reset => "C4-Reset",
            Self::Timeout => "C4-Timeout",
            Self::Conflict => "C5",
            Self::Silence => "Silence",
            Self::Refused(code) => return write!(f, "{code}"),
        })
    }
}

impl FromStr for Cut {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut all = Self::ALL.into_iter().chain(Self::READS);
        let known = all.find(|known| known.to_string() == text);
        known.with_context(|| format!("there is no cut {text}"))
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("R1"),
            Self::Standby => f.write_str("R2"),
            Self::After(change) => write!(f, "R3-{change}"),
            Self::Again(cut, nth) => write!(f, "Again-{cut}-{nth}"),
            Self::Stale(writes) => write!(f, "Stale-{writes}"),
        }
    }
}

impl FromStr for Restart {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "R1" => Ok(Self::Same),
            "R2" => Ok(Self::Standby),
            other => match other.split('-').collect::<Vec<_>>()[..] {
                ["R3", change] => change.parse().map(Self::After),
                ["Again", cut, nth] => Ok(Self::Again(cut.parse()?, nth.parse()?)),
                ["Stale", writes] => Ok(Self::Stale(writes.parse()?)),
                _ => bail!("there is no restart {other}"),
            },
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.life, self.cut, self.key)?;
        match self.restart {
            Restart::Same => Ok(()),
            other => write!(f, ",{other}"),
        }
    }
}

impl Choice {
    /// Returns the selected kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the selected cut, if there is one.
    pub fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// Returns the selected restart, if there is one.
    pub fn restart(&self) -> Option<Restart> {
        self.restart
    }

    /// Returns the selected life cycle.
    pub fn life(&self) -> Life {
        self.life
    }

    /// Returns the selected plan, if the selection is a single run.
    pub fn plan(&self) -> Option<Plan> {
        Some(Plan {
            life: self.life,
            cut: self.cut?,
            key: self.key.clone()?,
            restart: self.restart?,
        })
    }

    /// Returns whether this run is selected.
    pub fn wants(&self, plan: &Plan) -> bool {
        self.life == plan.life
            && self.cut.is_none_or(|cut| cut == plan.cut)
            && self.key.as_ref().is_none_or(|key| *key == plan.key)
            && self.restart.is_none_or(|restart| restart == plan.restart)
    }
}

impl FromStr for Choice {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(',');
        let life = parts.next().unwrap_or_default();
        let (kind, life) = match life.split_once('/') {
            Some((kind, life)) => (Some(kind), life),
            None => (None, life),
        };
        let life: Life = life.parse()?;
        let kind = match kind {
            None => life.usual_kind(),
            Some(name) => {
                let mut all = EVERY_KIND.into_iter();
                let known = all.find(|kind| kind.name == name);
                known.with_context(|| format!("there is no kind {name}"))?
            }
        };
        let choice = Self {
            kind,
            life,
            cut: parts.next().map(str::parse).transpose()?,
            key: parts.next().map(str::parse).transpose()?,
            restart: parts.next().map(str::parse).transpose()?,
        };
        match parts.next() {
            Some(more) => bail!("{more} is too much: life,cut,write,restart"),
            None => Ok(choice),
        }
    }
}

#[cfg(test)]
mod tests {
    use training_testkit::builders::{MPI, PYTORCH, SPARK, TENSORFLOW};

    use super::*;

    #[test]
    fn every_plan_can_be_written_and_read_again() {
        let changes = Change::ALL.map(Restart::After);
        let lives = [PYTORCH, MPI, SPARK].map(Life::of);
        for life in lives.into_iter().flatten() {
            let restarts = [
                Restart::Same,
                Restart::Standby,
                Restart::Again(Cut::After, 2),
                Restart::Stale(3),
            ];
            for restart in restarts.into_iter().chain(changes) {
                for cut in Cut::ALL.into_iter().chain(Cut::READS) {
                    for key in [
                        "create:pods:worker-1:2",
                        "patch:pytorchjobs/status:Running=False:3",
                    ] {
                        let key: Key = key.parse().unwrap();
                        let plan = Plan {
                            life,
                            cut,
                            key,
                            restart,
                        };
                        let choice: Choice = plan.to_string().parse().unwrap();
                        assert!(choice.wants(&plan), "{plan}");
                        let whole = (restart != Restart::Same).then_some(&plan);
                        assert_eq!(choice.plan().as_ref(), whole);
                        let other = Plan {
                            cut: Cut::ALL[usize::from(cut == Cut::ALL[0])],
                            ..plan
                        };
                        assert_eq!(choice.wants(&other), other.cut == cut, "{other}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_choice_may_name_a_kind() {
        let choice: Choice = "TFJob/S-02,C1".parse().unwrap();
        assert_eq!(
            (choice.kind(), choice.cut()),
            (TENSORFLOW, Some(Cut::Before))
        );
        let usual: Choice = "S-13-Retried".parse().unwrap();
        assert_eq!(usual.kind(), SPARK);
    }

    #[test]
    fn what_stands_for_one_run_is_left_out_of_a_text() {
        for (text, expected) in [
            ("x001q-0123456789abcdef-driver-svc", "x001q-…-driver-svc"),
            ("spark-01234567-89ab-cdef-0123-456789abcdef/x", "spark-…/x"),
            ("submitTime=1795467001234", "submitTime=…"),
            ("x001q-worker-1", "x001q-worker-1"),
            ("décès", "décès"),
        ] {
            assert_eq!(plain(text), expected);
        }
    }

    #[test]
    fn a_status_is_known_by_what_it_says() {
        let conditions = |last: &str| {
            serde_json::json!({ "conditions": [
                { "type": "Created", "status": "True" },
                { "type": "Running", "status": last },
            ]})
        };
        assert_eq!(said(&conditions("True")), "Running");
        assert_eq!(said(&conditions("False")), "Running=False");
        assert_eq!(said(&serde_json::json!({ "ready": "1/3" })), "counts");
        let app = serde_json::json!({ "applicationState": { "state": "RUNNING" } });
        assert_eq!(said(&app), "RUNNING");
    }

    #[test]
    fn writes_that_mean_the_same_are_numbered() {
        let call = |name: &str| Call {
            verb: "create",
            resource: "pods".into(),
            name: name.into(),
            ..Call::default()
        };
        let mut keys = Keys::default();
        let names: Vec<String> = ["job-worker-0", "job-worker-1", "job-worker-0"]
            .iter()
            .map(|name| keys.next(&call(name), "job").to_string())
            .collect();
        assert_eq!(
            names,
            [
                "create:pods:worker-0:1",
                "create:pods:worker-1:1",
                "create:pods:worker-0:2"
            ]
        );
    }
}
