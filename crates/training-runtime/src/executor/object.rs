//! Requests for the other objects of a job.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::Resource;
use kube::api::{DeleteParams, Patch, PropagationPolicy};
use kube::core::Request as Build;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use training_core::{Blocked, Object, ObjectKind, ObjectView, Stall, Step, Uid};

use super::outcome::{Refusal, StepError, refuse};
use super::{Executor, uid};
use crate::caller::Failure;
use crate::fault::{Denial, Fault};
use crate::feed::object::{SlimBatch, SlimConfigMap, SlimWholeService, Whole, object_view};
use crate::feed::slim::{Owned, controller};

/// The published event reason of a name conflict.
const TAKEN: &str = "ErrResourceExists";

impl Executor {
    pub(super) async fn create_object<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        object: &Object,
    ) -> Result<(), StepError> {
        let answer = match object {
            Object::Service(service) => self.caller.create(&**service).await,
            Object::ConfigMap(config) => self.caller.create(config).await,
            Object::Job(batch) => self.caller.create(&**batch).await,
            Object::Secret(secret) => return self.create_secret(secret).await,
        };
        match answer {
            Ok(answer) => {
                let identity = answer.identity();
                let view =
                    identity.and_then(|(uid, version)| ObjectView::made(object, uid, version));
                self.cache_object(job, view);
                Ok(())
            }
            Err(Failure::Exists(_)) => match object {
                Object::Service(_) => self.found::<Service, SlimWholeService>(job, object).await,
                Object::ConfigMap(_) => self.found::<ConfigMap, SlimConfigMap>(job, object).await,
                Object::Job(_) | Object::Secret(_) => {
                    self.found::<Job, SlimBatch>(job, object).await
                }
            },
            Err(Failure::Fault(fault)) => Err(refuse(fault, refused(object), Blocked::All)),
        }
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

    fn cache_object<J: Resource<DynamicType = ()>>(&self, job: &J, view: Option<ObjectView>) {
        if let Some(view) = view {
            let index = self.children.objects.of_kind(view.kind);
            index.created(Self::owned(job, uid(job), view), Instant::now());
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
            Err(Failure::Exists(_)) => Err(StepError::Taken(
                secret.metadata.name.clone().unwrap_or_default(),
            )),
            Err(Failure::Fault(fault)) => Err(refuse(fault, "FailedCreateSecret", Blocked::All)),
        }
    }

    /// Handles a name conflict: the holder is an object of the job that was not seen yet, or a foreign one.
    async fn found<K, S>(
        &self,
        job: &impl Resource<DynamicType = ()>,
        object: &Object,
    ) -> Result<(), StepError>
    where
        K: Resource<DynamicType = ()>,
        S: Whole + DeserializeOwned,
    {
        let name = object.name();
        let seen: S = self.read::<K, _>(job, &name).await?;
        let owner = uid(job);
        let ours = object_view(&seen, self.parent).filter(|found| found.owner == owner);
        let watched = seen
            .meta()
            .labels
            .as_ref()
            .is_some_and(|l| l.contains_key(crate::feed::object::SELECTOR));
        if let Some(found) = ours.filter(|_| watched) {
            let index = self.children.objects.of_kind(found.view.kind);
            return Err(if index.found(found) {
                StepError::Found
            } else {
                super::name_freed(&name)
            });
        }
        Err(taken(
            object,
            job,
            controller(seen.meta()).map(|o| (o.kind.as_str(), o.name.as_str())),
        ))
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
        let params = self.caller.patch();
        let build = Build::new(K::url_path(&(), job.meta().namespace.as_deref()));
        let patch = Patch::Merge(patch);
        let request = match subresource {
            Some(part) => build.patch_subresource(part, name, &params, &patch),
            None => build.patch(name, &params, &patch),
        };
        match self.caller.ask::<S>(request).await {
            Ok(seen) => {
                if let Some(Owned { key, owner, view }) = object_view(&seen, self.parent) {
                    let index = self.children.objects.of_kind(view.kind);
                    index.written(Owned { key, owner, view }, Instant::now());
                }
                Ok(())
            }
            Err(failure) => Err(refuse(
                failure.into_fault(),
                "FailedUpdate",
                Blocked::Change,
            )),
        }
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
        let index = self.children.objects.of_kind(kind);
        self.delete_with(super::uid(job), &url, (name, of), params, index)
            .await
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
