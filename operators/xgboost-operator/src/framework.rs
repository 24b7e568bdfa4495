//! What is specific to XGBoost: roles, rendezvous variables, and which role decides how a job ends.

use training_api::RestartPolicy;
use training_core::verdict::{SuccessPolicy, role_decides};
use training_core::{
    Census, Digest, EnvOn, EnvSet, Framework, JobCx, Lifecycle, OtherTypes, Rank, Replicas,
    RoleSet, SpecError, Verdict, check, names, training_job,
};

use crate::api::{CONTAINER, MASTER, REPLICA_MAP, WORKER, XGBoostJob};

/// The XGBoost framework.
#[derive(Clone, Copy, Debug, Default)]
pub struct XGBoost;

training_job!(XGBoostJob, xgb_replica_specs);

impl Lifecycle for XGBoost {}

impl Framework for XGBoost {
    type Job = XGBoostJob;
    const OPERATOR: &'static str = "xgboost-operator";
    const NAME: &'static str = "xgboost";
    const CONTROLLER: &'static str = "xgboostjob-controller";
    const REPLICAS: Replicas = Replicas {
        field: REPLICA_MAP,
        types: &[MASTER, WORKER],
        others: OtherTypes::Refused,
        master_types: &[MASTER],
        fallback_master_type: None,
        container: CONTAINER,
        port: ("xgboostjob-port", 9999),
        restart: RestartPolicy::Never,
    };
    const ENV_ON: EnvOn = EnvOn::Every;
    const SELECTORS: bool = false;
    const ALWAYS_RAN: bool = true;

    fn roles<'a>(&self, job: &'a XGBoostJob) -> Result<RoleSet<'a>, SpecError> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let roles = Self::REPLICAS.roles(name, &job.spec.xgb_replica_specs)?;
        if roles.get(MASTER).is_none() {
            let field = format!("spec.{REPLICA_MAP}[{MASTER}]");
            return Err(SpecError::new(field, "Required value: must be present"));
        }
        check::has_one(roles.get(MASTER))?;
        Ok(roles)
    }

    fn env(&self, cx: &JobCx<'_, XGBoostJob>, me: Rank<'_>) -> Result<EnvSet, SpecError> {
        let port = |role: &str| Self::REPLICAS.port(cx.roles, role).to_string();
        let total = cx.roles.total();
        let mut env = EnvSet::default();
        env.require("MASTER_PORT", port(MASTER))
            .require("MASTER_ADDR", names::replica(cx.name, "master", 0))
            .require("WORLD_SIZE", total.to_string())
            .require("RANK", me.rank.to_string())
            .require("PYTHONUNBUFFERED", "1");
        if total > 1 {
            // LightGBM has no tracker: every machine gets the list of all machines.
            env.require("WORKER_PORT", port(WORKER))
                .require("WORKER_ADDRS", cx.once(|| workers(cx)));
        }
        Ok(env)
    }

    fn judge(&self, cx: &JobCx<'_, XGBoostJob>, census: &Census<'_>) -> Verdict {
        role_decides(cx.roles, census, MASTER, SuccessPolicy::All)
    }

    fn rendezvous(&self, cx: &JobCx<'_, XGBoostJob>) -> Vec<(&'static str, Digest)> {
        vec![("replicas", Digest::of(&cx.roles.total()))]
    }
}

/// The addresses of all workers in rank order.
fn workers(cx: &JobCx<'_, XGBoostJob>) -> String {
    let count = cx.roles.get(WORKER).map_or(0, |w| w.replicas);
    let names: Vec<String> = (0..count)
        .map(|index| names::replica(cx.name, "worker", index))
        .collect();
    names.join(",")
}
