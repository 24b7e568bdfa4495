//! The webhooks of another operator. While it is stopped, nobody answers them, so their failure policy becomes `Ignore`. An annotation
//! of their configuration keeps the former policies.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, Patch};
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::switch::manager;
use crate::cluster::{Cluster, explain};

/// On a configuration: the operator's name, and the former failure policy of each of its webhooks, as JSON.
const POLICIES: &str = "trainyard.dev/migrated-failure-policies";
const IGNORE: &str = "Ignore";
const MUTATING: &str = "mutatingwebhookconfiguration";

/// The former failure policies in an annotation.
#[derive(serde::Serialize, serde::Deserialize)]
struct Former {
    /// The operator that was stopped.
    of: String,
    /// By the webhook's name.
    policies: BTreeMap<String, String>,
}

/// A configuration with webhooks of the other operator.
pub struct Webhooks {
    /// Its resource in words of kubectl.
    resource: &'static str,
    api: ApiResource,
    object: DynamicObject,
    /// The operator.
    operator: String,
    /// The namespaces and names of its Services.
    services: BTreeSet<(String, String)>,
    former: Option<Former>,
}

/// Finds the configurations with webhooks that these Deployments answer.
pub async fn of(
    cluster: &Cluster,
    name: &str,
    deployments: &[Deployment],
) -> Result<Vec<Webhooks>> {
    let services = services_of(cluster, deployments).await?;
    let mut found = Vec::new();
    for (resource, api) in [
        (
            "validatingwebhookconfiguration",
            ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
        ),
        (
            MUTATING,
            ApiResource::erase::<MutatingWebhookConfiguration>(&()),
        ),
    ] {
        for object in cluster.every_of(&api).await.map_err(explain)? {
            let former = object.annotations().get(POLICIES);
            let former = former.and_then(|text| serde_json::from_str::<Former>(text).ok());
            let webhooks = Webhooks {
                resource,
                api: api.clone(),
                former: former.filter(|former| former.of == name),
                object,
                operator: name.to_owned(),
                services: services.clone(),
            };
            if webhooks.all().iter().any(|w| webhooks.is_own(w)) {
                found.push(webhooks);
            }
        }
    }
    Ok(found)
}

/// Finds the Services that select the pods of Deployments.
async fn services_of(
    cluster: &Cluster,
    deployments: &[Deployment],
) -> Result<BTreeSet<(String, String)>> {
    let mut found = BTreeSet::new();
    for deployment in deployments {
        let namespace = deployment.namespace().unwrap_or_default();
        let template = deployment.spec.template.metadata.as_ref();
        let labels = template.and_then(|m| m.labels.clone()).unwrap_or_default();
        let services: Vec<Service> = cluster.list_in(&namespace, "").await.map_err(explain)?;
        for service in services {
            let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
            let selects = selector.is_some_and(|selector| {
                !selector.is_empty() && selector.iter().all(|(k, v)| labels.get(k) == Some(v))
            });
            if selects {
                found.insert((namespace.clone(), service.name_any()));
            }
        }
    }
    Ok(found)
}

/// Returns a webhook's failure policy. The API server's default is `Fail`.
fn policy(webhook: &Value) -> &str {
    webhook["failurePolicy"].as_str().unwrap_or("Fail")
}

impl Webhooks {
    /// Returns its resource and name, as kubectl takes them.
    pub fn describe(&self) -> String {
        format!("{} {}", self.resource, self.object.name_any())
    }

    /// Describes it with its current failure policies.
    pub fn describe_policies(&self) -> String {
        let own = self.all().iter().filter(|webhook| self.is_own(webhook));
        let policies: BTreeSet<&str> = own.map(policy).collect();
        let policies: Vec<&str> = policies.into_iter().collect();
        format!(
            "{} (failurePolicy: {})",
            self.describe(),
            policies.join(", ")
        )
    }

    /// Returns true if its webhooks change objects.
    pub fn mutates(&self) -> bool {
        self.resource == MUTATING
    }

    /// Returns true if all of its webhooks are the operator's.
    pub fn is_whole(&self) -> bool {
        self.all().iter().all(|webhook| self.is_own(webhook))
    }

    fn all(&self) -> &[Value] {
        let webhooks = self.object.data["webhooks"].as_array();
        webhooks.map_or(&[], Vec::as_slice)
    }

    fn is_own(&self, webhook: &Value) -> bool {
        let service = &webhook["clientConfig"]["service"];
        let text = |key: &str| service[key].as_str().unwrap_or_default().to_owned();
        self.services.contains(&(text("namespace"), text("name")))
    }

    /// Sets the failure policy of the operator's webhooks to `Ignore`. Returns false if it is so already.
    pub async fn ignore(&self, cluster: &Cluster) -> Result<bool> {
        let mut webhooks = self.all().to_vec();
        let recorded = self.former.as_ref().map(|former| former.policies.clone());
        let mut policies = recorded.unwrap_or_default();
        let mut changed = false;
        for webhook in webhooks.iter_mut().filter(|webhook| self.is_own(webhook)) {
            let policy = policy(webhook).to_owned();
            if policy == IGNORE {
                continue;
            }
            let name = webhook["name"].as_str().unwrap_or_default().to_owned();
            policies.insert(name, policy);
            webhook["failurePolicy"] = json!(IGNORE);
            changed = true;
        }
        if changed {
            let former = Former {
                of: self.operator.clone(),
                policies,
            };
            let former = serde_json::to_string(&former)?;
            self.write(
                cluster,
                self.object.resource_version(),
                &webhooks,
                Some(&former),
            )
            .await?;
        }
        Ok(changed)
    }

    /// Restores the former failure policies. Returns false if there are none.
    pub async fn restore(&self, cluster: &Cluster) -> Result<bool> {
        let Some(former) = &self.former else {
            return Ok(false);
        };
        // The operator may have renewed its certificate in it.
        let api: Api<DynamicObject> = cluster.any(&self.api);
        let name = self.object.name_any();
        let object = api.get(&name).await.map_err(explain)?;
        let webhooks = object.data["webhooks"].as_array();
        let mut webhooks = webhooks
            .context("the configuration has no webhooks")?
            .clone();
        for webhook in &mut webhooks {
            let name = webhook["name"].as_str().unwrap_or_default();
            if let Some(policy) = former.policies.get(name) {
                webhook["failurePolicy"] = json!(policy);
            }
        }
        self.write(cluster, object.resource_version(), &webhooks, None)
            .await?;
        Ok(true)
    }

    async fn write(
        &self,
        cluster: &Cluster,
        version: Option<String>,
        webhooks: &[Value],
        former: Option<&str>,
    ) -> Result<()> {
        let patch = Patch::Merge(json!({
            "metadata": { "resourceVersion": version, "annotations": { POLICIES: former } },
            "webhooks": webhooks,
        }));
        let api = cluster.any(&self.api);
        let patched = api.patch(&self.object.name_any(), &manager(), &patch).await;
        patched.map(drop).map_err(explain)
    }
}
