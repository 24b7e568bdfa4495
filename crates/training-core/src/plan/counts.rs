//! The counts in the status.

use std::collections::BTreeMap;

use training_api::ReplicaStatus;

use crate::kind::framework::{Framework, JobCx};
use crate::model::census::{Census, Count};
use crate::model::durable_state::DurableState;
use crate::model::view::PodPhase;
use crate::render::pod;

/// Updates the counts of all roles. Types that left the spec still count their remaining pods: a queueing system holds quota for
/// the active ones.
pub(crate) fn count<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    census: &Census<'_>,
    state: &mut DurableState,
) {
    let counts = state.counts.get_or_insert_with(BTreeMap::new);
    for (role, count) in cx.roles.iter().zip(&census.counts) {
        let selector = F::SELECTORS.then(|| pod::selector::<F>(cx.name, &role.label));
        counts.insert(role.key.clone(), replica_status(*count, selector));
    }
    for (key, shown) in counts.iter_mut() {
        if cx.roles.get(key).is_some() {
            continue;
        }
        let label = key.to_ascii_lowercase();
        let of_type = |phase| {
            let pods = census.surplus.iter();
            let pods = pods.filter(|p| *p.role == *label && p.phase == phase);
            i32::try_from(pods.count()).unwrap_or(i32::MAX)
        };
        shown.active = of_type(PodPhase::Running);
        shown.succeeded = of_type(PodPhase::Succeeded);
        shown.failed = of_type(PodPhase::Failed);
    }
    state.ready = Some(format!("{}/{}", census.ready(), cx.roles.total()));
}

fn replica_status(count: Count, selector: Option<String>) -> ReplicaStatus {
    let number = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    ReplicaStatus {
        active: number(count.active),
        succeeded: number(count.succeeded),
        failed: number(count.failed),
        selector,
        label_selector: None,
    }
}
