//! What a pass decides to do, as data.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::jiff::Timestamp;

use crate::model::group::GroupKind;
use crate::model::notes::Note;
use crate::model::object::{Object, ObjectKind};
use crate::model::observed::Blocked;
use crate::model::uid::Uid;

/// One change to the world.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Delete a pod.
    DeletePod {
        /// Its name.
        name: String,
        /// The precondition.
        uid: Uid,
        /// Whether its kubelet is waited for.
        how: Deletion,
    },
    /// Delete a service.
    DeleteService {
        /// Its name.
        name: String,
        /// The precondition.
        uid: Uid,
    },
    /// Create a pod.
    CreatePod(Box<Pod>),
    /// Create a service.
    CreateService(Box<Service>),
    /// Create the job's autoscaler.
    CreateAutoscaler(Box<HorizontalPodAutoscaler>),
    /// Make the job's autoscaler what it should be; what it holds beyond that stays.
    ChangeAutoscaler {
        /// The precondition: which one,
        uid: Uid,
        /// and which version of it.
        version: u64,
        /// What it should be.
        to: Box<HorizontalPodAutoscaler>,
    },
    /// Delete the job's autoscaler.
    DeleteAutoscaler {
        /// Its name.
        name: String,
        /// The precondition.
        uid: Uid,
    },
    /// Look for an object that another operator made to stand for the job's gang: the watch doesn't show it.
    FindGroup {
        /// Its kind.
        kind: GroupKind,
        /// The version of the API.
        version: &'static str,
    },
    /// Create an object that stands for the job's gang.
    CreateGroup {
        /// Its kind,
        kind: GroupKind,
        /// and in which version of the API it is written.
        version: &'static str,
        /// All of it.
        object: Box<serde_json::Value>,
    },
    /// Make such an object what it should be; what it holds beyond that stays.
    ChangeGroup {
        /// Its kind.
        kind: GroupKind,
        /// The version of the API.
        version: &'static str,
        /// Its name.
        name: String,
        /// Which one it is.
        uid: Uid,
        /// A merge patch that names its uid and version.
        patch: Box<serde_json::Value>,
    },
    /// Delete such an object.
    DeleteGroup {
        /// Its kind.
        kind: GroupKind,
        /// The version of the API.
        version: &'static str,
        /// Its name.
        name: String,
        /// The precondition.
        uid: Uid,
    },
    /// Create a further object of the job.
    CreateObject(Box<Object>),
    /// Create the job's Secret again, under the name that its status has; one that is there stays as it is.
    RenewSecret(Box<Object>),
    /// Make such an object what it should be; what it holds beyond that stays.
    ChangeObject {
        /// Its kind.
        kind: ObjectKind,
        /// Its name.
        name: String,
        /// Which part of it: none for the object itself.
        subresource: Option<&'static str>,
        /// A merge patch that names its uid and version.
        patch: Box<serde_json::Value>,
    },
    /// Delete such an object.
    DeleteObject {
        /// Its kind.
        kind: ObjectKind,
        /// Its name.
        name: String,
        /// The precondition.
        uid: Uid,
    },
    /// Delete the job itself at the end of its time to live.
    DeleteJob,
}

impl Step {
    /// True if the step makes something.
    pub fn is_create(&self) -> bool {
        matches!(
            self,
            Self::CreatePod(_)
                | Self::CreateService(_)
                | Self::CreateAutoscaler(_)
                | Self::CreateGroup { .. }
                | Self::CreateObject(_)
                | Self::RenewSecret(_)
        )
    }

    /// True if the step deletes something of the job's.
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

    /// True if the step tells no more than counts do, which pods run, and so may wait with them for more of them.
    pub fn goes_with_counts(&self) -> bool {
        let kind = ObjectKind::ConfigMap;
        matches!(self, Self::ChangeObject { kind: of, .. } if *of == kind)
    }

    /// True if the step has to wait while this is refused.
    pub fn waits_for(&self, blocked: Blocked) -> bool {
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
    /// Its containers may end first; the object is gone when its kubelet says so.
    Orderly,
    /// The object goes at once, whatever its containers do.
    Forced,
    /// The same of a pod that a Job made. The controller of Jobs holds such a pod until it has failed or succeeded, so it is told
    /// first that it has failed.
    ForcedAsFailed,
}

/// How a status write relates to the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nothing but counts and what follows from them: it may wait for more of them.
    CanWait,
    /// It may go beside the steps.
    Beside,
    /// It holds a decision: it is stored before any step.
    First,
}

/// A status to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite<S> {
    /// The whole status as it will be.
    pub next: S,
    /// The merge patch that turns the stored status into it.
    pub patch: serde_json::Value,
    /// When it goes.
    pub urgency: Urgency,
}

/// Something that happened once, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The job was first seen.
    Created,
    /// It ended well.
    Succeeded,
    /// It ended badly.
    Failed,
    /// A replica, or the gang, is made again.
    Restarted,
}

/// The outcome of a pass's decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S> {
    /// The status to write, if it differs.
    pub status: Option<StatusWrite<S>>,
    /// What to do, deletes first.
    pub steps: Vec<Step>,
    /// What to tell, once the status is stored.
    pub notes: Vec<Note>,
    /// What to count, once the status is stored.
    pub transitions: Vec<Transition>,
    /// Look again as soon as the status is stored: it changes what is to be done.
    pub again: bool,
    /// When to look again at the latest.
    pub wake: Option<Timestamp>,
}

impl<S> Default for Plan<S> {
    fn default() -> Self {
        Self {
            status: None,
            steps: Vec::new(),
            notes: Vec::new(),
            transitions: Vec::new(),
            again: false,
            wake: None,
        }
    }
}

impl<S> Plan<S> {
    /// True if there is nothing to write.
    pub fn is_idle(&self) -> bool {
        self.status.is_none() && self.steps.is_empty()
    }
}
