//! What is specific to PyTorch: roles, rendezvous variables, and the role that decides the job's outcome.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use training_core::grants::{self, Grant};
use training_core::verdict::{
    JobMessage, SuccessPolicy, qualified_message, role_decides, short_message,
};
use training_core::{
    Autoscaling, Census, Digest, EnvOn, EnvSet, Framework, JobCx, Lifecycle, Note, Rank, Replicas,
    RoleSet, RoleSpec, SpecError, Verdict, check, training_job,
};

use crate::api::{KIND, MASTER, PyTorchJob, REPLICA_MAP, WORKER};
use crate::elastic;
use crate::init::InitContainer;
use crate::replicas::REPLICAS;

/// The PyTorch framework.
#[derive(Clone, Debug, Default)]
pub struct PyTorch {
    /// The init container that makes workers wait until their master's name resolves.
    pub init: InitContainer,
}

training_job!(PyTorchJob, pytorch_replica_specs, |job: &mut PyTorchJob| {
    job.spec.elastic_policy = None;
});

impl Lifecycle for PyTorch {}

impl Framework for PyTorch {
    type Job = PyTorchJob;
    const OPERATOR: &'static str = "pytorch-operator";
    const NAME: &'static str = "pytorch";
    const CONTROLLER: &'static str = "pytorchjob-controller";
    const REPLICAS: Replicas = REPLICAS;
    const ENV_ON: EnvOn = EnvOn::Every;
    const SELECTORS: bool = true;
    const AUTOSCALES: bool = true;

    fn roles<'a>(&self, job: &'a PyTorchJob) -> Result<RoleSet<'a>, SpecError> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let roles = REPLICAS.roles(name, &job.spec.pytorch_replica_specs)?;
        check::has_some(roles.get(WORKER))?;
        check::has_one(roles.get(MASTER))?;
        if let Some(worker) = roles.get(WORKER).filter(|_| roles.get(MASTER).is_some()) {
            self.check_init_names(worker)?;
        }
        elastic::verify(job, &roles)?;
        Ok(roles)
    }

    fn env(&self, cx: &JobCx<'_, PyTorchJob>, me: Rank<'_>) -> Result<EnvSet, SpecError> {
        Ok(environment(cx, me))
    }

    fn judge(&self, cx: &JobCx<'_, PyTorchJob>, census: &Census<'_>) -> Verdict {
        let (decider, enough) = match (has_master(cx), &cx.job.spec.elastic_policy) {
            (true, _) => (MASTER, SuccessPolicy::All),
            (false, None) => (WORKER, SuccessPolicy::All),
            // An elastic run ends for all workers as soon as one succeeds.
            (false, Some(_)) => (WORKER, SuccessPolicy::Any),
        };
        role_decides(cx.roles, census, decider, enough)
    }

    fn min_replicas(&self, cx: &JobCx<'_, PyTorchJob>) -> Option<u32> {
        elastic::fewest(cx)
    }

    fn shape(
        &self,
        cx: &JobCx<'_, PyTorchJob>,
        me: Rank<'_>,
        pod: &mut PodTemplateSpec,
    ) -> Result<(), SpecError> {
        let Some(spec) = pod.spec.as_mut() else {
            return Ok(());
        };
        if me.role.key == WORKER && has_master(cx) {
            let containers = self.init.render(&master_address(cx));
            spec.init_containers
                .get_or_insert_default()
                .extend(containers);
        }
        Ok(())
    }

    fn advise(&self, cx: &JobCx<'_, PyTorchJob>) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut ignored = |text: String| notes.push(Note::warning("SettingIgnored", text));
        if let Some(elastic) = &cx.job.spec.elastic_policy {
            let replicas = cx.job.spec.pytorch_replica_specs.get(WORKER);
            if elastic.metrics.is_some() && replicas.is_some_and(|w| w.replicas.is_none()) {
                // Autoscalers use the scale subresource, which doesn't work without this number.
                ignored(format!(
                    "spec.elasticPolicy.metrics has no effect until spec.{REPLICA_MAP}[{WORKER}].replicas is written"
                ));
            }
            if elastic.n_proc_per_node.is_some() {
                ignored(
                    "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"
                        .to_owned(),
                );
            }
        }
        notes
    }

    fn autoscaling<'a>(&self, cx: &JobCx<'a, PyTorchJob>) -> Option<Autoscaling<'a>> {
        elastic::autoscaling(cx)
    }

    fn rendezvous(&self, cx: &JobCx<'_, PyTorchJob>) -> Vec<(&'static str, Digest)> {
        elastic::rendezvous(cx)
    }

    fn grants(&self) -> &'static [Grant] {
        grants::AUTOSCALERS
    }

    fn message(&self, cx: &JobCx<'_, PyTorchJob>, what: &JobMessage<'_>) -> String {
        if has_master(cx) {
            short_message(KIND, cx.name, what)
        } else {
            qualified_message(KIND, cx.namespace, cx.name, what)
        }
    }
}

impl PyTorch {
    /// Rejects user containers with the name of the operator's: they would make every worker pod invalid.
    fn check_init_names(&self, worker: &RoleSpec<'_>) -> Result<(), SpecError> {
        let Some(spec) = worker.template.and_then(|t| t.spec.as_ref()) else {
            return Ok(());
        };
        let mut users = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten());
        match users.find(|c| self.init.names().contains(&c.name)) {
            Some(taken) => Err(SpecError::new(
                format!("{}.template.spec.initContainers", worker.path),
                format!(
                    "the operator adds an init container named {}; choose another name for yours",
                    taken.name
                ),
            )),
            None => Ok(()),
        }
    }
}

fn has_master(cx: &JobCx<'_, PyTorchJob>) -> bool {
    cx.roles.get(MASTER).is_some()
}

/// Returns the service name of the pod with rank 0.
fn master_address(cx: &JobCx<'_, PyTorchJob>) -> String {
    let role = if has_master(cx) { "master" } else { "worker" };
    training_core::names::replica(cx.name, role, 0)
}

/// Returns the variables of one replica, in their published order.
///
/// `RANK` is the rank of the pod; `WORLD_SIZE` counts processes. In jobs without a master, worker 0 acts as the master. Elastic
/// jobs without a master only get `torchrun`'s own variables.
fn environment(cx: &JobCx<'_, PyTorchJob>, me: Rank<'_>) -> EnvSet {
    let mut env = EnvSet::default();
    env.require("PYTHONUNBUFFERED", "1");
    let total = cx.roles.total();
    let elastic = cx.job.spec.elastic_policy.as_ref();
    let nproc = cx.job.spec.nproc_per_node.as_deref();
    if has_master(cx) || elastic.is_none() {
        let leader = if has_master(cx) { MASTER } else { WORKER };
        let (port, address) = (
            REPLICAS.port(cx.roles, leader).to_string(),
            master_address(cx),
        );
        let processes = nproc.and_then(elastic::processes).unwrap_or(1);
        env.require("MASTER_PORT", &*port)
            .require("PET_MASTER_PORT", port)
            .require("MASTER_ADDR", &*address)
            .require("PET_MASTER_ADDR", address)
            .require(
                "WORLD_SIZE",
                u64::from(total).saturating_mul(processes).to_string(),
            )
            .require("RANK", me.rank.to_string())
            .require("PET_NODE_RANK", me.rank.to_string());
    }
    if nproc.is_some() || elastic.is_none_or(|e| e.n_proc_per_node.is_none()) {
        env.require("PET_NPROC_PER_NODE", nproc.unwrap_or("auto"));
    }
    match elastic {
        None => {
            env.require("PET_NNODES", total.to_string());
        }
        Some(policy) => elastic::environment(cx, policy, &mut env),
    }
    env
}
