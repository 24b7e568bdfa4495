//! The init container that delays a launcher until its hosts answer.
//!
//! It uses nothing of the user's image, has no rights of the pod's service account, and needs no more resources than the launcher
//! itself.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, PodSpec, ResourceRequirements, SeccompProfile,
    SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use training_core::RoleSpec;

use crate::common::Common;
use crate::hosts::{self, Hosts};
use crate::setup::{
    CONFIG_PATH, CONFIG_VOLUME, INIT_CONTAINER, Implementation, Setup, main_in, main_of,
};

/// Job annotation: `false` leaves the init container out.
pub const GATE: &str = "trainyard.dev/launcher-gate";
/// Job annotation: the port of its workers' SSH servers.
pub const SSH_PORT: &str = "trainyard.dev/ssh-port";
/// The default ports of SSH servers: the usual one, and that of rootless images.
const PORTS: [u16; 2] = [22, 2222];
/// Where a pod finds its service account token.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The resources that it copies from the launcher's main container.
const SHARED: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Returns the ports at which a job's SSH servers may answer: from the annotation, a container port named `ssh`, a probe or the
/// worker's command, or else the usual ones.
pub fn ports(
    annotation: Option<&str>,
    workers: &RoleSpec<'_>,
    main: Option<&str>,
) -> BTreeSet<u16> {
    let said = annotation.and_then(|text| text.trim().parse().ok());
    let main = main_of(workers, main);
    said.or_else(|| main.and_then(named))
        .or_else(|| main.and_then(probed))
        .or_else(|| main.and_then(commanded))
        .map_or_else(|| PORTS.into(), |port| [port].into())
}

fn named(main: &Container) -> Option<u16> {
    let ports = main.ports.iter().flatten();
    let mut ssh = ports.filter(|p| p.name.as_deref() == Some("ssh"));
    u16::try_from(ssh.next()?.container_port).ok()
}

fn probed(main: &Container) -> Option<u16> {
    let probes = [
        &main.readiness_probe,
        &main.startup_probe,
        &main.liveness_probe,
    ];
    let sockets = probes
        .into_iter()
        .flatten()
        .filter_map(|p| p.tcp_socket.as_ref());
    let port = |socket: &IntOrString| match socket {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => {
            let mut ports = main.ports.iter().flatten();
            let port = ports.find(|p| p.name.as_deref() == Some(name))?;
            u16::try_from(port.container_port).ok()
        }
    };
    sockets.map(|s| &s.port).find_map(port)
}

/// Returns the number after `-p` in an SSH server's command, which may be a shell script.
fn commanded(main: &Container) -> Option<u16> {
    let parts = main.command.iter().chain(&main.args).flatten();
    let words: Vec<&str> = parts.flat_map(|part| part.split_whitespace()).collect();
    // Scripts often create a directory of this name first.
    let at = words.iter().position(|word| word.ends_with("/sshd"))?;
    let mut rest = words[at + 1..].iter();
    while let Some(word) = rest.next() {
        if let Some(number) = word.strip_prefix("-p") {
            let number = if number.is_empty() {
                rest.next()?
            } else {
                number
            };
            return number.trim_end_matches([';', '&', '"', '\'']).parse().ok();
        }
    }
    None
}

/// Returns true for a launcher that discovers its hosts while it runs, so that it can start with any one of them.
fn discovers(setup: &Setup<'_>) -> bool {
    main_of(&setup.launcher, setup.main).is_some_and(|c| {
        let mut parts = c.command.iter().chain(&c.args).flatten();
        parts.any(|part| part.contains("discover_hosts.sh"))
    })
}

/// Adds the container to a launcher's pod, after the user's own init containers. A job without workers needs none.
pub fn add(cx: &Common<'_>, image: &str, port: Option<&str>, pod: &mut PodSpec) {
    let setup = cx.setup;
    let Some(workers) = setup.workers.as_ref().filter(|w| w.replicas > 0) else {
        return;
    };
    let main = main_in(pod, setup.main);
    let resources = main.and_then(|c| c.resources.as_ref()).map(share);
    pod.init_containers
        .get_or_insert_with(Vec::new)
        .push(Container {
            name: INIT_CONTAINER.to_owned(),
            image: Some(image.to_owned()),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            command: Some(vec![
                "/mpi-operator".to_owned(),
                "wait-for-hosts".to_owned(),
            ]),
            args: Some(arguments(cx, &ports(port, workers, setup.main))),
            resources,
            security_context: Some(restricted()),
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            volume_mounts: Some(vec![
                mount(CONFIG_VOLUME, CONFIG_PATH),
                // Hides the service account token of the pod.
                mount(INIT_CONTAINER, TOKEN_PATH),
            ]),
            ..Container::default()
        });
    pod.volumes.get_or_insert_with(Vec::new).push(Volume {
        name: INIT_CONTAINER.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
}

fn arguments(cx: &Common<'_>, ports: &BTreeSet<u16>) -> Vec<String> {
    let setup: &Setup<'_> = cx.setup;
    let own = hosts::launcher_name(setup.name);
    let hosts = Hosts::of(setup, cx.domain);
    let mut args = vec![format!("--own={}", hosts.qualified(&own))];
    args.extend(ports.iter().map(|port| format!("--port={port}")));
    if setup.implementation != Implementation::OpenMpi {
        // Hydra's proxies call back to it, and a resolver that was asked too early caches the negative answer.
        args.push(format!("--resolves={}", hosts.service(&own)));
    }
    if discovers(setup) {
        args.push("--any".to_owned());
    }
    args
}

/// Copies the main container's resources: an init container that needs no more than the containers after it costs the node nothing.
fn share(main: &ResourceRequirements) -> ResourceRequirements {
    let some = |all: &Option<BTreeMap<String, Quantity>>| {
        let mut some = all.clone()?;
        some.retain(|name, _| SHARED.contains(&name.as_str()));
        Some(some)
    };
    ResourceRequirements {
        limits: some(&main.limits),
        requests: some(&main.requests),
        claims: None,
    }
}

/// What the restricted Pod Security Standard requires.
fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: None,
        }),
        run_as_non_root: Some(true),
        run_as_user: Some(65532),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..SecurityContext::default()
    }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ports_of(annotation: Option<&str>, main: Value) -> Vec<u16> {
        let mut main = main;
        main["name"] = json!("mpi");
        let template = serde_json::from_value(json!({ "spec": { "containers": [main] } })).unwrap();
        let role = RoleSpec {
            key: "Worker".to_owned(),
            label: "worker".to_owned(),
            replicas: 1,
            restart: training_api::RestartPolicy::Never,
            template: Some(&template),
            is_master: false,
            is_fallback_master: false,
            is_host: false,
            path: String::new(),
        };
        ports(annotation, &role, None).into_iter().collect()
    }

    #[test]
    fn the_port_is_read_from_where_users_say_it() {
        let ssh =
            json!({ "ports": [{ "containerPort": 80 }, { "name": "ssh", "containerPort": 2200 }] });
        assert_eq!(ports_of(None, ssh.clone()), [2200]);
        assert_eq!(ports_of(Some("2022"), ssh), [2022]);
        let probe = |port: Value| json!({ "readinessProbe": { "tcpSocket": { "port": port } } });
        assert_eq!(ports_of(None, probe(json!(2222))), [2222]);
        let mut by_name = probe(json!("shell"));
        by_name["ports"] = json!([{ "name": "shell", "containerPort": 2201 }]);
        assert_eq!(ports_of(None, by_name), [2201]);
        for command in [
            json!({ "command": ["/usr/sbin/sshd", "-De", "-p", "2202"] }),
            json!({ "command": ["/usr/sbin/sshd"], "args": ["-De", "-p2202"] }),
            json!({ "command": ["sh", "-c"], "args": ["mkdir -p /run/sshd; /usr/sbin/sshd -De -p 2202"] }),
        ] {
            assert_eq!(ports_of(None, command.clone()), [2202], "{command}");
        }
        for plain in [
            json!({}),
            json!({ "command": ["/usr/sbin/sshd", "-De"] }),
            json!({ "command": ["serve", "-p", "80"] }),
        ] {
            assert_eq!(ports_of(None, plain), [22, 2222]);
        }
        assert_eq!(ports_of(Some("ssh"), json!({})), [22, 2222], "no number");
    }
}
