//! The input of a submission.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use thiserror::Error;
use training_core::SpecError;

use super::settings::Settings;
use crate::api::{SparkApplication, SparkApplicationSpec};
use crate::memory::{Language, Memory};
use crate::version::SparkVersion;

/// The input of a submission in addition to the application.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The submission's id, from [`crate::digest::submission_id`].
    pub submission_id: &'a str,
    /// The submission time. It only affects Spark's record of it, not the name of the ConfigMap of properties.
    pub submitted_at: Timestamp,
    /// The digest of the stored spec, from [`crate::digest::spec_digest`]. Stored on the driver's pod.
    pub spec_digest: &'a str,
    /// The operator's settings.
    pub settings: &'a Settings,
}

/// Why a submission was refused. Retrying it unchanged won't help.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The operator doesn't support the batch scheduler.
    #[error(
        "failed to submit spark application: failed during batch scheduler setup or check: {0}"
    )]
    Scheduler(SpecError),
    /// Any other problem of the spec. The text has the words by which tools recognize a failed submission.
    #[error("failed to submit spark application: failed to run spark-submit: {0}")]
    Spec(SpecError),
}

impl From<SpecError> for Refusal {
    fn from(error: SpecError) -> Self {
        Self::Spec(error)
    }
}

impl Refusal {
    /// The field and its problem.
    pub fn error(&self) -> &SpecError {
        match self {
            Self::Scheduler(error) | Self::Spec(error) => error,
        }
    }
}

/// The context of one submission.
#[derive(Clone, Copy, Debug)]
pub struct Cx<'a> {
    /// The application.
    pub app: &'a SparkApplication,
    /// Its spec with defaults.
    pub spec: &'a SparkApplicationSpec,
    /// The other inputs.
    pub inputs: Inputs<'a>,
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its Spark version.
    pub version: SparkVersion,
    /// Its language.
    pub language: Language,
    /// The id that Spark gives the run.
    pub app_id: &'a str,
    /// The name prefix of Spark's objects.
    pub prefix: &'a str,
}

impl Cx<'_> {
    /// The memory settings in these properties.
    pub fn memory<'p>(&self, properties: &'p BTreeMap<String, String>) -> Memory<'p> {
        Memory {
            properties,
            language: self.language,
            version: self.version,
        }
    }
}
