//! `SparkApplication` and `ScheduledSparkApplication` against a real API server: the objects of a run, its states, and what it leaves.
//! The tests play kubelet and driver.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use spark_operator::api::{ScheduledSparkApplication, SparkApplication, State};
use tokio::sync::Mutex;
use training_testkit::audit::{Entry, Mark};
use training_testkit::auditor::Auditor;
use training_testkit::builders::{SPARK, SPARK_OPERATOR, application, operator_user};
use training_testkit::control_plane::{ADMIN, ControlPlane, workspace};
use training_testkit::manifest;
use training_testkit::namespace::Namespace;
use training_testkit::operator::{OperatorProcess, Options};
use training_testkit::proxy::Proxy;
use training_testkit::wait::{HANG, Seen, eventually};

#[path = "api_spark/batch.rs"]
mod batch;
#[path = "api_spark/faults.rs"]
mod faults;
#[path = "api_spark/inputs.rs"]
mod inputs;
#[path = "api_spark/namespaces.rs"]
mod namespaces;
#[path = "api_spark/rights.rs"]
mod rights;
#[path = "api_spark/runs.rs"]
mod runs;
#[path = "api_spark/schedules.rs"]
mod schedules;
#[path = "api_spark/takeover.rs"]
mod takeover;

const DRIVER: &str = "pi-driver";
/// The operator is idle when it has sent nothing for this long.
const QUIET: Duration = Duration::from_millis(1500);

/// A namespace with an operator.
struct Stage {
    control: &'static ControlPlane,
    client: Client,
    operator: Mutex<OperatorProcess>,
    auditor: Auditor,
    // Dropped last.
    namespace: Namespace,
}

impl Stage {
    /// `None` on a cluster with a kubelet of its own.
    async fn open(prefix: &str) -> Result<Option<Self>> {
        Self::with(prefix, |options| options).await
    }

    /// Same as [`Self::open`] behind a proxy.
    async fn proxied(
        prefix: &str,
        flags: impl FnOnce(Options) -> Options,
    ) -> Result<Option<(Proxy, Self)>> {
        let control = ControlPlane::shared().await?;
        if !control.can().play_kubelet {
            e2e::skip("this cluster has a kubelet of its own");
            return Ok(None);
        }
        let proxy = Proxy::start(&control.kubeconfig(ADMIN).await?).await?;
        let number = fastrand::u64(..);
        let file = control
            .scratch()
            .join(format!("{prefix}-{number:x}.kubeconfig"));
        let token = control.token(&operator_user(SPARK_OPERATOR)).await?;
        proxy.write_kubeconfig(&file, &token)?;
        let through = |mut options: Options| {
            options.kubeconfig = file;
            flags(options)
        };
        let stage = Self::with(prefix, through).await?;
        Ok(stage.map(|stage| (proxy, stage)))
    }

    async fn with(prefix: &str, flags: impl FnOnce(Options) -> Options) -> Result<Option<Self>> {
        let control = ControlPlane::shared().await?;
        if !control.can().play_kubelet {
            e2e::skip("this cluster has a kubelet of its own");
            return Ok(None);
        }
        control.install(SPARK_OPERATOR).await?;
        let namespace = Namespace::create(control, prefix).await?;
        let client = control.client(ADMIN).await?;
        let auditor = Auditor::start(client.clone(), &namespace.name, &SPARK.resource()).await?;
        let kubeconfig: PathBuf = control.kubeconfig(&operator_user(SPARK_OPERATOR)).await?;
        let log = control.scratch().join(format!("{}.log", namespace.name));
        let options = Options::new(SPARK_OPERATOR, &kubeconfig, &namespace.name, &log);
        let options = options.flag("driver-pod-creation-grace-period", "1s");
        Ok(Some(Self {
            control,
            operator: Mutex::new(OperatorProcess::start(flags(options)).await?),
            auditor,
            client,
            namespace,
        }))
    }

    fn name(&self) -> &str {
        &self.namespace.name
    }

    /// The end of a test: everything settles, without violations.
    async fn assert_clean(&self) -> Result<()> {
        let ending = e2e::Ending {
            kind: SPARK,
            control: self.control,
            auditor: &self.auditor,
            namespace: self.name(),
        };
        let operator = self.operator.lock().await;
        ending.assert_clean(&operator).await
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), self.name())
    }

    /// The operator's writes since then.
    async fn wrote(&self, since: Mark) -> Result<Vec<Entry>> {
        let user = operator_user(SPARK_OPERATOR);
        let mut all = self.control.audit()?.by_user(since, &user).await?;
        let reads = ["get", "list", "watch"];
        all.retain(|e| e.namespace == self.name() && !reads.contains(&e.verb.as_str()));
        Ok(all)
    }

    async fn apply(&self, object: &Value) -> Result<()> {
        let post = PostParams::default();
        if object["kind"] == "ScheduledSparkApplication" {
            let object: ScheduledSparkApplication = serde_json::from_value(object.clone())?;
            self.api().create(&post, &object).await?;
        } else {
            let object: SparkApplication = serde_json::from_value(object.clone())?;
            self.api().create(&post, &object).await?;
        }
        Ok(())
    }

    async fn app(&self) -> Result<SparkApplication> {
        Ok(self.api().get("pi").await?)
    }

    async fn until(&self, state: State) -> Result<SparkApplication> {
        self.until_one("pi", &state).await
    }

    /// Waits until the application of this name has a state.
    async fn until_one(&self, name: &str, state: &State) -> Result<SparkApplication> {
        let is_it = |app: &SparkApplication| {
            let status = app.status.as_ref();
            status.is_some_and(|s| s.application_state.state == *state)
        };
        let what = format!("{name} to be {state:?}");
        self.until_of(name, &what, is_it).await
    }

    async fn until_app(
        &self,
        what: &str,
        is_it: impl Fn(&SparkApplication) -> bool,
    ) -> Result<SparkApplication> {
        self.until_of("pi", what, is_it).await
    }

    async fn until_of(
        &self,
        name: &str,
        what: &str,
        is_it: impl Fn(&SparkApplication) -> bool,
    ) -> Result<SparkApplication> {
        eventually(what, HANG, async || {
            let app = self.api::<SparkApplication>().get(name).await?;
            Ok(if is_it(&app) {
                Seen::Yes(app)
            } else {
                Seen::NotYet(format!("{:?}", app.status))
            })
        })
        .await
    }

    async fn edit(&self, change: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": change }));
        let api = self.api::<SparkApplication>();
        api.patch("pi", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn driver(&self) -> Result<Pod> {
        eventually("a driver", HANG, async || {
            let pod = self.api::<Pod>().get_opt(DRIVER).await?;
            let there = pod.filter(|p| p.metadata.deletion_timestamp.is_none());
            Ok(there.map_or(Seen::NotYet("none".to_owned()), Seen::Yes))
        })
        .await
    }

    /// Writes a pod's status, like a kubelet.
    async fn says(&self, pod: &str, status: Value) -> Result<()> {
        e2e::set_pod_status(&self.api(), pod, status).await
    }

    async fn runs(&self, pod: &str) -> Result<()> {
        self.says(pod, json!({ "phase": "Running" })).await
    }

    async fn ends(&self, pod: &str, role: &str, code: i32, message: &str) -> Result<()> {
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let reason = if code == 0 { "Completed" } else { "Error" };
        let ended = json!({ "exitCode": code, "reason": reason, "message": message });
        let container = json!({
            "name": format!("spark-kubernetes-{role}"), "image": "any", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": ended },
        });
        let status = json!({ "phase": phase, "containerStatuses": [container] });
        self.says(pod, status).await
    }

    /// Creates executors like a Spark driver: the driver and the owner in the template own them.
    async fn makes_executors(&self, count: usize) -> Result<Vec<String>> {
        let driver = self.driver().await?;
        let maps = self.api::<ConfigMap>().list(&ListParams::default()).await?;
        let template = maps
            .items
            .iter()
            .find_map(|map| map.data.as_ref()?.get("podspec-configmap-key"));
        let template: Value = serde_saphyr::from_str(template.context("no template")?)?;
        let mut names = Vec::new();
        for n in 1..=count {
            let mut pod = template.clone();
            let meta = &mut pod["metadata"];
            let labels = driver.labels();
            for (key, value) in labels.iter().filter(|(k, _)| !k.starts_with("spark-role")) {
                meta["labels"][key] = json!(value);
            }
            meta["labels"]["spark-role"] = json!("executor");
            meta["labels"]["spark-exec-id"] = json!(n.to_string());
            let name = format!("pi-exec-{n}");
            meta["name"] = json!(name);
            let own = json!({
                "apiVersion": "v1", "kind": "Pod", "name": DRIVER, "uid": driver.uid(), "controller": true,
            });
            let mut owners = vec![own];
            owners.extend(
                meta["ownerReferences"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default(),
            );
            meta["ownerReferences"] = json!(owners);
            pod["apiVersion"] = json!("v1");
            pod["kind"] = json!("Pod");
            pod["spec"]["containers"][0]["image"] = json!("any");
            let pod: Pod = serde_json::from_value(pod)?;
            self.api().create(&PostParams::default(), &pod).await?;
            names.push(name);
        }
        Ok(names)
    }

    async fn until_gone(&self, pod: &str) -> Result<()> {
        eventually(&format!("{pod} to be gone"), HANG, async || {
            let there = self.api::<Pod>().get_opt(pod).await?;
            Ok(match there {
                None => Seen::Yes(()),
                Some(pod) => Seen::NotYet(format!("{:?}", pod.metadata.deletion_timestamp)),
            })
        })
        .await
    }

    async fn names<K>(&self) -> Result<Vec<String>>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let list = self.api::<K>().list(&ListParams::default()).await?;
        let ours = |object: &&K| {
            object
                .owner_references()
                .iter()
                .any(|o| o.kind == "SparkApplication")
        };
        let mut names: Vec<String> = list
            .items
            .iter()
            .filter(ours)
            .map(kube::ResourceExt::name_any)
            .collect();
        names.sort_unstable();
        Ok(names)
    }
}

fn pi() -> Value {
    application("pi")
}
