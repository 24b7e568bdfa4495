//! Executes the steps of kinds with replicas as API calls.

mod autoscaler;
mod concurrent;
mod group;
mod object;
mod outcome;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::DeleteParams;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use training_api::labels;
use training_core::object::SecretGenerator;
use training_core::{
    AutoscalerView, BatchPod, Blocked, Deletion, Framework, ObjectKind, PodView, ServiceView,
    Stall, Step, Uid, names,
};

use crate::caller::{Answer, Caller, Deleted, Response};
use crate::fault::{Denial, Fault};
use crate::feed::child::{Child, Replica};
use crate::feed::group::Groups;
use crate::feed::index::{CREATE_EXPECTATION_TTL, Index};
use crate::feed::object::Objects;
use crate::feed::slim::{
    Owned, OwnerKind, Roles, SlimPod, SlimService, controller, pod_view, service_view,
};
use crate::key::JobKey;
use crate::requests::{ChildRequests, CreateError};

pub use concurrent::{WINDOW, run_steps};
pub use outcome::{Done, Outcome, Refusal};
use outcome::{StepError, made_pod, made_service, refuse};

/// Transient faults in a row that stop the remaining steps: one fault in a hundred must not stop a job of a thousand pods.
const FAULTS: usize = 3;

/// The shortest time between two rounds of reads of unwatched children.
const CONFIRM_PAUSE: Duration = Duration::from_secs(1);

/// Executes steps as API calls.
pub struct Executor {
    /// Sends the requests.
    pub caller: Arc<Caller>,
    owner_kind: OwnerKind,
    children: Children,
    fresh_secret: Option<SecretGenerator>,
}

/// The cached children of the jobs.
#[derive(Clone, Debug, Default)]
pub struct Children {
    /// Their pods.
    pub pods: Arc<Index<PodView>>,
    /// Their services.
    pub services: Arc<Index<ServiceView>>,
    /// Their `HorizontalPodAutoscaler`s.
    pub autoscalers: Arc<Index<AutoscalerView>>,
    /// Their gangs' group objects.
    pub groups: Arc<Groups>,
    /// Their other objects.
    pub objects: Arc<Objects>,
    /// The pods of their batch Jobs, and their own pods that are no replicas.
    pub batch_pods: Arc<Index<BatchPod>>,
}

impl Children {
    /// Returns the owners in `batch_pods` of a job's pods: the job itself, and its batch Jobs that exist or that its status names.
    pub fn batches(&self, owner: Uid, named: &[Uid]) -> Vec<Uid> {
        let jobs = self.objects.of_kind(ObjectKind::Job).of(owner);
        let jobs = jobs.into_iter().map(|job| job.uid);
        let mut batches: Vec<Uid> = jobs.chain([owner]).chain(named.iter().copied()).collect();
        batches.sort_unstable();
        batches.dedup();
        batches
    }

    /// Returns the owner of a pod among [`Self::batches`]; `None` if the pod is a replica, or gone.
    pub fn batch_of(&self, owner: Uid, pod: Uid) -> Option<Uid> {
        if self.pods.has(owner, pod) {
            return None;
        }
        let mut batches = self.batches(owner, &[]).into_iter();
        batches.find(|batch| self.batch_pods.has(*batch, pod))
    }

    /// Returns true if a pod of the job is cached, whether a replica or not.
    pub fn has_pod(&self, owner: Uid, pod: Uid) -> bool {
        self.pods.has(owner, pod) || self.batch_of(owner, pod).is_some()
    }
}

impl Executor {
    /// Creates an executor for one kind of job.
    pub fn new<F: Framework>(
        caller: Arc<Caller>,
        owner_kind: OwnerKind,
        children: Children,
    ) -> Self {
        Self {
            caller,
            owner_kind,
            children,
            fresh_secret: F::SECRET_GENERATOR,
        }
    }

    /// Returns the cached children of the jobs.
    pub fn children(&self) -> &Children {
        &self.children
    }

    /// Executes steps in order, several at a time; if `cautious`, the first one alone. A refusal, several isolated faults in a row, or
    /// one fault of another sort stops the steps not yet begun. A delete that fails only for its own object stops none.
    pub async fn execute<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        steps: &[Step],
        cautious: bool,
    ) -> Outcome {
        let mut faults = Faults::default();
        let results = run_steps(
            steps.len(),
            if cautious { 1 } else { WINDOW },
            |at| self.step(job, &steps[at]),
            |at, result| faults.count(&steps[at], result),
        )
        .await;
        let mut outcome = Outcome::default();
        for (at, result) in results {
            match result {
                Ok(()) => outcome.record(&steps[at]),
                Err(StepError::Found) => {
                    outcome.record(&steps[at]);
                    outcome.found = true;
                }
                // A refusal that blocks pods says more than one that blocks an autoscaler.
                Err(StepError::Refused(refusal))
                    if outcome.refusal.is_none() || refusal.stall.blocks.blocks_pods() =>
                {
                    outcome.refusal = Some(*refusal);
                }
                Err(StepError::Refused(_)) => {}
                Err(StepError::Taken(name)) => outcome.taken = Some(name),
                Err(StepError::Fault(fault)) => outcome.fault = Some(fault),
            }
        }
        outcome.done.sort();
        outcome
    }

    /// Returns the latest time to read the job's created children that no watch has shown.
    pub fn next_confirmation(&self, owner: Uid) -> Option<Instant> {
        let Children { pods, services, .. } = &self.children;
        let (pods, services) = (
            pods.expected_creates(owner),
            services.expected_creates(owner),
        );
        let since = pods.into_iter().map(|(_, since)| since);
        let first = since
            .chain(services.into_iter().map(|(_, since)| since))
            .min()?;
        Some((first + CREATE_EXPECTATION_TTL).max(Instant::now() + CONFIRM_PAUSE))
    }

    /// Reads the job's children that were created a while ago and that no watch has shown: a webhook may have removed their labels, or
    /// someone may have deleted them first. Forgets those that do not exist or that the watch does not select.
    ///
    /// # Errors
    /// If a read fails.
    pub async fn confirm<J: Resource<DynamicType = ()>>(&self, job: &J) -> Result<(), Fault> {
        let Children { pods, services, .. } = &self.children;
        let namespace = job.meta().namespace.as_deref();
        let of_pod = |seen: &SlimPod| {
            let ours = self.owner_kind.watches(&seen.metadata);
            let view = ours.then(|| pod_view(seen, self.owner_kind, &mut Roles::default()));
            view.flatten()
        };
        let of_service = |seen: &SlimService| {
            let ours = self.owner_kind.watches(&seen.metadata);
            let view = ours.then(|| service_view(seen, self.owner_kind, &mut Roles::default()));
            view.flatten()
        };
        let (pod, service) = (
            Pod::url_path(&(), namespace),
            Service::url_path(&(), namespace),
        );
        self.confirm_in(job, pods, &pod, of_pod).await?;
        self.confirm_in(job, services, &service, of_service).await
    }

    async fn confirm_in<J, V, T>(
        &self,
        job: &J,
        index: &Index<V>,
        url: &str,
        read: impl Fn(&T) -> Option<Owned<V>>,
    ) -> Result<(), Fault>
    where
        J: Resource<DynamicType = ()>,
        V: Replica,
        T: DeserializeOwned,
    {
        let (owner, now) = (uid(job), Instant::now());
        let mut overdue = index.expected_creates(owner);
        overdue.retain(|(_, since)| *since + CREATE_EXPECTATION_TTL <= now);
        for (view, _) in overdue.into_iter().take(WINDOW) {
            let (role, at) = view.replica();
            let name = names::replica(&job.name_any(), role, at);
            let there: Option<T> = self.caller.find(url, &name).await?;
            let ours = there.as_ref().and_then(&read);
            match ours.filter(|o| o.owner == owner && o.view.uid() == view.uid()) {
                Some(seen) => {
                    index.found(seen);
                }
                None => {
                    index.deleted(&Self::owned(job, view), now);
                }
            }
        }
        Ok(())
    }

    async fn step<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        step: &Step,
    ) -> Result<(), StepError> {
        let Children {
            pods,
            services,
            autoscalers,
            groups: _,
            objects: _,
            batch_pods: _,
        } = &self.children;
        match step {
            Step::DeletePod { name, uid, how } => self.delete_pod(job, (name, *uid), *how).await,
            Step::DeleteService { name, uid } => {
                let requests = self.requests::<Service, _>(job, services);
                deleted(requests.delete(name, *uid, DeleteParams::default()).await)
            }
            Step::DeleteAutoscaler { name, uid } => {
                let requests = self.requests::<HorizontalPodAutoscaler, _>(job, autoscalers);
                deleted(requests.delete(name, *uid, DeleteParams::default()).await)
            }
            Step::CreateAutoscaler(wanted) => self.create_autoscaler(job, wanted).await,
            Step::ChangeAutoscaler { uid, version, to } => {
                self.change_autoscaler(job, *uid, *version, to).await
            }
            Step::LookUpGroup { kind, version } => self.find_group(job, (*kind, version)).await,
            Step::CreateGroup {
                kind,
                version,
                object,
            } => self.create_group(job, (*kind, version), object).await,
            Step::ChangeGroup {
                kind,
                version,
                name,
                uid: _,
                patch,
            } => self.change_group(job, (*kind, version), name, patch).await,
            Step::DeleteGroup {
                kind,
                version,
                name,
                uid,
            } => self.delete_group(job, (*kind, version), name, *uid).await,
            Step::CreateObject(object) => self.create_object(job, object).await,
            Step::RecreateSecret(object) => self.renew_secret(job, object).await,
            Step::ChangeObject { .. } => self.change_object(job, step).await,
            Step::DeleteObject { kind, name, uid } => {
                self.delete_object(job, *kind, name, *uid).await
            }
            Step::DeleteJob => self.caller.delete_job(job).await.map_err(StepError::Fault),
            Step::CreatePod(pod) => {
                let view = |answer: &Answer| made_pod(pod, answer);
                let existing = |seen: &SlimPod| {
                    let watched = self.owner_kind.watches(&seen.metadata);
                    pod_view(seen, self.owner_kind, &mut Roles::default()).filter(|_| watched)
                };
                let refusal = ("FailedCreatePod", Blocked::All);
                self.create(job, (&**pod, pods), refusal, view, existing)
                    .await
            }
            Step::CreateService(service) => {
                let view = |answer: &Answer| made_service(service, answer);
                let existing = |seen: &SlimService| {
                    let watched = self.owner_kind.watches(&seen.metadata);
                    service_view(seen, self.owner_kind, &mut Roles::default()).filter(|_| watched)
                };
                let refusal = ("FailedCreateService", Blocked::All);
                self.create(job, (&**service, services), refusal, view, existing)
                    .await
            }
        }
    }

    /// Creates a child. `view` makes its view from the answer's metadata; `existing` is that of [`ChildRequests::create`].
    async fn create<K, S, V>(
        &self,
        job: &impl Resource<DynamicType = ()>,
        (object, index): (&K, &Index<V>),
        refusal: (&'static str, Blocked),
        view: impl Fn(&Answer) -> Option<V>,
        existing: impl Fn(&S) -> Option<Owned<V>>,
    ) -> Result<(), StepError>
    where
        K: Resource<DynamicType = ()> + Serialize,
        S: Resource + DeserializeOwned,
        V: Child,
    {
        let created = |answer: &Answer| Some(Self::owned(job, view(answer)?));
        let object = (&*object.name_any(), object);
        let requests = self.requests::<K, _>(job, index);
        let result = requests.create(object, Response::Metadata, created, existing);
        result
            .await
            .map_err(|error| self.not_created(uid(job), error, refusal))
    }

    /// Deletes a replica, or a pod that is indexed by its Job.
    async fn delete_pod<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        (name, of): (&str, Uid),
        how: Deletion,
    ) -> Result<(), StepError> {
        let owner = uid(job);
        let Children {
            pods, batch_pods, ..
        } = &self.children;
        let url = Pod::url_path(&(), job.meta().namespace.as_deref());
        if how == Deletion::ForcedAsFailed {
            let failed = self.caller.fail_pod(&url, name, of).await;
            failed.map_err(|fault| refuse(fault, "ChangeRefused", Blocked::Change))?;
        }
        let params = pod_deletion(how);
        if let Some(batch) = self.children.batch_of(owner, of) {
            let mut requests = self.requests_at(job, url, batch_pods);
            requests.owner = batch;
            return deleted(requests.delete(name, of, params).await);
        }
        let requests = self.requests_at(job, url, pods);
        deleted(requests.delete(name, of, params).await)
    }

    fn owned<J: Resource<DynamicType = ()>, V>(job: &J, view: V) -> Owned<V> {
        let (key, owner) = (key(job), uid(job));
        Owned { key, owner, view }
    }

    /// Returns the requests for a job's children of one kind.
    fn requests<'a, K: Resource<DynamicType = ()>, V: Child>(
        &'a self,
        job: &impl Resource<DynamicType = ()>,
        index: &'a Index<V>,
    ) -> ChildRequests<'a, V> {
        let url = K::url_path(&(), job.meta().namespace.as_deref());
        self.requests_at(job, url, index)
    }

    fn requests_at<'a, V: Child>(
        &'a self,
        job: &impl Resource<DynamicType = ()>,
        url: String,
        index: &'a Index<V>,
    ) -> ChildRequests<'a, V> {
        ChildRequests {
            caller: &self.caller,
            url,
            owner: uid(job),
            index,
        }
    }

    /// Returns why a step that creates a child failed. A foreign object that has the name is never touched, and one that the watch does
    /// not select would never change again.
    fn not_created<T: Resource>(
        &self,
        owner: Uid,
        error: CreateError<T>,
        (event, blocks): (&'static str, Blocked),
    ) -> StepError {
        let (holder, message) = match error {
            CreateError::RequestFailed(fault) => return refuse(fault, event, blocks),
            CreateError::Fault(fault) => return StepError::Fault(fault),
            CreateError::AlreadyExists => return StepError::Found,
            CreateError::NameConflict { holder, message } => (holder, message),
        };
        let seen = holder.meta();
        let whose = match controller(seen) {
            Some(own) if Uid::parse(&own.uid) == Some(owner) => format!(
                "it is the job's own, but has lost labels by which the operator sees it ({}={} and those beside it): put them back, or delete it",
                labels::OPERATOR_NAME,
                self.owner_kind.controller
            ),
            Some(other) => format!("it belongs to {} {}", other.kind, other.name),
            None => "it belongs to no job".to_owned(),
        };
        let going = if seen.deletion_timestamp.is_some() {
            ", and is being deleted"
        } else {
            ""
        };
        let message = format!("{message}; {whose}{going}");
        let stall = Stall {
            reason: "NameConflict",
            message: message.clone(),
            permanent: false,
            blocks,
        };
        let fault = Fault::Denied {
            what: Denial::Policy,
            message,
        };
        StepError::Refused(Box::new(Refusal {
            event,
            text: format!("Error creating: {}", stall.message),
            stall,
            fault,
        }))
    }
}

/// Returns the parameters of a pod's deletion.
fn pod_deletion(how: Deletion) -> DeleteParams {
    DeleteParams {
        grace_period_seconds: match how {
            Deletion::Graceful => None,
            Deletion::Forced | Deletion::ForcedAsFailed => Some(0),
        },
        ..DeleteParams::default()
    }
}

/// Maps the result of a delete to that of its step.
fn deleted(result: Result<Deleted, Fault>) -> Result<(), StepError> {
    result.map(drop).map_err(StepError::Fault)
}

/// Counts faults in a row.
#[derive(Debug, Default)]
struct Faults(usize);

impl Faults {
    /// Counts the result of a step. Returns true if no further step may begin.
    fn count(&mut self, step: &Step, result: &Result<(), StepError>) -> bool {
        match result {
            Ok(()) | Err(StepError::Found) => self.0 = 0,
            // It would come first in the next plan as well and block all later steps forever.
            Err(StepError::Fault(fault)) if step.is_delete() && fault.is_of_the_object() => {}
            Err(StepError::Fault(fault)) if fault.is_isolated() => self.0 += 1,
            Err(_) => self.0 = FAULTS,
        }
        self.0 >= FAULTS
    }
}

fn key(job: &impl Resource) -> JobKey {
    let namespace = job.meta().namespace.as_deref();
    JobKey::new(namespace.unwrap_or_default(), &job.name_any())
}

fn uid(job: &impl Resource) -> Uid {
    Uid::of(job.meta()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delete() -> Step {
        let (name, uid) = ("a".to_owned(), Uid::default());
        Step::DeleteService { name, uid }
    }

    /// Whether one of these results, of a delete or of another step, stops the steps not yet begun.
    fn stops(results: impl IntoIterator<Item = (Step, Result<(), Fault>)>) -> bool {
        let mut faults = Faults::default();
        let mut results = results.into_iter();
        results.any(|(step, result)| faults.count(&step, &result.map_err(StepError::Fault)))
    }

    #[test]
    fn f_11_the_third_fault_in_a_row_stops_a_plan() {
        let fault = || (Step::DeleteJob, Err(Fault::Transient("500".to_owned())));
        let success = || (Step::DeleteJob, Ok(()));
        assert!(!stops([fault(), fault()]));
        assert!(stops([fault(), fault(), fault()]));
        assert!(!stops([fault(), fault(), success(), fault(), fault()]));
    }

    #[test]
    fn a_denied_delete_stops_nothing_and_a_denied_create_everything() {
        let denied = || {
            let what = Denial::Policy;
            let message = "no".to_owned();
            Err(Fault::Denied { what, message })
        };
        assert!(!stops((0..5).map(|_| (delete(), denied()))));
        assert!(stops([(Step::DeleteJob, denied())]));
        let transient = || Err(Fault::Transient("500".to_owned()));
        assert!(stops((0..3).map(|_| (delete(), transient()))));
    }
}
