//! MPI as the core sees it: roles, words, rights, and whose course is its own.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use training_api::labels::MANAGED_BY_TRAINING_OPERATOR;
use training_api::{JobCondition, RestartPolicy};
use training_core::Habits;
use training_core::grants::Grant;
use training_core::object::FreshSecret;
use training_core::verdict::{Saying, failures, progressing, say_qualified, say_short};
use training_core::{
    Census, Digest, EnvOn, EnvSet, Framework, JobCx, Memory, Note, ObjectKind, Others, Rank,
    Replicas, RoleSet, SpecError, Verdict,
};

use crate::api::{
    KEY_PATH, LAUNCHER, MANAGED_BY_MPI_OPERATOR, MPIJob, Origin, REPLICA_MAP,
    WAIT_FOR_WORKERS_READY, WORKER,
};
use crate::keys::KeyPair;
use crate::names::{CONTROLLER, CONTROLLER_V1, EVENT_SOURCE};
use crate::pods;
use crate::setup::{Implementation, Setup, main_of};

/// The kind in words.
pub(crate) const KIND: &str = "MPIJob";

/// The MPI framework, as its operator is set.
#[derive(Clone, Debug, Default)]
pub struct Mpi {
    /// The cluster's domain, appended to host names; empty for none.
    pub domain: String,
    /// The image of the launcher's init container; none where launchers don't wait for their hosts.
    pub gate_image: Option<String>,
    /// A job of `v2beta1` goes at the end of its time to live, as one of `v1` does.
    pub ttl_deletes_job: bool,
}

impl Framework for Mpi {
    type Job = MPIJob;
    const OPERATOR: &'static str = "mpi-operator";
    const NAME: &'static str = "mpi";
    const CONTROLLER: &'static str = CONTROLLER;
    const EVENT_SOURCE: &'static str = EVENT_SOURCE;
    const ALSO_WATCHED: &'static [&'static str] = &[CONTROLLER_V1];
    const MANAGED_BY: &'static [&'static str] =
        &[MANAGED_BY_MPI_OPERATOR, MANAGED_BY_TRAINING_OPERATOR];
    const REPLICA_SERVICES: bool = false;
    const OBJECTS: &'static [ObjectKind] =
        &[ObjectKind::Service, ObjectKind::ConfigMap, ObjectKind::Job];
    const FRESH_SECRET: Option<FreshSecret> = Some(fresh_keys);
    const INVALID: (&'static str, &'static str) = ("ValidationError", "Found validation errors: ");
    const OWN_METRICS: Option<(&'static str, &'static str)> = Some(("mpi_operator", "-launcher"));
    const REPLICAS: Replicas = Replicas {
        field: REPLICA_MAP,
        types: &[LAUNCHER, WORKER],
        others: Others::Served,
        speakers: &[LAUNCHER],
        stand_in: None,
        // The first one, whatever its name.
        container: "",
        port: ("", 0),
        restart: RestartPolicy::Never,
    };
    const ENV_ON: EnvOn = EnvOn::First;
    // The published status of this kind has none among its counts.
    const SELECTORS: bool = false;

    fn roles<'a>(&self, job: &'a MPIJob) -> Result<RoleSet<'a>, SpecError> {
        let setup = Setup::of(job)?;
        let roles = std::iter::once(setup.launcher).chain(setup.workers);
        Ok(RoleSet::new(roles.collect()))
    }

    fn env(&self, cx: &JobCx<'_, MPIJob>, me: Rank<'_>) -> Result<EnvSet, SpecError> {
        let setup = Setup::of(cx.job)?;
        Ok(if me.role.key == LAUNCHER {
            pods::launcher_env(&setup)
        } else {
            pods::worker_env()
        })
    }

    /// What is as nobody set it has no part, so that most statuses carry none.
    fn rendezvous(&self, cx: &JobCx<'_, MPIJob>) -> Vec<(&'static str, Digest)> {
        let Ok(setup) = Setup::of(cx.job) else {
            return Vec::new();
        };
        let implementation = setup.implementation.as_str();
        let openmpi = Implementation::OpenMpi.as_str();
        let parts = [
            ("slotsPerWorker", setup.slots != 1, Digest::of(&setup.slots)),
            (
                "mpiImplementation",
                implementation != openmpi,
                Digest::of(&implementation),
            ),
            (
                "sshAuthMountPath",
                setup.key_path != KEY_PATH,
                Digest::of(&setup.key_path),
            ),
        ];
        let set = parts.into_iter().filter(|(_, set, _)| *set);
        set.map(|(field, _, digest)| (field, digest)).collect()
    }

    /// What the workers say: only of a job of `v1` do they decide anything.
    fn judge(&self, cx: &JobCx<'_, MPIJob>, census: &Census<'_>) -> Verdict {
        failures(cx.roles, census).unwrap_or_else(|| progressing(cx.roles, census, LAUNCHER))
    }

    /// The published operator says that a job with an evicted worker has failed, and goes on with it: without a completion time it
    /// has not ended.
    fn reread(&self, memory: &mut Memory) {
        if memory.completed.is_none() {
            let evicted = |c: &JobCondition| {
                c.type_ == "Failed" && c.reason.as_deref() == Some("MPIJobEvicted")
            };
            memory.conditions.retain(|c| !evicted(c));
        }
    }

    fn advise(&self, cx: &JobCx<'_, MPIJob>) -> Vec<Note> {
        let Ok(setup) = Setup::of(cx.job) else {
            return Vec::new();
        };
        let mut notes = Vec::new();
        if Setup::policy_is_odd(cx.job) {
            let odd = cx.job.spec.launcher_creation_policy.as_deref();
            let text = format!(
                "spec.launcherCreationPolicy \"{}\" is read as {WAIT_FOR_WORKERS_READY}; use AtStartup or {WAIT_FOR_WORKERS_READY}",
                odd.unwrap_or_default()
            );
            notes.push(Note::warning("SettingIgnored", text));
        }
        for key in &setup.unknown {
            let text = format!(
                "spec.{REPLICA_MAP}[{key}]: nothing is made for it; the replica types are {LAUNCHER} and {WORKER}"
            );
            notes.push(Note::warning("SettingIgnored", text));
        }
        let roles = || std::iter::once(&setup.launcher).chain(&setup.workers);
        if let Some(name) = cx
            .job
            .spec
            .main_container
            .as_deref()
            .filter(|n| !n.is_empty())
        {
            let other = |role: &&training_core::RoleSpec<'_>| {
                main_of(role, setup.main).is_none_or(|c| c.name != name)
            };
            let others: Vec<_> = roles().filter(other).collect();
            // In a job of v1 it is enough that one template has the name: the other's first container is its only one, mostly.
            let somewhere = setup.origin == Origin::V1 && others.len() < roles().count();
            for role in others.into_iter().filter(|_| !somewhere) {
                let why = match setup.origin {
                    Origin::V1 => {
                        "no container has this name, so that the first one is the main one"
                    }
                    Origin::V2beta1 => "the first container of a pod is the main one; put it first",
                };
                let text = format!(
                    "spec.mainContainer \"{name}\" has no effect on {}.template: {why}",
                    role.path
                );
                notes.push(Note::warning("SettingIgnored", text));
            }
        }
        for role in roles().filter(|role| pods::group_opens_keys(role, setup.main)) {
            let text = format!(
                "{}.template.spec.securityContext.fsGroup: SSH run by root refuses keys that a group can read; leave fsGroup out, or set runAsUser",
                role.path
            );
            notes.push(Note::warning("RiskySetting", text));
        }
        notes
    }

    fn say(&self, cx: &JobCx<'_, MPIJob>, what: &Saying<'_>) -> String {
        let (namespace, name) = (cx.namespace, cx.name);
        if cx.job.spec.origin() == Origin::V1 {
            return say_qualified(KIND, namespace, name, what);
        }
        match what {
            Saying::Created => format!("{KIND} {namespace}/{name} is created."),
            Saying::Suspended => format!("{KIND} suspended"),
            Saying::Resumed => format!("{KIND} resumed"),
            Saying::Paused => format!("{KIND} {namespace}/{name} is suspended."),
            Saying::Running | Saying::Succeeded => say_qualified(KIND, namespace, name, what),
            Saying::Restarting { .. } | Saying::Failed { .. } => say_short(KIND, name, what),
        }
    }

    fn gang_habits(&self, cx: &JobCx<'_, MPIJob>) -> Habits {
        match cx.job.spec.origin() {
            Origin::V1 => Habits::Training,
            Origin::V2beta1 => Habits::Mpi,
        }
    }

    fn grants(&self) -> &'static [Grant] {
        GRANTS
    }
}

/// Beside what is made of pods.
const GRANTS: &[Grant] = &[
    Grant {
        group: "",
        resources: &["configmaps", "services"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        why: "A job has a Service by which its hosts are found, and a ConfigMap that lists them; both follow its size. get answers one question: who owns a name that is taken.",
    },
    Grant {
        group: "",
        resources: &["secrets"],
        verbs: &["create"],
        why: "A job's SSH keys are made once. They are never read.",
    },
    Grant {
        group: "batch",
        resources: &["jobs"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        why: "The launcher is a Job. It is suspended and resumed with its MPIJob.",
    },
    Grant {
        group: "batch",
        resources: &["jobs/status"],
        verbs: &["patch"],
        why: "The pod template of a Job that had started can be changed only once its start time is cleared.",
    },
];

/// Where lost pods are given up: by default nobody's status is written but that of the operator's own kind.
pub const LOST_PODS: &[Grant] = &[Grant {
    group: "",
    resources: &["pods/status"],
    verbs: &["patch"],
    why: "The controller of Jobs holds a launcher's pod until it has failed. Nobody else says so of a pod on a lost node.",
}];

/// What the Secret of a job holds.
fn fresh_keys() -> Result<BTreeMap<String, ByteString>, String> {
    let pair = KeyPair::generate().map_err(|e| e.to_string())?;
    Ok(pair.secret_data())
}

/// True if a time to live ends the job itself, not only what belongs to it.
pub(crate) fn goes_with_time(mpi: &Mpi, job: &MPIJob) -> bool {
    job.spec.origin() == Origin::V1 || mpi.ttl_deletes_job
}
