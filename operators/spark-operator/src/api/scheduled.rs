//! `ScheduledSparkApplication`: runs applications on a schedule.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use training_api::schema;

use super::application::SparkApplicationSpec;
use super::state::ScheduleState;

/// The spec of a scheduled Spark application.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sparkoperator.k8s.io",
    version = "v1beta2",
    kind = "ScheduledSparkApplication",
    plural = "scheduledsparkapplications",
    singular = "scheduledsparkapplication",
    shortname = "scheduledsparkapp",
    namespaced,
    doc = "A Spark application that is run at set times.",
    status = "ScheduledSparkApplicationStatus",
    derive = "Default",
    derive = "PartialEq",
    validation = schema::name_is_dns_label()
)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledSparkApplicationSpec {
    /// The schedule in cron syntax: `*/10 * * * *`, `@daily`, `@every 90s`.
    pub schedule: String,
    /// The time zone of the schedule: `Local`, `UTC` or a name like `Europe/Paris`. Unset: `Local`, the operator's zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// The application to run.
    pub template: SparkApplicationSpec,
    /// True: start no runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// What to do if the last run is still active: `Allow` (default) another one, `Forbid` it, or `Replace` the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_policy: Option<String>,
    /// Successful runs to keep. Unset: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successful_run_history_limit: Option<i32>,
    /// Failed runs to keep. Unset: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_run_history_limit: Option<i32>,
}

/// The status of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledSparkApplicationStatus {
    /// The time of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Time>,
    /// The time of the next run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_run: Option<Time>,
    /// The application of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_name: Option<String>,
    /// Successful runs, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past_successful_run_names: Vec<String>,
    /// Failed runs, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past_failed_run_names: Vec<String>,
    /// The state of the schedule.
    #[serde(default)]
    pub schedule_state: ScheduleState,
    /// Why the schedule is invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// Ours: the schedule and the time zone that `nextRun` was computed from, to detect an edit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed_from: Option<String>,
}
