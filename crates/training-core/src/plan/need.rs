//! How many pods must start together, and the resources that they need.

use crate::kind::framework::{Framework, JobCx, TrainingJob};
use crate::model::census::{Census, SlotState};
use crate::model::error::SpecError;
use crate::model::quantity::{self, Amounts};
use crate::model::restart::{Decision, decide};
use crate::model::roles::{Rank, RoleSpec};
use crate::render::gang::Need;
use crate::render::pod;

/// Returns the minimum number of pods: what the job declares, else all. Once replicas have ended for good, at most the remaining ones: the
/// scheduler counts live pods, and a replacement must not wait for pods that never come back.
fn members<J: TrainingJob>(cx: &JobCx<'_, J>, census: &Census<'_>) -> u32 {
    let total = cx.roles.total();
    let policy = cx.job.run_policy().scheduling_policy.as_ref();
    let declared = policy.and_then(|p| p.min_available);
    let declared = declared.map_or(total, |n| u32::try_from(n).unwrap_or(1));
    let over = |(at, role)| gone(census, at, role);
    let done = cx.roles.iter().enumerate().map(over).sum();
    let members = if done == 0 {
        declared
    } else {
        declared.min(total.saturating_sub(done))
    };
    members.max(1)
}

/// Counts replicas of a role that never run again: they succeeded, or failed and the job tolerates it. Hosts always run again.
fn gone(census: &Census<'_>, at: usize, role: &RoleSpec<'_>) -> u32 {
    let failed = |pod| {
        matches!(
            decide(role.restart, pod),
            Decision::Fail | Decision::FailPermanently
        )
    };
    let over = census.of_role(at).filter(|slot| match slot.state {
        SlotState::Finished => true,
        SlotState::Failed => !role.is_host && slot.pod.is_some_and(failed),
        SlotState::Empty | SlotState::Live | SlotState::Outdated => false,
    });
    u32::try_from(over.count()).unwrap_or(u32::MAX)
}

/// Returns the resources of the gang: those of the job's policy, else those of the first remaining pods in rank order.
///
/// # Errors
/// The error names the field of the spec that makes a pod invalid.
pub(crate) fn need<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    census: &Census<'_>,
) -> Result<Need, SpecError> {
    let members = members(cx, census);
    let policy = cx.job.run_policy().scheduling_policy.as_ref();
    if let Some(own) = policy.and_then(|p| p.min_resources.as_ref()) {
        return Ok(Need {
            members,
            resources: own.clone(),
        });
    }
    let mut left = members;
    let mut sum = Amounts::new();
    for (at, role) in cx.roles.iter().enumerate() {
        let count = role.replicas.saturating_sub(gone(census, at, role));
        let count = count.min(left);
        if count == 0 {
            continue;
        }
        left -= count;
        // All replicas of a role need the same.
        let first = Rank {
            role,
            index: 0,
            rank: 0,
        };
        let template = pod::defaulted(framework, cx, first)?;
        if let Some(spec) = &template.spec {
            quantity::add(&mut sum, &quantity::of_pod(spec), count);
        }
    }
    let resources = sum.into_iter().map(|(name, a)| (name, a.to_quantity()));
    Ok(Need {
        members,
        resources: resources.collect(),
    })
}
