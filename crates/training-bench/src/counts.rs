//! Reads the API server's counters of requests per client, which our own flow schemas distinguish.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use e2e::peers::process::USER;
use http::Method;
use serde_json::{Value, json};
use training_testkit::builders::Kind;

use crate::http::{Api, Ask, JSON};
use crate::store::{Figures, Side};

/// The floor client's user.
pub const FLOOR: &str = "bench-floor";
/// The load generator's user.
pub const LOAD: &str = "bench-load";
/// The status driver's user.
pub const DRIVER: &str = "bench-driver";
/// Their group, which has all rights.
pub const GROUP: &str = "bench";

/// A class of requests.
struct Sort {
    name: &'static str,
    verbs: &'static [&'static str],
    groups: &'static [&'static str],
    resources: &'static [&'static str],
}

const fn sort(
    name: &'static str,
    verbs: &'static [&'static str],
    groups: &'static [&'static str],
    resources: &'static [&'static str],
) -> Sort {
    Sort {
        name,
        verbs,
        groups,
        resources,
    }
}

/// All classes; the first match wins.
const SORTS: [Sort; 5] = [
    sort("leases", &["*"], &["coordination.k8s.io"], &["leases"]),
    sort("events", &["*"], &["", "events.k8s.io"], &["events"]),
    sort("watches", &["watch"], &["*"], &["*"]),
    sort("reads", &["get", "list"], &["*"], &["*"]),
    sort("writes", &["*"], &["*"], &["*"]),
];
const REST: Sort = sort("", &["*"], &["*"], &["*"]);

/// Returns the measured user.
pub fn user(side: Side, kind: &Kind) -> String {
    match side {
        Side::Floor => FLOOR.to_owned(),
        Side::Ours => kind.user(),
        Side::Go | Side::Tuned => USER.to_owned(),
    }
}

fn prefix(side: Side) -> &'static str {
    match side {
        Side::Floor => "bench-floor",
        Side::Ours => "bench-ours",
        Side::Go | Side::Tuned => "bench-go",
    }
}

/// Returns the flow schemas and other objects of the bench's users. All schemas use the exempt priority level.
pub fn objects(kind: &Kind) -> Vec<Value> {
    let mut objects = vec![json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": "bench" },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
        },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": GROUP }],
    })];
    for side in [Side::Floor, Side::Ours, Side::Go] {
        for (precedence, sort) in SORTS.iter().enumerate() {
            let name = format!("{}-{}", prefix(side), sort.name);
            objects.push(schema(&name, 5 + precedence, &user(side, kind), sort));
        }
    }
    for name in [LOAD, DRIVER] {
        objects.push(schema(name, 20, name, &REST));
    }
    objects
}

fn schema(name: &str, precedence: usize, user: &str, sort: &Sort) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": { "name": name },
        "spec": {
            "priorityLevelConfiguration": { "name": "exempt" },
            "matchingPrecedence": precedence,
            "rules": [{
                "subjects": [{ "kind": "User", "user": { "name": user } }],
                "resourceRules": [{
                    "verbs": sort.verbs, "apiGroups": sort.groups, "resources": sort.resources,
                    "namespaces": ["*"], "clusterScope": true,
                }],
            }],
        },
    })
}

/// The resource of the API server's own requests for a Service's address. It tries random addresses until one is free.
const ADDRESSES: &str = "ipaddresses";

/// A snapshot of the API server's counters.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    flows: BTreeMap<String, f64>,
    conflicts: f64,
}

impl Counts {
    /// Reads the counters.
    pub async fn read(api: &Api) -> Result<Self> {
        let body = api.must(Method::GET, "/metrics", Ask::read(JSON)).await?;
        Ok(Self::parse(
            std::str::from_utf8(&body).context("metrics are text")?,
        ))
    }

    fn parse(text: &str) -> Self {
        let mut counts = Self::default();
        for line in text.lines() {
            if let Some(rest) =
                line.strip_prefix("apiserver_flowcontrol_dispatched_requests_total{")
            {
                if let (Some(flow), Some(value)) = (label(rest, "flow_schema"), value(rest)) {
                    *counts.flows.entry(flow.to_owned()).or_default() += value;
                }
            } else if let Some(rest) = line.strip_prefix("apiserver_request_total{")
                && label(rest, "code") == Some("409")
                && label(rest, "resource") != Some(ADDRESSES)
            {
                counts.conflicts += value(rest).unwrap_or(0.0);
            }
        }
        counts
    }

    /// Returns one client's requests since `before`, by class, and the conflicts of all clients.
    pub fn since(&self, before: &Self, side: Side) -> Figures {
        let mut figures = Figures::new();
        for Sort { name: sort, .. } in SORTS {
            let flow = format!("{}-{sort}", prefix(side));
            let count = |counts: &Self| counts.flows.get(&flow).copied().unwrap_or(0.0);
            figures.insert(sort.to_owned(), count(self) - count(before));
        }
        figures.insert("conflicts".to_owned(), self.conflicts - before.conflicts);
        figures
    }
}

fn label<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

fn value(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
# HELP apiserver_flowcontrol_dispatched_requests_total x
apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"bench-ours-writes\",priority_level=\"exempt\"} 10
apiserver_request_total{code=\"409\",component=\"apiserver\",verb=\"PATCH\"} 1
apiserver_request_total{code=\"201\",component=\"apiserver\",verb=\"POST\"} 500
";
    const AFTER: &str = "\
apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"bench-ours-writes\",priority_level=\"exempt\"} 120
apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"bench-ours-events\",priority_level=\"exempt\"} 3e+01
apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"bench-floor-writes\",priority_level=\"exempt\"} 7
apiserver_request_total{code=\"409\",component=\"apiserver\",verb=\"PATCH\"} 2
apiserver_request_total{code=\"409\",component=\"apiserver\",verb=\"POST\"} 4
apiserver_request_total{code=\"409\",component=\"apiserver\",resource=\"ipaddresses\",verb=\"POST\"} 9
";

    #[test]
    fn counters_are_told_apart_by_client_and_sort() {
        let (before, after) = (Counts::parse(BEFORE), Counts::parse(AFTER));
        let ours = after.since(&before, Side::Ours);
        assert_eq!(
            (ours["writes"], ours["events"], ours["reads"]),
            (110.0, 30.0, 0.0)
        );
        assert_eq!(ours["conflicts"], 5.0);
        assert_eq!(after.since(&before, Side::Floor)["writes"], 7.0);
    }
}
