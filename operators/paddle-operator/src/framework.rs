//! What is specific to PaddlePaddle: two modes, their rendezvous variables, and which role decides how a job ends.

use training_api::RestartPolicy;
use training_core::verdict::{
    JobMessage, SuccessPolicy, no_replica_decides, qualified_message, role_decides, short_message,
};
use training_core::{
    Census, Digest, EnvOn, EnvSet, Framework, JobCx, Lifecycle, Note, OtherTypes, Rank, Replicas,
    RoleSet, SpecError, Verdict, names, training_job,
};

use crate::api::{CONTAINER, KIND, MASTER, PaddleJob, REPLICA_MAP, WORKER};

/// The PaddlePaddle framework.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paddle;

training_job!(PaddleJob, paddle_replica_specs, |job: &mut PaddleJob| {
    job.spec.elastic_policy = None;
});

impl Lifecycle for Paddle {}

impl Framework for Paddle {
    type Job = PaddleJob;
    const OPERATOR: &'static str = "paddle-operator";
    const NAME: &'static str = "paddle";
    const CONTROLLER: &'static str = "paddlejob-controller";
    const REPLICAS: Replicas = Replicas {
        field: REPLICA_MAP,
        types: &[MASTER, WORKER],
        others: OtherTypes::Refused,
        master_types: &[MASTER],
        fallback_master_type: None,
        container: CONTAINER,
        port: ("master", 36543),
        restart: RestartPolicy::OnFailure,
    };
    const ENV_ON: EnvOn = EnvOn::Every;
    const SELECTORS: bool = true;

    fn roles<'a>(&self, job: &'a PaddleJob) -> Result<RoleSet<'a>, SpecError> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        Self::REPLICAS.roles(name, &job.spec.paddle_replica_specs)
    }

    /// The variables for `paddle.distributed.launch`. Replica 0 of the deciding role is the rendezvous; it finds itself by its IP
    /// address.
    fn env(&self, cx: &JobCx<'_, PaddleJob>, me: Rank<'_>) -> Result<EnvSet, SpecError> {
        let decider = decider(cx);
        let port = Self::REPLICAS.port(cx.roles, decider);
        let mut env = EnvSet::default();
        env.require("PYTHONUNBUFFERED", "1")
            .require("PADDLE_JOB_ID", cx.name)
            .require("PADDLE_NNODES", cx.roles.total().to_string());
        if me.role.key == decider && me.index == 0 {
            env.require_field("POD_IP_DUMMY", "status.podIP")
                .require("PADDLE_MASTER", format!("$(POD_IP_DUMMY):{port}"));
        } else {
            let host = names::replica(cx.name, &decider.to_ascii_lowercase(), 0);
            env.require("PADDLE_MASTER", format!("{host}:{port}"));
        }
        if has_master(cx) {
            let count = match me.role.key.as_str() {
                MASTER => "PADDLE_SERVER_NUM",
                _ => "PADDLE_TRAINER_NUM",
            };
            env.require(count, "1");
        }
        Ok(env)
    }

    fn judge(&self, cx: &JobCx<'_, PaddleJob>, census: &Census<'_>) -> Verdict {
        role_decides(cx.roles, census, decider(cx), SuccessPolicy::All)
    }

    fn why_endless(&self, cx: &JobCx<'_, PaddleJob>) -> Option<String> {
        no_replica_decides(cx.roles, cx.roles.get(decider(cx))?, WORKER)
    }

    fn advise(&self, cx: &JobCx<'_, PaddleJob>) -> Vec<Note> {
        let elastic = cx.job.spec.elastic_policy.iter();
        let ignored = elastic.map(|_| {
            let text = "spec.elasticPolicy has no effect on a PaddleJob: scale its workers with kubectl scale";
            Note::warning("SettingIgnored", text.to_owned())
        });
        ignored.collect()
    }

    fn rendezvous(&self, cx: &JobCx<'_, PaddleJob>) -> Vec<(&'static str, Digest)> {
        vec![("replicas", Digest::of(&cx.roles.total()))]
    }

    fn message(&self, cx: &JobCx<'_, PaddleJob>, what: &JobMessage<'_>) -> String {
        if has_master(cx) {
            short_message(KIND, cx.name, what)
        } else {
            qualified_message(KIND, cx.namespace, cx.name, what)
        }
    }
}

fn has_master(cx: &JobCx<'_, PaddleJob>) -> bool {
    cx.roles.get(MASTER).is_some()
}

/// The role whose replica 0 is the rendezvous, and which decides how the job ends.
fn decider(cx: &JobCx<'_, PaddleJob>) -> &'static str {
    if has_master(cx) { MASTER } else { WORKER }
}
