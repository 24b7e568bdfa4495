//! What a submission is put together from.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use thiserror::Error;
use training_core::SpecError;

use super::settings::Settings;
use crate::api::{SparkApplication, SparkApplicationSpec};
use crate::memory::{Language, Memory};
use crate::version::SparkVersion;

/// What a submission depends on beside the application.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The submission's id, as [`crate::digest::submission_id`] makes it.
    pub submission_id: &'a str,
    /// When the application is submitted. Only Spark's own record of it depends on it, and so the name of the ConfigMap of the
    /// properties: a submission that is tried again at another time has another one, and the former goes with the run.
    pub submitted_at: Timestamp,
    /// What stands for the stored spec, as [`crate::digest::spec_digest`] makes it. It is kept on the driver's pod.
    pub spec_digest: &'a str,
    /// How the operator is set up.
    pub settings: &'a Settings,
}

/// Why nothing was made. It will not help to try the same again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The batch scheduler is not one that the operator serves.
    #[error(
        "failed to submit spark application: failed during batch scheduler setup or check: {0}"
    )]
    Scheduler(SpecError),
    /// Anything else of the spec. The text has the words by which tools know a failed submission.
    #[error("failed to submit spark application: failed to run spark-submit: {0}")]
    Spec(SpecError),
}

impl From<SpecError> for Refusal {
    fn from(error: SpecError) -> Self {
        Self::Spec(error)
    }
}

impl Refusal {
    /// The field, and what is wrong with it.
    pub fn error(&self) -> &SpecError {
        match self {
            Self::Scheduler(error) | Self::Spec(error) => error,
        }
    }
}

/// One submission while it is put together.
#[derive(Clone, Copy, Debug)]
pub struct Cx<'a> {
    /// The application.
    pub app: &'a SparkApplication,
    /// Its spec with its defaults.
    pub spec: &'a SparkApplicationSpec,
    /// What it depends on besides.
    pub inputs: Inputs<'a>,
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its Spark.
    pub version: SparkVersion,
    /// What runs it.
    pub language: Language,
    /// The id that Spark knows the run by.
    pub app_id: &'a str,
    /// What the names of Spark's objects start with.
    pub prefix: &'a str,
}

impl Cx<'_> {
    /// Memory, counted from these properties.
    pub fn memory<'p>(&self, properties: &'p BTreeMap<String, String>) -> Memory<'p> {
        Memory {
            properties,
            language: self.language,
            version: self.version,
        }
    }
}
