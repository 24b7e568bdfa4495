//! MPI as a framework of the core: roles, messages, RBAC, and its own life cycle.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use training_api::RestartPolicy;
use training_api::labels::MANAGED_BY_TRAINING_OPERATOR;
use training_core::GangConventions;
use training_core::grants::Grant;
use training_core::object::SecretGenerator;
use training_core::plan::advice;
use training_core::verdict::{JobMessage, failures, progressing, qualified_message, short_message};
use training_core::{
    Census, Digest, EnvOn, EnvSet, Framework, JobCx, Note, ObjectKind, OtherTypes, Rank, Replicas,
    RoleSet, RoleSpec, SpecError, Verdict,
};

use crate::api::{
    KEY_PATH, LAUNCHER, MANAGED_BY_MPI_OPERATOR, MPIJob, Origin, REPLICA_MAP,
    WAIT_FOR_WORKERS_READY, WORKER,
};
use crate::keys::KeyPair;
use crate::names::{CONTROLLER, CONTROLLER_V1, EVENT_SOURCE};
use crate::pods;
use crate::setup::{Implementation, Setup, main_of};

/// The kind in messages.
pub(crate) const KIND: &str = "MPIJob";

/// The MPI framework with the operator's settings.
#[derive(Clone, Debug, Default)]
pub struct Mpi {
    /// The cluster's domain, appended to host names; empty for none.
    pub domain: String,
    /// The image of the launcher's init container; `None` if launchers don't wait for their hosts.
    pub gate_image: Option<String>,
    /// A job of `v2beta1` is deleted when its TTL expires, as one of `v1` is.
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
    const SECRET_GENERATOR: Option<SecretGenerator> = Some(fresh_keys);
    const INVALID: (&'static str, &'static str) = ("ValidationError", "Found validation errors: ");
    const OWN_METRICS: Option<(&'static str, &'static str)> = Some(("mpi_operator", "-launcher"));
    const REPLICAS: Replicas = Replicas {
        field: REPLICA_MAP,
        types: &[LAUNCHER, WORKER],
        others: OtherTypes::Served,
        master_types: &[LAUNCHER],
        fallback_master_type: None,
        // The first one, whatever its name.
        container: "",
        port: ("", 0),
        restart: RestartPolicy::Never,
    };
    const ENV_ON: EnvOn = EnvOn::First;
    // The published status of this kind has no selectors in its counts.
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

    /// Skips defaults, so that most statuses store nothing.
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

    /// Judges the workers, which decide the outcome only of a job of `v1`.
    fn judge(&self, cx: &JobCx<'_, MPIJob>, census: &Census<'_>) -> Verdict {
        failures(cx.roles, census).unwrap_or_else(|| progressing(cx.roles, census, LAUNCHER))
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
        let spec = &cx.job.spec;
        if spec.run_policy.clean_pod_policy.is_none() {
            let own = spec.clean_pod_policy.as_deref();
            notes.extend(advice::of_clean_up("spec.cleanPodPolicy", own));
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
            let other =
                |role: &&RoleSpec<'_>| main_of(role, setup.main).is_none_or(|c| c.name != name);
            let others: Vec<_> = roles().filter(other).collect();
            // In a job of v1 one template with this name is enough: usually the first container of the other is its only one.
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

    fn ignored_restart_policy(
        &self,
        cx: &JobCx<'_, MPIJob>,
        role: &RoleSpec<'_>,
    ) -> Option<(&'static str, &'static str)> {
        (role.key == LAUNCHER).then(|| match cx.job.spec.origin() {
            Origin::V1 => (
                "SettedPodTemplateRestartPolicy",
                "Restart policy in pod template will be overwritten by restart policy in replica spec",
            ),
            Origin::V2beta1 => (
                "SetPodTemplateRestartPolicy",
                "Restart policy in pod template overridden by restart policy in replica spec",
            ),
        })
    }

    fn message(&self, cx: &JobCx<'_, MPIJob>, what: &JobMessage<'_>) -> String {
        let (namespace, name) = (cx.namespace, cx.name);
        if cx.job.spec.origin() == Origin::V1 {
            return qualified_message(KIND, namespace, name, what);
        }
        match what {
            JobMessage::Created => format!("{KIND} {namespace}/{name} is created."),
            JobMessage::Suspended => format!("{KIND} suspended"),
            JobMessage::Resumed => format!("{KIND} resumed"),
            JobMessage::Paused => format!("{KIND} {namespace}/{name} is suspended."),
            JobMessage::Running | JobMessage::Succeeded => {
                qualified_message(KIND, namespace, name, what)
            }
            JobMessage::Restarting { .. } | JobMessage::Failed { .. } => {
                short_message(KIND, name, what)
            }
        }
    }

    fn gang_conventions(&self, cx: &JobCx<'_, MPIJob>) -> GangConventions {
        match cx.job.spec.origin() {
            Origin::V1 => GangConventions::Training,
            Origin::V2beta1 => GangConventions::Mpi,
        }
    }

    fn grants(&self) -> &'static [Grant] {
        GRANTS
    }
}

/// Permissions beyond those on pods.
const GRANTS: &[Grant] = &[
    Grant {
        group: "",
        resources: &["configmaps"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        why: "A ConfigMap lists a job's hosts, and follows its size. get finds the owner of a name that is taken.",
    },
    Grant {
        group: "",
        resources: &["services"],
        verbs: &["patch"],
        why: "A job has a Service for its host names. patch restores its selector.",
    },
    Grant {
        group: "",
        resources: &["secrets"],
        verbs: &["create"],
        why: "A job's SSH keys are created once and never read.",
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
        why: "A resumed launcher gets new node selectors and labels. The template of a Job that has started is mutable only after its start time is cleared.",
    },
];

/// Permissions for giving up lost pods. By default the operator writes only the status of its own kind.
pub const LOST_PODS: &[Grant] = &[Grant {
    group: "",
    resources: &["pods/status"],
    verbs: &["patch"],
    why: "The Job controller keeps a launcher's pod until it has failed. Nothing else marks a pod on a lost node as failed.",
}];

/// Generates the data of a job's Secret.
fn fresh_keys() -> Result<BTreeMap<String, ByteString>, String> {
    let pair = KeyPair::generate().map_err(|e| e.to_string())?;
    Ok(pair.secret_data())
}

/// Returns true if the TTL deletes the job itself, not only its objects.
pub(crate) fn ttl_deletes_job(mpi: &Mpi, job: &MPIJob) -> bool {
    job.spec.origin() == Origin::V1 || mpi.ttl_deletes_job
}
