//! The `HorizontalPodAutoscaler` of a job that asks for one.

use std::collections::BTreeMap;

use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, MetricSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use training_api::labels as keys;

use crate::digest::Digest;
use crate::framework::{Framework, JobCx};
use crate::observed::Observed;
use crate::plan::Draft;
use crate::pod::owner;
use crate::step::Step;
use crate::uid::Uid;

/// What a job asks of its autoscaler.
#[derive(Clone, Copy, Debug)]
pub struct Autoscaling<'a> {
    /// Fewest replicas of the scaled role.
    pub min: i32,
    /// Most of them.
    pub max: i32,
    /// What it goes by.
    pub metrics: &'a [MetricSpec],
}

impl Autoscaling<'_> {
    /// Stands for the whole wish. The API server rewrites quantities when it stores them, so what is stored can't be compared
    /// with what was asked for; this can.
    fn digest(&self) -> Digest {
        Digest::of(&(self.min, self.max, self.metrics))
    }
}

/// What is kept of an autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoscalerView {
    /// Its uid.
    pub uid: Uid,
    /// The resource version at which it was seen.
    pub version: u64,
    /// What it was made from; `None` where another operator made it.
    pub digest: Option<Digest>,
    /// Its lower bound as stored, which anybody may have changed.
    pub min: Option<i32>,
    /// Its upper bound.
    pub max: i32,
    /// It has a deletion timestamp.
    pub leaving: bool,
}

impl AutoscalerView {
    /// True if nothing that a decision depends on differs: its status changes all the time.
    pub fn same_for_decisions(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.digest == other.digest
            && self.min == other.min
            && self.max == other.max
            && self.leaving == other.leaving
    }

    fn is_as(&self, wanted: &Autoscaling<'_>) -> bool {
        self.digest == Some(wanted.digest())
            && self.min == Some(wanted.min)
            && self.max == wanted.max
    }
}

/// Makes, changes or removes the autoscaler of a job that is neither finished nor suspended.
///
/// It comes last: without it the job still trains.
pub(crate) fn settle<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    seen: &Observed,
    draft: &mut Draft,
) {
    let Some(wanted) = framework.autoscaling(cx) else {
        return remove(cx.name, seen, draft);
    };
    match &seen.autoscaler {
        None => draft
            .steps
            .push(Step::CreateAutoscaler(Box::new(render::<F>(cx, &wanted)))),
        // Its successor is made when it is gone.
        Some(there) if there.leaving || there.is_as(&wanted) => {}
        Some(there) => draft.steps.push(Step::ChangeAutoscaler {
            uid: there.uid,
            version: there.version,
            to: Box::new(render::<F>(cx, &wanted)),
        }),
    }
}

/// A job without pods of its own to scale, suspended or at its end, has no autoscaler.
pub(crate) fn remove(job: &str, seen: &Observed, draft: &mut Draft) {
    if let Some(there) = seen.autoscaler.as_ref().filter(|a| !a.leaving) {
        draft.steps.push(Step::DeleteAutoscaler {
            name: job.to_owned(),
            uid: there.uid,
        });
    }
}

fn render<F: Framework>(
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
