//! Detects edits of the spec that running pods can't follow.

use kube::Resource;
use training_api::labels;

use crate::kind::framework::{Framework, JobCx, TrainingJob};
use crate::model::digest::Digest;
use crate::model::notes::Note;
use crate::model::observed::Observed;
use crate::model::step::Urgency;
use crate::model::template_hashes::{FIELD, REPLICAS, TemplateHashes};
use crate::plan::draft::Draft;

/// Returns the hash of the user's restart request, if there is one.
pub(super) fn request<J: TrainingJob>(cx: &JobCx<'_, J>) -> Option<u32> {
    let value = cx.annotation(labels::RESTART_REQUEST);
    let value = value.filter(|value| !value.is_empty())?;
    Some(Digest::of(&value).short())
}

fn take<F: Framework>(framework: &F, cx: &JobCx<'_, F::Job>) -> TemplateHashes {
    let of_roles = cx.roles.iter().map(|role| {
        let made = (role.template, role.restart.for_pod());
        (role.key.clone(), Digest::of(&made))
    });
    let of_kind = framework.rendezvous(cx).into_iter();
    let of_kind = of_kind.map(|(field, digest)| (format!("{FIELD}{field}"), digest));
    let mut hashes = TemplateHashes {
        generation: cx.job.meta().generation.unwrap_or_default(),
        parts: of_roles
            .chain(of_kind)
            .map(|(part, digest)| (part, digest.short()))
            .collect(),
    };
    hashes.set_request(request(cx));
    hashes
}

/// Stores the template hashes of a new run, and records events about edits that its pods can't follow. It changes no pod.
pub fn notice<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
) {
    if draft.starts {
        return renew(framework, cx, draft);
    }
    // Without hashes, another operator started the run. Adding them now would only cost a write.
    let Some(known) = &draft.state.made_from else {
        return;
    };
    if cx.job.meta().generation == Some(known.generation) {
        return;
    }
    let mut next = take(framework, cx);
    // A new request is not an edit.
    next.set_request(known.request());
    let lacking = known.lacks(&next);
    if next.parts == known.parts {
        // A new generation alone is not worth a write.
        return;
    }
    if !lacking.is_empty() && !observed.pods.is_empty() {
        let fields: Vec<String> = lacking.iter().map(|part| path(cx, part)).collect();
        let text = format!(
            "{}: only new pods follow this edit; to recreate the existing ones, restart the job",
            fields.join(", ")
        );
        draft.notes.push(Note::warning("EditNotApplied", text));
    }
    draft.state.made_from = Some(next);
    draft.urgency(Urgency::Parallel);
}

/// Stores the current hashes, because all pods are recreated from now on.
pub fn renew<F: Framework>(framework: &F, cx: &JobCx<'_, F::Job>, draft: &mut Draft) {
    draft.state.made_from = Some(take(framework, cx));
}

fn path<J>(cx: &JobCx<'_, J>, part: &str) -> String {
    match cx.roles.get(part) {
        Some(role) => format!("{}.template", role.path),
        None if part == REPLICAS => "the number of replicas".to_owned(),
        None => format!("spec{part}"),
    }
}
