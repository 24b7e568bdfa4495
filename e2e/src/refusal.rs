//! An admission policy of the API server against one resource.

use std::fmt::Debug;

use anyhow::Result;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::api::{DeleteParams, PostParams};
use kube::core::Status;
use kube::{Api, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use training_testkit::wait::{HANG, Seen, eventually};

use crate::World;

/// A policy that refuses creates of a resource in one namespace.
#[derive(Debug)]
pub struct Refusal {
    policies: Api<ValidatingAdmissionPolicy>,
    bindings: Api<ValidatingAdmissionPolicyBinding>,
    name: String,
}

impl Refusal {
    /// Stores the policy. It takes effect a moment later.
    ///
    /// `resource`: its API group and plural, of version `v1`. `validation`: an item of the policy's `validations`.
    pub async fn of(world: &World, resource: (&str, &str), validation: Value) -> Result<Self> {
        let (group, plural) = resource;
        let name = format!("no-{plural}-{}", world.namespace());
        let policy = json!({
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [plural],
                }] },
                "validations": [validation],
            },
        });
        let own = json!({ "kubernetes.io/metadata.name": world.namespace() });
        let binding = json!({
            "metadata": { "name": name },
            "spec": {
                "policyName": name, "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": { "matchLabels": own } },
            },
        });
        let stored = Self {
            policies: Api::all(world.client.clone()),
            bindings: Api::all(world.client.clone()),
            name,
        };
        let how = PostParams::default();
        let policy = serde_json::from_value(policy)?;
        stored.policies.create(&how, &policy).await?;
        let binding = serde_json::from_value(binding)?;
        stored.bindings.create(&how, &binding).await?;
        Ok(stored)
    }

    /// Deletes the policy. It ends a moment later.
    pub async fn remove(&self) -> Result<()> {
        let how = DeleteParams::default();
        self.bindings.delete(&self.name, &how).await?;
        self.policies.delete(&self.name, &how).await?;
        Ok(())
    }
}

/// Waits until a policy refuses creates of this object, and returns the response: the API server reads policies a moment after they are
/// stored.
pub async fn until_refused<K>(api: &Api<K>, object: &K) -> Result<Status>
where
    K: Clone + Serialize + DeserializeOwned + Debug,
{
    eventually("the policy to apply", HANG, async || {
        Ok(match create_dry(api, object).await {
            Err(Error::Api(status)) if status.message.contains("ValidatingAdmissionPolicy") => {
                Seen::Yes(*status)
            }
            answer => Seen::NotYet(format!("{answer:?}")),
        })
    })
    .await
}

/// Waits until the API server accepts creates of this object again.
pub async fn until_accepted<K>(api: &Api<K>, object: &K) -> Result<()>
where
    K: Clone + Serialize + DeserializeOwned + Debug,
{
    eventually("the policy to end", HANG, async || {
        Ok(match create_dry(api, object).await {
            Ok(_) => Seen::Yes(()),
            Err(error) => Seen::NotYet(error.to_string()),
        })
    })
    .await
}

async fn create_dry<K>(api: &Api<K>, object: &K) -> kube::Result<K>
where
    K: Clone + Serialize + DeserializeOwned + Debug,
{
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    api.create(&dry, object).await
}
