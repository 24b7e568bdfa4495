//! The plan of a reconcile, as data.

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use serde::Serialize;
use training_core::{Action, Uid};

use super::observed::Kind;
use crate::api::SparkApplicationStatus;
use crate::label;
use crate::submission::PodGroup;

/// An object to create. It is serialized as that object.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum NewObject {
    /// For properties, the executors' template, or metrics.
    ConfigMap(Box<ConfigMap>),
    /// For the driver or the web UI.
    Service(Box<Service>),
    /// For the driver or the web UI.
    Ingress(Box<Ingress>),
    /// For the driver.
    Claim(Box<PersistentVolumeClaim>),
    /// For the executors.
    NetworkPolicy(Box<NetworkPolicy>),
    /// For the driver.
    Budget(Box<PodDisruptionBudget>),
    /// For a batch scheduler.
    Group(Box<PodGroup>),
}

impl NewObject {
    /// Its metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ConfigMap(object) => &object.metadata,
            Self::Service(object) => &object.metadata,
            Self::Ingress(object) => &object.metadata,
            Self::Claim(object) => &object.metadata,
            Self::NetworkPolicy(object) => &object.metadata,
            Self::Budget(object) => &object.metadata,
            Self::Group(group) => &group.metadata,
        }
    }

    /// Its submission.
    pub fn submission_id(&self) -> &str {
        let labels = self.metadata().labels.as_ref();
        let id = labels.and_then(|l| l.get(label::SUBMISSION_ID));
        id.map_or("", String::as_str)
    }

    /// Its kind and its name.
    pub fn id(&self) -> (Kind, String) {
        match self {
            Self::ConfigMap(object) => (Kind::ConfigMap, object.name_any()),
            Self::Service(object) => (Kind::Service, object.name_any()),
            Self::Ingress(object) => (Kind::Ingress, object.name_any()),
            Self::Claim(object) => (Kind::Claim, object.name_any()),
            Self::NetworkPolicy(object) => (Kind::NetworkPolicy, object.name_any()),
            Self::Budget(object) => (Kind::Budget, object.name_any()),
            Self::Group(group) => (
                Kind::of_group(&group.api_version),
                group.metadata.name.clone().unwrap_or_default(),
            ),
        }
    }
}

/// One change in the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create an object.
    Create(NewObject),
    /// Create the driver, once every [`Step::Create`] before it has succeeded. This commits the submission.
    CreateDriver(Box<Pod>),
    /// Create an object that the run doesn't depend on. If it is refused, the other steps continue.
    CreateOptional(NewObject),
    /// Replace the data of a ConfigMap.
    Change {
        /// The new ConfigMap.
        map: Box<ConfigMap>,
        /// A precondition.
        uid: Uid,
        /// A precondition.
        resource_version: String,
    },
    /// Delete a pod.
    DeletePod {
        /// Its name.
        name: String,
        /// A precondition.
        uid: Uid,
    },
    /// Delete another object.
    Delete {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// A precondition.
        uid: Uid,
    },
    /// Delete the application at the end of its time to live.
    DeleteApplication,
}

impl Action for Step {
    /// A run begins with its driver.
    fn is_create(&self) -> bool {
        matches!(self, Self::CreateDriver(_))
    }
}

/// What is decided for an application.
pub type Plan = training_core::Plan<SparkApplicationStatus, Step>;
