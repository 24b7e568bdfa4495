//! The `HorizontalPodAutoscaler` of a job that asks for one.

use k8s_openapi::api::autoscaling::v2::MetricSpec;

use crate::model::digest::Digest;
use crate::model::uid::Uid;

/// The autoscaler that a job asks for.
#[derive(Clone, Copy, Debug)]
pub struct Autoscaling<'a> {
    /// The minimum replicas of the scaled role.
    pub min: i32,
    /// The maximum replicas.
    pub max: i32,
    /// The metrics to scale by.
    pub metrics: &'a [MetricSpec],
}

impl Autoscaling<'_> {
    /// The digest of all settings. The API server rewrites quantities when it stores them, so the stored settings can't be compared
    /// with the requested ones. The digest can.
    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&(self.min, self.max, self.metrics))
    }
}

/// The cached form of an autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoscalerView {
    /// Its uid.
    pub uid: Uid,
    /// The last seen resource version.
    pub version: u64,
    /// The digest of the settings that it was created from; `None` if another operator created it.
    pub digest: Option<Digest>,
    /// The stored minimum, which anybody may have changed.
    pub min: Option<i32>,
    /// The stored maximum.
    pub max: i32,
    /// It has a deletion timestamp.
    pub terminating: bool,
}

impl AutoscalerView {
    /// Returns true if no field that decisions depend on differs. The status, which changes all the time, is ignored.
    pub fn same_for_decisions(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.digest == other.digest
            && self.min == other.min
            && self.max == other.max
            && self.terminating == other.terminating
    }

    pub(crate) fn is_as(&self, wanted: &Autoscaling<'_>) -> bool {
        self.digest == Some(wanted.digest())
            && self.min == Some(wanted.min)
            && self.max == wanted.max
    }
}
