//! Elastic jobs: the rendezvous settings of `torchrun`.

use training_core::{Autoscaling, Digest, EnvSet, JobCx, RoleSet, SpecError, check, names};

use crate::api::{ElasticPolicy, NPROC, PyTorchJob, REPLICA_MAP, WORKER};
use crate::replicas::REPLICAS;

/// Validates rules across fields.
///
/// # Errors
/// The error names the invalid field.
pub(crate) fn verify(job: &PyTorchJob, roles: &RoleSet<'_>) -> Result<(), SpecError> {
    if let Some(value) = job.spec.nproc_per_node.as_deref() {
        let device = value.starts_with(|c: char| c.is_ascii_alphabetic())
            && value
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
        let number = processes(value).is_some_and(|n| (1..1_000_000_000).contains(&n));
        if value.len() > 63 || !value.is_empty() && !device && !number {
            let problem = format!(
                "\"{value}\" should match {NPROC}: a number above 0, or a device such as auto, cpu or gpu"
            );
            return Err(SpecError::new("spec.nprocPerNode", problem));
        }
    }
    let Some(policy) = &job.spec.elastic_policy else {
        return Ok(());
    };
    if roles.get(WORKER).is_none() {
        let field = format!("spec.{REPLICA_MAP}[{WORKER}]");
        return Err(SpecError::new(
            field,
            "Worker must be configured if elastic policy is used",
        ));
    }
    if policy.n_proc_per_node.is_some() && job.spec.nproc_per_node.is_some() {
        return Err(SpecError::new(
            "spec.elasticPolicy.nProcPerNode",
            "must not be used with spec.nprocPerNode",
        ));
    }
    for (field, number, least, most) in [
        ("minReplicas", policy.min_replicas, 1, i64::MAX),
        ("maxReplicas", policy.max_replicas, 1, i64::MAX),
        ("nProcPerNode", policy.n_proc_per_node, 1, i64::MAX),
        ("rdzvPort", policy.rdzv_port, 0, 65_535),
    ] {
        let path = || format!("spec.elasticPolicy.{field}");
        check::within(path, number.map(i64::from), least, most)?;
    }
    let (min, max) = bounds(policy, roles);
    if max < min {
        let problem = "minReplicas must not be greater than maxReplicas";
        return Err(SpecError::new("spec.elasticPolicy.minReplicas", problem));
    }
    Ok(())
}

/// Parses `nprocPerNode` if it is a number: digits, with an optional plus sign before them.
pub(crate) fn processes(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let number = digits.bytes().all(|b| b.is_ascii_digit());
    number.then(|| digits.parse().ok()).flatten()
}

/// Returns the minimum and maximum number of workers. One bound stands for both; without bounds, the current number of workers does.
fn bounds(policy: &ElasticPolicy, roles: &RoleSet<'_>) -> (i64, i64) {
    let workers = roles.get(WORKER).map_or(0, |w| i64::from(w.replicas));
    let (min, max) = (
        policy.min_replicas.map(i64::from),
        policy.max_replicas.map(i64::from),
    );
    (
        min.or(max).unwrap_or(workers),
        max.or(min).unwrap_or(workers),
    )
}

/// Returns the minimum number of replicas with which `torchrun` trains; `None` for a job that is not elastic.
pub(crate) fn fewest(cx: &JobCx<'_, PyTorchJob>) -> Option<u32> {
    let policy = cx.job.spec.elastic_policy.as_ref()?;
    u32::try_from(bounds(policy, cx.roles).0).ok()
}

/// Returns the job's autoscaler, if the job has metrics, even an empty list.
pub(crate) fn autoscaling<'a>(cx: &JobCx<'a, PyTorchJob>) -> Option<Autoscaling<'a>> {
    let policy = cx.job.spec.elastic_policy.as_ref()?;
    let (min, max) = bounds(policy, cx.roles);
    Some(Autoscaling {
        min: i32::try_from(min).unwrap_or(i32::MAX),
        max: i32::try_from(max).unwrap_or(i32::MAX),
        metrics: policy.metrics.as_deref()?,
    })
}

/// Returns the parts of the spec, other than the templates, that pods depend on. For an elastic job these exclude the number of
/// workers: `torchrun` discovers it.
pub(crate) fn rendezvous(cx: &JobCx<'_, PyTorchJob>) -> Vec<(&'static str, Digest)> {
    let spec = &cx.job.spec;
    let mut parts = Vec::new();
    if let Some(processes) = &spec.nproc_per_node {
        parts.push(("nprocPerNode", Digest::of(processes)));
    }
    match &spec.elastic_policy {
        None => parts.push(("replicas", Digest::of(&cx.roles.total()))),
        Some(policy) => {
            // Only the autoscaler uses the metrics, and it follows edits.
            let metrics = None;
            let told = ElasticPolicy {
                metrics,
                ..policy.clone()
            };
            parts.push(("elasticPolicy", Digest::of(&told)));
        }
    }
    parts
}

/// Appends the elastic block in its published order.
pub(crate) fn environment(cx: &JobCx<'_, PyTorchJob>, policy: &ElasticPolicy, env: &mut EnvSet) {
    let host = policy
        .rdzv_host
        .clone()
        .unwrap_or_else(|| names::replica(cx.name, "worker", 0));
    let endpoint = policy
        .rdzv_port
        .unwrap_or_else(|| REPLICAS.port(cx.roles, WORKER));
    let (min, max) = bounds(policy, cx.roles);
    env.require("PET_RDZV_ENDPOINT", format!("{host}:{endpoint}"))
        .require(
            "PET_RDZV_BACKEND",
            policy.rdzv_backend.as_deref().unwrap_or("c10d"),
        )
        .require("PET_NNODES", format!("{min}:{max}"));
    if let Some(restarts) = policy.max_restarts {
        env.require("PET_MAX_RESTARTS", restarts.to_string());
    }
    if let Some(processes) = policy.n_proc_per_node {
        env.require("PET_NPROC_PER_NODE", processes.to_string());
    }
    if let Some(id) = &policy.rdzv_id {
        env.require("PET_RDZV_ID", id.as_str());
    }
    if let Some(settings) = policy.rdzv_conf.as_deref().filter(|s| !s.is_empty()) {
        let pairs: Vec<String> = settings
            .iter()
            .map(|s| {
                format!(
                    "{}={}",
                    s.key.as_deref().unwrap_or_default(),
                    s.value.as_deref().unwrap_or_default()
                )
            })
            .collect();
        env.require("PET_RDZV_CONF", pairs.join(","));
    }
    if policy.standalone == Some(true) {
        env.require("PET_STANDALONE", "");
    }
}
