//! Applies the spec of a role to a pod, beyond Spark's properties: environment, volumes, sidecars, security, placement.
//!
//! Source: the published operator's webhook does this to every pod. The order, and what is appended or replaced, are the same. A
//! driver is built this way, executors through their template.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, ContainerPort, EnvVar, Lifecycle, PodSpec,
    ResourceRequirements, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use training_core::SpecError;

use super::cx::Cx;
use super::metrics;
use super::properties::LOCAL_DIR;
use crate::api::{PodPort, Role, SparkPodSpec};
use crate::{memory, names};

/// The mount path of `sparkConfigMap`.
pub const SPARK_CONF: &str = "/etc/spark/conf";
/// The mount path of `hadoopConfigMap`.
pub const HADOOP_CONF: &str = "/etc/hadoop/conf";

/// Fields that driver and executors each have on their own.
struct Own<'a> {
    lifecycle: Option<&'a Lifecycle>,
    ports: &'a [PodPort],
    priority_class: Option<&'a String>,
}

fn own<'a>(cx: &Cx<'a>, role: Role) -> Own<'a> {
    let (driver, executor) = (&cx.spec.driver, &cx.spec.executor);
    match role {
        Role::Driver => Own {
            lifecycle: driver.lifecycle.as_ref(),
            ports: &driver.ports,
            priority_class: driver.priority_class_name.as_ref(),
        },
        Role::Executor => Own {
            lifecycle: executor.lifecycle.as_ref(),
            ports: &executor.ports,
            priority_class: executor.priority_class_name.as_ref(),
        },
    }
}

/// Applies everything to the pod and its Spark container, except sidecars and the memory limit.
pub fn apply(
    cx: &Cx<'_>,
    role: Role,
    scheduler_name: Option<&str>,
    pod: &mut PodSpec,
    container: &mut Container,
) {
    let (spec, own) = (cx.spec.role(role), own(cx, role));
    append(&mut container.env, &spec.env);
    append(&mut container.env_from, &spec.env_from);
    volumes(cx, role, pod, container);
    let ports: Vec<ContainerPort> = own.ports.iter().map(port).collect();
    append(&mut container.ports, &ports);
    if spec.host_network == Some(true) {
        pod.host_network = Some(true);
        pod.dns_policy = Some("ClusterFirstWithHostNet".to_owned());
    }
    append(&mut pod.host_aliases, &spec.host_aliases);
    let inits = pod.init_containers.get_or_insert_default();
    add_containers(inits, &spec.init_containers);
    if inits.is_empty() {
        pod.init_containers = None;
    }
    replace(&mut pod.dns_config, spec.dns_config.as_ref());
    if let Some(class) = own.priority_class.filter(|c| !c.is_empty()) {
        pod.priority_class_name = Some(class.clone());
        (pod.priority, pod.preemption_policy) = (None, None);
    }
    if let Some(name) = scheduler(cx, role, scheduler_name) {
        pod.scheduler_name = Some(name.to_owned());
    }
    if !spec.node_selector.is_empty() {
        let selector = pod.node_selector.get_or_insert_default();
        selector.extend(spec.node_selector.clone());
    }
    replace(&mut pod.affinity, spec.affinity.as_ref());
    append(&mut pod.tolerations, &spec.tolerations);
    if let Some(gpu) = spec
        .gpu
        .as_ref()
        .filter(|g| !g.name.is_empty() && g.quantity > 0)
    {
        limit(container, &gpu.name, gpu.quantity.to_string());
    }
    if let Some(mounted) = metrics::mounted(cx, role) {
        add_config_map(
            &mounted.volume,
            &mounted.config_map,
            metrics::CONF_DIR,
            pod,
            container,
        );
        let port = ContainerPort {
            name: Some(mounted.port_name),
            container_port: mounted.port,
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        };
        append(&mut container.ports, &[port]);
    }
    replace(
        &mut container.security_context,
        spec.security_context.as_ref(),
    );
    replace(
        &mut pod.security_context,
        spec.pod_security_context.as_ref(),
    );
    let grace = spec.termination_grace_period_seconds.as_ref();
    replace(&mut pod.termination_grace_period_seconds, grace);
    replace(&mut container.lifecycle, own.lifecycle);
    if spec.share_process_namespace == Some(true) {
        pod.share_process_namespace = Some(true);
    }
}

/// Returns a role's scheduler: the batch scheduler, or else the role's own.
pub fn scheduler<'a>(cx: &Cx<'a>, role: Role, batch: Option<&'a str>) -> Option<&'a str> {
    let own = cx.spec.role(role).scheduler_name.as_deref();
    batch.or(own).filter(|name| !name.is_empty())
}

/// Sets the memory limit of the Spark container, if the spec has one.
///
/// # Errors
/// If it is not a memory quantity.
pub fn memory_limit(
    spec: &SparkPodSpec,
    role: Role,
    container: &mut Container,
) -> Result<(), SpecError> {
    let Some(text) = spec.memory_limit.as_deref().filter(|t| !t.is_empty()) else {
        return Ok(());
    };
    let field = || format!("spec.{}.memoryLimit", role.as_str());
    let value = memory::limit(text).map_err(|why| SpecError::new(field(), why))?;
    limit(container, "memory", value);
    Ok(())
}

/// Adds containers, except those already present with the same name and image.
pub fn add_containers(to: &mut Vec<Container>, more: &[Container]) {
    for container in more {
        let same = |c: &Container| c.name == container.name && c.image == container.image;
        if !to.iter().any(same) {
            to.push(container.clone());
        }
    }
}

fn append<T: Clone>(to: &mut Option<Vec<T>>, more: &[T]) {
    if !more.is_empty() {
        to.get_or_insert_default().extend_from_slice(more);
    }
}

fn replace<T: Clone>(to: &mut Option<T>, with: Option<&T>) {
    if let Some(with) = with {
        *to = Some(with.clone());
    }
}

fn limit(container: &mut Container, name: &str, value: String) {
    let resources = container
        .resources
        .get_or_insert_with(ResourceRequirements::default);
    let limits = resources.limits.get_or_insert_default();
    limits.insert(name.to_owned(), Quantity(value));
}

fn port(port: &PodPort) -> ContainerPort {
    ContainerPort {
        name: Some(port.name.clone()).filter(|n| !n.is_empty()),
        container_port: port.container_port,
        protocol: Some(port.protocol.clone()).filter(|p| !p.is_empty()),
        ..ContainerPort::default()
    }
}

/// The ConfigMaps of Hadoop and Spark that the application names, with volume, mount path and variable.
fn conf_maps<'a>(cx: &Cx<'a>) -> Vec<(&'a str, [&'static str; 3])> {
    let maps = [
        (
            &cx.spec.hadoop_config_map,
            ["hadoop-configmap-volume", HADOOP_CONF, "HADOOP_CONF_DIR"],
        ),
        (
            &cx.spec.spark_config_map,
            ["spark-configmap-volume", SPARK_CONF, "SPARK_CONF_DIR"],
        ),
    ];
    let named = maps
        .into_iter()
        .filter_map(|(map, rest)| Some((map.as_deref()?, rest)));
    named.filter(|(map, _)| !map.is_empty()).collect()
}

/// The variables with the paths of these ConfigMaps.
pub fn conf_dirs(cx: &Cx<'_>) -> Vec<EnvVar> {
    let maps = conf_maps(cx).into_iter();
    maps.map(|(_, [_, path, name])| EnvVar {
        name: name.to_owned(),
        value: Some(path.to_owned()),
        value_from: None,
    })
    .collect()
}

fn volumes(cx: &Cx<'_>, role: Role, pod: &mut PodSpec, container: &mut Container) {
    let spec = cx.spec.role(role);
    for (map, [volume, path, _]) in conf_maps(cx) {
        add_config_map(volume, map, path, pod, container);
    }
    append(&mut container.env, &conf_dirs(cx));
    for map in &spec.config_maps {
        let volume = names::config_map_volume(&map.name);
        add_config_map(&volume, &map.name, &map.path, pod, container);
    }
    for mount in spec
        .volume_mounts
        .iter()
        .filter(|m| !m.name.starts_with(LOCAL_DIR))
    {
        let Some(volume) = cx.spec.volumes.iter().find(|v| v.name == mount.name) else {
            continue;
        };
        add_volume(volume, pod);
        append(&mut container.volume_mounts, std::slice::from_ref(mount));
    }
}

fn add_volume(volume: &Volume, pod: &mut PodSpec) {
    let all = pod.volumes.get_or_insert_default();
    if !all.iter().any(|v| v.name == volume.name) {
        all.push(volume.clone());
    }
}

fn add_config_map(
    name: &str,
    config_map: &str,
    path: &str,
    pod: &mut PodSpec,
    container: &mut Container,
) {
    let volume = Volume {
        name: name.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: config_map.to_owned(),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    add_volume(&volume, pod);
    let mount = VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    append(&mut container.volume_mounts, &[mount]);
}
