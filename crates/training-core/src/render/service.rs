//! The headless service of one replica. It has the pod's name; the addresses of every framework depend on it.

use k8s_openapi::api::core::v1::ContainerPort;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::kind::framework::{Framework, JobCx};
use crate::model::names;
use crate::model::roles::Rank;
use crate::render::pod::{labels, owner};

/// Renders the service of a replica from the ports of its main container.
///
/// It publishes addresses that are not ready, so that replicas find each other while they start. Otherwise a readiness probe that
/// waits for peers would deadlock the job.
pub fn render<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    me: Rank<'_>,
    ports: &[ContainerPort],
) -> Service {
    let labels = labels::<F>(cx, me);
    Service {
        metadata: ObjectMeta {
            name: Some(names::replica(cx.name, &me.role.label, me.index)),
            namespace: Some(cx.namespace.to_owned()),
            labels: Some(labels.clone()),
            owner_references: Some(vec![owner(cx.job)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(labels),
            ports: Some(service_ports(ports)),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Returns one service port per container port, in the same order and with the same protocol. Unnamed ports get a name, because
/// services with several ports need names. Duplicate names, and duplicate numbers of one protocol, are dropped: a pod may have
/// them, a service may not.
fn service_ports(ports: &[ContainerPort]) -> Vec<ServicePort> {
    let mut out: Vec<ServicePort> = Vec::new();
    for port in ports {
        let protocol = port.protocol.as_deref().filter(|p| *p != "TCP");
        let name = port
            .name
            .clone()
            .filter(|n| !n.is_empty())
            .unwrap_or_else(|| match protocol {
                Some(p) => format!("p-{}-{}", port.container_port, p.to_ascii_lowercase()),
                None => format!("p-{}", port.container_port),
            });
        let known = |p: &ServicePort| {
            p.name.as_ref() == Some(&name)
                || p.port == port.container_port && p.protocol.as_deref() == protocol
        };
        if !out.iter().any(known) {
            out.push(ServicePort {
                name: Some(name),
                port: port.container_port,
                protocol: protocol.map(str::to_owned),
                ..ServicePort::default()
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_keep_order_and_protocol_and_all_have_names() {
        let port = |name: Option<&str>, number, protocol: Option<&str>| ContainerPort {
            name: name.map(str::to_owned),
            container_port: number,
            protocol: protocol.map(str::to_owned),
            ..ContainerPort::default()
        };
        let ports = service_ports(&[
            port(Some("b"), 2, Some("TCP")),
            port(None, 1, None),
            port(None, 1, Some("UDP")),
            port(Some("again"), 2, None),
        ]);
        let shape: Vec<_> = ports
            .iter()
            .map(|p| (p.name.as_deref().unwrap(), p.port, p.protocol.as_deref()))
            .collect();
        assert_eq!(
            shape,
            [
                ("b", 2, None),
                ("p-1", 1, None),
                ("p-1-udp", 1, Some("UDP"))
            ]
        );
    }
}
