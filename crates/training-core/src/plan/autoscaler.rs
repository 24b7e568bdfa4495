//! Keeps the autoscaler of a job as the job asks for it.

use crate::kind::framework::{Framework, JobCx};
use crate::model::observed::Observed;
use crate::model::step::Step;
use crate::plan::draft::Draft;
use crate::render::autoscaler::render;

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
        // Its cache wakes the job when it is complete.
        None if seen.autoscaler_unknown => {}
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
