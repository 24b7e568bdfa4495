//! Submission ids, and hashes that detect changes of a spec. Both derive from stored state, so an operator that restarts at any
//! point computes the same.

use std::fmt;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use training_core::Uid;

use crate::names;

/// The version of [`SpecDigest`]. Raise it when its shape changes, and when the schema loses a field, because stored specs then
/// lose it too and look changed.
pub const VERSION: u32 = 2;

/// Fields of a spec whose change doesn't count.
const WITHOUT: [&str; 2] = ["suspend", "timeToLiveSeconds"];

/// Fields of executors that only say where pods run: new executors can follow an edit of them. Source: the published gate
/// `PartialRestart`.
const PLACEMENT: [&str; 5] = [
    "affinity",
    "nodeSelector",
    "priorityClassName",
    "schedulerName",
    "tolerations",
];

/// The schema's defaults by path. A spec without the field equals a spec with this value. Add new defaults of the schema here.
pub const DEFAULTS: [(&[&str], &str); 3] = [
    (&["type"], "Scala"),
    (&["mode"], "cluster"),
    (&["restartPolicy", "type"], "Never"),
];

/// The digest of a stored spec, to compare with later ones, also across versions of the operator.
///
/// Shape: `2-9f2c…-41d0…`: the version, 32 hexadecimal digits for everything except the executors' placement, and 16 for the
/// placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecDigest {
    version: u32,
    hash: String,
    placement: String,
}

impl SpecDigest {
    /// Parses a digest; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (version, rest) = text.split_once('-')?;
        // Other versions may have other parts.
        let (hash, placement) = rest.split_once('-').unwrap_or((rest, ""));
        Some(Self {
            version: version.parse().ok()?,
            hash: hash.to_owned(),
            placement: placement.to_owned(),
        })
    }

    /// The hash of where executors run.
    pub fn placement(&self) -> &str {
        &self.placement
    }

    /// True if two specs are equal except for where executors run.
    pub fn is_same_run(&self, other: &Self) -> bool {
        (self.version, &self.hash) == (other.version, &other.hash)
    }

    /// True if this can be compared with newly computed digests.
    pub fn is_current(&self) -> bool {
        self.version == VERSION
    }
}

impl fmt::Display for SpecDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.version, self.hash)?;
        if self.placement.is_empty() {
            return Ok(());
        }
        write!(f, "-{}", self.placement)
    }
}

/// Computes the digest of a stored `spec`: of the API server's JSON, not of typed values.
pub fn spec_digest(spec: &Value) -> SpecDigest {
    let mut spec = canonical(spec);
    for field in WITHOUT {
        remove(&mut spec, &[field], None);
    }
    for (path, default) in DEFAULTS {
        remove(&mut spec, path, Some(default));
    }
    let placement: Vec<Option<Value>> = PLACEMENT
        .map(|field| {
            let executor = spec.get_mut("executor")?.as_object_mut()?;
            executor.remove(field)
        })
        .into();
    let hash = |value: &Value, digits| {
        let mut sha = Sha256::new();
        sha.update(value.to_string().as_bytes());
        names::hex(&sha.finalize(), digits)
    };
    SpecDigest {
        version: VERSION,
        hash: hash(&spec, 32),
        placement: hash(&json!(placement), 16),
    }
}

/// Removes a field, only if it has the value `with`, if given. Removes parents that become empty.
fn remove(value: &mut Value, path: &[&str], with: Option<&str>) {
    let (Some(object), Some((first, rest))) = (value.as_object_mut(), path.split_first()) else {
        return;
    };
    if rest.is_empty() {
        if with.is_none_or(|with| object.get(*first).and_then(Value::as_str) == Some(with)) {
            object.remove(*first);
        }
        return;
    }
    if let Some(child) = object.get_mut(*first) {
        remove(child, rest, with);
        if child.as_object().is_some_and(Map::is_empty) {
            object.remove(*first);
        }
    }
}

/// Returns the value with object fields sorted and nulls removed.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut fields: Vec<_> = object.iter().filter(|(_, v)| !v.is_null()).collect();
            fields.sort_by_key(|(key, _)| *key);
            let fields = fields
                .into_iter()
                .map(|(key, v)| (key.clone(), canonical(v)));
            Value::Object(fields.collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// The record of the spec that was last submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded<'a> {
    /// The generation.
    pub generation: Option<i64>,
    /// The digest.
    pub digest: Option<&'a str>,
}

/// How a spec differs from the recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No difference.
    None,
    /// Only where executors run.
    Placement,
    /// Other fields.
    Run,
}

/// Returns how a spec differs from the recorded one.
///
/// Only a new generation indicates an edit, so schema changes to stored specs don't count. A missing digest, or one of another
/// operator or version, can't be compared and counts as equal; the caller then records the present one.
pub fn change(recorded: Recorded<'_>, generation: Option<i64>, now: &SpecDigest) -> Change {
    if recorded.generation.is_some() && recorded.generation == generation {
        return Change::None;
    }
    let then = recorded.digest.and_then(SpecDigest::parse);
    match then.filter(SpecDigest::is_current) {
        Some(then) if then.hash != now.hash => Change::Run,
        Some(then) if then.placement != now.placement => Change::Placement,
        _ => Change::None,
    }
}

/// True if the recorded digest can't be compared with newly computed ones.
pub fn is_foreign(recorded: Option<&str>) -> bool {
    let recorded = recorded.and_then(SpecDigest::parse);
    !recorded.is_some_and(|digest| digest.is_current())
}

/// Returns the id of the submission after `previous`.
///
/// Shape: a UUID of version 8. It depends only on stored state, so a retry of the same submission has the same id. It depends on
/// the previous id, so the next submission of the same spec has a new one.
pub fn submission_id(uid: &str, previous: Option<&str>, digest: &SpecDigest) -> String {
    let mut sha = Sha256::new();
    for part in [uid, previous.unwrap_or_default(), &digest.to_string()] {
        sha.update(part.len().to_be_bytes());
        sha.update(part.as_bytes());
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&sha.finalize()[..16]);
    // RFC 9562 reserves version 8 for custom schemes.
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uid(u128::from_be_bytes(bytes)).to_string()
}
