//! How an operator is set up, as far as submissions depend on it.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::IngressTLS;

/// The API server as drivers reach it where nothing else is known.
pub const IN_CLUSTER: &str = "k8s://https://kubernetes.default.svc:443";

/// Something that is done or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// It is done.
    On,
    /// It is not.
    #[default]
    Off,
}

impl Switch {
    /// True if it is done.
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// What becomes of `driverIngressOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverIngress {
    /// Services and Ingresses are made, as published.
    #[default]
    Served,
    /// Applications that ask for them are refused.
    Refused,
}

/// What Ingresses of applications may have. An empty list allows everything, as published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngressLimits {
    /// Ends of host names, without a first dot.
    pub host_suffixes: Vec<String>,
    /// Values of the annotation [`CLASS_ANNOTATION`].
    pub classes: Vec<String>,
    /// Keys of annotations; one that ends with `*` or `/` is the beginning of keys.
    pub annotations: Vec<String>,
}

/// The former way to name the class of an Ingress.
pub const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// How an operator is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The value of `spark.master`. Shape: `k8s://https://<host>:<port>`, see [`master`].
    pub master: String,
    /// Spark properties for all applications; whatever an application says wins.
    pub defaults: BTreeMap<String, String>,
    /// The web UI.
    pub web: WebSettings,
    /// More Services and Ingresses of drivers.
    pub driver_ingress: DriverIngress,
    /// What applications may ask of Ingresses.
    pub ingress_limits: IngressLimits,
    /// Applications get nothing that reaches beyond their namespace.
    pub strict: Switch,
    /// Batch schedulers.
    pub batch: BatchSettings,
    /// A NetworkPolicy for executors, as Spark makes one from 4.2 on.
    pub network_policy: Switch,
    /// Drivers of applications that ask for it get a PodDisruptionBudget.
    pub disruption_budget: Switch,
    /// A driver's last words are kept where its template doesn't say otherwise.
    pub last_words: Switch,
    /// A policy of the cluster sets the memory limit of executors, so that nobody needs to be told that it is missing.
    pub memory_limit_policy: Switch,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            master: IN_CLUSTER.to_owned(),
            defaults: BTreeMap::new(),
            web: WebSettings::default(),
            driver_ingress: DriverIngress::default(),
            ingress_limits: IngressLimits::default(),
            strict: Switch::Off,
            batch: BatchSettings::default(),
            network_policy: Switch::Off,
            disruption_budget: Switch::Off,
            last_words: Switch::On,
            memory_limit_policy: Switch::Off,
        }
    }
}

/// The web UI.
#[derive(Clone, Debug, PartialEq)]
pub struct WebSettings {
    /// Every application has a Service for it.
    pub service: Switch,
    /// The URL of its Ingress; `{{$appName}}`, `{{$appNamespace}}` and `{{$appId}}` in it are replaced. Empty: no Ingress.
    pub url_format: String,
    /// The class of Ingresses. Empty: none is named.
    pub ingress_class: String,
    /// Annotations of Ingresses whose application names none.
    pub annotations: BTreeMap<String, String>,
    /// TLS of Ingresses whose application names none.
    pub tls: Vec<IngressTLS>,
}

impl Default for WebSettings {
    fn default() -> Self {
        Self {
            service: Switch::On,
            url_format: String::new(),
            ingress_class: String::new(),
            annotations: BTreeMap::new(),
            tls: Vec::new(),
        }
    }
}

/// Batch schedulers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchSettings {
    /// They are served at all.
    pub enabled: Switch,
    /// The one of applications that name none. Empty: none.
    pub default: String,
    /// Names of schedulers that have the coscheduling plugin.
    pub kube_schedulers: Vec<String>,
}

/// The value of `spark.master` for an API server.
pub fn master(host: &str, port: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        return format!("k8s://https://[{host}]:{port}");
    }
    format!("k8s://https://{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::master;

    #[test]
    fn an_address_with_colons_gets_brackets() {
        assert_eq!(master("10.0.0.1", "443"), "k8s://https://10.0.0.1:443");
        assert_eq!(master("fd00::1", "6443"), "k8s://https://[fd00::1]:6443");
        assert_eq!(master("[fd00::1]", "6443"), "k8s://https://[fd00::1]:6443");
    }
}
