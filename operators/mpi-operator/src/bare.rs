//! The launcher of a job that the training operator began: a bare pod, `<job>-launcher`, that no Job has made. It is followed to
//! its end. What runs after it is ours: such pods have no keys, and no launcher of ours reaches them.

use kube::Resource as _;
use training_core::{
    BatchPod, Deletion, Draft, Memory, ObjectKind, Observed, Step, Transition, Uid,
};

use crate::api::{MPIJob, Origin};
use crate::hosts;
use crate::names::{LAUNCHER_BARE, SECRET};

/// The job's own pods of that name; one that is there at most.
pub(crate) fn pods<'a>(
    job: &MPIJob,
    seen: &'a Observed,
) -> impl Iterator<Item = &'a BatchPod> + use<'a> {
    let meta = job.meta();
    let uid = meta.uid.as_deref().and_then(Uid::parse);
    let name = hosts::launcher(meta.name.as_deref().unwrap_or_default());
    let pods = seen.batch_pods.iter();
    pods.filter(move |pod| Some(pod.batch) == uid && *pod.name == *name)
}

/// The bare launcher that is the job's present one: the job was begun by that operator, and nothing of it is ours yet. Once one is
/// recorded no other takes its place: whoever may create pods can give one any name.
pub(crate) fn followed<'a>(
    job: &MPIJob,
    seen: &'a Observed,
    draft: &Draft,
) -> Option<&'a BatchPod> {
    let name = hosts::launcher(job.meta().name.as_deref().unwrap_or_default());
    let begun_elsewhere = job.spec.origin() == Origin::V1
        && is_untouched(&draft.memory)
        && !draft.transitions.contains(&Transition::Created)
        && seen.object(ObjectKind::Job, &name).is_none();
    let known = draft.memory.made_once.get(LAUNCHER_BARE);
    let known = known.and_then(|uid| Uid::parse(uid));
    pods(job, seen)
        .filter(|_| begun_elsewhere)
        .find(|pod| known.is_none_or(|uid| uid == pod.pod.uid))
}

/// True if no run of the job was ours: each of ours stores the name of its Secret before its first pod.
pub(crate) fn is_untouched(memory: &Memory) -> bool {
    memory.gang_attempt == 0 && !memory.made_once.contains_key(SECRET)
}

/// Deletes a bare launcher, unless it is on its way out.
pub(crate) fn delete(pod: &BatchPod, draft: &mut Draft) {
    if !pod.pod.leaving {
        draft.steps.push(Step::DeletePod {
            name: pod.name.to_string(),
            uid: pod.pod.uid,
            how: Deletion::Orderly,
        });
    }
}
