//! The extension point: how a framework describes its kind of job.

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
use crate::model::durable_state::{DurableState, JobState};
use crate::model::error::SpecError;
use crate::model::grants::Grant;
use crate::model::notes::Note;
use crate::model::object::{ObjectKind, SecretGenerator};
use crate::model::phase::{Phase, Progress};
use crate::model::restart::RestartScope;
use crate::model::roles::{Rank, RoleSet, RoleSpec};
use crate::model::verdict::{self, JobMessage, Verdict};

/// A custom resource that the operator caches as stored.
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
    /// The status, as stored.
    fn status(&self) -> Option<&Self::Status>;
    /// Reads the progress of an object from its status.
    fn progress(status: &Self::Status) -> Progress;
    /// The phase.
    fn phase(&self) -> Phase {
        let progress = self.status().map(Self::progress);
        progress.unwrap_or_default().phase
    }
    /// Replaces the cached status after a write.
    fn set_status(&mut self, status: Self::Status);
    /// Returns true if the object has ended for good, so that it will hardly be used again.
    fn has_ended(&self) -> bool;
    /// Drops what an ended object no longer needs.
    fn shrink(&mut self);
}

/// A custom resource that the core can plan for. Once ended, it no longer needs its pod templates.
pub trait TrainingJob: Stored<Status: JobState> {
    /// The run policy, as stored.
    fn run_policy(&self) -> &RunPolicy;
    /// The replica specs, as stored.
    fn replica_specs(&self) -> &ReplicaSpecs;
    /// Reinterprets a status that another operator of this kind wrote, where its meaning differs.
    fn reread(_state: &mut DurableState) {}
}

/// Implements [`Stored`] and [`TrainingJob`] for a kind whose spec has a `run_policy` and the given field of replica specs, and
/// whose status is [`JobStatus`]. Optional functions: one drops what else a finished job no longer needs, one implements
/// [`TrainingJob::reread`].
#[macro_export]
macro_rules! training_job {
    ($job:ident, $replicas:ident) => {
        $crate::training_job!($job, $replicas, |_: &mut $job| ());
    };
    ($job:ident, $replicas:ident, $drop:expr) => {
        $crate::training_job!($job, $replicas, $drop, |_: &mut $crate::DurableState| ());
    };
    ($job:ident, $replicas:ident, $drop:expr, $reread:expr) => {
        impl $crate::Stored for $job {
            type Status = training_api::JobStatus;

            fn status(&self) -> Option<&training_api::JobStatus> {
                self.status.as_ref()
            }

            fn progress(status: &training_api::JobStatus) -> $crate::Progress {
                $crate::Progress::of_job(status)
            }

            fn set_status(&mut self, status: training_api::JobStatus) {
                self.status = Some(status);
            }

            fn has_ended(&self) -> bool {
                self.status.as_ref().is_some_and(|status| {
                    let mut state = $crate::JobState::durable_state(status);
                    <Self as $crate::TrainingJob>::reread(&mut state);
                    state.is_finished()
                })
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

            fn replica_specs(&self) -> &training_api::ReplicaSpecs {
                &self.spec.$replicas
            }

            fn reread(state: &mut $crate::DurableState) {
                ($reread)(state);
            }
        }
    };
}

/// How the published operator of a kind handles gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangConventions {
    /// Pods wait for Volcano to admit the group. A template's own scheduler is kept. The group's queue is set once.
    Training,
    /// Pods don't wait. Every pod gets the gang's scheduler. The queue follows the job, which may name one in an annotation instead
    /// of the policy. The priority class may come from a template.
    Mpi,
}

/// What is specific to one kind of job. All methods are synchronous and borrow their input.
pub trait Framework: Send + Sync + 'static {
    /// The custom resource.
    type Job: TrainingJob<Status = JobStatus>;
    /// The name of the binary, its image, Deployment, lease and field manager, e.g. `pytorch-operator`.
    const OPERATOR: &'static str;
    /// The published metric label `framework`, e.g. `pytorch`.
    const NAME: &'static str;
    /// The published controller name, e.g. `pytorchjob-controller`: label value, event source, and selector of the pod watch.
    const CONTROLLER: &'static str;
    /// The replica specs of the kind.
    const REPLICAS: Replicas;
    /// The name of the main container: its port is the rendezvous, its exit code counts.
    const CONTAINER: &'static str = Self::REPLICAS.container;
    /// Which containers receive the environment.
    const ENV_ON: EnvOn;
    /// Whether `replicaStatuses` have the label selector of their pods, for the scale subresource.
    const SELECTORS: bool;

    /// The event source. Source: as published, where it is not the controller's name.
    const EVENT_SOURCE: &'static str = Self::CONTROLLER;
    /// Other values of the label by which pods are watched, besides the controller's name.
    const ALSO_WATCHED: &'static [&'static str] = &[];
    /// The values of `spec.runPolicy.managedBy` that select this operator.
    const MANAGED_BY: &'static [&'static str] = &[labels::MANAGED_BY_TRAINING_OPERATOR];
    /// Whether every replica has its own Service.
    const REPLICA_SERVICES: bool = true;
    /// The kinds of a job's other objects. Each of them is watched.
    const OBJECTS: &'static [ObjectKind] = &[];
    /// Generates the data of a job's Secret, if its kind has one. It may take milliseconds, so it is called where nothing waits for
    /// it.
    const SECRET_GENERATOR: Option<SecretGenerator> = None;
    /// The published reason of the event for an invalid spec, and the prefix of its message.
    const INVALID: (&'static str, &'static str) = ("InvalidSpec", "");
    /// The prefix of the published operator's kind-specific metrics, and the suffix of its launchers' names after the job's name.
    const OWN_METRICS: Option<(&'static str, &'static str)> = None;
    /// Whether jobs of this kind can have an autoscaler.
    const AUTOSCALES: bool = false;
    /// Whether an ended job gets condition Running, False, even if it was never observed running.
    const ALWAYS_RAN: bool = false;

    /// Returns the roles in global rank order, with defaults applied in memory.
    ///
    /// # Errors
    /// The error names the first field that makes the job impossible to run. The job then fails for good.
    fn roles<'a>(&self, job: &'a Self::Job) -> Result<RoleSet<'a>, SpecError>;

    /// Returns the environment of one replica.
    ///
    /// # Errors
    /// As [`Framework::roles`].
    fn env(&self, cx: &JobCx<'_, Self::Job>, me: Rank<'_>) -> Result<EnvSet, SpecError>;

    /// Returns the verdict of the job's pods.
    fn judge(&self, cx: &JobCx<'_, Self::Job>, census: &Census<'_>) -> Verdict;

    /// Returns true if a role's pods may be created now.
    fn may_start(&self, _cx: &JobCx<'_, Self::Job>, _role: &str, _census: &Census<'_>) -> bool {
        true
    }

    /// Returns true if pods may run on forever after the job succeeded. Users get a warning if the clean-up policy keeps those
    /// pods.
    fn may_outlive_success(&self, _cx: &JobCx<'_, Self::Job>) -> bool {
        false
    }

    /// Returns the minimum number of replicas with which an elastic job trains; `None` for a job that needs all of them.
    fn min_replicas(&self, _cx: &JobCx<'_, Self::Job>) -> Option<u32> {
        None
    }

    /// Explains why no state of the job's pods can end it, as its spec stands. The job reports this while it is the case.
    fn why_endless(&self, _cx: &JobCx<'_, Self::Job>) -> Option<String> {
        None
    }

    /// Makes the last changes to a pod, after the kind's port was added: init containers, volumes.
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

    /// Returns the events to record once, at the first reconcile: settings without effect, odd but valid values.
    fn advise(&self, _cx: &JobCx<'_, Self::Job>) -> Vec<Note> {
        Vec::new()
    }

    /// Returns the published reason and text of the event about a `restartPolicy` in the template of a role. `None` if that role has
    /// no such event.
    fn ignored_restart_policy(
        &self,
        _cx: &JobCx<'_, Self::Job>,
        _role: &RoleSpec<'_>,
    ) -> Option<(&'static str, &'static str)> {
        Some((
            "SetPodTemplateRestartPolicy",
            "Restart policy in pod template will be overwritten by restart policy in replica spec",
        ))
    }

    /// Returns the published message for a state of the job.
    fn message(&self, cx: &JobCx<'_, Self::Job>, what: &JobMessage<'_>) -> String {
        verdict::short_message(Self::Job::kind(&()).as_ref(), cx.name, what)
    }

    /// Returns the autoscaler that a job asks for. Only for kinds with [`Framework::AUTOSCALES`].
    fn autoscaling<'a>(&self, _cx: &JobCx<'a, Self::Job>) -> Option<Autoscaling<'a>> {
        None
    }

    /// Returns the parts of the spec, other than the templates, that every pod gets: field names with digests. Running pods can't
    /// follow changes of these. `replicas` stands for the number of replicas.
    fn rendezvous(&self, _cx: &JobCx<'_, Self::Job>) -> Vec<(&'static str, Digest)> {
        Vec::new()
    }

    /// Returns how the published operator of this job handles gangs.
    fn gang_conventions(&self, _cx: &JobCx<'_, Self::Job>) -> GangConventions {
        GangConventions::Training
    }

    /// Returns RBAC rules beyond those that every operator needs.
    fn grants(&self) -> &'static [Grant] {
        &[]
    }
}

/// One job in one reconcile.
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
    /// Returns the context of a job with its roles.
    pub fn new(job: &'a J, roles: &'a RoleSet<'a>) -> Self {
        Self {
            job,
            name: job.meta().name.as_deref().unwrap_or_default(),
            namespace: job.meta().namespace.as_deref().unwrap_or_default(),
            roles,
            once: OnceCell::new(),
        }
    }

    /// Returns the part of the environment that is the same for all replicas. It is computed once per reconcile, not once per pod.
    pub fn once(&self, make: impl FnOnce() -> String) -> &str {
        self.once.get_or_init(make)
    }

    /// Returns what restarts when a replica fails.
    pub fn restart_scope(&self) -> RestartScope {
        match self.annotation(labels::RESTART_SCOPE) {
            Some("Gang") => RestartScope::Gang,
            Some(_) | None => RestartScope::Replica,
        }
    }

    /// Returns an annotation of the job.
    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        self.job.annotations().get(key).map(String::as_str)
    }
}
