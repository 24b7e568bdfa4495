//! Which write of a life, and what is done to it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use training_testkit::builders::{EVERY_KIND, Kind};
use training_testkit::proxy::Call;

use super::change::Change;
use crate::lives::Life;

/// What a change of a status says that changes no condition and no state.
pub(super) const COUNTS: &str = "counts";
/// The length of a UUID.
const UUID: usize = 36;
/// So many hexadecimal digits or more are derived from an id, or a time in milliseconds.
const LEAST_DIGITS: usize = 12;

/// A request by its meaning, so that requests that are made at once don't change each other's names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// `create`, `patch`, `delete`; of a read `get`, `list`, `watch`.
    pub verb: String,
    /// The resource, with its subresource: `pods`, `pytorchjobs/status`.
    pub resource: String,
    /// The end of the object's name, `worker-1`; of a status what it says, `Running`; empty for the job itself, and for lists and
    /// watches. Digits that stand for one run are left out.
    pub what: String,
    /// Which of the requests that have all this in common, counted from one.
    pub nth: usize,
}

/// What is done around a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// C1: the process is killed before the write reaches the API server.
    Before,
    /// C2: it is killed when the write has been executed and before it is answered.
    After,
    /// C3: it is killed when it has the answer, and before its next write.
    Answered,
    /// C4: the write is executed, and in place of the answer the connection is reset.
    Reset,
    /// C4: the write is executed, and the answer is a timeout.
    Timeout,
    /// C5: the write is not executed, and the answer is a conflict.
    Conflict,
    /// CS-7: the read is answered with this error.
    Refused(u16),
    /// CS-7: the read is never answered.
    Silence,
}

impl Plan {
    /// How often an operator is killed in it.
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

    /// CS-7: everything that is done to a read.
    pub const READS: [Self; 6] = [
        Self::Reset,
        Self::Refused(500),
        Self::Refused(429),
        Self::Refused(410),
        Self::Refused(403),
        Self::Silence,
    ];

    /// Whether the process dies of it.
    pub fn kills(self) -> bool {
        Self::KILLS.contains(&self)
    }

    /// Those that kill.
    pub const KILLS: [Self; 3] = [Self::After, Self::Before, Self::Answered];

    /// Whether it is decided before the write is executed.
    pub(super) fn comes_before(self) -> bool {
        !matches!(self, Self::After | Self::Answered)
    }
}

/// How it goes on when the operator has been killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Restart {
    /// R1: the same operator is started again, at once.
    #[default]
    Same,
    /// R2: a standby takes over.
    Standby,
    /// R3: the same operator is started again when this has happened.
    After(Change),
    /// CS-2: the same operator is started again, and killed again in this way at its write of this number, counted from one.
    Again(Cut, usize),
    /// CS-4: the same operator is started again. Its lists show what was stored so many writes before the kill, and its watches are
    /// held back, until it has nothing more to do.
    Stale(usize),
}

/// One run: what replays it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The life.
    pub life: Life,
    /// What is done.
    pub cut: Cut,
    /// Around which write.
    pub key: Key,
    /// And then.
    pub restart: Restart,
}

/// Which of all runs are wanted: `S-02`, `TFJob/S-02`, `S-02,C1` or a whole plan.
#[derive(Clone, Debug)]
pub struct Choice {
    kind: Kind,
    life: Life,
    cut: Option<Cut>,
    key: Option<Key>,
    restart: Option<Restart>,
}

/// Counts writes as they go by.
#[derive(Debug, Default)]
pub(super) struct Keys {
    seen: BTreeMap<Key, usize>,
}

impl Key {
    /// The kind of write that a call is, for the job of this name.
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

    /// Whether it is a read.
    pub(super) fn is_read(&self) -> bool {
        ["get", "list", "watch"].contains(&self.verb.as_str())
    }

    /// Its class: what is done to what.
    pub(super) fn class(&self) -> (&str, &str) {
        (&self.verb, &self.resource)
    }

    /// Whether a call is one of the requests that this key numbers.
    pub(super) fn names(&self, call: &Call, job: &str) -> bool {
        let other = Self::of(call, job);
        (&self.verb, &self.resource, &self.what) == (&other.verb, &other.resource, &other.what)
    }
}

impl Keys {
    /// The key of the request that has just gone by.
    pub(super) fn next(&mut self, call: &Call, job: &str) -> Key {
        let key = Key::of(call, job);
        let count = self.seen.entry(key.clone()).or_default();
        *count += 1;
        Key { nth: *count, ..key }
    }
}

/// A text without the digits and ids that differ from run to run.
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

/// Such as `01234567-89ab-cdef-0123-456789abcdef`.
fn is_uuid(text: &str) -> bool {
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

/// What a change of a status says: the state or condition that it ends with, or that it changes counts alone.
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
    /// The kind that is wanted.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The cut that is wanted, where not all are.
    pub fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// What is wanted after the cut, where it is told.
    pub fn restart(&self) -> Option<Restart> {
        self.restart
    }

    /// The life that is wanted.
    pub fn life(&self) -> Life {
        self.life
    }

    /// The one run that is wanted, if no more than one can be.
    pub fn plan(&self) -> Option<Plan> {
        Some(Plan {
            life: self.life,
            cut: self.cut?,
            key: self.key.clone()?,
            restart: self.restart?,
        })
    }

    /// Whether this run is wanted.
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
