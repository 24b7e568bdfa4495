//! The condition Running.

use kube::Resource;
use training_api::ConditionType;

use crate::kind::framework::{Framework, JobCx};
use crate::model::verdict::Saying;
use crate::plan::draft::Draft;

/// The job runs.
pub(super) fn runs<F: Framework>(framework: &F, cx: &JobCx<'_, F::Job>, draft: &mut Draft) {
    let reason = format!("{}Running", F::Job::kind(&()));
    let message = framework.say(cx, &Saying::Running);
    draft.set(ConditionType::Running, true, &reason, &message);
}

/// A kind may promise that an ended job has run, also where that went by unseen.
pub(super) fn has_run<F: Framework>(framework: &F, cx: &JobCx<'_, F::Job>, draft: &mut Draft) {
    if F::ALWAYS_RAN {
        runs(framework, cx, draft);
    }
}
