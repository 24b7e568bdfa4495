//! The status of an application.
//!
//! The first nine fields are the published contract. The others are additions of this operator that must survive its restart.

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
    /// The id that Spark gave the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spark_application_id: Option<String>,
    /// The id of the last submission. Every submission has its own.
    #[serde(
        rename = "submissionID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub submission_id: Option<String>,
    /// When it was last submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_submission_attempt_time: Option<Time>,
    /// When its driver ended or was lost, or when its submission finally failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_time: Option<Time>,
    /// The driver.
    #[serde(default)]
    pub driver_info: DriverInfo,
    /// The state of the application.
    #[serde(default)]
    pub application_state: ApplicationState,
    /// The states of executors by pod name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub executor_state: BTreeMap<String, ExecutorState>,
    /// Submissions that led to a driver, since the last change of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_attempts: Option<i32>,
    /// Submissions since the last change of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission_attempts: Option<i32>,

    /// Ours: the condition `Stalled` while the driver doesn't run although it should. Its reason is `waiting`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JobCondition>,
    /// Ours: the generation of the spec that was last submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ours: the digest of the spec that was last submitted, `<version>-<hash>-<placement>`. It detects changes of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
    /// Ours: failed runs that count against `onFailureRetries`, since the last change of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_runs: Option<i32>,
    /// Ours: failed submissions of the present run that count against `onSubmissionFailureRetries`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_submissions: Option<i32>,
    /// Ours: when the last run or submission failed. The backoff starts here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure_time: Option<Time>,
    /// Ours: running executors out of the requested ones, e.g. `3/4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executors: Option<String>,
    /// Ours: the number of executors that don't fit in `executorState`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executors_not_listed: Option<i32>,
    /// Ours: why the driver doesn't run although it should, as one word, e.g. `ImagePullBackOff`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
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

/// The state of an application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationState {
    /// The state.
    #[serde(default)]
    pub state: State,
    /// The error, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}
