//! The plug: what a framework tells the core about itself.

use std::cell::OnceCell;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use training_api::{JobStatus, ReplicaSpecs, RunPolicy, labels};

use crate::kind::env::{EnvOn, EnvSet};
use crate::kind::replicas::Replicas;
use crate::model::autoscaler::Autoscaling;
use crate::model::census::Census;
use crate::model::digest::Digest;
use crate::model::error::SpecError;
use crate::model::grants::Grant;
use crate::model::memory::{JobState, Memory};
use crate::model::notes::Note;
use crate::model::object::{FreshSecret, ObjectKind};
use crate::model::roles::{Rank, RoleSet};
use crate::model::verdict::{self, Saying, Verdict};

/// A custom resource that an operator keeps in memory, as it is stored.
pub trait Stored:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The kind's status.
    type Status;
    /// Replaces the status in memory after it was written.
    fn set_status(&mut self, status: Self::Status);
    /// It has ended for good: hardly anything will ask for it again.
    fn has_ended(&self) -> bool;
    /// Drops what is no longer needed of one that has ended.
    fn shrink(&mut self);
}

/// A custom resource that the core can plan for. What one that has ended no longer needs are its pod templates.
pub trait TrainingJob: Stored<Status: JobState> {
    /// The run policy, as stored.
    fn run_policy(&self) -> &RunPolicy;
    /// The status, as stored.
    fn status(&self) -> Option<&Self::Status>;
    /// The replica specs, as stored.
    fn replica_specs(&self) -> &ReplicaSpecs;
}

/// Implements [`Stored`] and [`TrainingJob`] for a kind whose spec has a `run_policy` and this field of replica specs, and whose status is
/// [`JobStatus`]. What a finished job can drop beside its templates follows as a function.
#[macro_export]
macro_rules! training_job {
    ($job:ident, $replicas:ident) => {
        $crate::training_job!($job, $replicas, |_: &mut $job| ());
    };
    ($job:ident, $replicas:ident, $drop:expr) => {
        impl $crate::Stored for $job {
            type Status = training_api::JobStatus;

            fn set_status(&mut self, status: training_api::JobStatus) {
                self.status = Some(status);
            }

            fn has_ended(&self) -> bool {
                let status = self.status.as_ref();
                status.is_some_and(|s| $crate::JobState::recall(s).is_finished())
            }

            fn shrink(&mut self) {
                for replica in self.spec.$replicas.values_mut() {
                    replica.template = None;
                }
                ($drop)(self);
            }
        }

        impl $crate::TrainingJob for $job {
            fn run_policy(&self) -> &training_api::RunPolicy {
                &self.spec.run_policy
            }

            fn status(&self) -> Option<&training_api::JobStatus> {
                self.status.as_ref()
            }

            fn replica_specs(&self) -> &training_api::ReplicaSpecs {
                &self.spec.$replicas
            }
        }
    };
}

/// What the published operators of a kind do differently about gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habits {
    /// Pods wait for Volcano's word; a template's own scheduler is kept; a group's queue is set once.
    Training,
    /// Pods don't wait; every pod gets the gang's scheduler; the queue follows the job, whose annotation names one where its
    /// policy doesn't; the class may be that of a template.
    Mpi,
}

/// What is peculiar to one kind of job. Everything is synchronous and borrowed.
pub trait Framework: Send + Sync + 'static {
    /// The custom resource.
    type Job: TrainingJob<Status = JobStatus>;
    /// Name of the binary, its image, Deployment and lease, and the name under which it writes, e.g. `pytorch-operator`.
    const OPERATOR: &'static str;
    /// The published metric label `framework`, e.g. `pytorch`.
    const NAME: &'static str;
    /// The published controller name, e.g. `pytorchjob-controller`: label value, event source, and what the pod watch selects.
    const CONTROLLER: &'static str;
    /// The replica specs of the kind.
    const REPLICAS: Replicas;
    /// Name of the main container: its port is the rendezvous, its exit code counts.
    const CONTAINER: &'static str = Self::REPLICAS.container;
    /// Which containers receive the environment.
    const ENV_ON: EnvOn;
    /// `replicaStatuses` carry the label selector of their pods, for the scale subresource.
    const SELECTORS: bool;

    /// What events name as their source. Source: as published, where that is not the controller's name.
    const EVENT_SOURCE: &'static str = Self::CONTROLLER;
    /// Further values of the label by which pods are watched, beside the controller's name.
    const ALSO_WATCHED: &'static [&'static str] = &[];
    /// The values of `spec.runPolicy.managedBy` that mean this operator.
    const MANAGED_BY: &'static [&'static str] = &[labels::MANAGED_BY_TRAINING_OPERATOR];
    /// Every replica has a Service of its own.
    const REPLICA_SERVICES: bool = true;
    /// The kinds of further objects that a job has, each of which is watched.
    const OBJECTS: &'static [ObjectKind] = &[];
    /// What a fresh Secret of a job holds, where a job has one. It may take milliseconds: it is called where nobody waits for it.
    const FRESH_SECRET: Option<FreshSecret> = None;
    /// The published reason of the event about a spec that can't run, and how its message begins.
    const INVALID: (&'static str, &'static str) = ("InvalidSpec", "");
    /// How the names of metrics begin that the published operator has beside those of all kinds, and what its jobs' launchers are
    /// called behind the job's name.
    const OWN_METRICS: Option<(&'static str, &'static str)> = None;
    /// Jobs of this kind can have an autoscaler.
    const AUTOSCALES: bool = false;
    /// An ended job has the condition Running, False, also if nobody saw it run.
    const ALWAYS_RAN: bool = false;

    /// The roles in global rank order, defaults applied in memory.
    ///
    /// # Errors
    /// The first field that makes the job impossible to run; the job then fails for good.
    fn roles<'a>(&self, job: &'a Self::Job) -> Result<RoleSet<'a>, SpecError>;

    /// The variables of one replica.
    ///
    /// # Errors
    /// As [`Framework::roles`].
    fn env(&self, cx: &JobCx<'_, Self::Job>, me: Rank<'_>) -> Result<EnvSet, SpecError>;

    /// What the pods say about the job's end.
    fn judge(&self, cx: &JobCx<'_, Self::Job>, census: &Census<'_>) -> Verdict;

    /// Whether a role's pods may be made now.
    fn may_start(&self, _cx: &JobCx<'_, Self::Job>, _role: &str, _census: &Census<'_>) -> bool {
        true
    }

    /// Pods of the job may go on for ever after it has succeeded, so that users are told where the clean-up policy keeps them.
    fn outlives(&self, _cx: &JobCx<'_, Self::Job>) -> bool {
        false
    }

    /// The fewest replicas with which an elastic job trains; `None` for one that needs all of them.
    fn fewest_replicas(&self, _cx: &JobCx<'_, Self::Job>) -> Option<u32> {
        None
    }

    /// Why nothing that the job's pods do can end it, as it is written now. Said for as long as it is so.
    fn endless(&self, _cx: &JobCx<'_, Self::Job>) -> Option<String> {
        None
    }

    /// The last touch on a pod, which has the kind's port already: init containers, volumes.
    ///
    /// # Errors
    /// As [`Framework::roles`].
    fn shape(
        &self,
        _cx: &JobCx<'_, Self::Job>,
        _me: Rank<'_>,
        _pod: &mut PodTemplateSpec,
    ) -> Result<(), SpecError> {
        Ok(())
    }

    /// What users should be told once, when the job is first seen: settings without effect, odd but runnable values.
    fn advise(&self, _cx: &JobCx<'_, Self::Job>) -> Vec<Note> {
        Vec::new()
    }

    /// The published message for a state of the job.
    fn say(&self, cx: &JobCx<'_, Self::Job>, what: &Saying<'_>) -> String {
        verdict::say_short(Self::Job::kind(&()).as_ref(), cx.name, what)
    }

    /// The autoscaler that a job asks for. Only where [`Framework::AUTOSCALES`].
    fn autoscaling<'a>(&self, _cx: &JobCx<'a, Self::Job>) -> Option<Autoscaling<'a>> {
        None
    }

    /// What a status means that another operator of this kind has written, where that is not what it says.
    fn reread(&self, _memory: &mut Memory) {}

    /// What every pod is told of the job's spec beside its template, as names of fields with digests: running pods can't follow
    /// when it changes. `replicas` is the name for their number.
    fn rendezvous(&self, _cx: &JobCx<'_, Self::Job>) -> Vec<(&'static str, Digest)> {
        Vec::new()
    }

    /// What the published operator of this job does differently about gangs.
    fn gang_habits(&self, _cx: &JobCx<'_, Self::Job>) -> Habits {
        Habits::Training
    }

    /// Rights beyond those that every operator needs.
    fn grants(&self) -> &'static [Grant] {
        &[]
    }
}

/// One job in one pass.
#[derive(Debug)]
pub struct JobCx<'a, J> {
    once: OnceCell<String>,
    /// The job.
    pub job: &'a J,
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its roles.
    pub roles: &'a RoleSet<'a>,
}

impl<'a, J: TrainingJob> JobCx<'a, J> {
    /// The context of a job with its roles.
    pub fn new(job: &'a J, roles: &'a RoleSet<'a>) -> Self {
        Self {
            job,
            name: job.meta().name.as_deref().unwrap_or_default(),
            namespace: job.meta().namespace.as_deref().unwrap_or_default(),
            roles,
            once: OnceCell::new(),
        }
    }

    /// The part of the environment that all replicas are told alike. It is made once per pass, not once per pod.
    pub fn once(&self, make: impl FnOnce() -> String) -> &str {
        self.once.get_or_init(make)
    }

    /// The value of an annotation of the job.
    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        self.job.annotations().get(key).map(String::as_str)
    }
}
