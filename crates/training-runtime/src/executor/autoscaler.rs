//! Requests for `HorizontalPodAutoscaler`s.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::{Resource, ResourceExt};
use serde_json::json;
use training_api::labels;
use training_core::{AutoscalerView, Blocked, Digest, Uid};

use super::Executor;
use super::outcome::{StepError, refuse};
use crate::caller::{Answer, Response};
use crate::feed::autoscaler::{SlimAutoscaler, autoscaler_view};

/// The event reason of a rejected autoscaler.
const REFUSED: &str = "FailedCreateAutoscaler";

impl Executor {
    pub(super) async fn create_autoscaler<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        wanted: &HorizontalPodAutoscaler,
    ) -> Result<(), StepError> {
        let view = |answer: &Answer| view_of(wanted, answer);
        let existing = |seen: &SlimAutoscaler| autoscaler_view(seen, self.owner_kind);
        let refusal = (REFUSED, Blocked::Autoscaler);
        let index = &*self.children.autoscalers;
        self.create(job, (wanted, index), refusal, view, existing)
            .await
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
        let requests = self.requests::<HorizontalPodAutoscaler, _>(job, &self.children.autoscalers);
        let changed = |answer: &Answer| Some(Self::owned(job, view_of(wanted, answer)?));
        let name = wanted.name_any();
        let result = requests.patch((&name, None), &body, Response::Metadata, changed);
        result
            .await
            .map_err(|fault| refuse(fault, REFUSED, Blocked::Autoscaler))
    }
}

/// Returns the view of the written autoscaler.
fn view_of(wanted: &HorizontalPodAutoscaler, answer: &Answer) -> Option<AutoscalerView> {
    let made_from = wanted.annotations().get(labels::AUTOSCALER);
    let (uid, version) = answer.identity()?;
    Some(AutoscalerView {
        uid,
        version,
        digest: made_from.and_then(|d| Digest::parse(d)),
        min: wanted.spec.min_replicas,
        max: wanted.spec.max_replicas,
        terminating: false,
    })
}
