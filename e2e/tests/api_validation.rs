//! A real API server's answers to valid and invalid jobs: every row of every kind's validation table.

use anyhow::{Result, bail, ensure};
use kube::Client;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams};
use kube::core::{Request, Status};
use serde_json::{Value, json};
use training_testkit::builders::{KINDS, Kind, MPI};
use training_testkit::control_plane::{ADMIN, ControlPlane};
use training_testkit::namespace::Namespace;
use training_testkit::validation::{MPI_VERSIONS, Row, Table};

struct Server {
    client: Client,
    namespace: String,
    kind: Kind,
    /// The API version of the requests.
    version: &'static str,
}

impl Server {
    async fn of(kind: Kind, version: &'static str, namespace: &Namespace) -> Result<Self> {
        let control = ControlPlane::shared().await?;
        control.install(kind.operator).await?;
        Ok(Self {
            client: control.client(ADMIN).await?,
            namespace: namespace.name.clone(),
            kind,
            version,
        })
    }

    fn jobs(&self) -> Request {
        Request::new(format!(
            "/apis/kubeflow.org/{}/namespaces/{}/{}",
            self.version, self.namespace, self.kind.plural
        ))
    }

    /// Sends a row's requests, and returns the last response.
    async fn answer(&self, table: &Table, row: &Row) -> Result<Result<Value, Box<Status>>> {
        let mut object = table.object(row)?;
        object["apiVersion"] = json!(format!("kubeflow.org/{}", self.version));
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
            // The job shows what a scale has stored.
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

/// Whether `whole` contains everything in `part`.
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

/// Returns the rows with unexpected answers, and why.
async fn wrong_rows(server: &Server, table: &Table) -> Result<Vec<String>> {
    let (rows, mut wrong) = (&table.rows, Vec::new());
    for row in rows {
        let verdict = match server.answer(table, row).await {
            Ok(answer) => judge(row, answer),
            Err(error) => Err(error),
        };
        if let Err(error) = verdict {
            let (kind, version) = (server.kind.name, server.version);
            wrong.push(format!("{kind} {version}, {}: {error:#}", row.name));
        }
        server.clear().await?;
    }
    eprintln!(
        "{} {}: {} rows, {} of them refused as they should be",
        server.kind.name,
        server.version,
        rows.len(),
        rows.iter().filter(|r| r.refused.is_some()).count()
    );
    Ok(wrong)
}

fn none_is(wrong: &[String]) -> Result<()> {
    ensure!(
        wrong.is_empty(),
        "{} rows are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}

#[tokio::test]
async fn every_row_of_the_validation_tables_is_answered_as_it_says() -> Result<()> {
    let control = ControlPlane::shared().await?;
    let namespace = Namespace::create(control, "validation").await?;
    let mut wrong = Vec::new();
    for kind in KINDS {
        let server = Server::of(kind, kind.version, &namespace).await?;
        let table = Table::read(&kind)?;
        wrong.extend(wrong_rows(&server, &table).await?);
    }
    none_is(&wrong)
}

#[tokio::test]
async fn an_mpi_job_is_answered_as_every_kind_is_but_where_it_differs_through_both_versions()
-> Result<()> {
    let control = ControlPlane::shared().await?;
    let mut wrong = Vec::new();
    for version in MPI_VERSIONS {
        let namespace = Namespace::create(control, &format!("validation-{version}")).await?;
        let server = Server::of(MPI, version, &namespace).await?;
        wrong.extend(wrong_rows(&server, &Table::mpi(version)?).await?);
    }
    none_is(&wrong)
}
