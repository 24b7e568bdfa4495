//! Splits a pod template into the pod and its Spark container.
//!
//! Source: Spark's rules for templates: Spark drops the name in the metadata. The Spark container is the one with the role's
//! name, or else the first, and comes last.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};

use crate::api::Role;
use crate::label;

/// Returns the index of the Spark container.
pub fn spark_container(containers: &[Container], role: Role) -> Option<usize> {
    if containers.is_empty() {
        return None;
    }
    let mut all = containers.iter();
    let named = all.position(|c| c.name == role.container());
    Some(named.unwrap_or(0))
}

/// The base of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Base {
    /// The template's labels, except those reserved for the operator.
    pub labels: BTreeMap<String, String>,
    /// The template's annotations.
    pub annotations: BTreeMap<String, String>,
    /// The pod spec, without the Spark container.
    pub spec: PodSpec,
    /// The Spark container.
    pub container: Container,
}

impl Base {
    /// Splits a template.
    pub fn of(template: Option<&PodTemplateSpec>, role: Role) -> Self {
        let template = template.cloned().unwrap_or_default();
        let meta = template.metadata.unwrap_or_default();
        let mut labels = meta.labels.unwrap_or_default();
        labels.retain(|key, _| !key.starts_with(label::OURS));
        let mut spec = template.spec.unwrap_or_default();
        let at = spark_container(&spec.containers, role);
        let mut container = at.map_or_else(Container::default, |at| spec.containers.remove(at));
        if container.name.is_empty() {
            role.container().clone_into(&mut container.name);
        }
        Self {
            labels,
            annotations: meta.annotations.unwrap_or_default(),
            spec,
            container,
        }
    }
}
