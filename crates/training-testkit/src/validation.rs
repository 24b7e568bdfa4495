//! The tables of valid and invalid jobs: how the API server answers, and how an operator handles those that bypass it.

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::builders::{Kind, MPI, WITH_MASTER};
use crate::control_plane::workspace;

/// The table of one kind: the rows of all kinds, then its own.
#[derive(Debug, Deserialize)]
pub struct Table {
    /// The object that every row starts from.
    #[serde(default)]
    pub valid: Value,
    /// The rows.
    pub rows: Vec<Row>,
}

/// One row; the file explains its fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What the row tests.
    pub name: String,
    /// JSON merge patch on the valid object.
    pub patch: Option<Value>,
    /// A whole object.
    pub object: Option<Value>,
    /// JSON merge patch on the stored object.
    pub update: Option<Value>,
    /// Number sent to the scale subresource.
    pub scale: Option<i64>,
    /// The expected refusal of the last request, if any.
    pub refused: Option<Refused>,
    /// A subset of the stored object.
    pub stored: Option<Value>,
}

/// An expected refusal.
#[derive(Debug, Deserialize)]
pub struct Refused {
    /// The field of one cause.
    pub field: String,
    /// A part of the message.
    pub text: String,
}

/// The served versions of `MPIJob`.
pub const MPI_VERSIONS: [&str; 2] = ["v1", "v2beta1"];

/// A row whose result for an `MPIJob` differs from the other kinds.
struct Differs {
    /// The prefix of the row's name.
    row: &'static str,
    /// The versions in which it differs.
    versions: &'static [&'static str],
    /// The field and the text of the refusal; `None` if the job is accepted.
    refused: Option<(&'static str, &'static str)>,
}

const OF_MPI: &[Differs] = &[
    // Its main container may have any name.
    Differs {
        row: "B-014 no container",
        versions: &MPI_VERSIONS,
        refused: None,
    },
    // The launcher's name has no index, but must leave room for the first worker's name.
    Differs {
        row: "B-030 the master alone",
        versions: &MPI_VERSIONS,
        refused: Some(("metadata.name", "54 characters")),
    },
    // It has one more manager, which the message lists first.
    Differs {
        row: "B-092 managed by somebody unknown",
        versions: &MPI_VERSIONS,
        refused: Some((
            "spec.runPolicy.managedBy",
            "supported values: \"kubeflow.org/mpi-operator\", \"kubeflow.org/training-operator\"",
        )),
    },
    // An unset number of workers means none in `v1`, and is invalid in `v2beta1`.
    Differs {
        row: "B-004 replica counts may be left out",
        versions: &["v2beta1"],
        refused: Some((
            "spec.mpiReplicaSpecs[Worker].replicas",
            "must be greater than or equal to 1",
        )),
    },
    // `v2beta1` allows two of them.
    Differs {
        row: "restart policies of each kind",
        versions: &["v2beta1"],
        refused: Some((
            "spec.mpiReplicaSpecs",
            "supported values: \"Never\", \"OnFailure\"",
        )),
    },
    Differs {
        row: "B-084",
        versions: &["v2beta1"],
        refused: Some((
            "spec.runPolicy.cleanPodPolicy",
            "supported values: \"All\", \"None\", \"Running\"",
        )),
    },
    // The group's queue follows the job, as published.
    Differs {
        row: "B-098 another queue",
        versions: &MPI_VERSIONS,
        refused: None,
    },
];

impl Table {
    /// Reads the table of a kind.
    pub fn read(kind: &Kind) -> Result<Self> {
        let mut table = Self::common(kind, "Master")?;
        if !WITH_MASTER.contains(kind) {
            table.drop_role(kind, "Master")?;
        }
        let own = Self::of_file(
            &format!("{}/tests/data/validation.yaml", kind.operator),
            kind,
            "Master",
        )?;
        table.rows.extend(own.rows);
        Ok(table)
    }

    /// Removes a role and the rows about it.
    fn drop_role(&mut self, kind: &Kind, role: &str) -> Result<()> {
        let roles = self.valid["spec"][kind.replica_map].as_object_mut();
        roles
            .and_then(|roles| roles.remove(role))
            .with_context(|| format!("the valid object has no {role}"))?;
        let key = format!("\"{role}\"");
        let none = |part: &Value| {
            let roles = part["spec"][kind.replica_map].as_object();
            roles.is_some_and(|roles| roles.values().all(Value::is_null))
        };
        self.rows.retain(|row| {
            let parts = [&row.patch, &row.object, &row.update];
            let mut parts = parts.into_iter().flatten();
            // If Workers are removed too, no role is left.
            !parts.any(|part| part.to_string().contains(&key) || none(part))
        });
        Ok(())
    }

    /// The table of `MPIJob` for one version of its API: the common rows with the expected differences, then its own rows.
    pub fn mpi(version: &str) -> Result<Self> {
        let mut table = Self::common(&MPI, "Launcher")?;
        for differs in OF_MPI.iter().filter(|d| d.versions.contains(&version)) {
            let rows = table.rows.iter_mut();
            let mut rows = rows.filter(|r| r.name.starts_with(differs.row)).peekable();
            anyhow::ensure!(rows.peek().is_some(), "no row is called {}", differs.row);
            for row in rows {
                row.refused = differs.refused.map(|(field, text)| Refused {
                    field: field.to_owned(),
                    text: text.to_owned(),
                });
            }
        }
        let file = format!("{}/tests/data/validation-{version}.yaml", MPI.operator);
        for file in [format!("{}/tests/data/validation.yaml", MPI.operator), file] {
            table
                .rows
                .extend(Self::of_file(&file, &MPI, "Launcher")?.rows);
        }
        Ok(table)
    }

    /// The rows of all kinds. `first` is the role that replaces the Master.
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

    /// The object as stored without the CRD's rules: all requests applied, explicit nulls dropped, a missing name generated.
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
