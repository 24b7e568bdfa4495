//! Validates specs of all kinds, with the field and message that the CRD's validation uses.
//!
//! The API server rejects most invalid specs first. This code catches objects that were stored before a rule existed.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, ContainerPort, EnvVar};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use training_api::schema::{ENV_NAME, PORT_NAME, QUANTITY};
use training_api::{RunPolicy, SchedulingPolicy};

use crate::model::error::SpecError;
use crate::model::names;
use crate::model::roles::{RoleSet, RoleSpec};

type Verdict = Result<(), SpecError>;

fn refuse(field: impl Into<String>, problem: impl Into<String>) -> Verdict {
    Err(SpecError::new(field, problem))
}

/// A field path. It is formatted only for errors, because every plan checks the whole spec.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root(&'a str),
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    fn field<'a>(&'a self, name: &'a str) -> Path<'a> {
        Path::Field(self, name)
    }

    fn item(&self, at: usize) -> Path<'_> {
        Path::Item(self, at)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(text) => f.write_str(text),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(list, at) => write!(f, "{list}[{at}]"),
        }
    }
}

impl From<Path<'_>> for String {
    fn from(path: Path<'_>) -> Self {
        path.to_string()
    }
}

/// Rejects a number outside its bounds.
///
/// # Errors
/// The error names the field and the bound.
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

/// Rejects duplicate keys.
fn unique<K: Ord>(list: Path<'_>, keys: impl Iterator<Item = K>) -> Verdict {
    let mut known = BTreeSet::new();
    for (at, key) in keys.enumerate() {
        if !known.insert(key) {
            return refuse(list.item(at), "Duplicate value");
        }
    }
    Ok(())
}

fn filled(field: Path<'_>, text: &str) -> Verdict {
    if text.is_empty() {
        return refuse(field, "Required value: should be at least 1 chars long");
    }
    Ok(())
}

/// Validates limits and timers.
///
/// # Errors
/// The error names the first field that is out of bounds.
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
    let path = Path::Root("spec.runPolicy.schedulingPolicy");
    let available = policy.min_available.map(i64::from);
    let field = path.field("minAvailable");
    within(|| field.to_string(), available, 1, i64::MAX)?;
    quantities(
        path.field("minResources"),
        policy.min_resources.iter().flatten(),
    )
}

fn quantities<'a>(
    field: Path<'_>,
    all: impl Iterator<Item = (&'a String, &'a Quantity)>,
) -> Verdict {
    for (name, quantity) in all {
        if !is_quantity(&quantity.0) {
            return refuse(
                field.field(name),
                format!("\"{}\" should match {QUANTITY}", quantity.0),
            );
        }
    }
    Ok(())
}

/// Matches [`QUANTITY`] without a regular expression: the core needs none otherwise.
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

/// Validates what every kind needs of a template: containers with names and images, one with the kind's container name (if the kind
/// has one), and nothing that is invalid in any pod.
///
/// # Errors
/// The error names the first field that is missing or invalid.
pub fn template(role: &RoleSpec<'_>, container: Option<&str>) -> Verdict {
    let role_path = Path::Root(&role.path);
    let path = role_path.field("template");
    let Some(template) = role.template else {
        return refuse(path, "Required value");
    };
    let spec_path = path.field("spec");
    let Some(spec) = &template.spec else {
        return refuse(spec_path, "Required value");
    };
    let list = spec_path.field("containers");
    if spec.containers.is_empty() {
        return refuse(list, "Required value: should have at least 1 items");
    }
    containers(list, &spec.containers)?;
    for (at, one) in spec.containers.iter().enumerate() {
        let image = one.image.as_deref().unwrap_or_default();
        filled(list.item(at).field("image"), image)?;
    }
    if let Some(container) = container
        && spec.containers.iter().all(|c| c.name != container)
    {
        let problem = format!("must have at least one container with name {container}");
        return refuse(list, problem);
    }
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    containers(spec_path.field("initContainers"), inits)?;
    let volumes = spec.volumes.iter().flatten().map(|v| &v.name);
    unique(spec_path.field("volumes"), volumes)
}

fn containers(list: Path<'_>, all: &[Container]) -> Verdict {
    for (at, one) in all.iter().enumerate() {
        let path = list.item(at);
        filled(path.field("name"), &one.name)?;
        if let Some(vars) = &one.env {
            env(path.field("env"), vars)?;
        }
        if let Some(open) = &one.ports {
            ports(path.field("ports"), open)?;
        }
        if let Some(resources) = &one.resources {
            let path = path.field("resources");
            let (limits, requests) = (&resources.limits, &resources.requests);
            quantities(path.field("limits"), limits.iter().flatten())?;
            quantities(path.field("requests"), requests.iter().flatten())?;
        }
    }
    unique(list, all.iter().map(|c| &c.name))
}

fn env(list: Path<'_>, vars: &[EnvVar]) -> Verdict {
    for (at, var) in vars.iter().enumerate() {
        let item = list.item(at);
        let field = item.field("name");
        filled(field, &var.name)?;
        // The characters that the API server accepts in a pod.
        if !var
            .name
            .bytes()
            .all(|b| matches!(b, b' '..=b'~') && b != b'=')
        {
            return refuse(field, format!("\"{}\" should match {ENV_NAME}", var.name));
        }
    }
    unique(list, vars.iter().map(|v| &v.name))
}

fn ports(list: Path<'_>, open: &[ContainerPort]) -> Verdict {
    for (at, port) in open.iter().enumerate() {
        let item = list.item(at);
        let number = Some(i64::from(port.container_port));
        let field = item.field("containerPort");
        within(|| field.to_string(), number, 1, 65_535)?;
        let field = item.field("name");
        let name = port.name.as_deref().unwrap_or_default();
        if name.len() > 15 {
            return refuse(field, "Too long: may not be more than 15 bytes");
        }
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if !name.bytes().all(plain) || name.starts_with('-') || name.ends_with('-') {
            return refuse(field, format!("\"{name}\" should match {PORT_NAME}"));
        }
    }
    let keys = open.iter().map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        (port.container_port, protocol)
    });
    unique(list, keys)
}

/// The prefix of priority classes for the cluster's own pods. Source: Kubernetes, reserved prefix of `PriorityClass`.
const SYSTEM_CLASSES: &str = "system-";

/// Rejects a system priority class, for strict mode: its pods preempt those of every namespace.
///
/// # Errors
/// The error names the field of the class.
pub fn no_system_class(field: impl FnOnce() -> String, class: Option<&str>) -> Verdict {
    match class.filter(|class| class.starts_with(SYSTEM_CLASSES)) {
        Some(class) => refuse(
            field(),
            format!(
                "\"{class}\" is for the pods of the system, and this operator runs with --strict; use another class or remove the field"
            ),
        ),
        None => Ok(()),
    }
}

/// Validates a job in strict mode.
///
/// # Errors
/// The error names the first field that reaches beyond the job's namespace.
pub fn strict(policy: &RunPolicy, roles: &RoleSet<'_>) -> Verdict {
    let gang = policy.scheduling_policy.as_ref();
    let class = gang.and_then(|policy| policy.priority_class.as_deref());
    let field = || "spec.runPolicy.schedulingPolicy.priorityClass".to_owned();
    no_system_class(field, class)?;
    for role in roles {
        let spec = role.template.and_then(|t| t.spec.as_ref());
        let class = spec.and_then(|spec| spec.priority_class_name.as_deref());
        let field = || format!("{}.template.spec.priorityClassName", role.path);
        no_system_class(field, class)?;
    }
    Ok(())
}

/// Checks that a role has exactly one replica, if the job has the role.
///
/// # Errors
/// The error names the `replicas` field.
pub fn has_one(role: Option<&RoleSpec<'_>>) -> Verdict {
    match role.filter(|r| r.replicas != 1) {
        Some(role) => refuse(format!("{}.replicas", role.path), "must be 1"),
        None => Ok(()),
    }
}

/// Checks that a role has replicas, if the job has the role.
///
/// # Errors
/// The error names the `replicas` field.
pub fn has_some(role: Option<&RoleSpec<'_>>) -> Verdict {
    match role.filter(|r| r.replicas == 0) {
        Some(role) => refuse(format!("{}.replicas", role.path), "must be at least 1"),
        None => Ok(()),
    }
}

/// Checks that the names of a role's pods and services are valid DNS labels for services: lower-case letters, digits and dashes,
/// starting with a letter, and not too long.
///
/// # Errors
/// The error names `metadata.name`, with the length that would fit.
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
    use super::{Path, is_quantity};

    #[test]
    fn a_field_is_named_by_its_whole_path() {
        let root = Path::Root("spec.roles[Worker]");
        let list = root.field("ports");
        let item = list.item(3);
        assert_eq!(
            item.field("name").to_string(),
            "spec.roles[Worker].ports[3].name"
        );
    }

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
