//! The `HorizontalPodAutoscaler` of a job that asks for one.

use k8s_openapi::api::autoscaling::v2::MetricSpec;

use crate::model::digest::Digest;
use crate::model::uid::Uid;

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
    pub(crate) fn digest(&self) -> Digest {
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

    pub(crate) fn is_as(&self, wanted: &Autoscaling<'_>) -> bool {
        self.digest == Some(wanted.digest())
            && self.min == Some(wanted.min)
            && self.max == wanted.max
    }
}
