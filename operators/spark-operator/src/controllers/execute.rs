//! Executes steps as API calls.

use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PropagationPolicy};
use kube::core::Request as Build;
use kube::{Resource as _, ResourceExt as _};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use training_core::Uid;
use training_runtime::caller::{BuiltRequest, Caller, Deleted, Failure, encode};
use training_runtime::executor::{WINDOW, run_steps};
use training_runtime::fault::{Absent, Denial, Fault};
use training_runtime::feed::child::Child;
use training_runtime::feed::index::Index;
use training_runtime::feed::slim::Owned;

use super::cache::{Cache, cached_object, cached_pod, is_watched};
use super::stored::CachedApplication;
use crate::label;
use crate::lifecycle::observed::{Kind, Refusal, Refused};
use crate::lifecycle::slim::{Owner, Pod, RunObject};
use crate::lifecycle::step::{NewObject, Step};

/// The outcome of steps.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The gravest refusal.
    pub refused: Option<(Refusal, String)>,
    /// The name of the driver, if a foreign pod has it.
    pub taken: Option<String>,
    /// Objects that the driver doesn't depend on and that could not be created, with the API server's message.
    pub missing_objects: Vec<(Kind, String, String)>,
    /// Any other error.
    pub fault: Option<Fault>,
    /// True if a driver was created.
    pub submitted: bool,
    /// True if the plan is outdated: an object already existed and was read, or a deleted object is gone, which no watch may
    /// report.
    pub outdated: bool,
}

impl Outcome {
    /// Keeps the gravest of several refusals.
    fn refused(&mut self, why: Refusal, text: String) {
        let grave = |why: &Refusal| match why {
            Refusal::Permanent => 2,
            Refusal::Counted => 1,
            Refusal::Transient => 0,
        };
        if self
            .refused
            .as_ref()
            .is_none_or(|(known, _)| grave(known) < grave(&why))
        {
            self.refused = Some((why, text));
        }
    }

    fn is_stopped(&self) -> bool {
        self.refused.is_some() || self.taken.is_some() || self.fault.is_some()
    }
}

/// Why a step failed.
enum StepError {
    Refused(Refusal, String),
    Taken(String),
    Fault(Fault),
    Found,
}

/// The effect of a successful step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    Silently,
    Gone,
}

impl From<Deleted> for Done {
    fn from(deleted: Deleted) -> Self {
        match deleted {
            Deleted::Terminating(_) => Self::Silently,
            Deleted::Gone => Self::Gone,
        }
    }
}

/// Executes the steps of one application.
pub struct StepRunner<'a> {
    /// Sends the requests.
    pub caller: &'a Caller,
    /// The cache, updated from the responses.
    pub cache: &'a Cache,
    /// The application.
    pub app: &'a CachedApplication,
    /// Its uid.
    pub uid: Uid,
}

impl StepRunner<'_> {
    /// Executes all other steps first, concurrently, then the driver with the objects it doesn't depend on, then the deletion of
    /// the application. The first refusal or fault cancels steps that have not started, unless it concerns an object that the
    /// driver doesn't depend on.
    pub async fn execute(&self, steps: &[Step]) -> Outcome {
        let mut outcome = Outcome::default();
        let turn = |step: &Step| match step {
            Step::CreateDriver(_) | Step::CreateOptional(_) => 1,
            Step::DeleteApplication => 2,
            Step::Create(_)
            | Step::Change { .. }
            | Step::DeletePod { .. }
            | Step::Delete { .. } => 0,
        };
        for now in 0..3 {
            let due: Vec<&Step> = steps.iter().filter(|s| turn(s) == now).collect();
            let results = run_steps(
                due.len(),
                WINDOW,
                |at| self.step(due[at]),
                |at, result| {
                    let optional = matches!(due[at], Step::CreateOptional(_));
                    !optional && !matches!(result, Ok(_) | Err(StepError::Found))
                },
            )
            .await;
            let mut found = false;
            for (at, result) in results {
                let result = match (result, due[at]) {
                    (Err(error), Step::CreateOptional(new)) => why_missing(error).map(|text| {
                        let (kind, name) = new.id();
                        outcome.missing_objects.push((kind, name, text));
                        Done::Silently
                    }),
                    (result, _) => result,
                };
                match result {
                    Ok(done) => {
                        outcome.submitted |= matches!(due[at], Step::CreateDriver(_));
                        outcome.outdated |= done == Done::Gone;
                    }
                    Err(StepError::Found) => found = true,
                    Err(StepError::Refused(why, text)) => outcome.refused(why, text),
                    Err(StepError::Taken(name)) => outcome.taken = Some(name),
                    Err(StepError::Fault(fault)) => outcome.fault = Some(fault),
                }
            }
            outcome.outdated |= found;
            if found || outcome.is_stopped() {
                break;
            }
        }
        outcome
    }

    fn namespace(&self) -> String {
        self.app.object.namespace().unwrap_or_default()
    }

    async fn step(&self, step: &Step) -> Result<Done, StepError> {
        match step {
            Step::Create(new) | Step::CreateOptional(new) => self.create(new).await?,
            Step::CreateDriver(pod) => self.create_driver(pod).await?,
            Step::Change {
                map,
                uid,
                resource_version,
            } => {
                let meta = json!({
                    "uid": uid.to_string(), "resourceVersion": resource_version,
                    "annotations": map.metadata.annotations,
                });
                let changed = self.change(&map.name_any(), &meta, &json!(map.data)).await;
                let changed = changed.map_err(StepError::Fault)?;
                if let Some(owned) = cached_object(&changed, Kind::ConfigMap) {
                    let index = self.cache.objects_of(Kind::ConfigMap);
                    index.written(owned, Instant::now());
                }
            }
            Step::DeletePod { name, uid } => {
                let url = pods(&self.namespace());
                let params = DeleteParams::default();
                let deleted = self.caller.delete(&url, name, *uid, params).await;
                let what = deleted.map_err(StepError::Fault)?;
                self.cache.deleted_pod(self.uid, *uid, what);
                return Ok(what.into());
            }
            Step::Delete { kind, name, uid } => {
                return self.delete(*kind, name, *uid).await.map(Done::from);
            }
            Step::DeleteApplication => {
                let deleted = self.caller.delete_job(self.app).await;
                deleted.map_err(StepError::Fault)?;
            }
        }
        Ok(Done::Silently)
    }

    async fn delete(&self, kind: Kind, name: &str, uid: Uid) -> Result<Deleted, StepError> {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let url = kind.url(&self.namespace());
        let deleted = self.caller.delete(&url, name, uid, params).await;
        let what = deleted.map_err(StepError::Fault)?;
        self.cache.deleted_object(self.uid, kind, uid, what);
        Ok(what)
    }

    async fn create(&self, new: &NewObject) -> Result<(), StepError> {
        let (kind, name) = new.id();
        match new {
            NewObject::ConfigMap(map) => self.create_object(kind, &**map, name).await,
            NewObject::Service(service) => self.create_object(kind, &**service, name).await,
            NewObject::Ingress(ingress) => self.create_object(kind, &**ingress, name).await,
            NewObject::Claim(claim) => self.create_object(kind, &**claim, name).await,
            NewObject::NetworkPolicy(policy) => self.create_object(kind, &**policy, name).await,
            NewObject::Budget(budget) => self.create_object(kind, &**budget, name).await,
            NewObject::Group(group) => self.create_object(kind, &**group, name).await,
        }
    }

    /// Creates an object, and stores the response in the cache, before the watch reports it.
    async fn create_object(
        &self,
        kind: Kind,
        object: &impl Serialize,
        name: String,
    ) -> Result<(), StepError> {
        let url = kind.url(&self.namespace());
        let body = encode(object).map_err(|f| StepError::Fault(f.into_fault()))?;
        let request = Build::new(&url).create(&self.caller.post(), body);
        match self.answer(kind, request).await {
            Ok(created) => {
                if let Some(owned) = cached_object(&created, kind) {
                    let index = self.cache.objects_of(kind);
                    index.created(owned, Instant::now());
                }
                Ok(())
            }
            Err(Failure::Exists(message)) => self.exists(kind, &url, object, &name, message).await,
            Err(Failure::Fault(fault)) => Err(refuse(fault)),
        }
    }

    /// Sends a request. For Services it reads the address, for other kinds only metadata.
    async fn answer(&self, kind: Kind, request: BuiltRequest) -> Result<Any, Failure> {
        if kind == Kind::Service {
            self.caller.ask(request).await
        } else {
            self.caller.call(request).await
        }
    }

    /// Handles a name that exists: an object of this run that the cache lacks, or a foreign one.
    async fn exists(
        &self,
        kind: Kind,
        url: &str,
        object: &impl Serialize,
        name: &str,
        message: String,
    ) -> Result<(), StepError> {
        let read = self.caller.find::<Any>(url, name);
        let Some(existing) = read.await.map_err(StepError::Fault)? else {
            return Err(StepError::Fault(Fault::Conflict(message)));
        };
        let mine = |uid: &str| Uid::parse(uid) == Some(self.uid);
        if !existing.owner().is_some_and(|owner| mine(owner.uid)) {
            if self.is_of_a_namesake(existing.owner()) {
                return Err(StepError::Fault(Fault::Conflict(message)));
            }
            if kind == Kind::Claim {
                // The claim existed before, for use by many runs; class and size only matter if it must be created.
                return Ok(());
            }
            let text = format!(
                "{message}, and it is not the application's: delete it, or give the application another name"
            );
            return Err(StepError::Refused(Refusal::Transient, text));
        }
        if let Some(owned) = cached_object(&existing, kind) {
            return Err(found(self.cache.objects_of(kind), owned, message));
        }
        if kind != Kind::ConfigMap {
            // Another operator created it for a former run, without recording which.
            let uid = existing.uid().as_deref().and_then(Uid::parse);
            self.delete(kind, name, uid.unwrap_or_default()).await?;
            return Err(StepError::Fault(Fault::Conflict(message)));
        }
        // The ConfigMap that all runs share: update it for this run.
        let change = serde_json::to_value(object)
            .map_err(|error| StepError::Fault(Fault::Bug(error.to_string())))?;
        let meta = json!({"uid": existing.uid(), "resourceVersion": existing.resource_version()});
        let changed = self.change(name, &meta, &change["data"]).await;
        changed.map(drop).map_err(refuse)
    }

    /// Replaces the data of a ConfigMap, if its uid and resource version still match.
    async fn change(&self, name: &str, meta: &Value, data: &Value) -> Result<Any, Fault> {
        let url = Kind::ConfigMap.url(&self.namespace());
        let change = json!({"metadata": meta, "data": data});
        let request = Build::new(&url).patch(name, &self.caller.patch(), &Patch::Merge(&change));
        self.caller.call(request).await.map_err(Failure::into_fault)
    }

    /// True if it belongs to a former application of this name, so that garbage collection is about to delete it.
    fn is_of_a_namesake(&self, owner: Option<Owner<'_>>) -> bool {
        owner.is_some_and(|owner| {
            owner.name == self.app.object.name_any() && Uid::parse(owner.uid) != Some(self.uid)
        })
    }

    /// Reads a driver that the cache lacks. True if it exists and the application owns it; then the cache has it from now on.
    ///
    /// # Errors
    /// If the read fails.
    pub async fn find_driver(&self, name: &str) -> Result<bool, Fault> {
        let url = pods(&self.namespace());
        let existing = self.caller.find::<Pod>(&url, name).await?;
        let ours = existing.as_ref().filter(|existing| is_watched(existing));
        let ours = ours
            .and_then(cached_pod)
            .filter(|pod| pod.owner == self.uid);
        Ok(ours.is_some_and(|pod| self.cache.pods.found(pod)))
    }

    async fn create_driver(&self, pod: &k8s_openapi::api::core::v1::Pod) -> Result<(), StepError> {
        let url = pods(&self.namespace());
        let body = encode(pod).map_err(|f| StepError::Fault(f.into_fault()))?;
        let request = Build::new(&url).create(&self.caller.post(), body);
        match self.caller.ask::<Pod>(request).await {
            Ok(created) => {
                if let Some(owned) = cached_pod(&created) {
                    self.cache.pods.created(owned, Instant::now());
                }
                Ok(())
            }
            Err(Failure::Exists(message)) => {
                let name = pod.name_any();
                let read = self.caller.find::<Pod>(&url, &name);
                let Some(existing) = read.await.map_err(StepError::Fault)? else {
                    return Err(StepError::Fault(Fault::Conflict(message)));
                };
                let ours = cached_pod(&existing).filter(|owned| owned.owner == self.uid);
                match ours.filter(|_| is_watched(&existing)) {
                    Some(owned) => Err(found(&self.cache.pods, owned, message)),
                    None if self.is_of_a_namesake(existing.owner()) => {
                        Err(StepError::Fault(Fault::Conflict(message)))
                    }
                    None => Err(StepError::Taken(name)),
                }
            }
            Err(Failure::Fault(fault)) => Err(refuse(fault)),
        }
    }
}

/// Any object; the caller knows its kind.
type Any = RunObject<k8s_openapi::api::core::v1::ConfigMap>;

fn pods(namespace: &str) -> String {
    k8s_openapi::api::core::v1::Pod::url_path(&(), Some(namespace))
}

/// Adds the run's own object to the cache, unless it has been deleted by now.
fn found<V: Child>(index: &Index<V>, owned: Owned<V>, message: String) -> StepError {
    if index.found(owned) {
        StepError::Found
    } else {
        StepError::Fault(Fault::Conflict(message))
    }
}

/// Classifies the refusal of a create.
fn refuse(fault: Fault) -> StepError {
    match fault {
        // The application is deleted with its namespace, so nobody needs a report.
        Fault::Denied {
            what: Denial::NamespaceTerminating,
            ..
        } => StepError::Fault(fault),
        Fault::Denied { message, .. } if message.contains(NO_ACCOUNT) => {
            StepError::Refused(Refusal::Counted, message)
        }
        Fault::Denied {
            what: Denial::PodSecurity | Denial::Policy,
            message,
        } => StepError::Refused(Refusal::Counted, message),
        Fault::Denied { message, .. }
        | Fault::Missing {
            what: Absent::Kind,
            message,
        } => StepError::Refused(Refusal::Transient, message),
        Fault::Rejected { message, .. } => StepError::Refused(Refusal::Permanent, message),
        Fault::Transient(message) if message.contains(NO_WEBHOOK) => {
            StepError::Refused(Refusal::Transient, message)
        }
        Fault::Conflict(_)
        | Fault::Throttled { .. }
        | Fault::Transient(_)
        | Fault::Missing { .. }
        | Fault::Deadline { .. }
        | Fault::NotLeading
        | Fault::Bug(_) => StepError::Fault(fault),
    }
}

/// Returns why an object that the driver doesn't depend on was not created, if the run can continue without it.
fn why_missing(error: StepError) -> Result<String, StepError> {
    match error {
        StepError::Refused(_, text) => Ok(text),
        StepError::Fault(
            fault @ (Fault::Transient(_) | Fault::Deadline { .. } | Fault::Missing { .. }),
        ) => Ok(fault.to_string()),
        StepError::Fault(_) | StepError::Taken(_) | StepError::Found => Err(error),
    }
}

/// The API server's message for an unreachable webhook, which it reports as an internal error.
const NO_WEBHOOK: &str = "failed calling webhook";
/// The API server's message for a missing ServiceAccount of a pod.
const NO_ACCOUNT: &str = "error looking up service account";

/// Builds the record of a refused attempt for the next reconcile.
pub fn refused(
    app: &CachedApplication,
    steps: &[Step],
    (why, message): (Refusal, String),
    at: Timestamp,
) -> Option<Refused> {
    let of = |step: &Step| match step {
        Step::CreateDriver(pod) => pod
            .metadata
            .labels
            .as_ref()?
            .get(label::SUBMISSION_ID)
            .cloned(),
        Step::Create(_)
        | Step::CreateOptional(_)
        | Step::Change { .. }
        | Step::DeletePod { .. }
        | Step::Delete { .. }
        | Step::DeleteApplication => None,
    };
    let status = app.object.status.as_ref();
    Some(Refused {
        submission_id: steps.iter().find_map(of)?,
        attempts: status.and_then(|s| s.submission_attempts).unwrap_or(0),
        message,
        at,
        why,
    })
}
