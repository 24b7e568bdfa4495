//! The RBAC rules of the operator, as data. Manifests are generated from them.

use training_core::grants::Grant;

/// Verbs for applications.
pub const APPLICATIONS: &[&str] = &["create", "delete", "get", "list", "watch"];
/// Verbs for schedules.
pub const SCHEDULES: &[&str] = &["list", "watch"];

/// Rules in namespaces with applications.
pub const RUNS: &[Grant] = &[
    Grant {
        group: "",
        resources: &["pods"],
        verbs: &["create", "delete", "get", "list", "watch"],
        why: "It creates drivers, watches executors, and deletes both. get finds the owner of a name that is already taken.",
    },
    Grant {
        group: "",
        resources: &["services", "persistentvolumeclaims"],
        verbs: &["create", "delete", "get", "list", "watch"],
        why: "Executors find their driver through a Service; the web UI has another; volumes of drivers are claimed on demand.",
    },
    Grant {
        group: "",
        resources: &["configmaps"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        why: "A driver reads its properties and the template of its executors from ConfigMaps. patch updates the one of metrics, which \
              all runs share, and with the gate PartialRestart the template of executors.",
    },
    Grant {
        group: "networking.k8s.io",
        resources: &["ingresses"],
        verbs: &["create", "delete", "get", "list", "watch"],
        why: "They expose web UIs and drivers, if applications or the operator's flags ask for it.",
    },
    Grant {
        group: "",
        resources: &["events"],
        verbs: &["create", "patch"],
        why: "Users read events on their applications; patch counts repeats on the existing event.",
    },
];

/// Rules for drivers, which create and delete their executors themselves. Source: as published.
pub const DRIVERS: &[Grant] = &[Grant {
    group: "",
    resources: &["pods", "configmaps", "persistentvolumeclaims", "services"],
    verbs: &[
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ],
    why: "A driver creates and deletes its executors and the objects that they need.",
}];

/// Rules for features that are off by default, by the file that holds them.
pub const OPTIONS: &[(&str, &[Grant])] = &[
    (
        "batch-scheduler/volcano",
        &[Grant {
            group: "scheduling.volcano.sh",
            resources: &["podgroups"],
            verbs: &["create", "delete", "get", "list", "watch"],
            why: "Volcano starts the pods of a group together.",
        }],
    ),
    (
        "batch-scheduler/kube-scheduler",
        &[Grant {
            group: "scheduling.x-k8s.io",
            resources: &["podgroups"],
            verbs: &["create", "delete", "get", "list", "watch"],
            why: "The coscheduling plugin starts the pods of a group together.",
        }],
    ),
    (
        "options/network-policy",
        &[Grant {
            group: "networking.k8s.io",
            resources: &["networkpolicies"],
            verbs: &["create", "delete", "get", "list", "watch"],
            why: "Only pods of the same run can connect to executors.",
        }],
    ),
    (
        "options/namespace-selector",
        &[Grant {
            group: "",
            resources: &["namespaces"],
            verbs: &["get", "list", "watch"],
            why: "The labels of namespaces determine which are served.",
        }],
    ),
    (
        "options/driver-pdb",
        &[Grant {
            group: "policy",
            resources: &["poddisruptionbudgets"],
            verbs: &["create", "delete", "get", "list", "watch"],
            why: "Protects drivers from eviction, if applications ask for it.",
        }],
    ),
];
