//! Label and annotation keys, and other names that tools read literally.
//!
//! Source: the published contract of the Spark operator, and Spark on Kubernetes.

/// The API version of both kinds.
pub const API_VERSION: &str = "sparkoperator.k8s.io/v1beta2";
/// The API group of both kinds.
pub const GROUP: &str = "sparkoperator.k8s.io";
/// The prefix of the operator's own labels; nobody else sets them on pods.
pub const OURS: &str = "sparkoperator.k8s.io/";
/// The application's name.
pub const APP_NAME: &str = "sparkoperator.k8s.io/app-name";
/// `true` on drivers and executors.
pub const LAUNCHED_BY: &str = "sparkoperator.k8s.io/launched-by-spark-operator";
/// `true` on pods whose role has no template.
pub const MUTATED_BY: &str = "sparkoperator.k8s.io/mutated-by-spark-operator";
/// The submission that a pod or object belongs to.
pub const SUBMISSION_ID: &str = "sparkoperator.k8s.io/submission-id";
/// `true` on objects that the operator makes beside pods.
pub const CREATED_BY: &str = "sparkoperator.k8s.io/created-by-spark-operator";
/// On an application: the schedule that made it.
pub const SCHEDULED_APP_NAME: &str = "sparkoperator.k8s.io/scheduled-app-name";
/// Labels of applications that are not copied to pods.
pub const KUEUE: &str = "kueue.x-k8s.io/";

/// The id that Spark knows a run by.
pub const APP_SELECTOR: &str = "spark-app-selector";
/// `driver` or `executor`.
pub const ROLE: &str = "spark-role";
/// The version of Spark.
pub const VERSION: &str = "spark-version";
/// The application's name, shortened to a label.
pub const SPARK_APP_NAME: &str = "spark-app-name";
/// Labels that Spark keeps for itself, on both roles.
pub const RESERVED: [&str; 4] = [APP_SELECTOR, ROLE, VERSION, SPARK_APP_NAME];
/// Labels that Spark keeps for itself on executors.
pub const RESERVED_OF_EXECUTORS: [&str; 2] = ["spark-exec-id", "spark-exec-resourceprofile-id"];

/// Tells `kubectl` which of several containers is meant.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// On a driver: stands for the spec that it was made from, `<version>-<hash>-<placement>`. Ours.
pub const SPEC_DIGEST: &str = "trainyard.dev/spec-digest";
/// On a driver: the generation of that spec. Ours.
pub const GENERATION: &str = "trainyard.dev/generation";
/// On a pod: the container that runs Spark, where a template gives it another name than the usual one. Ours.
pub const CONTAINER: &str = "trainyard.dev/spark-container";
/// On the ConfigMap of the executors' template: stands for where that template puts them. Ours.
pub const PLACEMENT: &str = "trainyard.dev/executor-placement";
/// On executors: the memory limit that an admission policy is to give them, where the operator runs with it.
pub const MEMORY_LIMIT: &str = "trainyard.dev/executor-memory-limit";
