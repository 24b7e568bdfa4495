//! Reconciles a job's autoscaler.

use crate::kind::framework::{Framework, JobCx};
use crate::model::observed::Observed;
use crate::model::step::Step;
use crate::plan::draft::Draft;
use crate::render::autoscaler::render;

/// Creates, updates or deletes the autoscaler of a job that is neither finished nor suspended.
///
/// It comes last: the job trains without it.
pub(crate) fn ensure<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
) {
    let Some(wanted) = framework.autoscaling(cx) else {
        return remove(cx.name, observed, draft);
    };
    match &observed.autoscaler {
        // The cache requeues the job when it has synced.
        None if observed.autoscaler_unknown => {}
        None => draft
            .steps
            .push(Step::CreateAutoscaler(Box::new(render::<F>(cx, &wanted)))),
        // The operator creates the next one when this one is gone.
        Some(there) if there.terminating || there.is_as(&wanted) => {}
        Some(there) => draft.steps.push(Step::ChangeAutoscaler {
            uid: there.uid,
            version: there.version,
            to: Box::new(render::<F>(cx, &wanted)),
        }),
    }
}

/// Deletes the autoscaler of a suspended, ended or no longer autoscaled job.
pub(crate) fn remove(job: &str, observed: &Observed, draft: &mut Draft) {
    if let Some(there) = observed.autoscaler.as_ref().filter(|a| !a.terminating) {
        draft.steps.push(Step::DeleteAutoscaler {
            name: job.to_owned(),
            uid: there.uid,
        });
    }
}
