//! Requests for `HorizontalPodAutoscaler`s.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::Patch;
use kube::core::Request as Build;
use kube::{Resource, ResourceExt};
use serde_json::json;
use tokio::time::Instant;
use training_api::labels;
use training_core::{AutoscalerView, Blocked, Digest, Uid};

use super::outcome::{StepError, refuse};
use super::{Executor, uid};
use crate::caller::{Answer, Failure};
use crate::feed::autoscaler::{SlimAutoscaler, autoscaler_view};

/// The event reason of a rejected autoscaler.
const REFUSED: &str = "FailedCreateAutoscaler";

impl Executor {
    pub(super) async fn create_autoscaler<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        wanted: &HorizontalPodAutoscaler,
    ) -> Result<(), StepError> {
        match self.caller.create(wanted).await {
            Ok(answer) => {
                self.cache_autoscaler(job, wanted, &answer);
                Ok(())
            }
            Err(Failure::Exists(message)) => {
                let name = wanted.name_any();
                let seen: SlimAutoscaler =
                    self.read::<HorizontalPodAutoscaler, _>(job, &name).await?;
                let view = autoscaler_view(&seen, self.parent);
                let known = view.as_ref().map(|v| (v.view.uid, v.view.version));
                self.resolve_conflict(
                    uid(job),
                    view,
                    &seen.metadata,
                    &message,
                    (REFUSED, Blocked::Autoscaler),
                    &self.children.autoscalers,
                )?;
                // If another operator created it for the same job, it lacks our label and the watch would never show it.
                match known {
                    Some((uid, version)) => self.change_autoscaler(job, uid, version, wanted).await,
                    None => Ok(()),
                }
            }
            Err(Failure::Fault(fault)) => Err(refuse(fault, REFUSED, Blocked::Autoscaler)),
        }
    }

    /// Patches an autoscaler to its desired state. Fields that a job can't set keep their values.
    pub(super) async fn change_autoscaler<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        uid: Uid,
        version: u64,
        wanted: &HorizontalPodAutoscaler,
    ) -> Result<(), StepError> {
        let body = json!({
            "metadata": {
                "uid": uid.to_string(),
                "resourceVersion": version.to_string(),
                "labels": wanted.labels(),
                "annotations": wanted.annotations(),
            },
            "spec": wanted.spec,
        });
        let params = self.caller.patch();
        let url = HorizontalPodAutoscaler::url_path(&(), wanted.namespace().as_deref());
        let request = Build::new(url).patch(&wanted.name_any(), &params, &Patch::Merge(&body));
        match self.caller.call::<Answer>(request).await {
            Ok(answer) => {
                self.cache_autoscaler(job, wanted, &answer);
                Ok(())
            }
            Err(failure) => Err(refuse(failure.into_fault(), REFUSED, Blocked::Autoscaler)),
        }
    }

    /// Stores the written autoscaler without waiting for the watch.
    fn cache_autoscaler<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        wanted: &HorizontalPodAutoscaler,
        answer: &Answer,
    ) {
        let made_from = wanted.annotations().get(labels::AUTOSCALER);
        let view = answer.identity().map(|(of, version)| AutoscalerView {
            uid: of,
            version,
            digest: made_from.and_then(|d| Digest::parse(d)),
            min: wanted.spec.min_replicas,
            max: wanted.spec.max_replicas,
            terminating: false,
        });
        if let Some(view) = view {
            let owned = Self::owned(job, uid(job), view);
            self.children.autoscalers.written(owned, Instant::now());
        }
    }
}
