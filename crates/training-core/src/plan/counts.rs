//! The counts that the status shows.

use std::collections::BTreeMap;

use training_api::ReplicaStatus;

use crate::kind::framework::{Framework, JobCx};
use crate::model::census::{Census, Count};
use crate::model::memory::Memory;
use crate::render::pod;

/// The counts of the roles as the status shows them; types that left the spec keep theirs.
pub(crate) fn count<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    census: &Census<'_>,
    memory: &mut Memory,
) {
    let counts = memory.counts.get_or_insert_with(BTreeMap::new);
    for (role, count) in cx.roles.iter().zip(&census.counts) {
        let selector = F::SELECTORS.then(|| pod::selector::<F>(cx.name, &role.label));
        counts.insert(role.key.clone(), shown(*count, selector));
    }
    memory.ready = Some(format!("{}/{}", census.ready(), cx.roles.total()));
}

fn shown(count: Count, selector: Option<String>) -> ReplicaStatus {
    let number = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    ReplicaStatus {
        active: number(count.active),
        succeeded: number(count.succeeded),
        failed: number(count.failed),
        selector,
        label_selector: None,
    }
}
