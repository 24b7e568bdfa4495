//! Executes steps as API calls.

use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PropagationPolicy};
use kube::{Resource as _, ResourceExt as _};
use serde::Serialize;
use serde_json::{Value, json};
use training_core::Uid;
use training_runtime::caller::{Caller, Deleted, Response};
use training_runtime::executor::{WINDOW, run_steps};
use training_runtime::fault::{Absent, Denial, Fault};
use training_runtime::feed::slim::Owned;
use training_runtime::requests::{ChildRequests, CreateError};

use super::cache::{Cache, CachedPod, Versioned, cached_object, cached_pod, is_watched};
use super::stored::CachedApplication;
use crate::label;
use crate::lifecycle::observed::{Kind, Object, Refusal, Refused};
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
                changed.map_err(StepError::Fault)?;
            }
            Step::DeletePod { name, uid } => {
                let params = DeleteParams::default();
                let deleted = self.pods().delete(name, *uid, params).await;
                return deleted.map(Done::from).map_err(StepError::Fault);
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

    fn pods(&self) -> ChildRequests<'_, Versioned<CachedPod>> {
        ChildRequests {
            caller: self.caller,
            url: k8s_openapi::api::core::v1::Pod::url_path(&(), Some(&self.namespace())),
            owner: self.uid,
            index: &self.cache.pods,
        }
    }

    fn objects(&self, kind: Kind) -> ChildRequests<'_, Versioned<Object>> {
        ChildRequests {
            caller: self.caller,
            url: kind.url(&self.namespace()),
            owner: self.uid,
            index: self.cache.objects_of(kind),
        }
    }

    async fn delete(&self, kind: Kind, name: &str, uid: Uid) -> Result<Deleted, StepError> {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let deleted = self.objects(kind).delete(name, uid, params).await;
        deleted.map_err(StepError::Fault)
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

    async fn create_object(
        &self,
        kind: Kind,
        object: &impl Serialize,
        name: String,
    ) -> Result<(), StepError> {
        // Services: the address is read, too.
        let response = match kind {
            Kind::Service => Response::Object,
            _ => Response::Metadata,
        };
        let cached = |object: &Any| cached_object(object, kind);
        let requests = self.objects(kind);
        let created = requests.create((&name, object), response, cached, cached);
        match created.await {
            Err(CreateError::NameConflict { holder, message }) => {
                self.taken(kind, object, &name, (*holder, message)).await
            }
            result => result.map_err(not_created),
        }
    }

    /// Handles a name that another object has: one of this application that names no run, or a foreign one.
    async fn taken(
        &self,
        kind: Kind,
        object: &impl Serialize,
        name: &str,
        (existing, message): (Any, String),
    ) -> Result<(), StepError> {
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
        changed.map_err(refuse)
    }

    /// Replaces the data of a ConfigMap, if its uid and resource version still match.
    async fn change(&self, name: &str, meta: &Value, data: &Value) -> Result<(), Fault> {
        let (kind, change) = (Kind::ConfigMap, json!({"metadata": meta, "data": data}));
        let changed = |object: &Any| cached_object(object, kind);
        let requests = self.objects(kind);
        let patched = requests.patch((name, None), &change, Response::Metadata, changed);
        patched.await
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
        self.pods().find(name, watched_pod).await
    }

    async fn create_driver(&self, pod: &k8s_openapi::api::core::v1::Pod) -> Result<(), StepError> {
        let name = pod.name_any();
        let requests = self.pods();
        let created = requests.create((&name, pod), Response::Object, cached_pod, watched_pod);
        created.await.map_err(|error| match error {
            CreateError::NameConflict { holder, .. } if !self.is_of_a_namesake(holder.owner()) => {
                StepError::Taken(name)
            }
            error => not_created(error),
        })
    }
}

/// Returns the cache's entry of a pod that the watch selects.
fn watched_pod(pod: &Pod) -> Option<Owned<Versioned<CachedPod>>> {
    cached_pod(pod).filter(|_| is_watched(pod))
}

/// Any object; the caller knows its kind.
type Any = RunObject<k8s_openapi::api::core::v1::ConfigMap>;

/// Returns why a step that creates an object failed.
fn not_created<T>(error: CreateError<T>) -> StepError {
    match error {
        CreateError::RequestFailed(fault) => refuse(fault),
        CreateError::Fault(fault) => StepError::Fault(fault),
        CreateError::AlreadyExists => StepError::Found,
        CreateError::NameConflict { message, .. } => StepError::Fault(Fault::Conflict(message)),
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
