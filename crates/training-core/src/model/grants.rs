//! The RBAC rules that an operator needs, as data. Manifests are generated from them, and tests compare them with the actual
//! requests.

/// One RBAC rule with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// API group; empty for core.
    pub group: &'static str,
    /// Resources, with subresources written `pods/log`.
    pub resources: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// Why the operator needs it.
    pub why: &'static str,
}

/// The rules in the jobs' namespaces for every operator of pods and services, without those for its own kind.
pub const REPLICAS: &[Grant] = &[
    Grant {
        group: "",
        resources: &["pods", "services"],
        verbs: &["create", "delete", "get", "list", "watch"],
        why: "A job is pods, each with a Service of its name. get answers one question: who owns a name that is taken.",
    },
    Grant {
        group: "",
        resources: &["events"],
        verbs: &["create", "patch"],
        why: "Users read events on their jobs; a repeated event raises the count of the existing one.",
    },
];

/// The rules for operators whose jobs can have an autoscaler.
pub const AUTOSCALERS: &[Grant] = &[Grant {
    group: "autoscaling",
    resources: &["horizontalpodautoscalers"],
    verbs: &["create", "delete", "get", "list", "patch", "watch"],
    why: "An elastic job with metrics has one. get answers one question: who owns a name that is taken.",
}];

/// The verbs on the operator's own kind: `list` and `watch` to observe jobs, `delete` for the TTL.
pub const OWN_KIND: &[&str] = &["delete", "list", "watch"];
/// The verbs on the status of the operator's own kind.
pub const OWN_STATUS: &[&str] = &["patch"];
/// The verbs on the finalizers of the operator's own kind: owner references that block deletion need them if that admission plugin
/// is on.
pub const OWN_FINALIZERS: &[&str] = &["update"];

/// The rules in the operator's own namespace.
pub const OWN_NAMESPACE: &[Grant] = &[Grant {
    group: "coordination.k8s.io",
    resources: &["leases"],
    verbs: &["create", "get", "update"],
    why: "Replicas of the operator elect their leader on one Lease.",
}];
