//! A pod template, and the Spark container in it.
//!
//! Source: the rules by which Spark merges templates: metadata's name goes, the Spark container is the one of the role's name, else
//! the first, and it comes last.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};

use crate::api::Role;
use crate::label;

/// What a pod is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Base {
    /// The template's labels, but for those that are the operator's.
    pub labels: BTreeMap<String, String>,
    /// The template's annotations.
    pub annotations: BTreeMap<String, String>,
    /// The pod, without the Spark container.
    pub spec: PodSpec,
    /// The Spark container.
    pub container: Container,
}

impl Base {
    /// Takes a template apart. Owners and finalizers are left behind: they are the operator's business.
    pub fn of(template: Option<&PodTemplateSpec>, role: Role) -> Self {
        let template = template.cloned().unwrap_or_default();
        let meta = template.metadata.unwrap_or_default();
        let mut labels = meta.labels.unwrap_or_default();
        labels.retain(|key, _| !key.starts_with(label::OURS));
        let mut spec = template.spec.unwrap_or_default();
        let at = spec
            .containers
            .iter()
            .position(|c| c.name == role.container());
        let mut container = if spec.containers.is_empty() {
            Container::default()
        } else {
            spec.containers.remove(at.unwrap_or(0))
        };
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
