//! Compares the objects that an operator would create for a manifest with those for the job in the cluster. Both come from the operator's
//! own plan, so fields that the API server or admission adds to pods are no differences.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use training_runtime::frame::now;

use crate::cli::{OperatorFlags, Target};
use crate::cluster::explain;
use crate::flags::Flags;
use crate::kinds::Kind;
use crate::{out, render, run};

/// The variable with the program that compares two directories. Source: `kubectl diff`.
const PROGRAM: &str = "KUBECTL_EXTERNAL_DIFF";

/// Prints the differences for the job of a file and returns the exit code.
pub async fn print(target: &Target, path: &Path, operator: &OperatorFlags) -> Result<u8> {
    let (cluster, job) = run::submitted(target, path).await?;
    let (kind, name) = (&job.kind, job.name());
    let flags = Flags::of(kind, operator, target).await?;
    let now = now();
    let objects = |job: &Value| render::of(running(kind, job), &cluster.namespace, &flags, now);
    let new = objects(&job.value)?;
    new.print_notes();
    if new.refused.is_some() {
        bail!("the operator would reject the job");
    }
    let found = cluster.any(&kind.resource).get_opt(name).await;
    let old = if let Some(job) = found.map_err(explain)? {
        objects(&serde_json::to_value(job)?)?.objects
    } else {
        let (kind, namespace) = (kind.name(), &cluster.namespace);
        out::note(&format!(
            "{kind} {name} does not exist in namespace {namespace}: all objects are new"
        ));
        Vec::new()
    };
    compare(&old, &new.objects)
}

/// Returns a job as it is submitted, to run at once: a suspended one has no objects to compare.
fn running(kind: &Kind, job: &Value) -> Value {
    let mut job = json!({
        "apiVersion": job["apiVersion"], "kind": job["kind"], "spec": job["spec"],
        "metadata": {
            "name": job["metadata"]["name"],
            "labels": job["metadata"]["labels"],
            "annotations": job["metadata"]["annotations"],
        },
    });
    if let Some(annotations) = job["metadata"]["annotations"].as_object_mut() {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    merge(&mut job["spec"], kind.suspend_patch(false));
    job
}

/// Sets the fields of a patch.
fn merge(value: &mut Value, patch: Value) {
    match patch {
        Value::Object(fields) => {
            for (key, field) in fields {
                merge(&mut value[key], field);
            }
        }
        other => *value = other,
    }
}

/// Shows how objects differ, as `kubectl diff` does. Returns the exit code: 1 if they differ.
fn compare(old: &[Value], new: &[Value]) -> Result<u8> {
    let directory = tempfile::tempdir()?;
    let sides = [("LIVE", old), ("MERGED", new)];
    for (side, objects) in sides {
        let side = directory.path().join(side);
        std::fs::create_dir(&side)?;
        for object in objects {
            std::fs::write(
                side.join(file_name(object)),
                serde_saphyr::to_string(object)?,
            )?;
        }
    }
    let program = std::env::var(PROGRAM)
        .ok()
        .filter(|text| !text.trim().is_empty());
    let program = program.unwrap_or_else(|| "diff -u -N".to_owned());
    let mut words = program.split_whitespace();
    let status = Command::new(words.next().unwrap_or_default())
        .args(words)
        .args(sides.map(|(side, _)| side))
        .current_dir(directory.path())
        .status();
    let status =
        status.with_context(|| format!("can't run {program}: install diff, or set {PROGRAM}"))?;
    match status.code() {
        Some(code @ (0 | 1)) => Ok(u8::from(code == 1)),
        _ => bail!("{program} failed: {status}"),
    }
}

/// The name of an object's file: API version, kind and name.
fn file_name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().replace('/', ".");
    let of = [
        &object["apiVersion"],
        &object["kind"],
        &object["metadata"]["name"],
    ];
    of.map(text).join(".")
}

#[cfg(test)]
mod tests {
    use training_testkit::builders::{EVERY_KIND, SPARK, application};

    use super::*;
    use crate::kinds;

    #[test]
    fn a_suspended_job_with_a_status_has_the_objects_of_a_submitted_one() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        for kind in EVERY_KIND {
            let submitted = if kind == SPARK {
                application("pt")
            } else {
                kind.small_job("pt", 1).build()
            };
            let kind = kinds::of_manifest(&submitted).unwrap();
            let flags = Flags::shipped(&kind, "").unwrap();
            let mut stored = submitted.clone();
            stored["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000001");
            stored["metadata"]["annotations"] =
                json!({ "kubectl.kubernetes.io/last-applied-configuration": "{}" });
            merge(&mut stored["spec"], kind.suspend_patch(true));
            stored["status"] = json!({ "conditions": [{ "type": "Suspended", "status": "True" }] });
            let [old, new] = [stored, submitted].map(|job| {
                render::of(running(&kind, &job), "ns1", &flags, now)
                    .unwrap()
                    .objects
            });
            assert!(!new.is_empty(), "{}", kind.name());
            assert_eq!(old, new, "{}", kind.name());
        }
    }

    #[test]
    fn objects_are_compared_by_kind_and_name() {
        let object = |name: &str, image: &str| {
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "image": image,
            })
        };
        assert_eq!(file_name(&object("pt-worker-0", "a")), "v1.Pod.pt-worker-0");
        let old = [object("a", "1"), object("b", "1")];
        assert_eq!(
            compare(&old, &[object("b", "1"), object("a", "1")]).unwrap(),
            0
        );
        assert_eq!(
            compare(&old, &[object("a", "1"), object("b", "2")]).unwrap(),
            1
        );
        assert_eq!(compare(&old, &old[..1]).unwrap(), 1);
    }
}
