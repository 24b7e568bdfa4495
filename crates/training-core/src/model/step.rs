//! The outcome of a decision, as data.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::jiff::Timestamp;

use crate::model::group::GroupKind;
use crate::model::notes::{ForgedPod, Note};
use crate::model::object::{Object, ObjectKind};
use crate::model::observed::Blocked;
use crate::model::reasons::FailureReason;
use crate::model::uid::Uid;

/// One write or lookup.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Delete a pod.
    DeletePod {
        /// Its name.
        name: String,
        /// The uid precondition.
        uid: Uid,
        /// Whether to wait for the kubelet.
        how: Deletion,
    },
    /// Delete a service.
    DeleteService {
        /// Its name.
        name: String,
        /// The uid precondition.
        uid: Uid,
    },
    /// Create a pod.
    CreatePod(Box<Pod>),
    /// Create a service.
    CreateService(Box<Service>),
    /// Create the job's autoscaler.
    CreateAutoscaler(Box<HorizontalPodAutoscaler>),
    /// Update the job's autoscaler. Fields that the job doesn't set stay.
    ChangeAutoscaler {
        /// The uid precondition.
        uid: Uid,
        /// The resource version precondition.
        version: u64,
        /// The desired autoscaler.
        to: Box<HorizontalPodAutoscaler>,
    },
    /// Delete the job's autoscaler.
    DeleteAutoscaler {
        /// Its name.
        name: String,
        /// The uid precondition.
        uid: Uid,
    },
    /// Look up a gang's group object that another operator created: the watch doesn't show it.
    LookUpGroup {
        /// Its kind.
        kind: GroupKind,
        /// The API version.
        version: &'static str,
    },
    /// Create a group object for the job's gang.
    CreateGroup {
        /// Its kind.
        kind: GroupKind,
        /// The API version.
        version: &'static str,
        /// The whole object.
        object: Box<serde_json::Value>,
    },
    /// Update a group. Fields that the job doesn't set stay.
    ChangeGroup {
        /// Its kind.
        kind: GroupKind,
        /// The API version.
        version: &'static str,
        /// Its name.
        name: String,
        /// Its uid.
        uid: Uid,
        /// A merge patch with its uid and resource version.
        patch: Box<serde_json::Value>,
    },
    /// Delete a group.
    DeleteGroup {
        /// Its kind.
        kind: GroupKind,
        /// The API version.
        version: &'static str,
        /// Its name.
        name: String,
        /// The uid precondition.
        uid: Uid,
    },
    /// Create another object of the job.
    CreateObject(Box<Object>),
    /// Recreate the job's Secret under the name from its status. An existing Secret stays unchanged.
    RecreateSecret(Box<Object>),
    /// Update another object. Fields that the job doesn't set stay.
    ChangeObject {
        /// Its kind.
        kind: ObjectKind,
        /// Its name.
        name: String,
        /// The subresource; `None` for the object itself.
        subresource: Option<&'static str>,
        /// A merge patch with its uid and resource version.
        patch: Box<serde_json::Value>,
    },
    /// Delete another object.
    DeleteObject {
        /// Its kind.
        kind: ObjectKind,
        /// Its name.
        name: String,
        /// The uid precondition.
        uid: Uid,
    },
    /// Delete the job itself when its TTL expires.
    DeleteJob,
}

/// What the reconcile loop asks of a step, whatever kind of object it is about.
pub trait Action {
    /// True if it creates something that a run consists of.
    fn is_create(&self) -> bool;

    /// True if it publishes counts, as a status does, and so may wait with them for more of them.
    fn batches_with_counts(&self) -> bool {
        false
    }

    /// True if it has to wait while this is refused.
    fn waits_for(&self, _blocked: Blocked) -> bool {
        false
    }
}

impl Step {
    /// Returns true if the step deletes a child of the job.
    pub fn is_delete(&self) -> bool {
        matches!(
            self,
            Self::DeletePod { .. }
                | Self::DeleteService { .. }
                | Self::DeleteAutoscaler { .. }
                | Self::DeleteGroup { .. }
                | Self::DeleteObject { .. }
        )
    }
}

impl Action for Step {
    fn is_create(&self) -> bool {
        matches!(
            self,
            Self::CreatePod(_)
                | Self::CreateService(_)
                | Self::CreateAutoscaler(_)
                | Self::CreateGroup { .. }
                | Self::CreateObject(_)
                | Self::RecreateSecret(_)
        )
    }

    fn batches_with_counts(&self) -> bool {
        let kind = ObjectKind::ConfigMap;
        matches!(self, Self::ChangeObject { kind: of, .. } if *of == kind)
    }

    fn waits_for(&self, blocked: Blocked) -> bool {
        let autoscaler = matches!(
            self,
            Self::CreateAutoscaler(_) | Self::ChangeAutoscaler { .. }
        );
        match blocked {
            Blocked::All | Blocked::Gang => {
                self.is_create() || autoscaler || matches!(self, Self::ChangeGroup { .. })
            }
            Blocked::GangChange => matches!(self, Self::ChangeGroup { .. }),
            Blocked::Autoscaler => autoscaler,
            Blocked::Change => matches!(
                self,
                Self::ChangeObject { .. }
                    | Self::DeletePod {
                        how: Deletion::ForcedAsFailed,
                        ..
                    }
            ),
        }
    }
}

/// How a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Gracefully: the object goes when the kubelet has stopped the containers.
    Graceful,
    /// Forced: the object goes at once, whatever its containers do.
    Forced,
    /// Forced, for a pod of a Job. The Job controller keeps such a pod until it has failed or succeeded, so its phase is set to
    /// Failed first.
    ForcedAsFailed,
}

/// The order of a status write and the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The write reports what the steps do: it is stored once all of them have succeeded.
    After,
    /// Only counts and what follows from them: the write may be delayed and batched.
    Batched,
    /// The write may happen in parallel with the steps.
    Parallel,
    /// The write holds a decision: it must be stored before any step.
    First,
}

/// A status to write.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite<S> {
    /// The whole new status.
    pub next: S,
    /// The merge patch from the stored status to the new one.
    pub patch: serde_json::Value,
    /// When to write it.
    pub urgency: Urgency,
}

/// A one-time change of a job, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The job was first seen.
    Created,
    /// The job succeeded.
    Succeeded,
    /// The job failed.
    Failed,
    /// A replica or the gang is recreated for this reason.
    Restarted(FailureReason),
}

/// The outcome of one reconcile's decision, for an object with this status and steps of this type.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S, T = Step> {
    /// The status to write, if it differs.
    pub status: Option<StatusWrite<S>>,
    /// The steps, deletes first.
    pub steps: Vec<T>,
    /// Events to record once the status is stored.
    pub notes: Vec<Note>,
    /// Transitions to count once the status is stored.
    pub transitions: Vec<Transition>,
    /// Pods that claim to be the object's and are not. Users are warned of each once.
    pub forged: Vec<ForgedPod>,
    /// The name of a child that the status names and no watch shows. The worker reads it before it executes the plan: a list may have been
    /// wrong, and a replacement would run beside the child.
    pub unobserved_child: Option<String>,
    /// Requeue as soon as the status is stored, because it changes what to do.
    pub requeue: bool,
    /// The latest time to requeue.
    pub requeue_at: Option<Timestamp>,
}

impl<S, T> Default for Plan<S, T> {
    fn default() -> Self {
        Self {
            status: None,
            steps: Vec::new(),
            notes: Vec::new(),
            transitions: Vec::new(),
            forged: Vec::new(),
            unobserved_child: None,
            requeue: false,
            requeue_at: None,
        }
    }
}

impl<S, T> Plan<S, T> {
    /// Returns true if there is nothing to write.
    pub fn is_idle(&self) -> bool {
        self.status.is_none() && self.steps.is_empty()
    }
}
