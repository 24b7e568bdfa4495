//! The tables of good and bad jobs: what the API server answers, and what an operator makes of them past it.

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::builders::Kind;
use crate::control_plane::workspace;

/// The table of one kind: the rows that all kinds have, then its own.
#[derive(Debug, Deserialize)]
pub struct Table {
    /// The object that every row starts from.
    #[serde(default)]
    pub valid: Value,
    /// The rows.
    pub rows: Vec<Row>,
}

/// One row; its fields are explained in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What it shows.
    pub name: String,
    /// JSON merge patch on the valid object.
    pub patch: Option<Value>,
    /// A whole object.
    pub object: Option<Value>,
    /// JSON merge patch on the stored object.
    pub update: Option<Value>,
    /// Number sent to the scale subresource.
    pub scale: Option<i64>,
    /// The answer, where the last request is refused.
    pub refused: Option<Refused>,
    /// A subset of what is stored.
    pub stored: Option<Value>,
}

/// Why a request is refused.
#[derive(Debug, Deserialize)]
pub struct Refused {
    /// The field of one cause.
    pub field: String,
    /// A part of the message.
    pub text: String,
}

impl Table {
    /// Reads the table of a kind.
    pub fn read(kind: &Kind) -> Result<Self> {
        let mut table = Self::common(kind, "Master")?;
        let own = Self::of_file(
            &format!("{}/tests/data/validation.yaml", kind.operator),
            kind,
            "Master",
        )?;
        table.rows.extend(own.rows);
        Ok(table)
    }

    /// The rows that all kinds have. `first` is the role that stands for the Master.
    pub fn common(kind: &Kind, first: &str) -> Result<Self> {
        Self::of_file("every-kind/validation.yaml", kind, first)
    }

    fn of_file(path: &str, kind: &Kind, first: &str) -> Result<Self> {
        let path = workspace().join("operators").join(path);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let text = text
            .replace("REPLICA_MAP", kind.replica_map)
            .replace("CONTAINER", kind.any_container())
            .replace("PORT", kind.port.0)
            .replace("KIND", kind.name)
            .replace("Master:", &format!("{first}:"))
            .replace("[Master]", &format!("[{first}]"));
        serde_saphyr::from_str::<Self>(&text).with_context(|| path.display().to_string())
    }

    /// The object of a row's first request.
    pub fn object(&self, row: &Row) -> Result<Value> {
        match (&row.object, &row.patch) {
            (Some(object), None) => Ok(object.clone()),
            (None, Some(patch)) => Ok(training_core::patch::apply(&self.valid, patch)),
            _ => anyhow::bail!("{}: a row has either an object or a patch", row.name),
        }
    }

    /// The object as it would be stored without the CRD's rules: all requests carried out, explicit nulls dropped, a missing name
    /// generated.
    pub fn stored(&self, row: &Row, kind: &Kind) -> Result<Value> {
        let mut object = self.object(row)?;
        if let Some(update) = &row.update {
            object = training_core::patch::apply(&object, update);
        }
        if let Some(replicas) = row.scale {
            object["spec"][kind.replica_map]["Worker"]["replicas"] = json!(replicas);
        }
        without_nulls(&mut object);
        if let Some(start) = object["metadata"]["generateName"].as_str() {
            object["metadata"]["name"] = json!(format!("{start}abcde"));
        }
        object["metadata"]["namespace"] = json!("ns1");
        Ok(object)
    }
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, v| !v.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
