//! The rights that the operator needs, as data. Manifests are generated from it.

use training_core::grants::Grant;

/// What it does with applications.
pub const APPLICATIONS: &[&str] = &["create", "delete", "get", "list", "watch"];
/// What it does with schedules.
pub const SCHEDULES: &[&str] = &["list", "watch"];

/// The rights where applications are.
pub const RUNS: &[Grant] = &[
    Grant {
        group: "",
        resources: &["pods"],
        verbs: &["create", "delete", "get", "list", "watch"],
        why: "It makes drivers, sees executors, and removes both. get answers one question: who owns a name that is taken.",
    },
    Grant {
        group: "",
        resources: &["services", "persistentvolumeclaims"],
        verbs: &["create", "delete", "get", "list", "watch"],
        why: "Executors find their driver by a Service; the web UI has another; volumes of drivers are claimed on demand.",
    },
    Grant {
        group: "",
        resources: &["configmaps"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        why: "A driver reads its properties, and what it makes executors from, from ConfigMaps. patch keeps the one of metrics, which is \
              the same for all runs, as the application says; and with the gate PartialRestart the template of executors.",
    },
    Grant {
        group: "networking.k8s.io",
        resources: &["ingresses"],
        verbs: &["create", "delete", "get", "list", "watch"],
        why: "Web UIs and drivers are reached through them, where applications or the operator's flags ask for it.",
    },
    Grant {
        group: "",
        resources: &["events"],
        verbs: &["create", "patch"],
        why: "Users read events on their applications; repeats are counted on the event that is there.",
    },
];

/// The rights of drivers, which make and remove their executors themselves. Source: as published.
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
    why: "A driver makes its executors, with what they need, and removes them.",
}];

/// Rights for what the operator doesn't do by default, by the file that holds them.
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
            why: "Only its driver reaches an executor.",
        }],
    ),
    (
        "options/namespace-selector",
        &[Grant {
            group: "",
            resources: &["namespaces"],
            verbs: &["get", "list", "watch"],
            why: "The labels of namespaces say which are served.",
        }],
    ),
    (
        "options/driver-pdb",
        &[Grant {
            group: "policy",
            resources: &["poddisruptionbudgets"],
            verbs: &["create", "delete", "get", "list", "watch"],
            why: "Drivers are not evicted where applications ask for it.",
        }],
    ),
];
