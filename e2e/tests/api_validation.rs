//! What a real API server answers to good and bad jobs: every row of the operator's validation table.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use kube::Client;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams};
use kube::core::{Request, Status};
use serde::Deserialize;
use serde_json::{Value, json};
use training_core::patch::apply;
use training_testkit::control_plane::{ADMIN, ControlPlane, PYTORCH_OPERATOR, workspace};
use training_testkit::namespace::Namespace;

#[derive(Deserialize)]
struct Table {
    valid: Value,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    patch: Option<Value>,
    object: Option<Value>,
    update: Option<Value>,
    scale: Option<i64>,
    refused: Option<Refused>,
    stored: Option<Value>,
}

#[derive(Deserialize)]
struct Refused {
    field: String,
    text: String,
}

struct Server {
    client: Client,
    namespace: String,
}

impl Server {
    fn jobs(&self) -> Request {
        Request::new(format!(
            "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs",
            self.namespace
        ))
    }

    /// Sends the requests of a row; the answer is that of the last one.
    async fn answer(&self, table: &Table, row: &Row) -> Result<Result<Value, Box<Status>>> {
        let object = match (&row.object, &row.patch) {
            (Some(object), None) => object.clone(),
            (None, Some(patch)) => apply(&table.valid, patch),
            _ => bail!("a row has either an object or a patch"),
        };
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let created = self
            .send(
                self.jobs()
                    .create(&PostParams::default(), serde_json::to_vec(&object)?)?,
            )
            .await?;
        let (later, subresource) = match (&row.update, row.scale) {
            (None, None) => return Ok(created),
            (Some(update), None) => (update.clone(), None),
            (None, Some(replicas)) => (json!({"spec": {"replicas": replicas}}), Some("scale")),
            _ => bail!("a row has either an update or a scale"),
        };
        if let Err(status) = created {
            bail!("the object itself was refused: {}", status.message);
        }
        let (params, patch) = (PatchParams::default(), Patch::Merge(&later));
        let request = match subresource {
            None => self.jobs().patch(&name, &params, &patch)?,
            Some(part) => self
                .jobs()
                .patch_subresource(part, &name, &params, &patch)?,
        };
        let answer = self.send(request).await?;
        match (answer, subresource) {
            // What a scale stores is seen on the job.
            (Ok(_), Some(_)) => {
                self.send(self.jobs().get(&name, &GetParams::default())?)
                    .await
            }
            (answer, _) => Ok(answer),
        }
    }

    async fn send(&self, request: http::Request<Vec<u8>>) -> Result<Result<Value, Box<Status>>> {
        match self.client.request::<Value>(request).await {
            Ok(value) => Ok(Ok(value)),
            Err(kube::Error::Api(status)) => Ok(Err(status)),
            Err(other) => Err(other.into()),
        }
    }

    async fn clear(&self) -> Result<()> {
        let all = self
            .jobs()
            .delete_collection(&DeleteParams::default(), &kube::api::ListParams::default())?;
        self.send(all)
            .await?
            .map(drop)
            .map_err(|status| anyhow::anyhow!("{}", status.message))
    }
}

/// True if everything in `part` is in `whole`.
fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, value)| whole.get(key).is_some_and(|w| holds(w, value))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(w, p)| holds(w, p))
        }
        (whole, part) => whole == part,
    }
}

fn judge(row: &Row, answer: Result<Value, Box<Status>>) -> Result<()> {
    match (&row.refused, answer) {
        (None, Ok(stored)) => {
            let expected = row.stored.clone().unwrap_or(json!({}));
            ensure!(holds(&stored, &expected), "stored is {stored:#}");
        }
        (None, Err(status)) => bail!("it was refused: {}", status.message),
        (Some(_), Ok(_)) => bail!("it was accepted"),
        (Some(refused), Err(status)) => {
            ensure!(
                status.code == 422,
                "the answer is {} {}",
                status.code,
                status.message
            );
            ensure!(
                status.message.contains(&refused.text),
                "the message is {}",
                status.message
            );
            let fields: Vec<&str> = status
                .details
                .iter()
                .flat_map(|d| &d.causes)
                .map(|c| c.field.as_str())
                .collect();
            ensure!(
                fields.contains(&refused.field.as_str()),
                "the fields are {fields:?}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_row_of_the_validation_table_is_answered_as_it_says() -> Result<()> {
    let control = ControlPlane::shared().await?;
    control.install(PYTORCH_OPERATOR).await?;
    let namespace = Namespace::create(control, "validation").await?;
    let server = Server {
        client: control.client(ADMIN).await?,
        namespace: namespace.name.clone(),
    };
    let path = workspace().join("operators/pytorch-operator/tests/data/validation.yaml");
    let table: Table =
        serde_saphyr::from_str(&fs::read_to_string(&path).context("read the table")?)?;
    let mut wrong = Vec::new();
    for row in &table.rows {
        let verdict = match server.answer(&table, row).await {
            Ok(answer) => judge(row, answer),
            Err(error) => Err(error),
        };
        if let Err(error) = verdict {
            wrong.push(format!("{}: {error:#}", row.name));
        }
        server.clear().await?;
    }
    println!(
        "{} rows, {} of them refused as they should be",
        table.rows.len(),
        table.rows.iter().filter(|r| r.refused.is_some()).count()
    );
    ensure!(
        wrong.is_empty(),
        "{} rows are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}
