//! Label and annotation keys, and some of their published values.
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
/// `master` on the pods whose logs and metrics represent the job, usually one.
pub const JOB_ROLE: &str = "training.kubeflow.org/job-role";
/// The value of [`JOB_ROLE`].
pub const JOB_ROLE_MASTER: &str = "master";

/// The labels that the operator sets on pods. It overrides a template's values for them.
pub const OWN: [&str; 5] = [
    OPERATOR_NAME,
    JOB_NAME,
    REPLICA_TYPE,
    REPLICA_INDEX,
    JOB_ROLE,
];

/// The attempt of a pod, `<gang>.<replica>`. A pod without it has attempt `0.0`.
pub const ATTEMPT: &str = "trainyard.dev/attempt";
/// On an autoscaler: the digest of the settings that the job asked for, to detect changes.
pub const AUTOSCALER: &str = "trainyard.dev/autoscaler";
/// On a group object of a gang: the digest of the fields that follow the job, to detect changes.
pub const GANG: &str = "trainyard.dev/gang";
/// On a pod, an annotation: its Volcano group.
pub const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
/// On a pod, an annotation: its task within the Volcano group.
pub const VOLCANO_TASK: &str = "volcano.sh/task-spec";
/// On a job: its Volcano queue, if its scheduling policy names none.
pub const VOLCANO_QUEUE: &str = "scheduling.volcano.sh/queue-name";
/// On a pod, a label: its scheduler-plugins group.
pub const PLUGINS_GROUP: &str = "scheduling.x-k8s.io/pod-group";
/// On a job: what restarts after a failure, `Replica` (default) or `Gang`.
pub const RESTART_SCOPE: &str = "trainyard.dev/restart-scope";
/// On a job: a new value restarts all its pods together, once.
pub const RESTART_REQUEST: &str = "trainyard.dev/restart-request";

/// The value of `spec.runPolicy.managedBy` that selects Trainyard, like an absent field.
pub const MANAGED_BY_TRAINING_OPERATOR: &str = "kubeflow.org/training-operator";
/// The value of `spec.runPolicy.managedBy` with which Kueue reserves a job.
pub const MANAGED_BY_MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";
