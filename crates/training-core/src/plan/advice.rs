//! One-time events about a job's policies, for all kinds.

use training_api::{CleanPodPolicy, labels};

use crate::kind::framework::{JobCx, TrainingJob};
use crate::model::notes::Note;

pub(super) fn of_policies<J: TrainingJob>(cx: &JobCx<'_, J>) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut ignored = |text: String| notes.push(Note::warning("SettingIgnored", text));
    let policy = cx.job.run_policy();
    if let Some(unknown) = policy
        .clean_pod_policy
        .as_deref()
        .filter(|p| !CleanPodPolicy::is_known(Some(p)))
    {
        ignored(format!(
            "spec.runPolicy.cleanPodPolicy \"{unknown}\" is read as All; use None, Running or All"
        ));
    }
    if let Some(other) = cx
        .annotation(labels::RESTART_SCOPE)
        .filter(|s| !matches!(*s, "Replica" | "Gang"))
    {
        ignored(format!(
            "annotation {} \"{other}\" is read as Replica; use Replica or Gang",
            labels::RESTART_SCOPE
        ));
    }
    notes
}
