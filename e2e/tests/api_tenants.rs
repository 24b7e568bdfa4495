//! What a user who may create jobs in one namespace can do to others, to the operator and to the cluster, for every kind; and jobs whose
//! namespace is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, Secret, Service};
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use training_testkit::audit::{Entry, Mark};
use training_testkit::auditor::Auditor;
use training_testkit::builders::{EVERY_KIND, Kind, MPI, SPARK, application};
use training_testkit::control_plane::{ADMIN, ControlPlane};
use training_testkit::is_deep;
use training_testkit::job::Jobs;
use training_testkit::namespace::Namespace;
use training_testkit::operator::{OperatorProcess, Options};
use training_testkit::proxy::Proxy;
use training_testkit::wait::{HANG, Seen, eventually};

#[path = "api_tenants/beside.rs"]
mod beside;
#[path = "api_tenants/creates.rs"]
mod creates;
#[path = "api_tenants/ending.rs"]
mod ending;
#[path = "api_tenants/load.rs"]
mod load;
#[path = "api_tenants/memory.rs"]
mod memory;
#[path = "api_tenants/secrets.rs"]
mod secrets;
#[path = "api_tenants/strict.rs"]
mod strict;

/// An operator is quiet when it has sent nothing for this long.
const QUIET: Duration = Duration::from_millis(1500);

/// Every kind.
fn kinds() -> impl Iterator<Item = Kind> {
    EVERY_KIND.into_iter()
}

/// A small job of a kind.
fn manifest(kind: &Kind, name: &str) -> Value {
    match kind.name {
        "SparkApplication" => application(name),
        _ => kind.small_job(name, 1).build(),
    }
}

/// The number of pods of such a job, with a Job controller for the launcher's.
fn pods_of(kind: &Kind) -> usize {
    if *kind == SPARK { 1 } else { 2 }
}

/// The field that contains a job's `suspend`.
fn run_policy<'a>(kind: &Kind, job: &'a mut Value) -> &'a mut Value {
    match kind.name {
        "SparkApplication" => &mut job["spec"],
        _ => &mut job["spec"]["runPolicy"],
    }
}

/// An edit that suspends a job, or resumes it.
fn suspension(kind: &Kind, suspend: bool) -> Value {
    let mut edit = json!({});
    run_policy(kind, &mut edit)["suspend"] = suspend.into();
    edit
}

/// A namespace for jobs of one kind.
struct Tenant {
    control: &'static ControlPlane,
    kind: Kind,
    client: Client,
    jobs: Jobs,
    /// Checks the invariants.
    auditor: Auditor,
    // Dropped last, after its watchers.
    namespace: Namespace,
}

impl Tenant {
    /// `None` on a cluster with a kubelet of its own.
    async fn of(kind: Kind, prefix: &str) -> Result<Option<Self>> {
        Self::on(ControlPlane::shared().await?, kind, prefix).await
    }

    async fn on(control: &'static ControlPlane, kind: Kind, prefix: &str) -> Result<Option<Self>> {
        if !control.can().play_kubelet {
            e2e::skip("this cluster has a kubelet of its own");
            return Ok(None);
        }
        control.install(kind.operator).await?;
        let namespace = Namespace::create(control, prefix).await?;
        let client = control.client(ADMIN).await?;
        let auditor = e2e::auditor(control, &namespace.name, &kind).await?;
        Ok(Some(Self {
            control,
            kind,
            jobs: Jobs::of(client.clone(), &namespace.name, &kind.resource()),
            client,
            auditor,
            namespace,
        }))
    }

    fn name(&self) -> &str {
        &self.namespace.name
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), self.name())
    }

    /// The options that start the operator of its kind.
    async fn options(&self) -> Result<Options> {
        static FILES: AtomicU32 = AtomicU32::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let log = format!("{}-{number}.log", self.name());
        let kubeconfig = self.control.kubeconfig(&self.kind.user()).await?;
        Ok(Options::new(
            self.kind.operator,
            &kubeconfig,
            self.name(),
            &self.control.scratch().join(log),
        ))
    }

    /// Same as [`Self::options`] for an operator that serves another namespace as well.
    async fn options_with(&self, other: &Self) -> Result<Options> {
        let mut options = self.options().await?;
        options.namespace = format!("{},{}", self.name(), other.name());
        Ok(options)
    }

    /// Starts a proxy, and changes an operator's options to send requests through it.
    async fn proxied(&self, mut options: Options) -> Result<(Proxy, Options)> {
        let proxy = Proxy::start(&self.control.kubeconfig(ADMIN).await?).await?;
        options.kubeconfig = options.log.with_extension("kubeconfig");
        let token = self.control.token(&self.kind.user()).await?;
        proxy.write_kubeconfig(&options.kubeconfig, &token)?;
        Ok((proxy, options))
    }

    async fn operator(&self) -> Result<OperatorProcess> {
        OperatorProcess::start(self.options().await?).await
    }

    async fn create(&self, name: &str) -> Result<Value> {
        self.jobs.create(&manifest(&self.kind, name)).await
    }

    async fn pods(&self) -> Result<Vec<Pod>> {
        Ok(self.api().list(&ListParams::default()).await?.items)
    }

    async fn until_pods(&self, count: usize) -> Result<Vec<Pod>> {
        let what = format!("{count} pods of a {}", self.kind.name);
        eventually(&what, HANG, async || {
            let pods = self.pods().await?;
            Ok(if pods.len() == count {
                Seen::Yes(pods)
            } else {
                Seen::NotYet(format!("{} pods", pods.len()))
            })
        })
        .await
    }

    /// Writes a pod's status, like a kubelet. The error names who deleted the pod.
    async fn says(&self, pod: &str, status: Value) -> Result<()> {
        let said = e2e::set_pod_status(&self.api(), pod, status).await;
        if said.is_ok() {
            return said;
        }
        let mut all = self.control.audit()?.since(Mark::default()).await?;
        all.retain(|e| e.namespace == self.name() && e.name == pod && e.verb != "get");
        said.with_context(|| format!("requests for the pod: {all:#?}"))
    }

    async fn events(&self) -> Result<Vec<Event>> {
        Ok(self.api().list(&ListParams::default()).await?.items)
    }

    fn asks(&self, entry: &Entry) -> bool {
        !entry.is_watch() && entry.namespace == self.name()
    }

    /// Waits until the operator has sent no request for this namespace for a while.
    async fn until_quiet(&self) -> Result<()> {
        let audit = self.control.audit()?;
        audit
            .until_quiet(&self.kind.user(), |e| self.asks(e), QUIET, HANG)
            .await
    }

    /// The operator's requests for this namespace since then.
    async fn asked(&self, since: Mark) -> Result<Vec<Entry>> {
        let mut all = self
            .control
            .audit()?
            .by_user(since, &self.kind.user())
            .await?;
        all.retain(|entry| self.asks(entry));
        Ok(all)
    }

    /// Same as [`Self::asked`] without lists, because an expired watch begins again with one.
    async fn asked_anew(&self, since: Mark) -> Result<Vec<Entry>> {
        let mut all = self.asked(since).await?;
        all.retain(|entry| entry.verb != "list");
        Ok(all)
    }

    /// The uids of all objects that were created for jobs, by kind and name.
    async fn made(&self) -> Result<BTreeMap<String, String>> {
        let mut made = BTreeMap::new();
        made.extend(self.owned::<Pod>("pod").await?);
        made.extend(self.owned::<Service>("service").await?);
        made.extend(self.owned::<ConfigMap>("configmap").await?);
        made.extend(self.owned::<Secret>("secret").await?);
        made.extend(self.owned::<Job>("job").await?);
        Ok(made)
    }

    async fn owned<K>(&self, kind: &str) -> Result<Vec<(String, String)>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let all = self.api::<K>().list(&ListParams::default()).await?.items;
        let owned = all.iter().filter(|o| !o.owner_references().is_empty());
        let named = |o: &K| {
            let uid = o.uid().unwrap_or_default();
            (format!("{kind} {}", o.name_any()), uid)
        };
        Ok(owned.map(named).collect())
    }

    /// The end of most tests: the operator still serves, and everything settles without violations.
    async fn assert_well(&self, operator: &OperatorProcess) -> Result<()> {
        self.assert_serves(operator).await?;
        self.assert_clean(operator).await
    }

    /// Everything settles, without violations.
    async fn assert_clean(&self, operator: &OperatorProcess) -> Result<()> {
        let ending = e2e::Ending {
            kind: self.kind,
            control: self.control,
            auditor: &self.auditor,
            namespace: self.name(),
        };
        let clean = ending.assert_clean(operator).await;
        clean.with_context(|| format!("{} in {}", self.kind.name, self.name()))
    }

    /// The operator still serves, and did not panic.
    async fn assert_serves(&self, operator: &OperatorProcess) -> Result<()> {
        operator.assert_no_panic()?;
        let (code, body) = operator.probe("/readyz").await?;
        ensure!(code == 200, "{}: /readyz: {code} {body}", self.kind.name);
        let (code, body) = operator.probe("/livez").await?;
        ensure!(code == 200, "{}: /livez: {code} {body}", self.kind.name);
        Ok(())
    }
}
