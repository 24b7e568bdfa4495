//! The launcher of a job that the training operator started: a bare pod, `<job>-launcher`, without a Job. The operator follows it
//! until it ends and makes later runs its own way: the pods of such a run have no keys, so our launchers can't reach them.

use kube::Resource as _;
use training_core::{
    BatchPod, Deletion, Draft, DurableState, ObjectKind, Observed, Step, Transition, Uid,
};

use crate::api::{MPIJob, Origin};
use crate::hosts;
use crate::names::{LAUNCHER_BARE, SECRET};

/// Returns the pods with the launcher's name that the job owns, at most one of which exists at a time.
pub(crate) fn pods<'a>(
    job: &MPIJob,
    observed: &'a Observed,
) -> impl Iterator<Item = &'a BatchPod> + use<'a> {
    let meta = job.meta();
    let uid = Uid::of(meta);
    let name = hosts::launcher_name(meta.name.as_deref().unwrap_or_default());
    let pods = observed.batch_pods.iter();
    pods.filter(move |pod| Some(pod.batch) == uid && *pod.name == *name)
}

/// Returns the bare launcher of the job's present run, if the training operator started it and this operator has made nothing yet.
/// Once one is recorded, no other replaces it: anybody who may create pods can use any name.
pub(crate) fn followed<'a>(
    job: &MPIJob,
    observed: &'a Observed,
    draft: &Draft,
) -> Option<&'a BatchPod> {
    let name = hosts::launcher_name(job.meta().name.as_deref().unwrap_or_default());
    let begun_elsewhere = job.spec.origin() == Origin::V1
        && is_untouched(&draft.state)
        && !draft.transitions.contains(&Transition::Created)
        && observed.object(ObjectKind::Job, &name).is_none();
    let known = draft.state.made_once.get(LAUNCHER_BARE);
    let known = known.and_then(|uid| Uid::parse(uid));
    pods(job, observed)
        .filter(|_| begun_elsewhere)
        .find(|pod| known.is_none_or(|uid| uid == pod.pod.uid))
}

/// Returns true if this operator has started no run of the job: it stores the name of the Secret before the first pod.
pub(crate) fn is_untouched(state: &DurableState) -> bool {
    state.gang_attempt == 0 && !state.made_once.contains_key(SECRET)
}

/// Deletes a bare launcher unless it is terminating.
pub(crate) fn delete(pod: &BatchPod, draft: &mut Draft) {
    if !pod.pod.terminating {
        draft.steps.push(Step::DeletePod {
            name: pod.name.to_string(),
            uid: pod.pod.uid,
            how: Deletion::Graceful,
        });
    }
}
