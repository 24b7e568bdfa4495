//! A validated job with the defaults of its version, from which everything else is rendered.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use training_api::{ReplicaSpec, RestartPolicy};
use training_core::{RoleSpec, SpecError, check, replicas};

use crate::api::{
    AT_STARTUP, KEY_PATH, LAUNCHER, MPIJob, Origin, REPLICA_MAP, WAIT_FOR_WORKERS_READY, WORKER,
};

/// The MPI of a job's image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Implementation {
    /// Open MPI.
    #[default]
    OpenMpi,
    /// Intel MPI.
    Intel,
    /// MPICH.
    Mpich,
}

impl Implementation {
    /// Returns its name in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenMpi => "OpenMPI",
            Self::Intel => "Intel",
            Self::Mpich => "MPICH",
        }
    }
}

/// One job as it is to be run.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// The API version that decides the meaning of its fields.
    pub origin: Origin,
    /// The MPI of its image.
    pub implementation: Implementation,
    /// Ranks per host.
    pub slots: u32,
    /// The launcher.
    pub launcher: RoleSpec<'a>,
    /// The workers, if the job has that replica type.
    pub workers: Option<RoleSpec<'a>>,
    /// Ranks run in the launcher's pod too.
    pub launcher_works: bool,
    /// The launcher is created when all workers are ready.
    pub waits_for_workers: bool,
    /// Where the keys are mounted.
    pub key_path: &'a str,
    /// The name of the main container, if the job sets it.
    pub main: Option<&'a str>,
    /// The replica types that get no pods.
    pub unknown: Vec<&'a str>,
}

impl<'a> Setup<'a> {
    /// Reads a job.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn of(job: &'a MPIJob) -> Result<Self, SpecError> {
        let spec = &job.spec;
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let origin = spec.origin();
        let role = |key: &str| spec.mpi_replica_specs.get(key);
        let map = format!("spec.{REPLICA_MAP}");
        let Some(launcher) = role(LAUNCHER) else {
            let problem = "Required value: must have Launcher replica spec";
            return Err(SpecError::new(format!("{map}[{LAUNCHER}]"), problem));
        };
        let unknown: Vec<&str> = spec
            .mpi_replica_specs
            .keys()
            .map(String::as_str)
            .filter(|key| !matches!(*key, LAUNCHER | WORKER))
            .collect();
        if let (Origin::V1, Some(key)) = (origin, unknown.first()) {
            let problem = format!("\"{key}\": supported replica types: \"Launcher\", \"Worker\"");
            return Err(SpecError::new(map, problem));
        }
        let launcher = read(origin, LAUNCHER, launcher, 1)?;
        check::has_one(Some(&launcher))?;
        let workers = role(WORKER)
            .map(|worker| read(origin, WORKER, worker, 0))
            .transpose()?;
        if origin == Origin::V2beta1
            && let Some(workers) = workers.as_ref().filter(|w| w.replicas == 0)
        {
            let problem =
                "must be greater than or equal to 1; leave Worker out for a job without workers";
            return Err(SpecError::new(
                format!("{}.replicas", workers.path),
                problem,
            ));
        }
        if origin == Origin::V2beta1 {
            clean_pod_policy(spec.run_policy.clean_pod_policy.as_deref())?;
        }
        let key_path = spec.ssh_auth_mount_path.as_deref().unwrap_or(KEY_PATH);
        let main = spec.main_container.as_deref();
        let main = main.filter(|name| origin == Origin::V1 && !name.is_empty());
        let roles = std::iter::once(&launcher).chain(&workers);
        for role in roles {
            check::template(role, None)?;
            free_for_keys(role, main, key_path)?;
        }
        // Checked also without workers, as published: the first worker's host name is as long as the launcher's.
        let first = RoleSpec {
            label: "worker".to_owned(),
            replicas: workers.as_ref().map_or(1, |w| w.replicas.max(1)),
            ..launcher.clone()
        };
        check::name(name, &first)?;
        let slots = spec.slots_per_worker.unwrap_or(1);
        let slots = u32::try_from(slots).map_err(|_| {
            let problem = format!("{slots}: should be greater than or equal to 0");
            SpecError::new("spec.slotsPerWorker", problem)
        })?;
        let policy = spec.launcher_creation_policy.as_deref();
        let asked = spec.run_launcher_as_worker == Some(true);
        let launcher_works = asked || origin == Origin::V1 && has_gpus(&launcher);
        Ok(Self {
            name,
            namespace: job.metadata.namespace.as_deref().unwrap_or_default(),
            origin,
            implementation: implementation(spec.mpi_implementation.as_deref())?,
            slots,
            launcher,
            workers,
            launcher_works,
            waits_for_workers: policy.is_some_and(|p| p != AT_STARTUP),
            key_path: absolute(key_path)?,
            main,
            unknown,
        })
    }

    /// Returns true if the launcher is shown as rank 0, so that workers start at 1.
    pub fn shows_launcher(&self) -> bool {
        self.launcher_works && self.origin == Origin::V2beta1
    }

    /// Number of workers.
    pub fn worker_count(&self) -> u32 {
        self.workers.as_ref().map_or(0, |w| w.replicas)
    }

    /// Returns true if the launcher's creation policy is not a published value.
    pub fn policy_is_odd(job: &MPIJob) -> bool {
        let policy = job.spec.launcher_creation_policy.as_deref();
        policy.is_some_and(|p| p != AT_STARTUP && p != WAIT_FOR_WORKERS_READY)
    }
}

fn read<'a>(
    origin: Origin,
    key: &str,
    spec: &'a ReplicaSpec,
    default: i32,
) -> Result<RoleSpec<'a>, SpecError> {
    let path = format!("spec.{REPLICA_MAP}[{key}]");
    let replicas = replicas::count(&path, spec, default)?;
    let own = spec.restart_policy.as_deref().unwrap_or_default();
    if origin == Origin::V2beta1 && !["", "Never", "OnFailure"].contains(&own) {
        let problem = format!("\"{own}\": supported values: \"Never\", \"OnFailure\"");
        return Err(SpecError::new(format!("{path}.restartPolicy"), problem));
    }
    let unless_said = match origin {
        Origin::V2beta1 if key == LAUNCHER => RestartPolicy::OnFailure,
        Origin::V2beta1 | Origin::V1 => RestartPolicy::Never,
    };
    let restart = replicas::restart(&path, spec, unless_said)?;
    Ok(RoleSpec {
        key: key.to_owned(),
        label: key.to_ascii_lowercase(),
        replicas,
        restart,
        template: spec.template.as_deref(),
        is_master: key == LAUNCHER,
        is_fallback_master: false,
        // A worker of `v1` that succeeds has finished, as a replica of the other kinds has.
        is_host: origin == Origin::V2beta1 && key == WORKER,
        path,
    })
}

/// Checks the policy of `v2beta1`. `v1` treats an unknown value as `All`, as its operator did, and reports it.
fn clean_pod_policy(word: Option<&str>) -> Result<(), SpecError> {
    match word {
        None | Some("None" | "Running" | "All") => Ok(()),
        Some(other) => Err(SpecError::new(
            "spec.runPolicy.cleanPodPolicy",
            format!("\"{other}\": supported values: \"All\", \"None\", \"Running\""),
        )),
    }
}

fn implementation(word: Option<&str>) -> Result<Implementation, SpecError> {
    match word {
        None | Some("OpenMPI") => Ok(Implementation::OpenMpi),
        Some("Intel") => Ok(Implementation::Intel),
        Some("MPICH") => Ok(Implementation::Mpich),
        Some(other) => Err(SpecError::new(
            "spec.mpiImplementation",
            format!("\"{other}\": supported values: \"Intel\", \"MPICH\", \"OpenMPI\""),
        )),
    }
}

/// Checks that keys can be mounted at the path.
fn absolute(path: &str) -> Result<&str, SpecError> {
    if path.starts_with('/') && !path.trim_matches('/').is_empty() {
        return Ok(path);
    }
    Err(SpecError::new(
        "spec.sshAuthMountPath",
        format!(
            "\"{path}\": must be the absolute path of a directory, the .ssh of the user whom the pods run as"
        ),
    ))
}

/// The volume of the keys.
pub(crate) const KEY_VOLUME: &str = "ssh-auth";
/// The init container that makes a launcher wait for its hosts, and its volume.
pub const INIT_CONTAINER: &str = "trainyard-wait-for-hosts";
/// The launcher's volume of the host file.
pub(crate) const CONFIG_VOLUME: &str = "mpi-job-config";
/// The launcher's mount path of the host file.
pub(crate) const CONFIG_PATH: &str = "/etc/mpi";

/// Checks that the template doesn't use the operator's mount paths and volume names: the API server rejects such a pod.
fn free_for_keys(role: &RoleSpec<'_>, main: Option<&str>, key_path: &str) -> Result<(), SpecError> {
    let Some(spec) = role.template.and_then(|t| t.spec.as_ref()) else {
        return Ok(());
    };
    let path = format!("{}.template.spec", role.path);
    let launches = role.key == LAUNCHER;
    let inits = spec.init_containers.iter().flatten().map(|c| &c.name);
    let containers = spec.containers.iter().map(|c| &c.name).chain(inits);
    if launches && containers.clone().any(|name| name == INIT_CONTAINER) {
        let problem = format!(
            "the operator adds an init container with name {INIT_CONTAINER}; choose another name for yours"
        );
        return Err(SpecError::new(format!("{path}.initContainers"), problem));
    }
    for (at, volume) in spec.volumes.iter().flatten().enumerate() {
        let name = volume.name.as_str();
        if name == KEY_VOLUME || launches && [CONFIG_VOLUME, INIT_CONTAINER].contains(&name) {
            let problem = format!(
                "\"{name}\": the operator adds a volume of this name; choose another for yours"
            );
            let field = format!("{path}.volumes[{at}].name");
            return Err(SpecError::new(field, problem));
        }
    }
    let index = main_index(&spec.containers, main);
    let mounts = spec.containers.get(index);
    let mounts = mounts.and_then(|c| c.volume_mounts.as_ref());
    for (at, mount) in mounts.into_iter().flatten().enumerate() {
        if mount.mount_path == key_path || launches && mount.mount_path == CONFIG_PATH {
            let problem = format!(
                "\"{}\": the operator mounts its own files there; choose another path, or another spec.sshAuthMountPath",
                mount.mount_path
            );
            let field = format!("{path}.containers[{index}].volumeMounts[{at}].mountPath");
            return Err(SpecError::new(field, problem));
        }
    }
    Ok(())
}

/// Returns true if a container of the launcher has a GPU limit: in `v1` such a launcher runs ranks.
fn has_gpus(launcher: &RoleSpec<'_>) -> bool {
    let spec = launcher.template.and_then(|t| t.spec.as_ref());
    let limits = |c: &Container| {
        let limits = c.resources.as_ref().and_then(|r| r.limits.as_ref());
        limits.is_some_and(|l| l.keys().any(|name| name.contains("gpu")))
    };
    spec.is_some_and(|s| s.containers.iter().any(limits))
}

/// Returns the index of the main container: the one that the job names, or else the first.
pub(crate) fn main_index(containers: &[Container], main: Option<&str>) -> usize {
    let named = main.and_then(|main| containers.iter().position(|c| c.name == main));
    named.unwrap_or(0)
}

/// Returns the main container of a pod.
pub(crate) fn main_in<'a>(spec: &'a PodSpec, main: Option<&str>) -> Option<&'a Container> {
    spec.containers.get(main_index(&spec.containers, main))
}

/// Returns the main container of a role.
pub(crate) fn main_of<'a>(role: &RoleSpec<'a>, main: Option<&str>) -> Option<&'a Container> {
    main_in(role.template?.spec.as_ref()?, main)
}

/// Returns the main container of a pod, mutably.
pub(crate) fn main_container<'a>(
    spec: &'a mut PodSpec,
    main: Option<&str>,
) -> Option<&'a mut Container> {
    let index = main_index(&spec.containers, main);
    spec.containers.get_mut(index)
}
