//! `TF_CONFIG`, which describes the job's pods to TensorFlow. Users' scripts parse it, so it has the published bytes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use training_core::{JobCx, Rank, RoleSpec, SpecError, names};

use crate::api::{PS, TFJob, TYPES, WORKER};
use crate::replicas::REPLICAS;

/// The name of the variable.
pub const TF_CONFIG: &str = "TF_CONFIG";

#[derive(Serialize)]
struct Task<'a> {
    #[serde(rename = "type")]
    type_: &'a str,
    index: u32,
}

/// The cluster in a dynamic job: the pod itself and the parameter servers.
#[derive(Serialize)]
struct Sparse<'a> {
    worker: BTreeMap<u32, String>,
    // Null for a worker of a job without any.
    ps: Option<&'a [String]>,
}

/// Returns the value for one replica; `None` for a job of one pod, which has no peers.
///
/// # Errors
/// Never: strings and numbers always serialise.
pub fn tf_config(
    cx: &JobCx<'_, TFJob>,
    me: Rank<'_>,
    domain: Option<&str>,
) -> Result<Option<String>, SpecError> {
    let known = |r: &&RoleSpec<'_>| TYPES.contains(&r.key.as_str());
    let total: u64 = cx
        .roles
        .iter()
        .filter(known)
        .map(|r| u64::from(r.replicas))
        .sum();
    if total == 1 {
        return Ok(None);
    }
    let task = Task {
        type_: &me.role.label,
        index: me.index,
    };
    let dynamic = cx.job.spec.enable_dynamic_worker == Some(true);
    let cluster = if dynamic {
        sparse(cx, me, domain)
    } else {
        Ok(cx.once(|| dense(cx, domain)).to_owned())
    };
    let json = |e: serde_json::Error| SpecError::new("spec", e.to_string());
    let mut value = format!(
        r#"{{"cluster":{},"task":{}"#,
        cluster.map_err(json)?,
        serde_json::to_string(&task).map_err(json)?
    );
    if !dynamic {
        value.push_str(r#","environment":"cloud""#);
    }
    value.push('}');
    Ok(Some(value))
}

/// The addresses of all replicas by type, as JSON. Types and addresses contain no characters that JSON escapes.
fn dense(cx: &JobCx<'_, TFJob>, domain: Option<&str>) -> String {
    let mut roles: Vec<&RoleSpec<'_>> = cx.roles.iter().collect();
    roles.sort_by(|a, b| a.label.cmp(&b.label));
    let mut out = String::from("{");
    for (at, role) in roles.into_iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let list = addresses(cx, role, domain).join("\",\"");
        let quote = if list.is_empty() { "" } else { "\"" };
        let _ = write!(out, "{comma}\"{}\":[{quote}{list}{quote}]", role.label);
    }
    out.push('}');
    out
}

fn sparse(
    cx: &JobCx<'_, TFJob>,
    me: Rank<'_>,
    domain: Option<&str>,
) -> Result<String, serde_json::Error> {
    let own = || address(cx, me.role, me.index, domain);
    let (worker, ps) = match me.role.key.as_str() {
        WORKER => {
            let servers = cx.roles.get(PS).map(|ps| addresses(cx, ps, domain));
            (BTreeMap::from([(me.index, own())]), servers)
        }
        PS => (BTreeMap::new(), Some(vec![own()])),
        _ => (BTreeMap::new(), Some(Vec::new())),
    };
    let ps = ps.as_deref();
    serde_json::to_string(&Sparse { worker, ps })
}

fn addresses(cx: &JobCx<'_, TFJob>, role: &RoleSpec<'_>, domain: Option<&str>) -> Vec<String> {
    (0..role.replicas)
        .map(|index| address(cx, role, index, domain))
        .collect()
}

/// The address of one replica: `tf-worker-0.team.svc:2222`, with the cluster's domain after `svc` if set.
fn address(cx: &JobCx<'_, TFJob>, role: &RoleSpec<'_>, index: u32, domain: Option<&str>) -> String {
    let name = names::replica(cx.name, &role.label, index);
    let port = REPLICAS.port(cx.roles, &role.key);
    let dot = if domain.is_some() { "." } else { "" };
    let domain = domain.unwrap_or_default();
    format!("{name}.{}.svc{dot}{domain}:{port}", cx.namespace)
}
