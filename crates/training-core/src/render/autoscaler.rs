//! The `HorizontalPodAutoscaler` of a job that asks for one.

use std::collections::BTreeMap;

use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use training_api::labels as keys;

use crate::kind::framework::{Framework, JobCx};
use crate::model::autoscaler::Autoscaling;
use crate::render::pod::owner;

/// Renders the desired autoscaler.
pub fn render<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    wanted: &Autoscaling<'_>,
) -> HorizontalPodAutoscaler {
    let labels = [
        (keys::OPERATOR_NAME, F::CONTROLLER),
        (keys::JOB_NAME, cx.name),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    HorizontalPodAutoscaler {
        metadata: ObjectMeta {
            name: Some(cx.name.to_owned()),
            namespace: Some(cx.namespace.to_owned()),
            labels: Some(labels.into()),
            annotations: Some(BTreeMap::from([(
                keys::AUTOSCALER.to_owned(),
                wanted.digest().to_string(),
            )])),
            owner_references: Some(vec![owner(cx.job)]),
            ..ObjectMeta::default()
        },
        spec: HorizontalPodAutoscalerSpec {
            min_replicas: Some(wanted.min),
            max_replicas: wanted.max,
            metrics: Some(wanted.metrics.to_vec()),
            scale_target_ref: CrossVersionObjectReference {
                api_version: Some(F::Job::api_version(&()).into_owned()),
                kind: F::Job::kind(&()).into_owned(),
                name: cx.name.to_owned(),
            },
            ..HorizontalPodAutoscalerSpec::default()
        },
        status: None,
    }
}
