//! `ScheduledSparkApplication`: applications that are made again and again.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use training_api::schema;

use super::application::SparkApplicationSpec;
use super::state::ScheduleState;

/// When applications are made, and which.
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
    /// The times, as cron writes them: `*/10 * * * *`, `@daily`, `@every 90s`.
    pub schedule: String,
    /// The zone that the times are meant in: `Local`, `UTC` or a name like `Europe/Paris`. Unset: `Local`, the operator's zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// The application.
    pub template: SparkApplicationSpec,
    /// True: nothing is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// What happens while the last run goes on: `Allow` (default) another one, `Forbid` none, `Replace` it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_policy: Option<String>,
    /// Runs that ended well and are kept. Unset: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successful_run_history_limit: Option<i32>,
    /// Runs that ended badly and are kept. Unset: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_run_history_limit: Option<i32>,
}

/// What a schedule reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledSparkApplicationStatus {
    /// When the last run was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Time>,
    /// When the next one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_run: Option<Time>,
    /// The application of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_name: Option<String>,
    /// Runs that ended well, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past_successful_run_names: Vec<String>,
    /// Runs that ended badly, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past_failed_run_names: Vec<String>,
    /// What the schedule is doing.
    #[serde(default)]
    pub schedule_state: ScheduleState,
    /// Why it can't be followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// Ours: the schedule and the zone that `nextRun` was computed from, so that an edit moves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed_from: Option<String>,
}
