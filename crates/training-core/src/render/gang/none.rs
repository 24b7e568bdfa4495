//! The providers without group objects: no gang scheduling, and Kueue.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::provider::{Gang, GangProvider, Wanted};
use crate::model::grants::Grant;
use crate::model::group::GroupKind;
use crate::model::notes::Note;
use crate::model::roles::RoleSpec;

/// The label with a job's Kueue queue.
pub const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// Pods are scheduled one by one.
#[derive(Debug)]
pub(super) struct None;

/// Kueue holds back whole jobs with `suspend`, which works with every provider. This one only gives advice.
#[derive(Debug)]
pub(super) struct Kueue;

fn nothing(kind: GroupKind) -> Wanted {
    Wanted {
        kind,
        spec: Value::Null,
        follows: Value::Null,
    }
}

impl GangProvider for None {
    fn wanted(&self, _gang: &Gang<'_>, kind: GroupKind, _version: &str) -> Wanted {
        nothing(kind)
    }

    fn stamp(&self, _gang: &Gang<'_>, _role: &RoleSpec<'_>, _pod: &mut Pod) {}

    fn advise(&self, gang: &Gang<'_>) -> Vec<Note> {
        let text = "spec.runPolicy.schedulingPolicy: this operator runs without a gang scheduler and schedules pods one by one; only queueing systems read it";
        gang.policy
            .map(|_| Note::warning("SettingIgnored", text))
            .into_iter()
            .collect()
    }

    fn grants(&self) -> &'static [Grant] {
        &[]
    }
}

impl GangProvider for Kueue {
    fn wanted(&self, _gang: &Gang<'_>, kind: GroupKind, _version: &str) -> Wanted {
        nothing(kind)
    }

    fn stamp(&self, _gang: &Gang<'_>, _role: &RoleSpec<'_>, _pod: &mut Pod) {}

    fn advise(&self, gang: &Gang<'_>) -> Vec<Note> {
        let text = match gang.queue {
            Option::None => format!(
                "the operator leaves gangs to Kueue, but the job has no label {KUEUE_QUEUE}: its pods are scheduled one by one"
            ),
            Some(queue) if gang.kueue == Some(false) => format!(
                "label {KUEUE_QUEUE}: the job requests the queue {queue}, but the cluster does not serve Kueue: the job is not queued, and its pods are scheduled one by one"
            ),
            Some(_) => return Vec::new(),
        };
        vec![Note::warning("SettingIgnored", text)]
    }

    fn grants(&self) -> &'static [Grant] {
        &[]
    }
}
