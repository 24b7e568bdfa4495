//! The custom resources: `SparkApplication` and `ScheduledSparkApplication` in `sparkoperator.k8s.io/v1beta2`.
//!
//! Source: the published CRDs of the Kubeflow Spark operator 2.5, and its development head of August 2026. All their fields exist
//! here under the same names. Status fields that this operator adds are marked "Ours".
//!
//! - [`application`]: the spec of an application
//! - [`pod`]: the specs of its driver and executors
//! - [`template`]: the pod templates of both
//! - [`part`]: the smaller parts of the spec
//! - [`status`], [`state`]: its status; [`progress`]: what the status says about its progress
//! - [`scheduled`]: scheduled applications
//! - [`rule`]: validation rules of the API server
//! - [`crd`]: the CRDs as installed

pub mod application;
pub mod crd;
pub mod part;
pub mod pod;
pub mod progress;
pub mod rule;
pub mod scheduled;
pub mod state;
pub mod status;
pub mod template;

pub use application::{SparkApplication, SparkApplicationSpec};
pub use crd::{application_crd, scheduled_crd};
pub use part::{
    BatchSchedulerOptions, Dependencies, DriverIngressOptions, DynamicAllocation, GpuSpec,
    MonitoringSpec, NameKey, NamePath, PodPort, PrometheusSpec, RestartPolicy, SecretInfo,
    SparkUiOptions,
};
pub use pod::{DriverSpec, ExecutorSpec, Role, SparkPodSpec};
pub use scheduled::{
    ScheduledSparkApplication, ScheduledSparkApplicationSpec, ScheduledSparkApplicationStatus,
};
pub use state::{ExecutorState, ScheduleState, State};
pub use status::{ApplicationState, DriverInfo, SparkApplicationStatus};
pub use template::Template;
