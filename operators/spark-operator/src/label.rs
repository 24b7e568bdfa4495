//! Label and annotation keys that tools read literally.
//!
//! Source: the published contract of the Spark operator, and Spark on Kubernetes.

use kube::ResourceExt as _;
use training_api::labels::RESTART_REQUEST;
use training_core::Digest;

use crate::api::SparkApplication;

/// The API version of both kinds.
pub const API_VERSION: &str = "sparkoperator.k8s.io/v1beta2";
/// The API group of both kinds.
pub const GROUP: &str = "sparkoperator.k8s.io";
/// The prefix of the operator's own labels; pods have them only from the operator.
pub const OURS: &str = "sparkoperator.k8s.io/";
/// The application's name.
pub const APP_NAME: &str = "sparkoperator.k8s.io/app-name";
/// `true` on drivers and executors.
pub const LAUNCHED_BY: &str = "sparkoperator.k8s.io/launched-by-spark-operator";
/// `true` on pods whose role has no template.
pub const MUTATED_BY: &str = "sparkoperator.k8s.io/mutated-by-spark-operator";
/// The submission that a pod or object belongs to.
pub const SUBMISSION_ID: &str = "sparkoperator.k8s.io/submission-id";
/// `true` on objects that the operator creates in addition to pods.
pub const CREATED_BY: &str = "sparkoperator.k8s.io/created-by-spark-operator";
/// On an application: the schedule that created it.
pub const SCHEDULED_APP_NAME: &str = "sparkoperator.k8s.io/scheduled-app-name";
/// The prefix of application labels that are not copied to pods.
pub const KUEUE: &str = "kueue.x-k8s.io/";

/// The id that Spark gives a run.
pub const APP_SELECTOR: &str = "spark-app-selector";
/// `driver` or `executor`.
pub const ROLE: &str = "spark-role";
/// The version of Spark.
pub const VERSION: &str = "spark-version";
/// The application's name, shortened to a label.
pub const SPARK_APP_NAME: &str = "spark-app-name";
/// Labels that Spark reserves on both roles.
pub const RESERVED: [&str; 4] = [APP_SELECTOR, ROLE, VERSION, SPARK_APP_NAME];
/// Labels that Spark reserves on executors.
pub const RESERVED_OF_EXECUTORS: [&str; 2] = ["spark-exec-id", "spark-exec-resourceprofile-id"];

/// The default container for `kubectl`.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// On a driver: the digest of the spec it was created from, `<version>-<hash>-<placement>`. Ours.
pub const SPEC_DIGEST: &str = "trainyard.dev/spec-digest";
/// On a driver: the generation of that spec. Ours.
pub const GENERATION: &str = "trainyard.dev/generation";
/// On a pod: the name of the Spark container, if a template changes it. Ours.
pub const CONTAINER: &str = "trainyard.dev/spark-container";
/// On the ConfigMap of the executors' template: the hash of where the template places them. Ours.
pub const PLACEMENT: &str = "trainyard.dev/executor-placement";
/// On executors: the memory limit for the admission policy to set, if the operator runs with it.
pub const MEMORY_LIMIT: &str = "trainyard.dev/executor-memory-limit";

/// Returns the hash of the user's restart request, if there is one. A driver carries the one that it was created after.
pub fn restart_request(app: &SparkApplication) -> Option<String> {
    let value = app.annotations().get(RESTART_REQUEST)?;
    (!value.is_empty()).then(|| Digest::of(value).to_string())
}
