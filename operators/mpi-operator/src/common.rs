//! What the objects of one job are rendered from.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::setup::Setup;

/// What a job's objects have in common.
#[derive(Clone, Debug)]
pub struct Common<'a> {
    /// The job.
    pub setup: &'a Setup<'a>,
    /// Its owner reference.
    pub owner: OwnerReference,
    /// The name of the Secret that holds its keys.
    pub secret: &'a str,
    /// The cluster's domain, empty if none is set.
    pub domain: &'a str,
    /// What makes the launcher wait for its hosts, unless nothing does.
    pub gate: Option<Gate<'a>>,
}

/// The launcher's init container.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'a> {
    /// The image of the operator's own program.
    pub image: &'a str,
    /// The job's annotation that names the port of its SSH servers.
    pub port: Option<&'a str>,
}
