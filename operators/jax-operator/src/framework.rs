//! What is specific to JAX: one role, the variables of `jax.distributed`, and an end that all processes share.

use training_api::RestartPolicy;
use training_core::verdict::{
    JobMessage, SuccessPolicy, no_replica_decides, qualified_message, role_decides,
};
use training_core::{
    Census, Digest, EnvOn, EnvSet, Framework, JobCx, Lifecycle, OtherTypes, Rank, Replicas,
    RoleSet, SpecError, Verdict, names, training_job,
};

use crate::api::{CONTAINER, JAXJob, KIND, REPLICA_MAP, WORKER};

/// The JAX framework.
#[derive(Clone, Copy, Debug, Default)]
pub struct JAX;

training_job!(JAXJob, jax_replica_specs);

impl Lifecycle for JAX {}

impl Framework for JAX {
    type Job = JAXJob;
    const OPERATOR: &'static str = "jax-operator";
    const NAME: &'static str = "jax";
    const CONTROLLER: &'static str = "jaxjob-controller";
    const REPLICAS: Replicas = Replicas {
        field: REPLICA_MAP,
        types: &[WORKER],
        others: OtherTypes::Refused,
        master_types: &[],
        fallback_master_type: Some(WORKER),
        container: CONTAINER,
        port: ("jaxjob-port", 6666),
        restart: RestartPolicy::Never,
    };
    const ENV_ON: EnvOn = EnvOn::Every;
    const SELECTORS: bool = true;

    fn roles<'a>(&self, job: &'a JAXJob) -> Result<RoleSet<'a>, SpecError> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        Self::REPLICAS.roles(name, &job.spec.jax_replica_specs)
    }

    /// The variables for `jax.distributed.initialize`. Process 0 is the coordinator.
    fn env(&self, cx: &JobCx<'_, JAXJob>, me: Rank<'_>) -> Result<EnvSet, SpecError> {
        let port = Self::REPLICAS.port(cx.roles, WORKER);
        let mut env = EnvSet::default();
        env.require("PYTHONUNBUFFERED", "1")
            .require("COORDINATOR_PORT", port.to_string())
            .require("COORDINATOR_ADDRESS", names::replica(cx.name, "worker", 0))
            .require("NUM_PROCESSES", cx.roles.total().to_string())
            .require("PROCESS_ID", me.rank.to_string());
        Ok(env)
    }

    fn judge(&self, cx: &JobCx<'_, JAXJob>, census: &Census<'_>) -> Verdict {
        role_decides(cx.roles, census, WORKER, SuccessPolicy::All)
    }

    fn why_endless(&self, cx: &JobCx<'_, JAXJob>) -> Option<String> {
        no_replica_decides(cx.roles, cx.roles.get(WORKER)?, WORKER)
    }

    fn rendezvous(&self, cx: &JobCx<'_, JAXJob>) -> Vec<(&'static str, Digest)> {
        vec![("replicas", Digest::of(&cx.roles.total()))]
    }

    fn message(&self, cx: &JobCx<'_, JAXJob>, what: &JobMessage<'_>) -> String {
        qualified_message(KIND, cx.namespace, cx.name, what)
    }
}
