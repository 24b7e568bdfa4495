//! Builds a pod from template, rank and environment.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerPort, Pod, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use training_api::labels as keys;

use crate::kind::env::MAX_VARIABLE_BYTES;
use crate::kind::framework::{Framework, JobCx, TrainingJob};
use crate::model::error::SpecError;
use crate::model::names;
use crate::model::notes::Note;
use crate::model::roles::{Rank, RoleSpec};
use crate::model::view::Attempt;

/// A pod, and the variables in which the rendezvous replaced the user's value.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// The pod.
    pub pod: Pod,
    /// The replaced variables.
    pub replaced: Vec<String>,
}

/// Renders the pod of one replica.
///
/// # Errors
/// The error names the field of the spec that makes it invalid.
pub fn render<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    me: Rank<'_>,
    attempt: Attempt,
) -> Result<Rendered, SpecError> {
    let mut template = defaulted(framework, cx, me)?;
    let env = framework.env(cx, me)?;
    if let Some((name, size)) = env.oversized() {
        let problem = format!(
            "ClusterSpecTooLarge: {name} would have {size} bytes, and a process can be given {MAX_VARIABLE_BYTES}; use fewer replicas"
        );
        return Err(SpecError::new(
            format!("spec.{}", F::REPLICAS.field),
            problem,
        ));
    }
    let spec = template.spec.get_or_insert_with(PodSpec::default);
    let replaced = env.install(spec, F::ENV_ON, F::CONTAINER);
    spec.restart_policy = Some(cx.restart_scope().for_pod(me.role).to_owned());
    // Peers find a pod by its name, which is the default host name. A host name from the template would be the same for all
    // replicas.
    (spec.hostname, spec.subdomain, spec.hostname_override) = (None, None, None);
    if let Some(main) = spec.containers.iter_mut().find(|c| c.name == F::CONTAINER)
        && main.termination_message_policy.is_none()
    {
        // This puts the last log lines of a failure into the job's status.
        main.termination_message_policy = Some("FallbackToLogsOnError".to_owned());
    }
    let meta = template.metadata.take().unwrap_or_default();
    let mut all_labels = meta.labels.unwrap_or_default();
    all_labels.extend(labels::<F>(cx, me));
    all_labels.remove(keys::JOB_ROLE);
    if me.role.is_master && (me.index == 0 || !me.role.is_fallback_master) {
        all_labels.insert(keys::JOB_ROLE.to_owned(), keys::JOB_ROLE_MASTER.to_owned());
    }
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(keys::ATTEMPT.to_owned(), attempt.to_string());
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(names::replica(cx.name, &me.role.label, me.index)),
            namespace: Some(cx.namespace.to_owned()),
            labels: Some(all_labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owner(cx.job)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    };
    Ok(Rendered { pod, replaced })
}

/// Returns the role's template as changed by the framework, without the environment.
pub(crate) fn defaulted<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    me: Rank<'_>,
) -> Result<PodTemplateSpec, SpecError> {
    let mut template = me
        .role
        .template
        .cloned()
        .ok_or_else(|| SpecError::new(format!("{}.template", me.role.path), "is required"))?;
    if let Some(spec) = template.spec.as_mut() {
        let (name, number) = F::REPLICAS.port;
        default_port(spec, F::CONTAINER, name, number);
    }
    framework.shape(cx, me, &mut template)?;
    Ok(template)
}

/// Returns one-time events about template settings that are risky or have no effect. `ignored_policy` is the reason and text of the
/// event about a restart policy.
pub fn advise(role: &RoleSpec<'_>, ignored_policy: Option<(&str, &str)>) -> Vec<Note> {
    let Some(template) = role.template else {
        return Vec::new();
    };
    let path = format!("{}.template", role.path);
    let mut notes = Vec::new();
    let policy = template
        .spec
        .as_ref()
        .and_then(|s| s.restart_policy.as_ref());
    if let (Some((reason, text)), Some(_)) = (ignored_policy, policy) {
        notes.push(Note::warning(reason, text));
    }
    let mut risky = Vec::new();
    let mut ignored = |text: String| notes.push(Note::warning("SettingIgnored", text));
    if let Some(spec) = &template.spec {
        let named = [&spec.hostname, &spec.subdomain, &spec.hostname_override];
        if named.iter().any(|name| name.is_some()) {
            ignored(format!(
                "{path}.spec: hostname and subdomain are ignored; each pod has its own name"
            ));
        }
        if spec.host_network == Some(true) {
            risky.push(format!(
                "{path}.spec.hostNetwork: pods of this role on one node have the same ports and address, and get in each other's way"
            ));
        }
    }
    let meta = template.metadata.clone().unwrap_or_default();
    if meta.finalizers.as_ref().is_some_and(|f| !f.is_empty()) {
        ignored(format!(
            "{path}.metadata.finalizers are ignored: they would block the replacement of a deleted pod until they are removed"
        ));
    }
    for key in keys::OWN {
        if meta.labels.as_ref().is_some_and(|l| l.contains_key(key)) {
            let text = format!(
                "{path}.metadata.labels: {key} is the operator's own, and its value is used"
            );
            ignored(text);
        }
    }
    if meta.name.is_some() || meta.namespace.is_some() {
        let text = format!(
            "{path}.metadata: pods get their names from the job, and live in its namespace"
        );
        ignored(text);
    }
    notes.extend(
        risky
            .into_iter()
            .map(|text| Note::warning("RiskySetting", text)),
    );
    notes
}

/// Returns the ports of the role's main container, with the kind's default applied.
///
/// # Errors
/// As [`render`].
pub fn main_ports<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    me: Rank<'_>,
) -> Result<Vec<ContainerPort>, SpecError> {
    let template = defaulted(framework, cx, me)?;
    let containers = template.spec.map(|s| s.containers).unwrap_or_default();
    let main = containers.into_iter().find(|c| c.name == F::CONTAINER);
    Ok(main.and_then(|c| c.ports).unwrap_or_default())
}

/// The labels that select a replica's pod. Its service has them too.
pub fn labels<F: Framework>(cx: &JobCx<'_, F::Job>, me: Rank<'_>) -> BTreeMap<String, String> {
    [
        (keys::OPERATOR_NAME, F::CONTROLLER.to_owned()),
        (keys::JOB_NAME, cx.name.to_owned()),
        (keys::REPLICA_TYPE, me.role.label.clone()),
        (keys::REPLICA_INDEX, me.index.to_string()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// The label selector of all pods of one role. Shape: the published order of keys.
pub fn selector<F: Framework>(job: &str, role_label: &str) -> String {
    format!(
        "{}={job},{}={},{}={role_label}",
        keys::JOB_NAME,
        keys::OPERATOR_NAME,
        F::CONTROLLER,
        keys::REPLICA_TYPE
    )
}

/// The owner reference of every child of a job.
pub fn owner<J: TrainingJob>(job: &J) -> OwnerReference {
    OwnerReference {
        api_version: J::api_version(&()).into_owned(),
        kind: J::kind(&()).into_owned(),
        name: job.meta().name.clone().unwrap_or_default(),
        uid: job.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Adds the kind's port to the main container, else to container 0, unless it has a port of that name.
fn default_port(spec: &mut PodSpec, container: &str, name: &str, number: i32) {
    let at = spec
        .containers
        .iter()
        .position(|c| c.name == container)
        .unwrap_or(0);
    let Some(container) = spec.containers.get_mut(at) else {
        return;
    };
    let ports = container.ports.get_or_insert_with(Vec::new);
    if ports.iter().all(|p| p.name.as_deref() != Some(name)) {
        ports.push(ContainerPort {
            name: Some(name.to_owned()),
            container_port: number,
            ..ContainerPort::default()
        });
    }
}
