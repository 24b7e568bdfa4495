//! Spark applications on pods, and the log of their changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DynamicObject, ListParams, LogParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube_runtime::watcher::{self, Event, watcher};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use training_testkit::builders::SPARK;
use training_testkit::control_plane::workspace;
use training_testkit::manifest;
use training_testkit::wait::Seen;

use super::{Site, Weight, eventually};
use crate::read;
use crate::submit::IMAGE;

/// The label with a pod's application.
pub const APP_NAME: &str = "sparkoperator.k8s.io/app-name";
/// The label with a pod's submission.
pub const SUBMISSION: &str = "sparkoperator.k8s.io/submission-id";
/// Keeps executors busy until the name `go` resolves.
const UNTIL_GO: &str = include_str!("until_go.py");
/// Disables the second compiler, which doesn't pay off for runs of seconds on two cores.
const QUICK: &str = "-XX:TieredStopAtLevel=1";

impl Site {
    /// Opens a namespace in which drivers may create executors.
    pub async fn spark(prefix: &str, weight: Weight) -> Result<Self> {
        let site = Self::of(SPARK, prefix, weight).await?;
        let file = workspace().join("manifests/spark-operator/jobs/rbac.yaml");
        let mut objects = manifest::documents(&file)?;
        for object in &mut objects {
            object["metadata"]["namespace"] = json!(site.namespace);
            let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
            for subject in subjects.into_iter().flatten() {
                subject["namespace"] = json!(site.namespace);
            }
        }
        manifest::apply(&site.client, objects).await?;
        Ok(site)
    }

    /// Creates a ConfigMap with one file, for applications to mount.
    pub async fn file(&self, map: &str, name: &str, text: &str) -> Result<()> {
        let map = serde_json::from_value(json!({
            "metadata": { "name": map }, "data": { name: text },
        }))?;
        Api::<ConfigMap>::namespaced(self.client.clone(), &self.namespace)
            .create(&PostParams::default(), &map)
            .await?;
        Ok(())
    }

    /// Creates the file that [`until_go`] runs.
    pub async fn until_go_file(&self) -> Result<()> {
        self.file("programs", "until_go.py", UNTIL_GO).await
    }

    /// Waits until an application fulfils a condition; fails if it ends before.
    pub async fn until_app(
        &self,
        name: &str,
        what: &str,
        looks: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let app = eventually(&format!("{name} {what}"), async || {
            let app = self.jobs.get(name).await?;
            Ok(if looks(&app) || has_ended(&app) {
                Seen::Yes(app)
            } else {
                Seen::NotYet(app["status"].to_string())
            })
        })
        .await?;
        let status = &app["status"];
        ensure!(looks(&app), "{name} never was {what}, it is: {status}");
        Ok(app)
    }

    /// Waits until an application runs with so many executors.
    pub async fn until_executors(&self, name: &str, executors: &str) -> Result<Value> {
        self.until_app(name, &format!("running on {executors}"), |app| {
            state(app) == "RUNNING" && app["status"]["executors"] == executors
        })
        .await
    }

    /// Waits until an application has completed.
    pub async fn until_completed(&self, name: &str) -> Result<Value> {
        let what = "COMPLETED";
        self.until_app(name, what, |app| state(app) == what).await
    }

    /// Waits until an application is deleted.
    pub async fn until_no_app(&self, name: &str) -> Result<()> {
        eventually(&format!("{name} to be gone"), async || {
            Ok(if self.jobs.exists(name).await? {
                Seen::NotYet("it is there".to_owned())
            } else {
                Seen::Yes(())
            })
        })
        .await
    }

    /// Returns an application's pods with this role, sorted by name.
    pub async fn spark_pods(&self, app: &str, role: &str) -> Result<Vec<Value>> {
        let of = ListParams::default().labels(&format!("{APP_NAME}={app},spark-role={role}"));
        let pods = self.pods().list(&of).await?;
        let pods = pods.items.iter().map(serde_json::to_value);
        let mut pods = pods.collect::<serde_json::Result<Vec<_>>>()?;
        pods.sort_by_key(read::name);
        Ok(pods)
    }

    /// Waits until an application has no executors any more.
    pub async fn until_no_executors(&self, app: &str) -> Result<()> {
        eventually("executors to be gone", async || {
            let left = self.spark_pods(app, "executor").await?;
            Ok(if left.is_empty() {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{:?}", read::names(&left)))
            })
        })
        .await
    }

    /// Returns the log of one container of a pod.
    pub async fn log_of(&self, pod: &str, container: &str) -> Result<String> {
        let parameters = LogParams {
            container: Some(container.to_owned()),
            ..LogParams::default()
        };
        Ok(self.pods().logs(pod, &parameters).await?)
    }

    /// Returns the response of an HTTP server in the namespace. `of` is like `pods/NAME:PORT` or `services/NAME:PORT`.
    pub fn http(&self, of: &str, path: &str) -> Result<String> {
        let namespace = &self.namespace;
        let url = format!("/api/v1/namespaces/{namespace}/{of}/proxy{path}");
        self.kubectl(&["get", "--raw", &url])
    }

    /// Returns the same, once the response contains these words.
    pub async fn until_http(&self, of: &str, path: &str, words: &[&str]) -> Result<String> {
        eventually(&format!("{words:?} of {of}{path}"), async || {
            let text = self.http(of, path)?;
            let missing = words.iter().find(|word| !text.contains(**word));
            Ok(match missing {
                None => Seen::Yes(text),
                Some(word) => Seen::NotYet(format!("no {word:?} in {text}")),
            })
        })
        .await
    }
}

/// Returns an application's state.
pub fn state(app: &Value) -> &str {
    let state = &app["status"]["applicationState"]["state"];
    state.as_str().unwrap_or_default()
}

/// Returns whether an application has ended.
pub fn has_ended(app: &Value) -> bool {
    ["COMPLETED", "FAILED"].contains(&state(app))
}

/// Returns a `PySpark` application with so many executors that are busy until the name `go` resolves.
/// Needs [`Site::until_go_file`].
pub fn until_go(name: &str, executors: u32) -> Value {
    json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": { "name": name },
        "spec": {
            "type": "Python",
            "mode": "cluster",
            "sparkVersion": "4.0.1",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "mainApplicationFile": "local:///mnt/programs/until_go.py",
            "restartPolicy": { "type": "Never" },
            "driver": {
                "cores": 1,
                "coreRequest": "200m",
                "memory": "512m",
                "javaOptions": QUICK,
                "serviceAccount": "spark-operator-spark",
                "configMaps": [{ "name": "programs", "path": "/mnt/programs" }],
            },
            "executor": {
                "instances": executors, "cores": 1, "coreRequest": "200m", "memory": "512m",
                "javaOptions": QUICK,
            },
        },
    })
}

/// All changes of pods and applications in a namespace, in the API server's order.
pub struct ChangeLog {
    entries: Arc<Mutex<Vec<Entry>>>,
    tasks: Vec<JoinHandle<()>>,
}

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The resource version of the change, comparable between kinds.
    pub version: u64,
    /// `Pod` or `SparkApplication`.
    pub kind: &'static str,
    /// The object's name.
    pub name: String,
    /// The object's uid.
    pub uid: String,
    /// Whether this change is the deletion.
    pub gone: bool,
    /// The object.
    pub object: Value,
}

impl Entry {
    fn label(&self, name: &str) -> &str {
        self.object["metadata"]["labels"][name]
            .as_str()
            .unwrap_or_default()
    }

    fn is_driver(&self) -> bool {
        self.kind == "Pod" && self.label("spark-role") == "driver"
    }
}

impl ChangeLog {
    /// Starts the log.
    pub fn of(site: &Site) -> Self {
        let entries = Arc::new(Mutex::new(Vec::new()));
        let pods = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let kinds = [("Pod", pods), ("SparkApplication", SPARK.resource())];
        let tasks = kinds.map(|(kind, resource)| {
            let api = Api::namespaced_with(site.client.clone(), &site.namespace, &resource);
            tokio::spawn(write(api, kind, Arc::clone(&entries)))
        });
        let tasks = tasks.into();
        Self { entries, tasks }
    }

    /// Returns the entries so far, in order.
    pub fn entries(&self) -> Vec<Entry> {
        let entries = self.entries.lock();
        let mut entries = entries.unwrap_or_else(PoisonError::into_inner).clone();
        entries.sort_by_key(|entry| entry.version);
        entries
    }

    /// Returns the same, once it contains an application's current state.
    pub async fn up_to(&self, app: &Value) -> Result<Vec<Entry>> {
        let version = version(app).context("no version")?;
        eventually("the log of changes", async || {
            let entries = self.entries();
            let of =
                |entry: &&Entry| entry.kind == "SparkApplication" && entry.name == read::name(app);
            let there = entries.iter().filter(of).any(|e| e.version >= version);
            Ok(if there {
                Seen::Yes(entries)
            } else {
                Seen::NotYet(format!("{} entries", entries.len()))
            })
        })
        .await
    }
}

impl Drop for ChangeLog {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn version(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

async fn write(api: Api<DynamicObject>, kind: &'static str, entries: Arc<Mutex<Vec<Entry>>>) {
    let mut events = watcher(api, watcher::Config::default()).boxed();
    let mut listed = false;
    loop {
        let (object, gone) = match events.try_next().await {
            // A second list may hide deletions, so the log ends here, and waits for further entries fail.
            Ok(Some(Event::Init)) if std::mem::replace(&mut listed, true) => return,
            Ok(Some(Event::Apply(object) | Event::InitApply(object))) => (object, false),
            Ok(Some(Event::Delete(object))) => (object, true),
            Ok(Some(_)) => continue,
            Ok(None) => return,
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let object = serde_json::to_value(object).unwrap_or_default();
        let entry = Entry {
            version: version(&object).unwrap_or_default(),
            kind,
            name: read::name(&object),
            uid: object["metadata"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            gone,
            object,
        };
        let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(entry);
    }
}

/// Asserts that runs of one application never overlap: while pods of an earlier submission exist, no new driver is created and
/// the application isn't suspended. Returns the application's states, without repetitions, and the number of its drivers.
pub fn assert_one_run_at_a_time(entries: &[Entry], app: &str) -> Result<(Vec<String>, usize)> {
    let mut there: BTreeMap<&str, &Entry> = BTreeMap::new();
    let (mut states, mut drivers) = (Vec::new(), 0);
    for entry in entries {
        if entry.kind == "SparkApplication" && entry.name == app {
            let now = state(&entry.object).to_owned();
            let rests = now == "SUSPENDED";
            ensure!(
                !rests || there.is_empty(),
                "{app} is said to be suspended beside {:?}",
                names(&there)
            );
            if states.last() != Some(&now) {
                states.push(now);
            }
        } else if entry.label(APP_NAME) == app {
            let uid = entry.uid.as_str();
            if entry.gone {
                there.remove(uid);
            } else if there.insert(uid, entry).is_none() && entry.is_driver() {
                drivers += 1;
                let id = entry.label(SUBMISSION);
                let old = there.values().find(|pod| pod.label(SUBMISSION) != id);
                ensure!(
                    old.is_none(),
                    "{} began beside {:?}",
                    entry.name,
                    names(&there)
                );
            }
        }
    }
    Ok((states, drivers))
}

fn names(entries: &BTreeMap<&str, &Entry>) -> Vec<String> {
    entries.values().map(|entry| entry.name.clone()).collect()
}
