//! What is peculiar to PyTorch: roles, rendezvous variables, and who decides the job's end.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use training_api::{CleanPodPolicy, JobStatus, ReplicaSpec, RestartPolicy, RunPolicy, labels};
use training_core::grants::{self, Grant};
use training_core::pod::{default_port, port_number};
use training_core::verdict::{Enough, Saying, role_decides, say_qualified, say_short};
use training_core::{
    Autoscaling, Census, Digest, EnvOn, EnvSet, Framework, JobCx, Note, Rank, RoleSet, RoleSpec,
    SpecError, TrainingJob, Verdict, check,
};

use crate::api::{CONTAINER, KIND, MASTER, PyTorchJob, REPLICA_MAP, WORKER};
use crate::elastic;
use crate::init::InitContainer;

/// The name of the rendezvous port.
pub const PORT_NAME: &str = "pytorchjob-port";
/// What is wrong with a replica type, in the words of the CRD.
const ODD_TYPE: &str =
    "unsupported replica type; supported values, spelled exactly so: \"Master\", \"Worker\"";
/// Its number where the template has no port of that name.
pub const PORT: i32 = 23456;

/// The PyTorch framework.
#[derive(Clone, Debug, Default)]
pub struct PyTorch {
    /// The init container that makes workers wait for their master's name.
    pub init: InitContainer,
}

impl TrainingJob for PyTorchJob {
    type Status = JobStatus;

    fn run_policy(&self) -> &RunPolicy {
        &self.spec.run_policy
    }

    fn status(&self) -> Option<&JobStatus> {
        self.status.as_ref()
    }

    fn set_status(&mut self, status: JobStatus) {
        self.status = Some(status);
    }

    fn shrink(&mut self) {
        for replica in self.spec.pytorch_replica_specs.values_mut() {
            replica.template = None;
        }
        self.spec.elastic_policy = None;
    }
}

impl Framework for PyTorch {
    type Job = PyTorchJob;
    const NAME: &'static str = "pytorch";
    const CONTROLLER: &'static str = "pytorchjob-controller";
    const CONTAINER: &'static str = CONTAINER;
    const ENV_ON: EnvOn = EnvOn::Every;
    const SELECTORS: bool = true;
    const AUTOSCALES: bool = true;

    fn roles<'a>(&self, job: &'a PyTorchJob) -> Result<RoleSet<'a>, SpecError> {
        let specs = &job.spec.pytorch_replica_specs;
        let map = format!("spec.{REPLICA_MAP}");
        if specs.is_empty() {
            return Err(SpecError::new(map, "should have at least 1 properties"));
        }
        let known = |key: &str| [MASTER, WORKER].iter().any(|k| k.eq_ignore_ascii_case(key));
        if let Some(key) = specs.keys().find(|key| !known(key)) {
            return Err(SpecError::new(
                map,
                format!("{ODD_TYPE}; \"{key}\" is none"),
            ));
        }
        let mut roles = Vec::new();
        for key in [MASTER, WORKER] {
            let mut spellings = specs.iter().filter(|(k, _)| k.eq_ignore_ascii_case(key));
            let Some((spelled, spec)) = spellings.next() else {
                continue;
            };
            if let Some((other, _)) = spellings.next() {
                let twice = format!("{ODD_TYPE}; {spelled} and {other} are the same");
                return Err(SpecError::new(map, twice));
            }
            roles.push(role(key, spelled, spec)?);
        }
        if let Some(first) = roles.first_mut() {
            first.speaks = true;
        }
        let name = job.metadata.name.as_deref().unwrap_or_default();
        for role in &roles {
            check::template(role, CONTAINER)?;
            check::name(name, role)?;
        }
        let roles = RoleSet::new(roles);
        if let Some(worker) = roles.get(WORKER).filter(|w| w.replicas == 0) {
            return Err(SpecError::new(
                format!("{}.replicas", worker.path),
                "must be at least 1",
            ));
        }
        if roles.get(MASTER).is_some_and(|m| m.replicas != 1) {
            return Err(SpecError::new(
                format!("spec.{REPLICA_MAP}[{MASTER}].replicas"),
                "must be 1",
            ));
        }
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
            (true, _) => (MASTER, Enough::All),
            (false, None) => (WORKER, Enough::All),
            // An elastic run is over for all as soon as it is over for one.
            (false, Some(_)) => (WORKER, Enough::Any),
        };
        role_decides(cx.roles, census, decider, enough)
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
        default_port(spec, CONTAINER, PORT_NAME, PORT);
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
        if policy.scheduling_policy.is_some() {
            ignored("spec.runPolicy.schedulingPolicy: this operator schedules pods one by one; only queueing systems read it".to_owned());
        }
        if let Some(elastic) = &cx.job.spec.elastic_policy {
            let replicas = cx.job.spec.pytorch_replica_specs.get(WORKER);
            if elastic.metrics.is_some() && replicas.is_some_and(|w| w.replicas.is_none()) {
                // Autoscalers go by the scale subresource, which doesn't answer without that number.
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

    fn autoscaling<'a>(&self, cx: &JobCx<'a, PyTorchJob>) -> Option<Autoscaling<'a>> {
        elastic::autoscaling(cx)
    }

    fn rendezvous(&self, cx: &JobCx<'_, PyTorchJob>) -> Vec<(&'static str, Digest)> {
        elastic::rendezvous(cx)
    }

    fn grants(&self) -> &'static [Grant] {
        grants::AUTOSCALERS
    }

    fn say(&self, cx: &JobCx<'_, PyTorchJob>, what: &Saying<'_>) -> String {
        if has_master(cx) {
            say_short(KIND, cx.name, what)
        } else {
            say_qualified(KIND, cx.namespace, cx.name, what)
        }
    }
}

impl PyTorch {
    /// A container of the user's with the name of ours would make every worker pod invalid.
    fn check_init_names(&self, worker: &RoleSpec<'_>) -> Result<(), SpecError> {
        let Some(spec) = worker.template.and_then(|t| t.spec.as_ref()) else {
            return Ok(());
        };
        let mut users = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten());
        let ours = self.init.render("");
        match users.find(|c| ours.iter().any(|o| o.name == c.name)) {
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

/// One role with its defaults: one replica, restart on failure.
fn role<'a>(key: &str, spelled: &str, spec: &'a ReplicaSpec) -> Result<RoleSpec<'a>, SpecError> {
    let path = format!("spec.{REPLICA_MAP}[{spelled}]");
    let replicas = u32::try_from(spec.replicas.unwrap_or(1)).map_err(|_| {
        let least = "should be greater than or equal to 0";
        SpecError::new(format!("{path}.replicas"), least)
    })?;
    let restart = match RestartPolicy::parse(spec.restart_policy.as_deref()) {
        None => RestartPolicy::OnFailure,
        Some(Ok(policy)) => policy,
        Some(Err(unknown)) => {
            let problem = format!(
                "\"{unknown}\": supported values: \"\", \"Always\", \"OnFailure\", \"Never\", \"ExitCode\""
            );
            return Err(SpecError::new(format!("{path}.restartPolicy"), problem));
        }
    };
    Ok(RoleSpec {
        key: key.to_owned(),
        label: key.to_ascii_lowercase(),
        replicas,
        restart,
        template: spec.template.as_deref(),
        speaks: false,
        path,
    })
}

fn has_master(cx: &JobCx<'_, PyTorchJob>) -> bool {
    cx.roles.get(MASTER).is_some()
}

/// The service of the pod with rank 0.
fn master_address(cx: &JobCx<'_, PyTorchJob>) -> String {
    let role = if has_master(cx) { "master" } else { "worker" };
    training_core::names::replica(cx.name, role, 0)
}

/// The rendezvous port of a role.
pub(crate) fn port(cx: &JobCx<'_, PyTorchJob>, role: &str) -> i32 {
    cx.roles
        .get(role)
        .map_or(PORT, |r| port_number(r, CONTAINER, PORT_NAME, PORT))
}

/// The variables of one replica, in their published order.
///
/// `RANK` is the rank of the pod, `WORLD_SIZE` counts processes. Without a master and without elasticity, worker 0 takes the
/// master's part; with elasticity and without a master only `torchrun`'s own variables are set.
fn environment(cx: &JobCx<'_, PyTorchJob>, me: Rank<'_>) -> EnvSet {
    let mut env = EnvSet::default();
    env.require("PYTHONUNBUFFERED", "1");
    let total = cx.roles.total();
    let elastic = cx.job.spec.elastic_policy.as_ref();
    let nproc = cx.job.spec.nproc_per_node.as_deref();
    if has_master(cx) || elastic.is_none() {
        let leader = if has_master(cx) { MASTER } else { WORKER };
        let (port, address) = (port(cx, leader).to_string(), master_address(cx));
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
