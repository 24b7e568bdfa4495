//! What became of steps: names for the events, refusals for the core, views for the index.

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Resource, ResourceExt};
use training_api::labels;
use training_core::scheduler_of_pod;
use training_core::{
    Attempt, Blocked, GroupKind, Mark, Object, PodView, ServiceView, Stall, Step, names,
};

use crate::caller::Answer;
use crate::fault::{Denial, Fault};

/// What became of the steps of one plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Names of what was made and deleted, for the events.
    pub done: Done,
    /// What keeps the job from going on.
    pub refusal: Option<Refusal>,
    /// What went wrong otherwise.
    pub fault: Option<Fault>,
    /// Something was made, changed or deleted.
    pub progress: bool,
    /// Something was there already and was read: what the plan was made of is not all that is known now.
    pub found: bool,
    /// The job itself was deleted.
    pub job_deleted: bool,
    /// The name of a Secret that was made.
    pub secret: Option<String>,
    /// The name of a Secret that could not be made, because somebody has one of that name.
    pub taken: Option<String>,
}

/// Names of what was made and deleted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Pods made.
    pub created_pods: Vec<String>,
    /// Services made.
    pub created_services: Vec<String>,
    /// Pods deleted.
    pub deleted_pods: Vec<String>,
    /// Services deleted.
    pub deleted_services: Vec<String>,
    /// Pod groups deleted.
    pub deleted_groups: Vec<String>,
}

/// A create that was refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The reason of the failed create: `FailedCreatePod` and `FailedCreateService` as published, or that of an autoscaler.
    pub event: &'static str,
    /// Its message.
    pub text: String,
    /// For the core.
    pub stall: Stall,
    /// For the backoff.
    pub fault: Fault,
}

/// Why a step failed.
pub(super) enum Stopped {
    Refused(Box<Refusal>),
    Fault(Fault),
    /// A Secret has this name, whosesoever it is.
    Taken(String),
    /// It was made before, and is now known as it is by now.
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
            // `kubectl get` shows it; no event is published for it.
            Step::FindGroup { .. }
            | Step::CreateGroup { .. }
            | Step::ChangeGroup { .. }
            | Step::DeleteGroup { .. }
            | Step::CreateAutoscaler(_)
            | Step::ChangeAutoscaler { .. }
            | Step::RenewSecret(_)
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

/// What a refused create means for the job.
pub(super) fn refuse(fault: Fault, event: &'static str, blocks: Blocked) -> Stopped {
    let (reason, hopeless) = match &fault {
        Fault::Denied { what, .. } => match what {
            Denial::Quota => ("QuotaExceeded", false),
            Denial::PodSecurity => ("PodSecurityDenied", false),
            Denial::Rbac => ("Forbidden", false),
            Denial::Policy => ("AdmissionDenied", false),
            // The job goes with its namespace; there is nobody left to tell.
            Denial::NamespaceTerminating => return Stopped::Fault(fault),
        },
        Fault::Rejected { .. } => match blocks {
            Blocked::All => ("InvalidSpec", true),
            // What it asks of its scheduler can be corrected.
            Blocked::Gang | Blocked::GangChange => ("GangInvalid", false),
            // The job can train without it, and its metrics can be corrected while it does.
            Blocked::Autoscaler => ("AutoscalerInvalid", false),
            Blocked::Change => ("ChangeRefused", false),
        },
        Fault::Conflict(_)
        | Fault::Throttled { .. }
        | Fault::Transient(_)
        | Fault::Missing { .. }
        | Fault::Deadline { .. }
        | Fault::NotLeading
        | Fault::Bug(_) => return Stopped::Fault(fault),
    };
    let message = match &fault {
        Fault::Denied { message, .. } | Fault::Rejected { message, .. } => message.clone(),
        other => other.to_string(),
    };
    Stopped::Refused(Box::new(Refusal {
        event,
        text: format!("Error creating: {message}"),
        stall: Stall {
            reason,
            message,
            hopeless,
            blocks,
        },
        fault,
    }))
}

/// The view of a pod that was just made, without waiting for the watch.
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
        leaving: false,
    })
}

/// As the watch reads it: see [`crate::feed::slim::pod_view`].
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
