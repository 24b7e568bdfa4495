//! Outcomes of steps: names for events, refusals for the planner, views for the index.

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Resource, ResourceExt};
use training_api::labels;
use training_core::scheduler_of_pod;
use training_core::{
    Attempt, Blocked, GroupKind, Mark, Object, PodView, ServiceView, Stall, Step, names,
};

use crate::caller::Answer;
use crate::fault::{Denial, Fault};

/// The outcome of a plan's steps.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Names of created and deleted objects, for events.
    pub done: Done,
    /// The refusal that blocks the job.
    pub refusal: Option<Refusal>,
    /// Any other failure.
    pub fault: Option<Fault>,
    /// An object was created, changed or deleted.
    pub progress: bool,
    /// An object existed already and was read, so the plan is based on an outdated state.
    pub found: bool,
    /// The job itself was deleted.
    pub job_deleted: bool,
    /// The name of the created Secret.
    pub secret: Option<String>,
    /// The name of the Secret that could not be created because the name is taken.
    pub taken: Option<String>,
}

/// Names of created and deleted objects.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Created pods.
    pub created_pods: Vec<String>,
    /// Created services.
    pub created_services: Vec<String>,
    /// Deleted pods.
    pub deleted_pods: Vec<String>,
    /// Deleted services.
    pub deleted_services: Vec<String>,
    /// Deleted pod groups.
    pub deleted_groups: Vec<String>,
}

/// A refused create.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The event reason: `FailedCreatePod` and `FailedCreateService` as published, or that of an autoscaler.
    pub event: &'static str,
    /// The event message.
    pub text: String,
    /// For the planner.
    pub stall: Stall,
    /// For the backoff.
    pub fault: Fault,
}

/// Why a step failed.
pub(super) enum StepError {
    Refused(Box<Refusal>),
    Fault(Fault),
    /// A Secret with this name exists, no matter who owns it.
    Taken(String),
    /// The object existed already, and its current state is now cached.
    Found,
}

impl Outcome {
    pub(super) fn record(&mut self, step: &Step) {
        self.progress = true;
        let done = &mut self.done;
        match step {
            Step::CreatePod(pod) => done.created_pods.push(pod.name_any()),
            Step::CreateService(service) => done.created_services.push(service.name_any()),
            Step::DeletePod { name, .. } => done.deleted_pods.push(name.clone()),
            Step::DeleteService { name, .. } => done.deleted_services.push(name.clone()),
            Step::DeleteJob => self.job_deleted = true,
            Step::CreateObject(object) => match &**object {
                Object::Secret(secret) => self.secret = Some(secret.name_any()),
                Object::Service(_) | Object::ConfigMap(_) | Object::Job(_) => {}
            },
            Step::DeleteGroup { kind, name, .. } if *kind != GroupKind::Workload => {
                done.deleted_groups.push(name.clone());
            }
            // `kubectl get` shows these; no event is published for them.
            Step::LookUpGroup { .. }
            | Step::CreateGroup { .. }
            | Step::ChangeGroup { .. }
            | Step::DeleteGroup { .. }
            | Step::CreateAutoscaler(_)
            | Step::ChangeAutoscaler { .. }
            | Step::RecreateSecret(_)
            | Step::ChangeObject { .. }
            | Step::DeleteObject { .. }
            | Step::DeleteAutoscaler { .. } => {}
        }
    }
}

impl Done {
    pub(super) fn sort(&mut self) {
        for names in [
            &mut self.created_pods,
            &mut self.created_services,
            &mut self.deleted_pods,
            &mut self.deleted_services,
            &mut self.deleted_groups,
        ] {
            names.sort_unstable();
        }
    }
}

/// Maps a refused create to its consequence for the job.
pub(super) fn refuse(fault: Fault, event: &'static str, blocks: Blocked) -> StepError {
    let (reason, permanent) = match &fault {
        Fault::Denied { what, .. } => match what {
            Denial::Quota => ("QuotaExceeded", false),
            Denial::PodSecurity => ("PodSecurityDenied", false),
            Denial::Rbac => ("Forbidden", false),
            Denial::Policy => ("AdmissionDenied", false),
            // The namespace controller deletes the job too, so there is nobody to notify.
            Denial::NamespaceTerminating => return StepError::Fault(fault),
        },
        Fault::Rejected { .. } => match blocks {
            Blocked::All => ("InvalidSpec", true),
            // The user can correct the scheduling policy.
            Blocked::Gang | Blocked::GangChange => ("GangInvalid", false),
            // The job can train without it, and the user can correct its metrics meanwhile.
            Blocked::Autoscaler => ("AutoscalerInvalid", false),
            Blocked::Change => ("ChangeRefused", false),
        },
        Fault::Conflict(_)
        | Fault::Throttled { .. }
        | Fault::Transient(_)
        | Fault::Missing { .. }
        | Fault::Deadline { .. }
        | Fault::NotLeading
        | Fault::Bug(_) => return StepError::Fault(fault),
    };
    let message = match &fault {
        Fault::Denied { message, .. } | Fault::Rejected { message, .. } => message.clone(),
        other => other.to_string(),
    };
    StepError::Refused(Box::new(Refusal {
        event,
        text: format!("Error creating: {message}"),
        stall: Stall {
            reason,
            message,
            permanent,
            blocks,
        },
        fault,
    }))
}

/// Returns the view of a pod just created, without waiting for the watch.
pub(super) fn made_pod(pod: &Pod, answer: &Answer) -> Option<PodView> {
    let (role, index) = replica(pod)?;
    let (uid, version) = answer.identity()?;
    let annotations = pod.metadata.annotations.as_ref();
    Some(PodView {
        attempt: Attempt::parse(
            annotations
                .and_then(|a| a.get(labels::ATTEMPT))
                .map(String::as_str),
        ),
        mark: Mark::of(pod),
        scheduler: scheduler_of_pod(pod),
        ..PodView::new(uid, version, role.into(), index)
    })
}

pub(super) fn made_service(service: &Service, answer: &Answer) -> Option<ServiceView> {
    let (role, index) = replica(service)?;
    let (uid, version) = answer.identity()?;
    Some(ServiceView {
        uid,
        version,
        role: role.into(),
        index,
        terminating: false,
    })
}

/// Reads role and index like the watch does: see [`crate::feed::slim::pod_view`].
fn replica(object: &impl Resource) -> Option<(&str, u32)> {
    let own = object.meta().labels.as_ref()?;
    Some(match own.get(labels::REPLICA_TYPE) {
        Some(role) => (role, own.get(labels::REPLICA_INDEX)?.parse().ok()?),
        None => (
            own.get(labels::JOB_ROLE)?,
            names::index(object.meta().name.as_deref()?)?,
        ),
    })
}
