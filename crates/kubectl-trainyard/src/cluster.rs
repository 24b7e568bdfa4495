//! Reads from the API server, with the user's permissions.

use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::{Context as _, Result, anyhow, bail};
use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;
use training_core::provider::Run;
use training_core::quantity::{self, Amount, Amounts};
use training_core::{GroupKind, GroupView};
use training_runtime::client;

use crate::cli::Target;
use crate::job::{self, Job, Member};
use crate::kinds::{self, Kind};

/// A client and the selected namespace.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// The namespace; empty for all.
    pub namespace: String,
}

/// What pods use, by namespace and name.
pub type Usage = BTreeMap<(String, String), Amounts>;

/// Returns a one-line error that says what to do.
pub fn explain(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => {
            let message = status.message.replace('\n', " ");
            match status.code {
                401 => {
                    anyhow!("not authenticated ({message}): log in again or use another --context")
                }
                403 => anyhow!("{message}: ask a cluster administrator for the permission"),
                _ => anyhow!("{message}"),
            }
        }
        other => {
            let mut root: &dyn std::error::Error = &other;
            while let Some(source) = root.source() {
                root = source;
            }
            let root = root.to_string().replace('\n', " ");
            anyhow!("the API request failed ({root}): check --context and --kubeconfig")
        }
    }
}

/// Returns the HTTP status code of an API error, otherwise 0.
pub fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// The objects that explain a job's state.
#[derive(Debug, Default)]
pub struct Related {
    /// The job's pods.
    pub pods: Vec<Member>,
    /// The job's events.
    pub events: Vec<Event>,
    /// The objects of its gang scheduler, such as a `PodGroup`.
    pub groups: Vec<GroupView>,
    /// Its Kueue Workload.
    pub workload: Option<Value>,
    /// The resources that could not be read, and why.
    pub unreadable: Vec<String>,
}

impl Cluster {
    /// Creates a client from the kubeconfig, as kubectl does. Sends no request.
    pub async fn connect(target: &Target) -> Result<Self> {
        client::install_crypto_provider();
        let options = KubeConfigOptions {
            context: target.context.clone(),
            ..KubeConfigOptions::default()
        };
        let loaded = match &target.kubeconfig {
            Some(path) => match Kubeconfig::read_from(path) {
                Ok(file) => Config::from_custom_kubeconfig(file, &options).await,
                Err(error) => Err(error),
            },
            None => Config::from_kubeconfig(&options).await,
        };
        let config = match (
            loaded,
            target.kubeconfig.is_some() || target.context.is_some(),
        ) {
            (Ok(config), _) => config,
            (Err(error), false) => Config::incluster()
                .map_err(|_| error)
                .context("no cluster is configured: set KUBECONFIG or use --kubeconfig")?,
            (Err(error), true) => {
                return Err(error)
                    .context("can't use the kubeconfig: check --kubeconfig and --context");
            }
        };
        let namespace = target.namespace.clone();
        Ok(Self {
            namespace: namespace.unwrap_or_else(|| config.default_namespace.clone()),
            client: client::builder(config).map_err(explain)?.build(),
        })
    }

    /// Returns the API of a typed resource in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match self.namespace.as_str() {
            "" => Api::all(self.client.clone()),
            namespace => Api::namespaced(self.client.clone(), namespace),
        }
    }

    /// Returns the API of a dynamic resource in the namespace.
    pub fn any(&self, resource: &ApiResource) -> Api<DynamicObject> {
        match self.namespace.as_str() {
            "" => Api::all_with(self.client.clone(), resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, resource),
        }
    }

    /// Returns the API of a typed resource in another namespace.
    pub fn api_in<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Returns the API of a typed resource without namespaces.
    pub fn cluster_wide<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Lists a resource in all namespaces.
    pub async fn every<K>(&self) -> kube::Result<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        list_all(&Api::all(self.client.clone())).await
    }

    /// Lists a dynamic resource in all namespaces.
    pub async fn every_of(&self, resource: &ApiResource) -> kube::Result<Vec<DynamicObject>> {
        list_all(&Api::all_with(self.client.clone(), resource)).await
    }

    /// Lists a resource in a namespace, by labels.
    pub async fn list_in<K>(&self, namespace: &str, labels: &str) -> kube::Result<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let labelled = ListParams::default().labels(labels);
        Ok(self.api_in(namespace).list(&labelled).await?.items)
    }

    /// Returns true if a ServiceAccount has a permission.
    pub async fn may(
        &self,
        namespace: &str,
        account: &str,
        attributes: ResourceAttributes,
    ) -> Result<bool> {
        let all = "system:serviceaccounts";
        let groups = [all, &format!("{all}:{namespace}"), "system:authenticated"];
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(format!("system:serviceaccount:{namespace}:{account}")),
                groups: Some(groups.map(str::to_owned).to_vec()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api = self.cluster_wide::<SubjectAccessReview>();
        let review = api.create(&PostParams::default(), &review).await;
        let status = review.map_err(explain)?.status;
        Ok(status.is_some_and(|status| status.allowed))
    }

    /// Returns the version of the API server.
    pub async fn version(&self) -> kube::Result<Info> {
        self.client.apiserver_version().await
    }

    /// Returns true if the API server serves a resource.
    pub async fn serves(&self, resource: &ApiResource) -> kube::Result<bool> {
        let list = self
            .client
            .list_api_group_resources(&resource.api_version)
            .await;
        match list {
            Ok(list) => Ok(list.resources.iter().any(|r| r.name == resource.plural)),
            Err(error) if code(&error) == 404 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Finds the job that `NAME` or `KIND/NAME` names.
    pub async fn find(&self, word: &str) -> Result<Job> {
        let (kinds, name) = kinds::resolve(word)?;
        let requests = kinds.into_iter().map(async |kind| {
            let result = self.any(&kind.resource).get_opt(name).await;
            (kind, result)
        });
        let (mut found, mut denied) = (Vec::new(), Vec::new());
        for (kind, result) in join_all(requests).await {
            match result {
                Ok(Some(object)) => found.push(job(kind, &object)?),
                Ok(None) => {}
                // The CRD is not installed.
                Err(error) if code(&error) == 404 => {}
                Err(error) if code(&error) == 403 => denied.push(kind.resource.plural),
                Err(error) => return Err(explain(error)),
            }
        }
        let namespace = &self.namespace;
        match (found.len(), denied.len()) {
            (1, _) => found.pop().context("no job"),
            (0, 0) => bail!(
                "job {name} not found in namespace {namespace}: `kubectl trainyard why` lists the jobs that need attention, -n selects another namespace"
            ),
            (0, _) => bail!(
                "job {name} not found in namespace {namespace}, and you may not get {}: ask a cluster administrator for the permission",
                denied.join(", ")
            ),
            (_, _) => {
                let names: Vec<String> = found
                    .iter()
                    .map(|j| format!("{}/{name}", j.kind.name().to_ascii_lowercase()))
                    .collect();
                bail!("several jobs are named {name}: use {}", names.join(" or "))
            }
        }
    }

    /// Lists the jobs of the namespace, and the kinds that the user may not list.
    pub async fn jobs(&self) -> Result<(Vec<Job>, Vec<String>)> {
        let requests = kinds::all().into_iter().map(async |mut kind| {
            let mut result = self.any(&kind.resource).list(&ListParams::default()).await;
            // The CRD of another operator may serve only another version.
            for version in kind.other_versions() {
                if !matches!(&result, Err(error) if code(error) == 404) {
                    break;
                }
                result = self.any(&version).list(&ListParams::default()).await;
                if result.is_ok() {
                    kind.resource = version;
                }
            }
            (kind, result)
        });
        let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
        for (kind, result) in join_all(requests).await {
            match result {
                Ok(list) => {
                    for object in &list.items {
                        jobs.push(job(kind.clone(), object)?);
                    }
                }
                Err(error) if code(&error) == 404 => {}
                Err(error) if code(&error) == 403 => {
                    unreadable.push(may_not("list", &kind.resource.plural));
                }
                Err(error) => return Err(explain(error)),
            }
        }
        Ok((jobs, unreadable))
    }

    /// Lists the pods of all jobs.
    pub async fn all_pods(&self, unreadable: &mut Vec<String>) -> Result<Vec<Pod>> {
        let mut all = BTreeMap::new();
        for label in kinds::pod_labels() {
            let of_jobs = ListParams::default().labels(label);
            match self.api::<Pod>().list(&of_jobs).await {
                Ok(list) => {
                    let uid = |pod: &Pod| pod.metadata.uid.clone();
                    all.extend(list.items.into_iter().map(|pod| (uid(&pod), pod)));
                }
                Err(error) if code(&error) == 403 => {
                    unreadable.push(may_not("list", "pods"));
                    break;
                }
                Err(error) => return Err(explain(error)),
            }
        }
        Ok(all.into_values().collect())
    }

    /// Returns what pods use, if a metrics server answers.
    pub async fn usage(&self) -> Option<Usage> {
        let gvk = GroupVersionKind::gvk("metrics.k8s.io", "v1beta1", "PodMetrics");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "pods");
        let list = self
            .any(&resource)
            .list(&ListParams::default())
            .await
            .ok()?;
        let pods = list.items.into_iter().map(|pod| {
            let mut used = Amounts::new();
            let containers = pod.data["containers"].as_array().into_iter().flatten();
            for usage in containers.filter_map(|container| container["usage"].as_object()) {
                let amount = |(name, text): (&String, &Value)| {
                    Some((name.clone(), Amount::parse(text.as_str()?)?))
                };
                quantity::add(&mut used, &usage.iter().filter_map(amount).collect(), 1);
            }
            let meta = pod.metadata;
            let name = meta.name.unwrap_or_default();
            ((meta.namespace.unwrap_or_default(), name), used)
        });
        Some(pods.collect())
    }

    /// Lists the pods of a job.
    pub async fn pods(&self, job: &Job) -> kube::Result<Vec<Member>> {
        let of_job = ListParams::default().labels(&job.kind.pod_selector(job.name()));
        let list = self.api::<Pod>().list(&of_job).await?;
        Ok(job::members(job, list.items))
    }

    /// Reads the objects that explain a job's state, except those that the user may not read.
    pub async fn related(&self, job: &Job) -> Result<Related> {
        let involved = format!(
            "involvedObject.name={},involvedObject.kind={}",
            job.name(),
            job.kind.name()
        );
        let of_job = ListParams::default().fields(&involved);
        let events = self.api::<Event>();
        let (pods, events, groups, workload) = tokio::join!(
            self.pods(job),
            events.list(&of_job),
            self.groups(job),
            self.workload(job),
        );
        let mut related = Related::default();
        related.pods = related.or_unreadable(pods, "pods")?;
        related.events = related
            .or_unreadable(events.map(|list| list.items), "events")?
            .into_iter()
            .filter(|event| event.involved_object.uid.as_deref() == Some(job.uid()))
            .collect();
        related.groups = related.or_unreadable(groups, "podgroups")?;
        related.workload = related.or_unreadable(workload, "workloads.kueue.x-k8s.io")?;
        Ok(related)
    }

    /// Reads the objects of the gang scheduler that the job's status names.
    async fn groups(&self, job: &Job) -> kube::Result<Vec<GroupView>> {
        let scheduler = job.value["status"]["gangScheduler"].as_str();
        let run = Run::parse(scheduler.unwrap_or_default());
        let mut found = Vec::new();
        for kind in run.provider.kinds() {
            found.extend(self.group(*kind, job.name()).await?);
        }
        Ok(found)
    }

    async fn group(&self, kind: GroupKind, name: &str) -> kube::Result<Option<GroupView>> {
        for version in kind.versions() {
            let resource = kind.resource(version);
            let api: Api<training_core::Group> =
                Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
            match api.get_opt(name).await {
                Ok(Some(group)) => return Ok(group.view(kind)),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Reads the Kueue Workload of a job that has a queue label.
    async fn workload(&self, job: &Job) -> kube::Result<Option<Value>> {
        if job.label(crate::state::QUEUE_LABEL).is_none() {
            return Ok(None);
        }
        let of_job = ListParams::default().labels(&format!("kueue.x-k8s.io/job-uid={}", job.uid()));
        for version in ["v1beta2", "v1beta1"] {
            let gvk = GroupVersionKind::gvk("kueue.x-k8s.io", version, "Workload");
            match self.any(&ApiResource::from_gvk(&gvk)).list(&of_job).await {
                Ok(list) => {
                    return Ok(list
                        .items
                        .first()
                        .and_then(|w| serde_json::to_value(w).ok()));
                }
                Err(error) if code(&error) == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Related {
    /// Returns what was read. If the user may not read it, records that and returns the default.
    fn or_unreadable<T: Default>(&mut self, read: kube::Result<T>, what: &str) -> Result<T> {
        match read {
            Ok(read) => Ok(read),
            Err(error) if code(&error) == 403 => {
                self.unreadable.push(may_not("list", what));
                Ok(T::default())
            }
            Err(error) => Err(explain(error)),
        }
    }
}

fn may_not(verb: &str, what: &str) -> String {
    format!("{what}, because you may not {verb} them")
}

/// Wraps an object as a job of this kind.
pub fn job(kind: Kind, object: &DynamicObject) -> Result<Job> {
    let value = serde_json::to_value(object)?;
    Ok(Job { kind, value })
}

async fn list_all<K>(api: &Api<K>) -> kube::Result<Vec<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    Ok(api.list(&ListParams::default()).await?.items)
}
