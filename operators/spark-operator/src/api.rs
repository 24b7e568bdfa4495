//! The custom resources: `SparkApplication` and `ScheduledSparkApplication` in `sparkoperator.k8s.io/v1beta2`.
//!
//! Source: the published CRDs of the Kubeflow Spark operator 2.5, and its development head of August 2026. All their fields are
//! here, under their names. Fields of the status that are ours are additive, and marked so.
//!
//! - [`application`]: what an application is to run
//! - [`pod`]: what is said of its driver and of its executors
//! - [`part`]: the smaller parts of the spec
//! - [`status`], [`state`]: what it reports
//! - [`scheduled`]: applications that are made again and again
//! - [`rule`]: what the API server refuses
//! - [`crd`]: the CRDs as they are installed

pub mod application;
pub mod crd;
pub mod part;
pub mod pod;
pub mod rule;
pub mod scheduled;
pub mod state;
pub mod status;

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
