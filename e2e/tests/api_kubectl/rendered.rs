//! `render` shows exactly what the operator creates, for every valid manifest of the conformance tests and the examples.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use e2e::corpus;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use training_testkit::builders::EVERY_KIND;
use training_testkit::is_deep;
use training_testkit::namespace::Namespace;
use training_testkit::operator::OperatorProcess;
use training_testkit::validation::MPI_VERSIONS;

use super::*;

/// The minimum of compared manifests of each kind.
const LEAST: usize = 15;
/// The part of the manifests that is compared, unless the run is deep: one of so many.
const PART: usize = 2;
/// The pause before the objects are listed again.
const PAUSE: Duration = Duration::from_millis(500);
/// Jobs at a time.
const AT_ONCE: usize = 8;
/// The kinds of objects that operators create.
const CHILDREN: [(&str, &str, &str); 9] = [
    ("", "v1", "Pod"),
    ("", "v1", "Service"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "PersistentVolumeClaim"),
    ("batch", "v1", "Job"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler"),
    ("networking.k8s.io", "v1", "Ingress"),
    ("policy", "v1", "PodDisruptionBudget"),
];
/// What the API server, the scheduler and the controllers set.
const SET: [&str; 10] = [
    "/metadata/uid",
    "/metadata/resourceVersion",
    "/metadata/creationTimestamp",
    "/metadata/generation",
    "/metadata/managedFields",
    "/metadata/namespace",
    "/spec/clusterIP",
    "/spec/clusterIPs",
    "/spec/nodeName",
    "/status",
];

/// The objects of a job in normal form, by kind and name.
type Objects = BTreeMap<String, Value>;

/// Returns the valid manifests of a kind.
fn corpus(kind: &Kind) -> Result<Vec<Value>> {
    if *kind != MPI {
        return corpus::of(kind);
    }
    let mut all = Vec::new();
    for version in MPI_VERSIONS {
        let mut jobs = corpus::of(&Kind { version, ..MPI })?;
        for job in &mut jobs {
            job["apiVersion"] = json!(MPI.resource().api_version);
            job["spec"]["submittedAs"] = json!(version);
        }
        all.extend(jobs);
    }
    Ok(all)
}

fn api(client: &kube::Client, namespace: &str, gvk: &GroupVersionKind) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(gvk))
}

/// Returns an object as it was sent, with the API server's defaults. Masks what no two objects have in common.
fn normal(object: &DynamicObject) -> Result<(String, Value)> {
    let mut value = serde_json::to_value(object)?;
    for pointer in SET {
        let Some((parent, field)) = pointer.rsplit_once('/') else {
            continue;
        };
        if let Some(parent) = value.pointer_mut(parent).and_then(Value::as_object_mut) {
            parent.remove(field);
        }
    }
    if let Some(secret) = value.as_object_mut().filter(|v| v["kind"] == "Secret") {
        // It is random.
        secret.remove("data");
    }
    let mut text = value.to_string();
    // A Job's selector.
    if let Some(uid) = &object.metadata.uid {
        text = text.replace(uid, "OWN-UID");
    }
    // Spark's properties hold the time of the submission, and their ConfigMap is named after its contents.
    text = masked(&text, "spark.app.submitTime=", |c| c.is_ascii_digit());
    text = masked(&text, "spark-drv-", |c| c.is_ascii_hexdigit());
    // The volume of a service account's token.
    text = masked(&text, "kube-api-access-", |c| c.is_ascii_alphanumeric());
    let value: Value = serde_json::from_str(&text)?;
    let name = format!("{} {}", value["kind"], value["metadata"]["name"]);
    Ok((name.replace('"', ""), value))
}

/// Removes such characters behind each occurrence of a word.
fn masked(text: &str, word: &str, variable: fn(char) -> bool) -> String {
    let mut parts = text.split(word);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out += word;
        out += part.trim_start_matches(variable);
    }
    out
}

/// Returns what exists of all jobs, by the job's uid.
async fn created(world: &World) -> Result<BTreeMap<String, Objects>> {
    let mut found: BTreeMap<String, Objects> = BTreeMap::new();
    for (group, version, kind) in CHILDREN {
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let api = api(&world.client, world.namespace(), &gvk);
        for mut object in api.list(&ListParams::default()).await? {
            object.types = Some(kube::core::TypeMeta {
                api_version: gvk.api_version(),
                kind: kind.to_owned(),
            });
            let object = &object;
            for owner in object.metadata.owner_references.iter().flatten() {
                let of = found.entry(owner.uid.clone()).or_default();
                of.extend([normal(object)?]);
            }
        }
    }
    Ok(found)
}

/// Stores rendered objects in another namespace, for the API server's defaults. Without owners there, the garbage collector would
/// delete them.
async fn stored(client: &kube::Client, twin: &str, rendered: &Value) -> Result<Objects> {
    let mut found = Objects::new();
    for object in rendered["items"].as_array().context("no list")? {
        let mut object: DynamicObject = serde_json::from_value(object.clone())?;
        let types = object.types.clone().context("no kind")?;
        let owners = object.metadata.owner_references.take();
        object.metadata.namespace = None;
        let api = api(client, twin, &GroupVersionKind::try_from(&types)?);
        let mut made = if types.kind == "Secret" {
            // Nobody can store it without data, and it has no defaults.
            object
        } else {
            api.create(&PostParams::default(), &object).await?
        };
        made.types = Some(types);
        made.metadata.owner_references = owners;
        found.extend([normal(&made)?]);
    }
    Ok(found)
}

/// What `render` shows for a job.
struct Shown {
    job: Value,
    objects: Objects,
}

impl Shown {
    fn uid(&self) -> &str {
        self.job["metadata"]["uid"].as_str().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.job["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// Creates a job, and returns what `render` shows for it: nothing if the operator refuses the job. `None` if the API server does.
async fn show(world: &World, plugin: &Plugin, twin: &str, job: &Value) -> Result<Option<Shown>> {
    let job = match world.jobs.create(job).await {
        Err(error) if world.kind == SPARK && is_invalid(&error) => return Ok(None),
        created => created?,
    };
    let file = world.file("job.json");
    std::fs::write(&file, job.to_string())?;
    let outcome = plugin
        .run(&["render", "-o", "json", "-f", &path(&file)])
        .await?;
    let refused = outcome.code == Some(1);
    let elsewhere = outcome.err.contains("names another controller");
    let expected = refused || elsewhere || outcome.code == Some(0);
    ensure!(expected, "{outcome:?}");
    let mut shown = Shown {
        job,
        objects: Objects::new(),
    };
    if refused {
        let refused = |job: &Value| {
            is_true(job, "Failed") || job["status"]["applicationState"]["errorMessage"].is_string()
        };
        world.jobs.until(shown.name(), "refused", refused).await?;
    } else if !elsewhere {
        let rendered = serde_json::from_str(&outcome.out)?;
        shown.objects = stored(&world.client, twin, &rendered).await?;
    }
    Ok(Some(shown))
}

/// Waits until everything exists that `render` shows, and compares both.
async fn compare(world: &World, all: &[Shown]) -> Result<()> {
    let found = eventually("the rendered objects", HANG, async || {
        tokio::time::sleep(PAUSE).await;
        let found = created(world).await?;
        let mut keys = all
            .iter()
            .flat_map(|job| job.objects.keys().map(move |key| (job.uid(), key)));
        let missing =
            keys.find(|(uid, key)| found.get(*uid).is_none_or(|of| !of.contains_key(*key)));
        Ok(match missing {
            None => Seen::Yes(found),
            Some((uid, missing)) => Seen::NotYet(format!(
                "{missing}, but {:?}",
                found.get(uid).map(|of| of.keys().collect::<Vec<_>>())
            )),
        })
    })
    .await?;
    for job in all {
        for (key, found) in found.get(job.uid()).into_iter().flatten() {
            let expected = job.objects.get(key);
            if expected != Some(found) {
                let rendered = lines(expected.unwrap_or(&Value::Null));
                let found = lines(found);
                let more: Vec<&String> = found.difference(&rendered).collect();
                let less: Vec<&String> = rendered.difference(&found).collect();
                bail!(
                    "{key} has {more:#?}; render shows {less:#?} for {}",
                    job.job
                );
            }
        }
    }
    Ok(())
}

/// Returns true if the API server refuses the object. Some recordings of spark-submit have settings that the CRD refuses.
fn is_invalid(error: &anyhow::Error) -> bool {
    let api = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<kube::Error>());
    matches!(api, Some(kube::Error::Api(status)) if status.code == 422)
}

/// Returns the init container's template of the shipped `ConfigMap`.
fn shipped_template() -> Result<String> {
    let file = workspace().join("manifests/pytorch-operator/config.yaml");
    let config = manifest::documents(&file)?.remove(0);
    let template = config["data"]["initContainer.yaml"].as_str();
    Ok(template.context("no template")?.to_owned())
}

fn lines(value: &Value) -> BTreeSet<String> {
    format!("{value:#}").lines().map(str::to_owned).collect()
}

fn path(file: &Path) -> String {
    file.display().to_string()
}

#[tokio::test]
async fn what_render_shows_is_what_the_operator_creates() -> Result<()> {
    let deep = is_deep();
    let kinds: &[Kind] = if deep { &EVERY_KIND } else { &KINDS };
    let part = if deep { 1 } else { PART };
    for_each_kind(kinds.iter().copied(), async |kind| {
        let Some(world) = World::of(kind, "kubectl-render", lockstep()).await? else {
            return Ok(());
        };
        let twin = Namespace::create(world.control, "kubectl-twin").await?;
        let kubeconfig = world.control.kubeconfig(&kind.user()).await?;
        let mut options = world.options(&kubeconfig);
        // The flags of the shipped Deployment.
        let own = format!("trainyard/{}:{}", kind.operator, env!("CARGO_PKG_VERSION"));
        for (of, flag) in [
            (PYTORCH, "pytorch-init-container-image"),
            (MPI, "launcher-gate-image"),
        ] {
            if of == kind {
                options = options.flag(flag, &own);
            }
        }
        if kind == PYTORCH {
            let file = world.file("init.yaml");
            std::fs::write(&file, shipped_template()?)?;
            options = options.flag("pytorch-init-container-template-file", &path(&file));
        }
        let operator = OperatorProcess::start(options).await?;
        let plugin = Plugin::of(&world).await?;
        let jobs: Vec<Value> = corpus(&kind)?.into_iter().step_by(part).collect();
        let namespaces = [world.namespace(), &twin.name];
        corpus::create_named(&world.client, &namespaces, &jobs).await?;
        let shown: Vec<Option<Shown>> = stream::iter(&jobs)
            .map(|job| async {
                let shown = show(&world, &plugin, &twin.name, job).await;
                shown.with_context(|| job.to_string())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let shown: Vec<Shown> = shown.into_iter().flatten().collect();
        compare(&world, &shown).await?;
        let compared = shown.iter().filter(|job| !job.objects.is_empty()).count();
        ensure!(
            compared >= LEAST / part,
            "only {compared} of {} manifests",
            jobs.len()
        );
        // Not the auditor's rules: some manifests are odd on purpose, and never come to rest.
        world.kubelet.assert_no_errors()?;
        operator.assert_no_panic()
    })
    .await
}
