//! Requests for the other objects of a job.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::Resource;
use kube::api::{DeleteParams, PropagationPolicy};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use training_core::{Blocked, Object, ObjectKind, ObjectView, Stall, Step, Uid};

use super::outcome::{Refusal, StepError, refuse};
use super::{Executor, deleted};
use crate::caller::{Answer, RequestError, Response};
use crate::fault::{Denial, Fault};
use crate::feed::object::{SlimBatch, SlimConfigMap, SlimWholeService, Whole, object_view};
use crate::feed::slim::controller;
use crate::requests::CreateError;

/// The published event reason of a name conflict.
const TAKEN: &str = "ErrResourceExists";

impl Executor {
    pub(super) async fn create_object<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        object: &Object,
    ) -> Result<(), StepError> {
        match object {
            Object::Service(service) => {
                self.create_child::<Service, SlimWholeService>(job, object, &**service)
                    .await
            }
            Object::ConfigMap(config) => {
                self.create_child::<ConfigMap, SlimConfigMap>(job, object, config)
                    .await
            }
            Object::Job(batch) => {
                self.create_child::<Job, SlimBatch>(job, object, &**batch)
                    .await
            }
            Object::Secret(secret) => self.create_secret(secret).await,
        }
    }

    async fn create_child<K, S>(
        &self,
        job: &impl Resource<DynamicType = ()>,
        object: &Object,
        body: &impl Serialize,
    ) -> Result<(), StepError>
    where
        K: Resource<DynamicType = ()>,
        S: Whole + DeserializeOwned,
    {
        let requests = self.requests::<K, _>(job, self.children.objects.of_kind(S::KIND));
        let created = |answer: &Answer| {
            let (uid, version) = answer.identity()?;
            Some(Self::owned(job, ObjectView::made(object, uid, version)?))
        };
        let existing = |seen: &S| {
            let labels = seen.meta().labels.as_ref();
            let watched = labels.is_some_and(|l| l.contains_key(crate::feed::object::SELECTOR));
            object_view(seen, self.owner_kind).filter(|_| watched)
        };
        let name = object.name();
        let result = requests.create((&name, body), Response::Metadata, created, existing);
        result.await.map_err(|error| match error {
            CreateError::RequestFailed(fault) => refuse(fault, refused(object), Blocked::All),
            CreateError::Fault(fault) => StepError::Fault(fault),
            CreateError::AlreadyExists => StepError::Found,
            CreateError::NameConflict { holder, .. } => {
                let owner = controller(holder.meta());
                taken(
                    object,
                    job,
                    owner.map(|o| (o.kind.as_str(), o.name.as_str())),
                )
            }
        })
    }

    /// Recreates the Secret that the job's status names, unless it still exists.
    pub(super) async fn renew_secret<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        secret: &Object,
    ) -> Result<(), StepError> {
        match self.create_object(job, secret).await {
            Err(StepError::Taken(_)) => Ok(()),
            made => made,
        }
    }

    /// Creates a Secret. Its data is generated on a blocking thread, so that nothing else waits, and stored nowhere else.
    async fn create_secret(&self, secret: &Secret) -> Result<(), StepError> {
        let bug = |text: String| StepError::Fault(Fault::Bug(text));
        let Some(fresh) = self.fresh_secret else {
            return Err(bug("this kind has no Secrets".to_owned()));
        };
        let data = tokio::task::spawn_blocking(fresh)
            .await
            .map_err(|e| bug(e.to_string()))?
            .map_err(bug)?;
        let whole = Secret {
            data: Some(data),
            ..secret.clone()
        };
        match self.caller.create(&whole).await {
            Ok(_) => Ok(()),
            Err(RequestError::AlreadyExists(_)) => Err(StepError::Taken(
                secret.metadata.name.clone().unwrap_or_default(),
            )),
            Err(RequestError::Fault(fault)) => {
                Err(refuse(fault, "FailedCreateSecret", Blocked::All))
            }
        }
    }

    /// Sends a merge patch with the version that it is based on, and stores the answer.
    pub(super) async fn change_object<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        step: &Step,
    ) -> Result<(), StepError> {
        let Step::ChangeObject {
            kind,
            name,
            subresource,
            patch,
        } = step
        else {
            return Ok(());
        };
        let to = (name.as_str(), *subresource);
        match kind {
            ObjectKind::Service => {
                self.patch::<Service, SlimWholeService>(job, to, patch)
                    .await
            }
            ObjectKind::ConfigMap => self.patch::<ConfigMap, SlimConfigMap>(job, to, patch).await,
            ObjectKind::Job => self.patch::<Job, SlimBatch>(job, to, patch).await,
        }
    }

    async fn patch<K, S>(
        &self,
        job: &impl Resource<DynamicType = ()>,
        (name, subresource): (&str, Option<&'static str>),
        patch: &Value,
    ) -> Result<(), StepError>
    where
        K: Resource<DynamicType = ()>,
        S: Whole + DeserializeOwned,
    {
        let requests = self.requests::<K, _>(job, self.children.objects.of_kind(S::KIND));
        let changed = |seen: &S| object_view(seen, self.owner_kind);
        let result = requests.patch((name, subresource), patch, Response::Object, changed);
        result
            .await
            .map_err(|fault| refuse(fault, "FailedUpdate", Blocked::Change))
    }

    /// Deletes an object; the pods of a Job are deleted with it.
    pub(super) async fn delete_object(
        &self,
        job: &impl Resource<DynamicType = ()>,
        kind: ObjectKind,
        name: &str,
        of: Uid,
    ) -> Result<(), StepError> {
        let namespace = job.meta().namespace.as_deref();
        let url = match kind {
            ObjectKind::Service => Service::url_path(&(), namespace),
            ObjectKind::ConfigMap => ConfigMap::url_path(&(), namespace),
            ObjectKind::Job => Job::url_path(&(), namespace),
        };
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let requests = self.requests_at(job, url, self.children.objects.of_kind(kind));
        deleted(requests.delete(name, of, params).await)
    }
}

fn refused(object: &Object) -> &'static str {
    match object {
        Object::Service(_) => "FailedCreateService",
        Object::ConfigMap(_) => "FailedCreateConfigMap",
        Object::Job(_) => "FailedCreateJob",
        Object::Secret(_) => "FailedCreateSecret",
    }
}

/// Stalls the job until a foreign object frees the name.
fn taken(
    object: &Object,
    job: &impl Resource<DynamicType = ()>,
    owner: Option<(&str, &str)>,
) -> StepError {
    let kind = job_kind(job);
    let whose = match owner {
        Some((kind, name)) => format!("it belongs to {kind} {name}"),
        None => "it has no owner".to_owned(),
    };
    let message = format!(
        "Resource \"{}\" of Kind \"{}\" already exists and is not managed by {kind}; {whose}",
        object.name(),
        object.kind()
    );
    StepError::Refused(Box::new(Refusal {
        event: TAKEN,
        text: message.clone(),
        stall: Stall {
            reason: "NameConflict",
            message: message.clone(),
            permanent: false,
            blocks: Blocked::All,
        },
        fault: Fault::Denied {
            what: Denial::Policy,
            message,
        },
    }))
}

fn job_kind<J: Resource<DynamicType = ()>>(_: &J) -> String {
    J::kind(&()).into_owned()
}
