//! The inputs for rendering one job's objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use training_core::restart::RestartScope;

use crate::setup::Setup;

/// Inputs shared by all objects of a job.
#[derive(Clone, Debug)]
pub struct Common<'a> {
    /// The job.
    pub setup: &'a Setup<'a>,
    /// Its owner reference.
    pub owner: OwnerReference,
    /// The name of the Secret with its SSH keys.
    pub secret: &'a str,
    /// The cluster's domain, empty if none is set.
    pub domain: &'a str,
    /// The init container that makes the launcher wait for its hosts, if enabled.
    pub gate: Option<Gate<'a>>,
    /// What restarts when a worker fails.
    pub scope: RestartScope,
}

/// The launcher's init container.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'a> {
    /// The operator's own image.
    pub image: &'a str,
    /// The job's annotation with the port of its SSH servers.
    pub port: Option<&'a str>,
}
