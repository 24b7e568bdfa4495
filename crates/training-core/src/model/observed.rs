//! What a pass sees of one job.

use crate::model::autoscaler::AutoscalerView;
use crate::model::group::{GroupKind, GroupView};
use crate::model::object::{BatchPod, ObjectKind, ObjectView, SecretView};
use crate::model::provider::Setting;
use crate::model::rules::Rules;
use crate::model::uid::Uid;
use crate::model::view::{PodView, ServiceView};

/// A snapshot of a job's children, our own unseen writes included.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The job's pods: controlled by its uid and named as we name them. At most one per name.
    pub pods: Vec<PodView>,
    /// The job's services, likewise.
    pub services: Vec<ServiceView>,
    /// The job's autoscaler, likewise.
    pub autoscaler: Option<AutoscalerView>,
    /// The cache of autoscalers has not been complete yet.
    pub autoscaler_unknown: bool,
    /// The objects that stand for its gang, likewise; one of a kind.
    pub groups: Vec<GroupView>,
    /// Kinds of groups that were looked for by the job's name, beside those that the watch shows.
    pub sought: Vec<GroupKind>,
    /// Who schedules gangs, and what is known of it.
    pub gang: Setting,
    /// The job's further objects: controlled by its uid.
    pub objects: Vec<ObjectView>,
    /// The pods that Jobs among them have made.
    pub batch_pods: Vec<BatchPod>,
    /// The job's Secret, until the status names it.
    pub secret: SecretView,
    /// Of what the status names by its uid: what was seen to go lately. A Job that had ended by then still counts as there.
    pub gone: Vec<Uid>,
    /// The last look failed, for a reason that passes.
    pub failing: bool,
    /// What kept the last pass from being carried out.
    pub stall: Option<Stall>,
    /// How the operator is set.
    pub rules: Rules,
}

impl Observed {
    /// One of the job's further objects.
    pub fn object(&self, kind: ObjectKind, name: &str) -> Option<&ObjectView> {
        self.objects
            .iter()
            .find(|o| o.kind == kind && *o.name == *name)
    }

    /// The highest attempt of all pods together that a pod carries.
    pub fn newest_gang(&self) -> u32 {
        self.pods.iter().map(|p| p.attempt.gang).max().unwrap_or(0)
    }
}

/// What keeps a job from going on, without being its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The condition's reason, from the catalogue of [`crate::model::notes`].
    pub reason: &'static str,
    /// What the API server said.
    pub message: String,
    /// Trying again can't help: the API server calls the object itself invalid.
    pub hopeless: bool,
    /// What has to wait.
    pub blocks: Blocked,
}

/// What a refusal keeps from being tried again before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Everything that the job still lacks.
    All,
    /// The same; what is refused is the object that stands for its gang.
    Gang,
    /// What of its gang's group follows the job: the group is there, and its pods are welcome.
    GangChange,
    /// The autoscaler alone: the job trains without it.
    Autoscaler,
    /// What is to change of an object that is there: the job goes on with it as it is.
    Change,
}

impl Blocked {
    /// True if pods and services have to wait as well.
    pub fn keeps_pods(self) -> bool {
        matches!(self, Self::All | Self::Gang)
    }
}
