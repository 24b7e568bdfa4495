//! Shared tools of the end-to-end tests: sets up and tears down a test's world.

// Every error here only fails a test.
#![allow(clippy::missing_errors_doc)]

pub mod corpus;
pub mod killer;
pub mod lives;
pub mod local;
pub mod log;
pub mod loose;
pub mod peers;
pub mod pods;
pub mod read;
pub mod refusal;
pub mod skip;
pub mod submit;
pub mod sweep;
pub mod takeover;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use training_testkit::auditor::Auditor;
use training_testkit::builders::{Kind, PYTORCH};
use training_testkit::control_plane::{ADMIN, ControlPlane, DRIVER, workspace};
use training_testkit::job::Jobs;
use training_testkit::kubelet::{Kubelet, Script};
use training_testkit::manifest;
use training_testkit::namespace::Namespace;
use training_testkit::operator::{OperatorProcess, Options};
use training_testkit::proxy::Proxy;
use training_testkit::wait::{HANG, Seen, eventually};

use lives::StepRunner;
pub use skip::skip;

/// A namespace with a scripted kubelet and an auditor, on the shared control plane of a test binary.
pub struct World {
    /// The kind of its jobs.
    pub kind: Kind,
    /// The API server.
    pub control: &'static ControlPlane,
    /// The user's client.
    pub client: Client,
    /// The jobs of the namespace.
    pub jobs: Jobs,
    /// Simulates scheduler and kubelet.
    pub kubelet: Kubelet,
    /// Checks the invariants.
    pub auditor: Auditor,
    // Dropped last, after its watchers.
    namespace: Namespace,
}

/// Writes fields of a pod's status, as a kubelet does.
pub async fn set_pod_status(pods: &Api<Pod>, name: &str, status: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "status": status }));
    pods.patch_status(name, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// Runs a test for each of these kinds in parallel.
pub async fn for_each_kind<R: Future<Output = Result<()>>>(
    kinds: impl IntoIterator<Item = Kind>,
    test: impl Fn(Kind) -> R,
) -> Result<()> {
    let tests = kinds.into_iter().map(|kind| {
        let run = test(kind);
        async move { run.await.context(kind.name) }
    });
    try_join_all(tests).await.map(drop)
}

static FILES: AtomicU32 = AtomicU32::new(0);

impl World {
    /// Creates a world for one test; `None`, with a skip message, on a cluster with its own kubelet.
    pub async fn start(prefix: &str, script: Script) -> Result<Option<Self>> {
        Self::on(ControlPlane::shared().await?, prefix, script).await
    }

    /// Does the same for jobs of another kind.
    pub async fn of(kind: Kind, prefix: &str, script: Script) -> Result<Option<Self>> {
        let control = ControlPlane::shared().await?;
        control.install(kind.operator).await?;
        Self::made(kind, control, prefix, script).await
    }

    /// Does the same on the test's own control plane.
    pub async fn on(
        control: &'static ControlPlane,
        prefix: &str,
        script: Script,
    ) -> Result<Option<Self>> {
        Self::made(PYTORCH, control, prefix, script).await
    }

    /// Does the same with all parameters.
    pub async fn made(
        kind: Kind,
        control: &'static ControlPlane,
        prefix: &str,
        script: Script,
    ) -> Result<Option<Self>> {
        if !control.can().play_kubelet {
            skip("this cluster has a kubelet of its own");
            return Ok(None);
        }
        let namespace = Namespace::create(control, prefix).await?;
        let client = control.client(ADMIN).await?;
        let driver = control.client(DRIVER).await?;
        let auditor = auditor(control, &namespace.name, &kind).await?;
        let kubelet = Kubelet::start(driver, &[&namespace.name], script).await?;
        let jobs = Jobs::of(client.clone(), &namespace.name, &kind.resource());
        Ok(Some(Self {
            kind,
            control,
            client,
            jobs,
            kubelet,
            auditor,
            namespace,
        }))
    }

    /// Returns the namespace's name.
    pub fn namespace(&self) -> &str {
        &self.namespace.name
    }

    /// Starts the operator of its kind for this namespace with its shipped identity.
    pub async fn operator(&self) -> Result<OperatorProcess> {
        let kubeconfig = self.control.kubeconfig(&self.kind.user()).await?;
        OperatorProcess::start(self.options(&kubeconfig)).await
    }

    /// Starts a proxy, and writes a kubeconfig that points the operator to it.
    pub async fn proxy(&self) -> Result<(Proxy, PathBuf)> {
        let proxy = Proxy::start(&self.control.kubeconfig(ADMIN).await?).await?;
        let kubeconfig = self.file("proxy.kubeconfig");
        proxy.write_kubeconfig(&kubeconfig, &self.control.token(&self.kind.user()).await?)?;
        Ok((proxy, kubeconfig))
    }

    /// Starts the operator of its kind behind a proxy.
    pub async fn proxied_operator(&self) -> Result<(Proxy, OperatorProcess)> {
        let (proxy, kubeconfig) = self.proxy().await?;
        let operator = OperatorProcess::start(self.options(&kubeconfig)).await?;
        Ok((proxy, operator))
    }

    /// Returns the actor of one of its jobs.
    pub fn actor<'a>(&'a self, job: &'a str) -> StepRunner<'a> {
        StepRunner {
            world: self,
            name: job,
            held: None,
            happenings: None,
        }
    }

    /// Returns the options with which tests start the operator of its kind.
    pub fn options(&self, kubeconfig: &std::path::Path) -> Options {
        Options::new(
            self.kind.operator,
            kubeconfig,
            self.namespace(),
            &self.file("operator.log"),
        )
    }

    /// Grants the operator the shipped rights for a gang scheduler.
    pub async fn grant_gang(&self, provider: &str) -> Result<()> {
        self.grant(&format!("gang/{provider}")).await
    }

    /// Grants the operator the rights of one of its shipped optional files.
    pub async fn grant(&self, file: &str) -> Result<()> {
        let file = format!("manifests/{}/{file}.yaml", self.kind.operator);
        let objects = manifest::documents(&workspace().join(file))?;
        let client = self.control.client(ADMIN).await?;
        let rules: Vec<Value> = objects
            .iter()
            .filter_map(|object| object["rules"].as_array())
            .flatten()
            .cloned()
            .collect();
        manifest::apply(&client, objects).await?;
        for rule in &rules {
            self.until_allowed(&client, rule).await?;
        }
        Ok(())
    }

    /// Waits until the API server applies a new right.
    async fn until_allowed(&self, client: &Client, rule: &Value) -> Result<()> {
        let first = |field: &str| rule[field][0].clone();
        let resource = first("resources");
        let mut parts = resource.as_str().unwrap_or_default().splitn(2, '/');
        let review: SubjectAccessReview = serde_json::from_value(json!({ "spec": {
            "user": self.kind.user(),
            "resourceAttributes": {
                "namespace": self.namespace(), "group": first("apiGroups"), "verb": first("verbs"),
                "resource": parts.next(), "subresource": parts.next(), "name": first("resourceNames"),
            },
        } }))?;
        let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
        eventually("a right to hold", HANG, async || {
            let answer = reviews.create(&PostParams::default(), &review).await?;
            Ok(match answer.status {
                Some(status) if status.allowed => Seen::Yes(()),
                other => Seen::NotYet(format!("{rule}: {other:?}")),
            })
        })
        .await
    }

    /// Returns a path for a file of this test.
    pub fn file(&self, name: &str) -> PathBuf {
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        self.control
            .scratch()
            .join(format!("{}-{number}-{name}", self.namespace()))
    }

    /// Ends a test: waits until no writes follow, and checks that the auditor found no violation and the operator did not panic.
    pub async fn assert_clean(&self, operator: &OperatorProcess) -> Result<()> {
        self.kubelet.assert_no_errors()?;
        self.ending().assert_clean(operator).await
    }

    fn ending(&self) -> Ending<'_> {
        Ending {
            kind: self.kind,
            control: self.control,
            auditor: &self.auditor,
            namespace: self.namespace(),
        }
    }
}

/// Starts the auditor of a namespace.
pub async fn auditor(control: &ControlPlane, namespace: &str, kind: &Kind) -> Result<Auditor> {
    let client = control.client(ADMIN).await?;
    let auditor = Auditor::start(client, namespace, &kind.resource()).await?;
    let collects = control.can().controllers;
    if !collects {
        auditor.expect_no_collection();
    }
    Ok(auditor)
}

/// The final checks of a test.
#[derive(Debug)]
pub struct Ending<'a> {
    /// The kind of the jobs.
    pub kind: Kind,
    /// The API server.
    pub control: &'a ControlPlane,
    /// The auditor.
    pub auditor: &'a Auditor,
    /// The test's namespace.
    pub namespace: &'a str,
}

impl Ending<'_> {
    /// Waits until no writes follow, and checks that the auditor found no violation and the log's fields are readable.
    pub async fn assert_clean(&self, operator: &OperatorProcess) -> Result<()> {
        let rest = self.auditor.until_settled().await;
        rest.with_context(|| operator.log_tail())?;
        operator.assert_no_panic()?;
        log::assert_plain_fields(&operator.log())?;
        operator.assert_connections()?;
        // The only secret of the process.
        let user = self.kind.user();
        let token = self.control.token(&user).await?;
        anyhow::ensure!(
            !operator.log().contains(&token),
            "I-51: the token is in the log"
        );
        if self.control.can().audit {
            let audit = self.control.audit()?;
            let (asked, denied) = audit.all_of(&user, self.namespace).await?;
            anyhow::ensure!(denied.is_empty(), "MT-60, I-46: {}", denied.join("\n"));
            // Waits until the auditor has seen the effects of all requests.
            self.auditor.settled().await?;
            let meddled = self.auditor.meddled(&asked);
            anyhow::ensure!(meddled.is_empty(), "{}", meddled.join("\n"));
        }
        self.auditor.assert_clean().await
    }
}
