//! Label and annotation keys, and the names under which we write.
//!
//! Source: the published contract of the `kubeflow.org/v1` kinds. Tools (Kueue, Katib, the Python SDKs) read these keys
//! literally, so they never change.

/// The controller that owns the object, e.g. `pytorchjob-controller`.
pub const OPERATOR_NAME: &str = "training.kubeflow.org/operator-name";
/// The job's name.
pub const JOB_NAME: &str = "training.kubeflow.org/job-name";
/// The replica type in lower case, e.g. `worker`.
pub const REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
/// The replica's index within its type, decimal, from 0.
pub const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
/// `master` on the pods whose logs and metrics speak for the job; mostly that is one.
pub const JOB_ROLE: &str = "training.kubeflow.org/job-role";
/// The value of [`JOB_ROLE`].
pub const JOB_ROLE_MASTER: &str = "master";

/// The labels of pods that are the operator's own: a template's values for them are not used.
pub const OWN: [&str; 5] = [
    OPERATOR_NAME,
    JOB_NAME,
    REPLICA_TYPE,
    REPLICA_INDEX,
    JOB_ROLE,
];

/// The attempt that a pod belongs to, `<gang>.<replica>`; a pod without it is attempt `0.0`.
pub const ATTEMPT: &str = "trainyard.dev/attempt";
/// On an autoscaler: stands for what the job asked of it, so that a change is noticed.
pub const AUTOSCALER: &str = "trainyard.dev/autoscaler";
/// On an object that stands for a gang: what it was made to follow, so that a change of the job is noticed.
pub const GANG: &str = "trainyard.dev/gang";
/// On a pod, an annotation: its group under Volcano.
pub const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
/// On a pod, an annotation: its task within the group under Volcano.
pub const VOLCANO_TASK: &str = "volcano.sh/task-spec";
/// On a job: its queue under Volcano, where its scheduling policy names none.
pub const VOLCANO_QUEUE: &str = "scheduling.volcano.sh/queue-name";
/// On a pod, a label: its group under scheduler-plugins.
pub const PLUGINS_GROUP: &str = "scheduling.x-k8s.io/pod-group";
/// On a job: `Replica` (default) or `Gang`, what restarts together.
pub const RESTART_SCOPE: &str = "trainyard.dev/restart-scope";

/// The value of `spec.runPolicy.managedBy` that means "ours", besides an absent field.
pub const MANAGED_BY_TRAINING_OPERATOR: &str = "kubeflow.org/training-operator";
/// The value of `spec.runPolicy.managedBy` with which Kueue keeps a job for itself.
pub const MANAGED_BY_MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";
