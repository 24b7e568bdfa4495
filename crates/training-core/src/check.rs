//! What makes a spec impossible, whatever its kind, in the field and the words in which the CRD refuses it.
//!
//! Most of it never gets here: the API server refuses it first. What was stored before a rule existed does.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, EnvVar, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use training_api::schema::{ENV_NAME, PORT_NAME, QUANTITY};
use training_api::{RunPolicy, SchedulingPolicy};

use crate::error::SpecError;
use crate::names;
use crate::roles::RoleSpec;

type Verdict = Result<(), SpecError>;

fn refuse(field: impl Into<String>, problem: impl Into<String>) -> Verdict {
    Err(SpecError::new(field, problem))
}

/// Refuses a number outside its bounds.
///
/// # Errors
/// On the field, with the bound.
pub fn within(
    field: impl FnOnce() -> String,
    number: Option<i64>,
    least: i64,
    most: i64,
) -> Verdict {
    match number {
        Some(n) if n < least => refuse(
            field(),
            format!("{n}: should be greater than or equal to {least}"),
        ),
        Some(n) if n > most => refuse(
            field(),
            format!("{n}: should be less than or equal to {most}"),
        ),
        Some(_) | None => Ok(()),
    }
}

/// Refuses the second of two equal keys.
fn unique<K: Ord>(field: &str, keys: impl Iterator<Item = K>) -> Verdict {
    let mut seen = BTreeSet::new();
    for (at, key) in keys.enumerate() {
        if !seen.insert(key) {
            return refuse(format!("{field}[{at}]"), "Duplicate value");
        }
    }
    Ok(())
}

fn filled(field: impl FnOnce() -> String, text: &str) -> Verdict {
    if text.is_empty() {
        return refuse(field(), "Required value: should be at least 1 chars long");
    }
    Ok(())
}

/// Checks limits and timers.
///
/// # Errors
/// The first field that is out of its bounds.
pub fn run_policy(policy: &RunPolicy) -> Verdict {
    let path = |field: &str| format!("spec.runPolicy.{field}");
    for (field, number) in [
        (
            "ttlSecondsAfterFinished",
            policy.ttl_seconds_after_finished.map(i64::from),
        ),
        ("activeDeadlineSeconds", policy.active_deadline_seconds),
        ("backoffLimit", policy.backoff_limit.map(i64::from)),
    ] {
        within(|| path(field), number, 0, i64::MAX)?;
    }
    policy.scheduling_policy.as_ref().map_or(Ok(()), scheduling)
}

fn scheduling(policy: &SchedulingPolicy) -> Verdict {
    let path = |field: &str| format!("spec.runPolicy.schedulingPolicy.{field}");
    let available = policy.min_available.map(i64::from);
    within(|| path("minAvailable"), available, 1, i64::MAX)?;
    quantities(&path("minResources"), policy.min_resources.iter().flatten())
}

fn quantities<'a>(field: &str, all: impl Iterator<Item = (&'a String, &'a Quantity)>) -> Verdict {
    for (name, quantity) in all {
        if !is_quantity(&quantity.0) {
            return refuse(
                format!("{field}.{name}"),
                format!("\"{}\" should match {QUANTITY}", quantity.0),
            );
        }
    }
    Ok(())
}

/// [`QUANTITY`] by hand: the core needs no regular expressions otherwise.
fn is_quantity(text: &str) -> bool {
    fn number(text: &str) -> Option<&str> {
        let text = text.strip_prefix(['+', '-']).unwrap_or(text);
        let whole = text.trim_start_matches(|c: char| c.is_ascii_digit());
        let rest = whole.strip_prefix('.').unwrap_or(whole);
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = text.len() - rest.len() - usize::from(whole.starts_with('.'));
        (digits > 0).then_some(rest)
    }
    number(text).is_some_and(|suffix| {
        let units = [
            "", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "n", "u", "m", "k", "M", "G", "T", "P", "E",
        ];
        let exponent = suffix.strip_prefix(['e', 'E']).and_then(number);
        units.contains(&suffix) || exponent == Some("")
    })
}

/// Checks what every kind needs of a template: containers with names and images, one with the kind's name, and nothing that
/// no pod may have.
///
/// # Errors
/// The first field that is missing or impossible.
pub fn template(role: &RoleSpec<'_>, container: &str) -> Verdict {
    let path = format!("{}.template", role.path);
    let Some(template) = role.template else {
        return refuse(path, "Required value");
    };
    let Some(spec) = &template.spec else {
        return refuse(format!("{path}.spec"), "Required value");
    };
    let list = format!("{path}.spec.containers");
    if spec.containers.is_empty() {
        return refuse(list, "Required value: should have at least 1 items");
    }
    containers(&list, &spec.containers)?;
    for (at, one) in spec.containers.iter().enumerate() {
        let image = one.image.as_deref().unwrap_or_default();
        filled(|| format!("{list}[{at}].image"), image)?;
    }
    if spec.containers.iter().all(|c| c.name != container) {
        let problem = format!("must have at least one container with name {container}");
        return refuse(list, problem);
    }
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    containers(&format!("{path}.spec.initContainers"), inits)?;
    volumes(&path, template)
}

fn volumes(path: &str, template: &PodTemplateSpec) -> Verdict {
    let volumes = template
        .spec
        .iter()
        .flat_map(|s| s.volumes.iter().flatten());
    unique(&format!("{path}.spec.volumes"), volumes.map(|v| &v.name))
}

fn containers(list: &str, all: &[Container]) -> Verdict {
    for (at, one) in all.iter().enumerate() {
        let path = || format!("{list}[{at}]");
        filled(|| format!("{}.name", path()), &one.name)?;
        if let Some(vars) = &one.env {
            env(&format!("{}.env", path()), vars)?;
        }
        if let Some(open) = &one.ports {
            ports(&format!("{}.ports", path()), open)?;
        }
        if let Some(resources) = &one.resources {
            for (field, amounts) in [
                ("limits", &resources.limits),
                ("requests", &resources.requests),
            ] {
                let field = format!("{}.resources.{field}", path());
                quantities(&field, amounts.iter().flatten())?;
            }
        }
    }
    unique(list, all.iter().map(|c| &c.name))
}

fn env(list: &str, vars: &[EnvVar]) -> Verdict {
    for (at, var) in vars.iter().enumerate() {
        let field = || format!("{list}[{at}].name");
        filled(field, &var.name)?;
        // What the API server takes in a pod.
        if !var
            .name
            .bytes()
            .all(|b| matches!(b, b' '..=b'~') && b != b'=')
        {
            return refuse(field(), format!("\"{}\" should match {ENV_NAME}", var.name));
        }
    }
    unique(list, vars.iter().map(|v| &v.name))
}

fn ports(list: &str, open: &[ContainerPort]) -> Verdict {
    for (at, port) in open.iter().enumerate() {
        let field = |name: &str| format!("{list}[{at}].{name}");
        let number = Some(i64::from(port.container_port));
        within(|| field("containerPort"), number, 1, 65_535)?;
        let name = port.name.as_deref().unwrap_or_default();
        if name.len() > 15 {
            return refuse(field("name"), "Too long: may not be more than 15 bytes");
        }
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if !name.bytes().all(plain) || name.starts_with('-') || name.ends_with('-') {
            return refuse(
                field("name"),
                format!("\"{name}\" should match {PORT_NAME}"),
            );
        }
    }
    let keys = open.iter().map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        (port.container_port, protocol)
    });
    unique(list, keys)
}

/// Checks that a role that may have one pod only has one, where the job has the role.
///
/// # Errors
/// On the number of replicas.
pub fn has_one(role: Option<&RoleSpec<'_>>) -> Verdict {
    match role.filter(|r| r.replicas != 1) {
        Some(role) => refuse(format!("{}.replicas", role.path), "must be 1"),
        None => Ok(()),
    }
}

/// Checks that a role has pods, where the job has the role.
///
/// # Errors
/// On the number of replicas.
pub fn has_some(role: Option<&RoleSpec<'_>>) -> Verdict {
    match role.filter(|r| r.replicas == 0) {
        Some(role) => refuse(format!("{}.replicas", role.path), "must be at least 1"),
        None => Ok(()),
    }
}

/// Checks that the names of a role's pods and services are DNS labels as services need them: lower-case letters, digits and
/// dashes, a letter first, and not too long.
///
/// # Errors
/// On `metadata.name`, with the length that would fit.
pub fn name(job: &str, role: &RoleSpec<'_>) -> Verdict {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if !job.starts_with(|c: char| c.is_ascii_lowercase())
        || !job.bytes().all(plain)
        || job.ends_with('-')
    {
        return refuse(
            "metadata.name",
            "metadata.name must be a DNS-1035 label: at most 63 lower-case letters, digits and '-', starting with a letter and \
             ending with a letter or digit",
        );
    }
    let length = names::longest(job, &role.label, role.replicas);
    if length <= names::MAX_NAME {
        return Ok(());
    }
    let fits = job.len().saturating_sub(length - names::MAX_NAME);
    let (label, most) = (&role.label, names::MAX_NAME);
    let problem = format!(
        "metadata.name may have at most {fits} characters with this number of replicas, because \
         <metadata.name>-{label}-<index> names pods and services and may have {most}"
    );
    refuse("metadata.name", problem)
}

#[cfg(test)]
mod tests {
    use super::is_quantity;

    #[test]
    fn quantities_are_told_from_other_texts() {
        for good in [
            "1", "1.5Gi", ".5", "5.", "100m", "+1e3", "-2E-3", "1E", "12Ki",
        ] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in [
            "", "abc", "1x", ".", "-", "1e", "1 Gi", "e3", "1Kii", "1e3m",
        ] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }
}
