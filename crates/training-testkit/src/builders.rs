//! Manifests of jobs as JSON.

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Map, Value, json};

/// A kind of job, with its names in manifests and clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// For example `TFJob`.
    pub name: &'static str,
    /// The API group.
    pub group: &'static str,
    /// For example `tfjobs`.
    pub plural: &'static str,
    /// The version of the API.
    pub version: &'static str,
    /// The field of the spec that holds the replica specs.
    pub replica_map: &'static str,
    /// The main container.
    pub container: &'static str,
    /// Name and number of its port.
    pub port: (&'static str, i32),
    /// The published controller name.
    pub controller: &'static str,
    /// Name of the operator's binary, manifests and service account.
    pub operator: &'static str,
}

/// `PyTorchJob`.
pub const PYTORCH: Kind = Kind {
    name: "PyTorchJob",
    group: "kubeflow.org",
    plural: "pytorchjobs",
    version: "v1",
    replica_map: "pytorchReplicaSpecs",
    container: "pytorch",
    port: ("pytorchjob-port", 23456),
    controller: "pytorchjob-controller",
    operator: "pytorch-operator",
};

/// `TFJob`.
pub const TENSORFLOW: Kind = Kind {
    name: "TFJob",
    group: "kubeflow.org",
    plural: "tfjobs",
    version: "v1",
    replica_map: "tfReplicaSpecs",
    container: "tensorflow",
    port: ("tfjob-port", 2222),
    controller: "tfjob-controller",
    operator: "tf-operator",
};

/// `XGBoostJob`.
pub const XGBOOST: Kind = Kind {
    name: "XGBoostJob",
    group: "kubeflow.org",
    plural: "xgboostjobs",
    version: "v1",
    replica_map: "xgbReplicaSpecs",
    container: "xgboost",
    port: ("xgboostjob-port", 9999),
    controller: "xgboostjob-controller",
    operator: "xgboost-operator",
};

/// `JAXJob`, whose only role is `Worker`.
pub const JAX: Kind = Kind {
    name: "JAXJob",
    group: "kubeflow.org",
    plural: "jaxjobs",
    version: "v1",
    replica_map: "jaxReplicaSpecs",
    container: "jax",
    port: ("jaxjob-port", 6666),
    controller: "jaxjob-controller",
    operator: "jax-operator",
};

/// `PaddleJob`.
pub const PADDLE: Kind = Kind {
    name: "PaddleJob",
    group: "kubeflow.org",
    plural: "paddlejobs",
    version: "v1",
    replica_map: "paddleReplicaSpecs",
    container: "paddle",
    port: ("master", 36543),
    controller: "paddlejob-controller",
    operator: "paddle-operator",
};

/// `MPIJob`, whose main container may have any name.
pub const MPI: Kind = Kind {
    name: "MPIJob",
    group: "kubeflow.org",
    plural: "mpijobs",
    version: "v2beta1",
    replica_map: "mpiReplicaSpecs",
    container: "",
    port: ("", 0),
    controller: "mpi-operator",
    operator: "mpi-operator",
};

/// The operator of both Spark kinds, which have no replicas.
pub const SPARK_OPERATOR: &str = "spark-operator";

/// `SparkApplication`, which has no replica map and no fixed container.
pub const SPARK: Kind = Kind {
    name: "SparkApplication",
    group: "sparkoperator.k8s.io",
    plural: "sparkapplications",
    version: "v1beta2",
    replica_map: "",
    container: "",
    port: ("", 0),
    controller: "",
    operator: SPARK_OPERATOR,
};

/// `ScheduledSparkApplication`, whose objects make applications.
pub const SCHEDULED: Kind = Kind {
    name: "ScheduledSparkApplication",
    plural: "scheduledsparkapplications",
    ..SPARK
};

/// A `SparkApplication` with a driver and two executors.
pub fn application(name: &str) -> Value {
    json!({
        "apiVersion": format!("{}/{}", SPARK.group, SPARK.version),
        "kind": SPARK.name,
        "metadata": { "name": name },
        "spec": {
            "type": "Python", "mode": "cluster", "image": "spark", "sparkVersion": "4.0.1",
            "mainApplicationFile": "local:///opt/spark/pi.py",
            "driver": { "cores": 1, "memory": "512m" },
            "executor": { "cores": 1, "instances": 2, "memory": "512m" },
        },
    })
}

/// The service account of an operator in the shipped manifests.
pub fn operator_user(operator: &str) -> String {
    format!("system:serviceaccount:trainyard-system:{operator}")
}

/// The kinds whose jobs consist of pods and services.
pub const KINDS: [Kind; 5] = [PYTORCH, TENSORFLOW, XGBOOST, PADDLE, JAX];
/// [`KINDS`], and the kind with hosts and a launcher.
pub const TRAINING: [Kind; 6] = [PYTORCH, TENSORFLOW, XGBOOST, PADDLE, JAX, MPI];
/// [`TRAINING`], and the kind with a driver and executors.
pub const EVERY_KIND: [Kind; 7] = [PYTORCH, TENSORFLOW, XGBOOST, PADDLE, JAX, MPI, SPARK];
/// The kinds in [`KINDS`] that can have a master.
pub const WITH_MASTER: [Kind; 4] = [PYTORCH, TENSORFLOW, XGBOOST, PADDLE];

impl Kind {
    /// The resource, for untyped clients.
    pub fn resource(&self) -> ApiResource {
        let gvk = GroupVersionKind::gvk(self.group, self.version, self.name);
        ApiResource::from_gvk_with_plural(&gvk, self.plural)
    }

    /// The name of the main container, or some name if the kind allows any.
    pub fn any_container(&self) -> &'static str {
        if self.container.is_empty() {
            "any"
        } else {
            self.container
        }
    }

    /// A job without replicas.
    pub fn job(&self, name: &str) -> Job {
        Job::new(self, name)
    }

    /// The number of masters and workers in [`Kind::small_job`].
    pub fn small_roles(&self, workers: u32) -> (u32, u32) {
        if WITH_MASTER.contains(self) {
            (1, workers)
        } else {
            (0, workers + 1)
        }
    }

    /// A job with this number of workers and a master or launcher, or with one worker more if the kind has neither.
    pub fn small_job(&self, name: &str, workers: u32) -> Job {
        let job = self.job(name);
        // Any version.
        if self.name == MPI.name {
            return job.role("Launcher", 1).workers(workers);
        }
        match self.small_roles(workers) {
            (0, workers) => job.workers(workers),
            (_, workers) => job.master().workers(workers),
        }
    }

    /// The operator's service account in the shipped manifests.
    pub fn user(&self) -> String {
        operator_user(self.operator)
    }
}

/// The resource of `PyTorchJob`, for untyped clients.
pub fn pytorch_jobs() -> ApiResource {
    PYTORCH.resource()
}

/// A `PyTorchJob` without replicas.
pub fn pytorch_job(name: &str) -> Job {
    PYTORCH.job(name)
}

/// A job under construction.
///
/// ```
/// use training_testkit::builders::pytorch_job;
/// let job = pytorch_job("pt").master().workers(2).run_policy("backoffLimit", 3).build();
/// assert_eq!(job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"], 2);
/// assert_eq!(job["spec"]["runPolicy"]["backoffLimit"], 3);
/// ```
#[derive(Clone, Debug)]
pub struct Job {
    object: Value,
    replica_map: &'static str,
    container: &'static str,
}

impl Job {
    fn new(kind: &Kind, name: &str) -> Self {
        let mut object = json!({
            "apiVersion": format!("{}/{}", kind.group, kind.version),
            "kind": kind.name,
            "metadata": { "name": name },
            "spec": {},
        });
        if !kind.replica_map.is_empty() {
            object["spec"][kind.replica_map] = json!({});
        }
        Self {
            object,
            replica_map: kind.replica_map,
            container: kind.any_container(),
        }
    }

    /// Adds one `Master` with restart policy `OnFailure`.
    #[must_use]
    pub fn master(self) -> Self {
        self.role("Master", 1)
    }

    /// Adds `count` `Worker` replicas with restart policy `OnFailure`.
    #[must_use]
    pub fn workers(self, count: u32) -> Self {
        self.role("Worker", count)
    }

    /// Adds a role with one container with the kind's default name.
    #[must_use]
    pub fn role(self, role: &str, replicas: u32) -> Self {
        let spec = json!({
            "replicas": replicas,
            "restartPolicy": "OnFailure",
            "template": { "spec": { "containers": [
                // Never pulled: these tests run no containers.
                { "name": self.container, "image": "trainyard.test/train:1" },
            ]}},
        });
        let path = format!("/spec/{}/{role}", self.replica_map);
        self.set(&path, spec)
    }

    /// Removes a role.
    #[must_use]
    pub fn without(mut self, role: &str) -> Self {
        if let Some(map) = self.object["spec"][self.replica_map].as_object_mut() {
            map.remove(role);
        }
        self
    }

    /// Sets the restart policy of one role.
    #[must_use]
    pub fn restart_policy(self, role: &str, policy: &str) -> Self {
        let path = format!("/spec/{}/{role}/restartPolicy", self.replica_map);
        self.set(&path, policy)
    }

    /// Sets a field of `runPolicy`.
    #[must_use]
    pub fn run_policy(self, field: &str, value: impl Into<Value>) -> Self {
        self.set(&format!("/spec/runPolicy/{field}"), value)
    }

    /// Sets an annotation of the job.
    #[must_use]
    pub fn annotation(self, key: &str, value: &str) -> Self {
        // A JSON pointer escapes "/" as "~1".
        self.set(
            &format!("/metadata/annotations/{}", key.replace('/', "~1")),
            value,
        )
    }

    /// Sets any field by JSON pointer and creates missing objects on the way.
    ///
    /// It can replace elements of arrays, but not add them.
    #[must_use]
    pub fn set(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let mut at = &mut self.object;
        for key in pointer.split('/').skip(1) {
            let key = key.replace("~1", "/").replace("~0", "~");
            if at.is_null() {
                *at = Value::Object(Map::new());
            }
            at = match at {
                Value::Array(elements) => {
                    let index = key.parse::<usize>().unwrap_or(usize::MAX);
                    match elements.get_mut(index) {
                        Some(element) => element,
                        None => return self,
                    }
                }
                other => &mut other[key],
            };
        }
        *at = value.into();
        self
    }

    /// The manifest.
    #[must_use]
    pub fn build(self) -> Value {
        self.object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_makes_objects_and_replaces_elements() {
        let job = pytorch_job("a")
            .workers(1)
            .annotation("trainyard.dev/restart-scope", "Gang")
            .set(
                "/spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/image",
                "x",
            )
            .build();
        assert_eq!(
            job["metadata"]["annotations"]["trainyard.dev/restart-scope"],
            "Gang"
        );
        assert_eq!(
            job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"],
            "x"
        );
    }
}
