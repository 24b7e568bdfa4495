//! Generates all installed objects except rights: namespace, Deployment, metrics Service, configuration, network policy.

use serde_json::{Value, json};

use crate::operator::{Argument, NAMESPACE, Operator};
use crate::yaml;

/// The only user of the operator's image.
const USER: i64 = 65532;
/// The port of `/metrics`.
const METRICS: u16 = 8080;
/// The port of the probes.
const PROBES: u16 = 8081;

/// The ports of API servers: the usual one, kubeadm's, and that of local clusters.
const API_SERVERS: [u16; 3] = [443, 6443, 8443];
/// The address of an API server, as an example.
pub const EXAMPLE_SERVER: &str = "192.0.2.1";
/// The address of its Service, as an example.
pub const EXAMPLE_SERVICE: &str = "192.0.2.2";

/// The index of the argument that repeats the operator's image. Kustomize addresses list elements only by index.
pub const OWN_IMAGE_ARGUMENT: usize = 1;

/// The namespaces that an operator serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every namespace.
    Cluster,
    /// Only its own namespace.
    Namespace,
}

impl Scope {
    /// Returns the generated namespace of the operator's own objects.
    pub fn namespace(self) -> &'static str {
        match self {
            Self::Cluster => NAMESPACE,
            Self::Namespace => "default",
        }
    }
}

/// Returns the labels of an operator's objects.
pub fn labels(operator: &Operator) -> Value {
    json!({ "app.kubernetes.io/name": operator.name, "app.kubernetes.io/part-of": "trainyard" })
}

/// Returns the container security context that Pod Security level `restricted` requires.
pub fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "readOnlyRootFilesystem": true,
        "runAsGroup": USER,
        "runAsNonRoot": true,
        "runAsUser": USER,
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// Returns the operators' namespace, with its enforced Pod Security level.
pub fn namespace() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": NAMESPACE,
            "labels": {
                "app.kubernetes.io/part-of": "trainyard",
                "pod-security.kubernetes.io/enforce": "restricted",
            },
        },
    })
}

/// Returns the Deployment.
pub fn deployment(operator: &Operator, scope: Scope) -> Value {
    let mut args = vec!["--leader-elect".to_owned()];
    args.extend(operator.args.iter().map(|argument| match argument {
        Argument::OwnImage(flag) => format!("{flag}={}", operator.image()),
    }));
    if scope == Scope::Namespace {
        args.push("--namespace=$(POD_NAMESPACE)".to_owned());
    }
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let probe = |path: &str, period: u32| json!({ "httpGet": { "path": path, "port": "probes" }, "periodSeconds": period });
    let mut container = json!({
        "name": "operator",
        "image": operator.image(),
        "imagePullPolicy": "IfNotPresent",
        "command": [format!("/{}", operator.name)],
        "args": args,
        "env": [
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
            // One allocator arena instead of one per thread: the threads of an operator share little.
            { "name": "MALLOC_ARENA_MAX", "value": "1" },
            // Setting this threshold, even to its default, stops glibc from raising it: the pages of lists then leave no holes in the heap.
            { "name": "MALLOC_MMAP_THRESHOLD_", "value": "131072" },
        ],
        "ports": [
            { "name": "metrics", "containerPort": METRICS },
            { "name": "probes", "containerPort": PROBES },
        ],
        "livenessProbe": probe("/livez", 20),
        "readinessProbe": probe("/readyz", 5),
        "resources": {
            "limits": { "memory": "256Mi" },
            "requests": { "cpu": "50m", "memory": "32Mi" },
        },
        "securityContext": restricted(),
    });
    let mut pod = json!({
        "serviceAccountName": operator.name,
        "terminationGracePeriodSeconds": 15,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
    });
    if let Some(config) = &operator.config {
        container["volumeMounts"] =
            json!([{ "name": "config", "mountPath": config.path, "readOnly": true }]);
        pod["volumes"] = json!([{ "name": "config", "configMap": { "name": config.name } }]);
    }
    pod["containers"] = json!([container]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(operator, scope, operator.name),
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app.kubernetes.io/name": operator.name } },
            "template": { "metadata": { "labels": labels(operator) }, "spec": pod },
        },
    })
}

/// Returns the metrics Service for Prometheus.
pub fn metrics_service(operator: &Operator, scope: Scope) -> Value {
    let mut metadata = metadata(operator, scope, &format!("{}-metrics", operator.name));
    metadata["annotations"] = json!({
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": METRICS.to_string(),
        "prometheus.io/scrape": "true",
    });
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "selector": { "app.kubernetes.io/name": operator.name },
            "ports": [{ "name": "metrics", "port": METRICS, "targetPort": "metrics" }],
        },
    })
}

/// Returns the `ConfigMap`, if the operator has one.
///
/// # Errors
/// If its file can't be written as YAML.
pub fn config(operator: &Operator, scope: Scope) -> anyhow::Result<Option<Value>> {
    let Some(config) = &operator.config else {
        return Ok(None);
    };
    let (file, content) = &config.file;
    Ok(Some(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(operator, scope, config.name),
        "data": { *file: yaml::document(content)? },
    })))
}

/// Returns the network policy: egress to the API server and DNS, ingress for scraping from anywhere.
// Allows ports instead of addresses: the API server's address differs between clusters, and network plugins apply policies
// before or after the translation of its Service.
pub fn network_policy(operator: &Operator, scope: Scope) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(operator, scope, operator.name),
        "spec": {
            "podSelector": { "matchLabels": { "app.kubernetes.io/name": operator.name } },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "ports": [tcp(METRICS), tcp(PROBES)] }],
            "egress": [
                { "ports": API_SERVERS.map(tcp) },
                { "ports": dns() },
            ],
        },
    })
}

/// Returns the patch that restricts the egress of every network policy to the API server and the cluster's DNS. Users set the
/// addresses, which are examples.
pub fn narrow_egress() -> Value {
    let to = |address: &str| json!([{ "ipBlock": { "cidr": format!("{address}/32") } }]);
    let dns_pods = json!({
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kube-system" } },
        "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } },
    });
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        // The kustomization selects the policies by a label.
        "metadata": { "name": "any" },
        "spec": {
            "egress": [
                { "to": to(EXAMPLE_SERVER), "ports": [tcp(6443)] },
                { "to": to(EXAMPLE_SERVICE), "ports": [tcp(443)] },
                { "to": [dns_pods], "ports": dns() },
            ],
        },
    })
}

fn tcp(port: u16) -> Value {
    json!({ "protocol": "TCP", "port": port })
}

fn dns() -> [Value; 2] {
    [json!({ "protocol": "UDP", "port": 53 }), tcp(53)]
}

/// Returns the metadata of an operator's namespaced object.
pub fn metadata(operator: &Operator, scope: Scope, name: &str) -> Value {
    json!({ "name": name, "namespace": scope.namespace(), "labels": labels(operator) })
}
