//! One-time events about a job's policies, for all kinds.

use training_api::{CleanPodPolicy, labels};

use crate::kind::framework::{JobCx, TrainingJob};
use crate::model::notes::Note;

pub(super) fn of_policies<J: TrainingJob>(cx: &JobCx<'_, J>) -> Vec<Note> {
    let own = cx.job.run_policy().clean_pod_policy.as_deref();
    let unknown = of_clean_up("spec.runPolicy.cleanPodPolicy", own);
    let mut notes: Vec<Note> = unknown.into_iter().collect();
    if let Some(other) = cx
        .annotation(labels::RESTART_SCOPE)
        .filter(|s| !matches!(*s, "Replica" | "Gang"))
    {
        let text = format!(
            "annotation {} \"{other}\" is read as Replica; use Replica or Gang",
            labels::RESTART_SCOPE
        );
        notes.push(Note::warning("SettingIgnored", text));
    }
    notes
}

/// Returns the event about an unknown clean-up policy in this field.
pub fn of_clean_up(field: &str, policy: Option<&str>) -> Option<Note> {
    let unknown = policy.filter(|p| !CleanPodPolicy::is_known(Some(p)))?;
    let text = format!("{field} \"{unknown}\" is read as All; use None, Running or All");
    Some(Note::warning("SettingIgnored", text))
}
