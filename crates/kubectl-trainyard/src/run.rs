//! Creates a job from a file, streams its logs and waits until it finishes.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::api::{DynamicObject, PostParams};
use serde_json::Value;

use crate::cli::{LogSelection, Target};
use crate::cluster::{self, Cluster, code, explain};
use crate::control::MANAGER;
use crate::job::Job;
use crate::kinds;
use crate::out::{self, ProgressMode};
use crate::{logs, wait};

/// Reads a file that has exactly one object.
pub fn manifest(path: &Path) -> Result<Value> {
    let shown = path.display();
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.with_context(|| format!("{shown} can't be read"))?;
    single_object(&text).with_context(|| format!("{shown} is not a job manifest"))
}

fn single_object(text: &str) -> Result<Value> {
    // JSON may contain control characters that YAML refuses.
    if let Ok(object @ Value::Object(_)) = serde_json::from_str(text) {
        return Ok(object);
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)
        .map_err(|e| anyhow::anyhow!("{}", first_line(&e.to_string())))?;
    let mut objects: Vec<Value> = documents.into_iter().filter(Value::is_object).collect();
    match (objects.pop(), objects.len()) {
        (Some(object), 0) => Ok(object),
        (Some(_), more) => bail!("it has {} objects: use one file per job", more + 1),
        (None, _) => bail!("it is empty"),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns the namespace of the manifest or of `-n`. They must not differ.
pub fn namespace(manifest: &Value, flag: Option<&str>) -> Result<Option<String>> {
    let own = manifest["metadata"]["namespace"].as_str();
    match (own, flag) {
        (Some(own), Some(flag)) if own != flag => {
            bail!("the manifest sets namespace {own} and -n sets {flag}: remove one of them")
        }
        (own, flag) => Ok(own.or(flag).map(str::to_owned)),
    }
}

/// Reads the job of a file, and connects to the cluster with its namespace.
pub async fn submitted(target: &Target, path: &Path) -> Result<(Cluster, Job)> {
    let value = manifest(path)?;
    let kind = kinds::of_manifest(&value)?;
    let mut cluster = Cluster::connect(target).await?;
    if let Some(namespace) = namespace(&value, target.namespace.as_deref())? {
        cluster.namespace = namespace;
    }
    Ok((cluster, Job { kind, value }))
}

/// Runs the verb and returns the exit code.
pub async fn run(
    target: &Target,
    path: &Path,
    limit: Option<Duration>,
    selection: &LogSelection,
) -> Result<u8> {
    let (cluster, new) = submitted(target, path).await?;
    let kind = new.kind.clone();
    wait::check(&new)?;
    let object: DynamicObject =
        serde_json::from_value(new.value.clone()).context("the manifest has no metadata")?;
    let post = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let created = cluster.any(&kind.resource).create(&post, &object).await;
    let created = created.map_err(|error| match code(&error) {
        409 => anyhow::anyhow!(
            "{} {} already exists: delete it or use another name",
            kind.name(),
            new.name()
        ),
        _ => explain(error),
    })?;
    let job = cluster::job(kind, &created)?;
    out::note(&format!(
        "{}/{} created",
        job.kind.name().to_ascii_lowercase(),
        job.name()
    ));
    let finished = wait::until_finished(&cluster, &job, limit, ProgressMode::Lines);
    let end = logs::follow(&cluster, &job, selection, finished).await?;
    wait::print_result(&cluster, &job, end).await?;
    Ok(end.code())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_has_one_job() {
        assert_eq!(
            single_object("# a job\n---\nkind: A\n---\n").unwrap(),
            json!({ "kind": "A" })
        );
        assert_eq!(
            single_object("{\"kind\": \"A\"}").unwrap(),
            json!({ "kind": "A" })
        );
        let control = "{\"kind\": \"A\", \"b\": \"\u{7f}\"}";
        assert!(single_object(control).is_ok(), "as kubectl prints it");
        let error = single_object("kind: A\n---\nkind: B\n")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "it has 2 objects: use one file per job");
        assert!(single_object("").is_err() && single_object("a: [").is_err());
    }

    #[test]
    fn manifest_and_flag_must_not_set_different_namespaces() {
        let own = json!({ "metadata": { "namespace": "a" } });
        assert_eq!(namespace(&own, None).unwrap().as_deref(), Some("a"));
        assert_eq!(namespace(&own, Some("a")).unwrap().as_deref(), Some("a"));
        assert!(namespace(&own, Some("b")).is_err());
        assert_eq!(
            namespace(&json!({}), Some("b")).unwrap().as_deref(),
            Some("b")
        );
    }
}
