//! The `Running` condition.

use kube::Resource;
use training_api::ConditionType;

use crate::kind::framework::{Framework, JobCx};
use crate::model::verdict::JobMessage;
use crate::plan::draft::Draft;

/// Sets the condition to true.
pub(super) fn runs<F: Framework>(framework: &F, cx: &JobCx<'_, F::Job>, draft: &mut Draft) {
    let reason = format!("{}Running", F::Job::kind(&()));
    let message = framework.message(cx, &JobMessage::Running);
    draft.set(ConditionType::Running, true, &reason, &message);
}

/// Sets the condition for an ended job if its kind promises it, even if the job was never observed running.
pub(super) fn has_run<F: Framework>(framework: &F, cx: &JobCx<'_, F::Job>, draft: &mut Draft) {
    if F::ALWAYS_RAN {
        runs(framework, cx, draft);
    }
}
