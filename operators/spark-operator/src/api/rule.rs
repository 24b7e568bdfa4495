//! Validation rules of the API server, with the published messages. They replace a webhook.
//!
//! The API server doesn't evaluate a field's rule again while the field is unchanged, so objects stored before the rule stay
//! valid.

use kube::core::{Message, Reason, Rule};

/// Keys of `sparkConf` that no application may set, grouped by the reason.
///
/// Source: the published validation.
pub const DENIED_CONF: [(&[&str], &str); 4] = [
    (
        &[
            "spark.kubernetes.authenticate.driver.serviceAccountName",
            "spark.kubernetes.authenticate.executor.serviceAccountName",
        ],
        "configure the service account via the CRD spec instead",
    ),
    (
        &[
            "spark.kubernetes.authenticate.oauthToken",
            "spark.kubernetes.authenticate.oauthTokenFile",
            "spark.kubernetes.authenticate.driver.oauthToken",
            "spark.kubernetes.authenticate.driver.oauthTokenFile",
            "spark.kubernetes.authenticate.executor.oauthToken",
            "spark.kubernetes.authenticate.executor.oauthTokenFile",
        ],
        "authentication credentials are managed by the operator",
    ),
    (
        &["spark.master", "spark.kubernetes.driver.master"],
        "this value is managed by the operator",
    ),
    (
        &[
            "spark.kubernetes.container.image",
            "spark.kubernetes.driver.container.image",
            "spark.kubernetes.executor.container.image",
        ],
        "use the image field on the CRD instead",
    ),
];

/// The message for node selectors on both levels.
pub const NODE_SELECTORS: &str =
    "node selector cannot be defined at both SparkApplication and Driver/Executor";
/// The message for an entry without a port.
pub const NO_INGRESS_PORT: &str = "DriverIngressOptions has nill ServicePort";
/// The message for an entry without a URL.
pub const NO_INGRESS_URL: &str = "DriverIngressOptions has empty IngressURLFormat";
/// The message for two entries with the same port.
pub const SAME_INGRESS_PORT: &str = "DriverIngressOptions has duplicate ServicePort";
/// The message for two entries with the same URL.
pub const SAME_INGRESS_URL: &str = "DriverIngressOptions has duplicate IngressURLFormat";

// Don't use the reason for duplicates: the API server drops its message.
fn rule(rule: impl Into<String>, message: &str, reason: Reason) -> Rule {
    Rule::new(rule)
        .message(Message::Message(message.to_owned()))
        .reason(reason)
}

/// For a spec: node selectors on one level only.
pub fn node_selectors_are_apart() -> Rule {
    let given = |path: &str| format!("(has(self.{path}) && self.{path}.size() > 0)");
    rule(
        format!(
            "!{} || !({} || {})",
            given("nodeSelector"),
            given("driver.nodeSelector"),
            given("executor.nodeSelector")
        ),
        NODE_SELECTORS,
        Reason::FieldValueForbidden,
    )
    .field_path(".nodeSelector")
}

/// For `sparkConf`: no key of [`DENIED_CONF`].
pub fn conf_keys_are_allowed() -> Rule {
    let list = |keys: &[&str]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
        format!("[{}]", keys.join(", "))
    };
    let all: Vec<&str> = DENIED_CONF
        .iter()
        .flat_map(|(keys, _)| *keys)
        .copied()
        .collect();
    // The message names the first denied key.
    let cases: Vec<String> = DENIED_CONF
        .iter()
        .map(|(keys, why)| {
            let keys = list(keys);
            format!(
                "{keys}.exists(k, k in self) ? 'sparkConf key \"' + {keys}.filter(k, k in self)[0] + '\" is not allowed: {why}' : "
            )
        })
        .collect();
    Rule::new(format!("!{}.exists(k, k in self)", list(&all)))
        .message(Message::Expression(format!("{}''", cases.concat())))
        .reason(Reason::FieldValueForbidden)
}

/// For `driverIngressOptions`: every entry has a port.
pub fn ingress_ports_are_given() -> Rule {
    rule(
        "self.all(o, has(o.servicePort))",
        NO_INGRESS_PORT,
        Reason::FieldValueRequired,
    )
}

/// For `driverIngressOptions`: all ports differ.
pub fn ingress_ports_differ() -> Rule {
    rule(
        "self.all(o, !has(o.servicePort) || self.exists_one(p, has(p.servicePort) && p.servicePort == o.servicePort))",
        SAME_INGRESS_PORT,
        Reason::FieldValueInvalid,
    )
}

/// For `driverIngressOptions`: every entry has a URL.
pub fn ingress_urls_are_given() -> Rule {
    rule(
        "self.all(o, has(o.ingressURLFormat) && o.ingressURLFormat != '')",
        NO_INGRESS_URL,
        Reason::FieldValueRequired,
    )
}

/// For `driverIngressOptions`: all URLs differ.
pub fn ingress_urls_differ() -> Rule {
    rule(
        "self.all(o, !has(o.ingressURLFormat) || \
         self.exists_one(p, has(p.ingressURLFormat) && p.ingressURLFormat == o.ingressURLFormat))",
        SAME_INGRESS_URL,
        Reason::FieldValueInvalid,
    )
}
