//! What an application reports, and what the operator remembers about it.
//!
//! The first nine fields are the published contract. The others are ours and additive: they hold what must survive a restart of
//! the operator.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use training_api::JobCondition;

use super::state::{ExecutorState, State};

/// The status of an application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SparkApplicationStatus {
    /// The id that Spark knows the run by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spark_application_id: Option<String>,
    /// The id of the last submission; every submission has another.
    #[serde(
        rename = "submissionID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub submission_id: Option<String>,
    /// When it was submitted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_submission_attempt_time: Option<Time>,
    /// When its driver ended, or was lost, or could not be made for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_time: Option<Time>,
    /// The driver.
    #[serde(default)]
    pub driver_info: DriverInfo,
    /// What the application is doing.
    #[serde(default)]
    pub application_state: ApplicationState,
    /// Executors by the names of their pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub executor_state: BTreeMap<String, ExecutorState>,
    /// Submissions that led to a driver, since the spec was changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_attempts: Option<i32>,
    /// Submissions, since the spec was changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission_attempts: Option<i32>,

    /// Ours: only `Stalled`, while something that is not an end keeps the application from going on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JobCondition>,
    /// Ours: the generation of the spec that was submitted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ours: stands for the spec that was submitted last, `<version>-<hash>-<placement>`. By it a change is noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
    /// Ours: runs that failed and count against `onFailureRetries`, since the spec was changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_runs: Option<i32>,
    /// Ours: submissions of the present run that failed and count against `onSubmissionFailureRetries`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_submissions: Option<i32>,
    /// Ours: when the last run or submission failed. The wait before the next is counted from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure_time: Option<Time>,
    /// Ours: running executors of those that were asked for, e.g. `3/4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executors: Option<String>,
    /// Ours: executors that `executorState` has no room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executors_not_listed: Option<i32>,
    /// Ours: the batch scheduler of the present run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_scheduler: Option<String>,
}

/// The driver of an application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriverInfo {
    /// The Service of its web UI.
    #[serde(
        rename = "webUIServiceName",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub web_ui_service_name: Option<String>,
    /// The address of that Service, `<IP>:<port>`.
    #[serde(
        rename = "webUIAddress",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub web_ui_address: Option<String>,
    /// The port of that Service.
    #[serde(rename = "webUIPort", default, skip_serializing_if = "Option::is_none")]
    pub web_ui_port: Option<i32>,
    /// The Ingress of its web UI.
    #[serde(
        rename = "webUIIngressName",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub web_ui_ingress_name: Option<String>,
    /// The URL of its web UI.
    #[serde(
        rename = "webUIIngressAddress",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub web_ui_ingress_address: Option<String>,
    /// The name of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
}

/// What an application is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationState {
    /// The state.
    #[serde(default)]
    pub state: State,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}
