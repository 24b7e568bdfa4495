//! What is to be done, as data.

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use training_core::{Note, StatusWrite, Uid};

use super::seen::Kind;
use crate::api::SparkApplicationStatus;
use crate::label;
use crate::submission::PodGroup;

/// One object to be made.
#[derive(Clone, Debug, PartialEq)]
pub enum Make {
    /// Of properties, of the executors' template, of metrics.
    ConfigMap(Box<ConfigMap>),
    /// Of the driver, of the web UI.
    Service(Box<Service>),
    /// Of the driver, of the web UI.
    Ingress(Box<Ingress>),
    /// Of the driver.
    Claim(Box<PersistentVolumeClaim>),
    /// Of the executors.
    NetworkPolicy(Box<NetworkPolicy>),
    /// Of the driver.
    Budget(Box<PodDisruptionBudget>),
    /// Of a batch scheduler.
    Group(Box<PodGroup>),
}

impl Make {
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

    /// The submission that it is of.
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

/// One change to the world.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make an object.
    Make(Make),
    /// Make the driver, once every [`Step::Make`] before it is done: it is what commits a submission.
    MakeDriver(Box<Pod>),
    /// Make an object that the run goes on without, beside or after the driver. If it is refused, nothing else stops.
    MakeBeside(Make),
    /// Give a ConfigMap other data.
    Change {
        /// As it is to be.
        map: Box<ConfigMap>,
        /// The precondition.
        uid: Uid,
        /// Another one.
        resource_version: String,
    },
    /// Delete a pod.
    DeletePod {
        /// Its name.
        name: String,
        /// The precondition.
        uid: Uid,
    },
    /// Delete another object.
    Delete {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// The precondition.
        uid: Uid,
    },
    /// Delete the application at the end of its time to live.
    DeleteApplication,
}

/// A pod that claims to be the driver of an application and is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Impostor {
    /// Its uid.
    pub uid: Uid,
    /// What to tell of it, once.
    pub note: Note,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The status to write, if it differs.
    pub status: Option<StatusWrite<SparkApplicationStatus>>,
    /// What to do.
    pub steps: Vec<Step>,
    /// What to tell, once the status is stored.
    pub notes: Vec<Note>,
    /// Pods that claim to be drivers and are left alone.
    pub impostors: Vec<Impostor>,
    /// The name of a driver that no watch shows, so that its run has failed. It is read before this is done: a list may have been
    /// wrong, and a second driver would run beside it.
    pub lost: Option<String>,
    /// Look again as soon as this is done.
    pub again: bool,
    /// When to look again at the latest.
    pub wake: Option<Timestamp>,
}
