//! The pods of a job: workers, and the launcher's pod template.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, KeyToPath, Pod, PodDNSConfig, PodSpec, PodTemplateSpec,
    SecretVolumeSource, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use training_api::labels as keys;
use training_core::{Attempt, EnvOn, EnvSet, RoleSpec, SpecError};

use crate::api::{KEY_PATH, Origin};
use crate::common::Common;
use crate::hosts;
use crate::init;
use crate::names::{CONTROLLER, CONTROLLER_V1, config_map};
use crate::setup::{
    CONFIG_PATH, CONFIG_VOLUME, Implementation, KEY_VOLUME, Setup, main_container, main_in,
};

/// The labels of a job's pods; the operator's name depends on the job's API version.
fn base_labels(setup: &Setup<'_>, role: &str) -> BTreeMap<String, String> {
    let mut labels = vec![(keys::JOB_NAME, setup.name.to_owned())];
    match setup.origin {
        Origin::V2beta1 => labels.extend([
            (keys::OPERATOR_NAME, CONTROLLER.to_owned()),
            (keys::JOB_ROLE, role.to_owned()),
        ]),
        Origin::V1 => {
            labels.extend([
                (keys::OPERATOR_NAME, CONTROLLER_V1.to_owned()),
                (keys::REPLICA_TYPE, role.to_owned()),
            ]);
            if role == LAUNCHER_LABEL {
                labels.push((keys::JOB_ROLE, keys::JOB_ROLE_MASTER.to_owned()));
            }
        }
    }
    labels
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// The launcher's value of the role label.
pub const LAUNCHER_LABEL: &str = "launcher";
/// A worker's value of the role label.
pub const WORKER_LABEL: &str = "worker";

/// The labels that select all pods of a job.
pub fn selector(setup: &Setup<'_>) -> BTreeMap<String, String> {
    let mut labels = base_labels(setup, WORKER_LABEL);
    labels.retain(|key, _| key == keys::OPERATOR_NAME || key == keys::JOB_NAME);
    labels
}

/// Returns the index in a worker's label: it starts at 1 if the launcher is rank 0.
pub fn label_index(setup: &Setup<'_>, index: u32) -> u32 {
    index.saturating_add(u32::from(setup.shows_launcher()))
}

/// What workers and launchers have in common.
struct Draft {
    template: PodTemplateSpec,
    replaced: Vec<String>,
}

impl Draft {
    fn begin(
        cx: &Common<'_>,
        role: &RoleSpec<'_>,
        label: &str,
        host: String,
    ) -> Result<Self, SpecError> {
        let mut template = role
            .template
            .cloned()
            .ok_or_else(|| SpecError::new(format!("{}.template", role.path), "is required"))?;
        let meta = template.metadata.take().unwrap_or_default();
        let mut labels = meta.labels.unwrap_or_default();
        // Of the operator's own labels a pod keeps only those of the job's version; others would make it look like another
        // operator's.
        for own in [keys::REPLICA_TYPE, keys::REPLICA_INDEX, keys::JOB_ROLE] {
            labels.remove(own);
        }
        labels.extend(base_labels(cx.setup, label));
        template.metadata = Some(ObjectMeta {
            labels: Some(labels),
            annotations: meta.annotations,
            ..ObjectMeta::default()
        });
        let spec = template.spec.get_or_insert_with(PodSpec::default);
        spec.hostname = Some(host);
        spec.subdomain = Some(cx.setup.name.to_owned());
        spec.hostname_override = None;
        if spec.host_network == Some(true) {
            spec.dns_policy = Some("ClusterFirstWithHostNet".to_owned());
        }
        spec.restart_policy = Some(cx.scope.for_pod(role).to_owned());
        if let Some(main) = main_container(spec, cx.setup.main)
            && main.termination_message_policy.is_none()
        {
            // A failure's last lines then reach the job's status through the kubelet.
            main.termination_message_policy = Some("FallbackToLogsOnError".to_owned());
        }
        Ok(Self {
            template,
            replaced: Vec::new(),
        })
    }

    fn spec(&mut self) -> &mut PodSpec {
        self.template.spec.get_or_insert_with(PodSpec::default)
    }

    /// Makes names in the job's Service resolve without it: Hydra calls its launcher back by the short name.
    fn search(&mut self, cx: &Common<'_>) {
        let domain = if cx.domain.is_empty() {
            "cluster.local"
        } else {
            cx.domain
        };
        let search = format!("{}.{}.svc.{domain}", cx.setup.name, cx.setup.namespace);
        let dns = self
            .spec()
            .dns_config
            .get_or_insert_with(PodDNSConfig::default);
        dns.searches.get_or_insert_with(Vec::new).push(search);
    }

    fn env(&mut self, cx: &Common<'_>, env: &EnvSet) {
        let main = main_in(self.spec(), cx.setup.main);
        let main = main.map(|c| c.name.clone()).unwrap_or_default();
        self.replaced = env.install(self.spec(), EnvOn::Main, &main);
    }

    /// Mounts the job's keys in the main container.
    fn keys(&mut self, cx: &Common<'_>) {
        let mode = key_mode(self.spec(), cx.setup);
        let item = |key: &str, path: &str| KeyToPath {
            key: key.to_owned(),
            path: path.to_owned(),
            ..KeyToPath::default()
        };
        self.volume(Volume {
            name: KEY_VOLUME.to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(cx.secret.to_owned()),
                default_mode: mode,
                items: Some(vec![
                    item("ssh-privatekey", "id_rsa"),
                    item("ssh-publickey", "id_rsa.pub"),
                    item("ssh-publickey", "authorized_keys"),
                ]),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        });
        self.mount(cx, KEY_VOLUME, cx.setup.key_path);
    }

    /// Mounts the files that list the hosts in the main container.
    fn config(&mut self, cx: &Common<'_>) {
        let item = |key: &str, mode: i32| KeyToPath {
            key: key.to_owned(),
            path: key.to_owned(),
            mode: Some(mode),
            ..KeyToPath::default()
        };
        self.volume(Volume {
            name: CONFIG_VOLUME.to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: config_map(cx.setup.name),
                items: Some(vec![
                    item("hostfile", 0o444),
                    item("discover_hosts.sh", 0o555),
                ]),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        });
        self.mount(cx, CONFIG_VOLUME, CONFIG_PATH);
    }

    fn volume(&mut self, volume: Volume) {
        self.spec()
            .volumes
            .get_or_insert_with(Vec::new)
            .push(volume);
    }

    fn mount(&mut self, cx: &Common<'_>, name: &str, path: &str) {
        if let Some(main) = main_container(self.spec(), cx.setup.main) {
            main.volume_mounts
                .get_or_insert_with(Vec::new)
                .push(VolumeMount {
                    name: name.to_owned(),
                    mount_path: path.to_owned(),
                    ..VolumeMount::default()
                });
        }
    }
}

/// Returns the strictest mode that OpenSSH and a Secret volume allow: root owns the files; OpenSSH rejects a key that belongs to
/// the caller if others can read it, but any other user can read it only then. `None` is the API's default, 0644.
fn key_mode(spec: &PodSpec, setup: &Setup<'_>) -> Option<i32> {
    let own = main_in(spec, setup.main);
    let own = own.and_then(|c: &Container| c.security_context.as_ref());
    let pod = spec.security_context.as_ref();
    let user = user_of(spec, setup.main);
    let not_root = own
        .and_then(|s| s.run_as_non_root)
        .or(pod.and_then(|s| s.run_as_non_root));
    let group = pod.and_then(|s| s.fs_group).is_some();
    match (user, not_root) {
        // Other paths are the home of another user, as whom ranks may run although the server runs as root.
        (Some(0), _) => setup.key_path.starts_with("/root/").then_some(0o600),
        // The kubelet makes the files readable for the group.
        (Some(_), _) | (None, Some(true)) if group => Some(0o440),
        (Some(_), _) | (None, Some(true)) => None,
        // The image's user is unknown: as published.
        (None, _) => (setup.key_path == KEY_PATH).then_some(0o600),
    }
}

/// The user that the main container runs as, if the template sets it.
fn user_of(spec: &PodSpec, main: Option<&str>) -> Option<i64> {
    let own = main_in(spec, main);
    let own = own.and_then(|c: &Container| c.security_context.as_ref());
    let pod = spec.security_context.as_ref();
    own.and_then(|s| s.run_as_user)
        .or(pod.and_then(|s| s.run_as_user))
}

/// Returns true if a group can read the keys of a root user: the kubelet sets the group, and SSH then rejects the keys.
pub(crate) fn group_opens_keys(role: &RoleSpec<'_>, main: Option<&str>) -> bool {
    let spec = role.template.and_then(|t| t.spec.as_ref());
    spec.is_some_and(|spec| {
        let pod = spec.security_context.as_ref();
        user_of(spec, main) == Some(0) && pod.is_some_and(|s| s.fs_group.is_some())
    })
}

/// Returns the selector of a job's workers for the scale subresource.
pub(crate) fn worker_selector(setup: &Setup<'_>) -> String {
    let labels = base_labels(setup, WORKER_LABEL).into_iter();
    let parts: Vec<String> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    parts.join(",")
}

/// A pod, and the names of the user's variables that the operator overrode.
#[derive(Clone, Debug)]
pub struct Rendered<T> {
    /// The rendered object.
    pub made: T,
    /// Replaced variables.
    pub replaced: Vec<String>,
}

/// Renders the pod of one worker.
///
/// # Errors
/// The field of the spec that makes it invalid.
pub fn worker(cx: &Common<'_>, index: u32, attempt: Attempt) -> Result<Rendered<Pod>, SpecError> {
    let setup = cx.setup;
    let Some(role) = &setup.workers else {
        return Err(SpecError::new(
            "spec.mpiReplicaSpecs[Worker]",
            "is required",
        ));
    };
    let name = hosts::worker(setup.name, index);
    let mut draft = Draft::begin(cx, role, WORKER_LABEL, name.clone())?;
    draft.search(cx);
    if let Some(main) = main_container(draft.spec(), setup.main)
        && main.command.as_ref().is_none_or(Vec::is_empty)
    {
        let no_args = main.args.as_ref().is_none_or(Vec::is_empty);
        match setup.origin {
            Origin::V2beta1 if no_args => main.command = Some(owned_words(&SSHD)),
            Origin::V2beta1 => {}
            // Images for the published operator of v1 have no SSH server set up for keys from a Secret volume.
            Origin::V1 => {
                main.command = Some(owned_words(
                    &[&SSHD[..], &["-o", "StrictModes=no"]].concat(),
                ));
                main.args = None;
            }
        }
    }
    draft.env(cx, &worker_env());
    draft.keys(cx);
    let meta = draft.template.metadata.unwrap_or_default();
    let mut labels = meta.labels.unwrap_or_default();
    let shown = label_index(setup, index).to_string();
    labels.insert(keys::REPLICA_INDEX.to_owned(), shown);
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(keys::ATTEMPT.to_owned(), attempt.to_string());
    let made = Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(setup.namespace.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![cx.owner.clone()]),
            ..ObjectMeta::default()
        },
        spec: draft.template.spec,
        status: None,
    };
    Ok(Rendered {
        made,
        replaced: draft.replaced,
    })
}

/// Renders the pod template of the launcher's Job.
///
/// # Errors
/// The field of the spec that makes it invalid.
pub fn launcher_template(cx: &Common<'_>) -> Result<Rendered<PodTemplateSpec>, SpecError> {
    let setup = cx.setup;
    let host = hosts::launcher_name(setup.name);
    let mut draft = Draft::begin(cx, &setup.launcher, LAUNCHER_LABEL, host)?;
    if setup.origin == Origin::V1 {
        draft.search(cx);
    }
    draft.env(cx, &launcher_env(setup));
    draft.keys(cx);
    draft.config(cx);
    if let Some(gate) = &cx.gate {
        init::add(cx, gate.image, gate.port, draft.spec());
    }
    if setup.shows_launcher() {
        let meta = draft.template.metadata.get_or_insert_default();
        let labels = meta.labels.get_or_insert_default();
        labels.insert(keys::REPLICA_INDEX.to_owned(), "0".to_owned());
    }
    Ok(Rendered {
        made: draft.template,
        replaced: draft.replaced,
    })
}

const HOSTFILE: &str = "/etc/mpi/hostfile";
const RETRY: &str = "-o ConnectionAttempts=10";

/// Extra SSH options of v1's clients, whose images have no known hosts.
const UNKNOWN_HOSTS: &str = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null";
/// The default command of a worker.
const SSHD: [&str; 2] = ["/usr/sbin/sshd", "-De"];

fn owned_words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns a worker's variables.
pub(crate) fn worker_env() -> EnvSet {
    let mut env = EnvSet::default();
    env.require("K_MPI_JOB_ROLE", WORKER_LABEL);
    env
}

/// Returns the launcher's variables in their published order; added ones follow the published one that they complement.
pub(crate) fn launcher_env(setup: &Setup<'_>) -> EnvSet {
    let slots = setup.slots.to_string();
    let retry = match setup.origin {
        Origin::V2beta1 => RETRY.to_owned(),
        Origin::V1 => format!("{RETRY} {UNKNOWN_HOSTS}"),
    };
    let mut env = EnvSet::default();
    env.require("K_MPI_JOB_ROLE", LAUNCHER_LABEL);
    match setup.implementation {
        Implementation::OpenMpi => env
            .require("OMPI_MCA_orte_keep_fqdn_hostnames", "true")
            .require("OMPI_MCA_orte_default_hostfile", HOSTFILE)
            .require("OMPI_MCA_plm_rsh_args", &*retry)
            .require("OMPI_MCA_orte_set_default_slots", slots)
            // Open MPI 5 reads none of the above: it would start all ranks beside the launcher and report success. Users who know
            // this have set these variables.
            .offer("PRTE_MCA_prte_default_hostfile", HOSTFILE)
            .offer("PRTE_MCA_plm_ssh_args", &*retry),
        Implementation::Intel => env
            .require("I_MPI_HYDRA_HOST_FILE", HOSTFILE)
            .require("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", &*retry)
            .require("I_MPI_PERHOST", slots),
        Implementation::Mpich => env
            .require("HYDRA_HOST_FILE", HOSTFILE)
            .require("HYDRA_LAUNCH_EXTRA_ARGS", &*retry)
            // Hydra's own variable.
            .offer("HYDRA_LAUNCHER_EXTRA_ARGS", &*retry),
    };
    if !setup.launcher_works {
        env.require("NVIDIA_VISIBLE_DEVICES", "")
            .require("NVIDIA_DRIVER_CAPABILITIES", "");
    }
    env
}
