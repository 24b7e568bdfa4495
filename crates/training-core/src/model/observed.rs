//! The observed state of one job.

use crate::model::autoscaler::AutoscalerView;
use crate::model::group::{GroupKind, GroupView};
use crate::model::object::{BatchPod, ObjectKind, ObjectView, SecretView};
use crate::model::provider::Setting;
use crate::model::rules::Rules;
use crate::model::uid::Uid;
use crate::model::view::{PodView, ServiceView};

/// A snapshot of a job's children. It includes Trainyard's own writes that the watch has not delivered yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The job's pods: controlled by its uid, with the derived names. At most one per name.
    pub pods: Vec<PodView>,
    /// The job's services, likewise.
    pub services: Vec<ServiceView>,
    /// The job's autoscaler, likewise.
    pub autoscaler: Option<AutoscalerView>,
    /// The autoscaler cache has not synced yet.
    pub autoscaler_unknown: bool,
    /// The job's group objects, likewise; at most one per kind.
    pub groups: Vec<GroupView>,
    /// Kinds of groups that were looked up by the job's name, because the watch may not show them.
    pub sought: Vec<GroupKind>,
    /// The gang scheduler, and what the cluster serves of it.
    pub gang: Setting,
    /// The job's other objects, controlled by its uid.
    pub objects: Vec<ObjectView>,
    /// The pods of Jobs among them.
    pub batch_pods: Vec<BatchPod>,
    /// The pods that name such a Job as their owner although its controller didn't create them. They decide nothing.
    pub forged_pods: Vec<BatchPod>,
    /// The job's Secret, until the status names it.
    pub secret: SecretView,
    /// Uids from the status whose objects were recently seen being deleted. A Job that had already ended is not among them.
    pub gone: Vec<Uid>,
    /// The last reconcile failed with a transient error.
    pub failing: bool,
    /// Why the last plan could not be executed.
    pub stall: Option<Stall>,
    /// The operator's settings.
    pub rules: Rules,
}

impl Observed {
    /// Returns one of the job's other objects.
    pub fn object(&self, kind: ObjectKind, name: &str) -> Option<&ObjectView> {
        self.objects
            .iter()
            .find(|o| o.kind == kind && *o.name == *name)
    }

    /// Returns the highest gang attempt of the job's pods.
    pub fn newest_gang(&self) -> u32 {
        self.pods.iter().map(|p| p.attempt.gang).max().unwrap_or(0)
    }
}

/// A problem that stalls a job without ending it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The reason of the condition, from the catalogue of [`crate::model::notes`].
    pub reason: &'static str,
    /// The API server's message.
    pub message: String,
    /// A retry can't help: the API server considers the object itself invalid.
    pub permanent: bool,
    /// What has to wait.
    pub blocks: Blocked,
}

/// What has to back off after a rejected request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Everything that the job still lacks.
    All,
    /// The same, because the gang's group object was rejected.
    Gang,
    /// The update of the gang's group. The group exists, so pods may be created.
    GangChange,
    /// Only the autoscaler: the job trains without it.
    Autoscaler,
    /// The update of an existing object: the job continues with it unchanged.
    Change,
}

impl Blocked {
    /// Returns true if pods and services have to wait too.
    pub fn blocks_pods(self) -> bool {
        matches!(self, Self::All | Self::Gang)
    }
}
