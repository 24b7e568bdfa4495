//! What is specific to TensorFlow: roles, success policies, dynamic workers.

use training_core::verdict::{
    JobMessage, failures_but, no_replica_decides, progressing, qualified_message,
};
use training_core::{
    Census, Digest, EnvOn, EnvSet, Framework, JobCx, Lifecycle, Note, Rank, Replicas, RoleSet,
    RoleSpec, SlotState, SpecError, Verdict, training_job,
};

use crate::api::{
    ALL_WORKERS, CHIEF, EVALUATOR, MASTER, ONE_CHIEF, PS, REPLICA_MAP, TFJob, TYPES, WORKER,
};
use crate::cluster_spec::{TF_CONFIG, tf_config};
use crate::replicas::REPLICAS;

/// The kind in messages.
const KIND: &str = "TFJob";

/// The TensorFlow framework.
#[derive(Clone, Debug, Default)]
pub struct TensorFlow {
    /// The cluster domain of pod addresses.
    pub cluster_domain: Option<String>,
}

training_job!(TFJob, tf_replica_specs);

impl Lifecycle for TensorFlow {}

impl Framework for TensorFlow {
    type Job = TFJob;
    const OPERATOR: &'static str = "tf-operator";
    const NAME: &'static str = "tensorflow";
    const CONTROLLER: &'static str = "tfjob-controller";
    const REPLICAS: Replicas = REPLICAS;
    const ENV_ON: EnvOn = EnvOn::Main;
    const SELECTORS: bool = false;

    fn roles<'a>(&self, job: &'a TFJob) -> Result<RoleSet<'a>, SpecError> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let roles = REPLICAS.roles(name, &job.spec.tf_replica_specs)?;
        if roles.get(CHIEF).is_some() && roles.get(MASTER).is_some() {
            return Err(SpecError::new(format!("spec.{REPLICA_MAP}"), ONE_CHIEF));
        }
        Ok(roles)
    }

    fn env(&self, cx: &JobCx<'_, TFJob>, me: Rank<'_>) -> Result<EnvSet, SpecError> {
        let mut env = EnvSet::default();
        if let Some(config) = tf_config(cx, me, self.cluster_domain.as_deref())? {
            env.require(TF_CONFIG, config);
        }
        Ok(env)
    }

    fn judge(&self, cx: &JobCx<'_, TFJob>, census: &Census<'_>) -> Verdict {
        let decider = decider(cx.roles).map_or("", |r| r.key.as_str());
        if has_succeeded(cx, census, decider) {
            return Verdict::Succeeded;
        }
        let goes_on = can_go_on(cx, census, decider);
        failures_but(cx.roles, census, |role| {
            is_unknown(role) || is_dynamic(cx) && role.key == WORKER && goes_on
        })
        .unwrap_or_else(|| progressing(cx.roles, census, decider))
    }

    /// Parameter servers, their workers and evaluators wait for more work and never learn that there is none.
    fn may_outlive_success(&self, cx: &JobCx<'_, TFJob>) -> bool {
        [PS, EVALUATOR].iter().any(|r| cx.roles.get(r).is_some())
    }

    fn why_endless(&self, cx: &JobCx<'_, TFJob>) -> Option<String> {
        no_replica_decides(cx.roles, decider(cx.roles)?, WORKER)
    }

    fn advise(&self, cx: &JobCx<'_, TFJob>) -> Vec<Note> {
        advice(cx)
    }

    fn rendezvous(&self, cx: &JobCx<'_, TFJob>) -> Vec<(&'static str, Digest)> {
        let counts = |tells: &dyn Fn(&RoleSpec<'_>) -> bool| {
            let told = cx.roles.iter().filter(|r| tells(r));
            let told: Vec<(&str, u32)> = told.map(|r| (r.label.as_str(), r.replicas)).collect();
            Digest::of(&told)
        };
        if is_dynamic(cx) {
            let dynamic = ("enableDynamicWorker", Digest::of(&true));
            vec![dynamic, ("replicas", counts(&|r| r.key == PS))]
        } else {
            vec![("replicas", counts(&|_| true))]
        }
    }

    fn message(&self, cx: &JobCx<'_, TFJob>, what: &JobMessage<'_>) -> String {
        let (namespace, name) = (cx.namespace, cx.name);
        match what {
            JobMessage::Failed { role, count } => format!(
                "{KIND} {namespace}/{name} has failed because {count} {role} replica(s) failed."
            ),
            JobMessage::Created
            | JobMessage::Suspended
            | JobMessage::Resumed
            | JobMessage::Paused
            | JobMessage::Running
            | JobMessage::Succeeded
            | JobMessage::Restarting { .. } => qualified_message(KIND, namespace, name, what),
        }
    }
}

fn is_dynamic(cx: &JobCx<'_, TFJob>) -> bool {
    cx.job.spec.enable_dynamic_worker == Some(true)
}

fn is_unknown(role: &RoleSpec<'_>) -> bool {
    !TYPES.contains(&role.key.as_str())
}

/// The role that decides how the job ends: Chief or Master, or else Worker.
fn decider<'r, 'a>(roles: &'r RoleSet<'a>) -> Option<&'r RoleSpec<'a>> {
    roles.iter().find(|r| r.is_master)
}

fn has_succeeded(cx: &JobCx<'_, TFJob>, census: &Census<'_>, decider: &str) -> bool {
    let Some((at, role)) = cx.roles.iter().enumerate().find(|(_, r)| r.key == decider) else {
        return false;
    };
    let all = role.replicas > 0 && census.counts[at].succeeded >= role.replicas;
    let one_is_enough =
        role.key == WORKER && cx.job.spec.success_policy.as_deref() != Some(ALL_WORKERS);
    let first = census.slot(at, 0).map(|s| s.state);
    all || one_is_enough && first == Some(SlotState::Finished)
}

/// Returns true if a job that has lost workers can still succeed: another role decides, or another worker is left.
fn can_go_on(cx: &JobCx<'_, TFJob>, census: &Census<'_>, decider: &str) -> bool {
    let Some(workers) = cx.roles.iter().position(|r| r.key == WORKER) else {
        return true;
    };
    let over = |state| matches!(state, SlotState::Failed | SlotState::Finished);
    decider != WORKER || census.of_role(workers).any(|s| !over(s.state))
}

/// Warnings about unusual values that don't stop the job.
fn advice(cx: &JobCx<'_, TFJob>) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut say = |reason: &str, text: String| notes.push(Note::warning(reason, text));
    let policy = cx.job.spec.success_policy.as_deref().unwrap_or_default();
    let leader = decider(cx.roles).filter(|r| r.key != WORKER);
    if !policy.is_empty() && policy != ALL_WORKERS {
        say(
            "SettingIgnored",
            format!(
                "spec.successPolicy \"{policy}\" is read as the empty one; use {ALL_WORKERS} or leave it out"
            ),
        );
    } else if let Some(leader) = leader.filter(|_| policy == ALL_WORKERS) {
        let key = &leader.key;
        say(
            "SettingIgnored",
            format!("spec.successPolicy has no effect beside a {key}, which decides the job's end"),
        );
    }
    if decider(cx.roles).is_none() {
        say(
            "RiskySetting",
            format!(
                "spec.{REPLICA_MAP}: no role can complete this job; add a {CHIEF}, a {MASTER} or a {WORKER}"
            ),
        );
    }
    for role in cx.roles {
        let path = &role.path;
        let alone = [CHIEF, MASTER, EVALUATOR].contains(&role.key.as_str());
        if alone && role.replicas > 1 {
            let text = format!("{path}.replicas: TensorFlow knows one {} only", role.key);
            say("RiskySetting", text);
        }
        if is_unknown(role) {
            let text = format!(
                "{path}: TensorFlow has no such role; its pods run, and don't count for the job's end"
            );
            say("RiskySetting", text);
        }
    }
    notes
}
