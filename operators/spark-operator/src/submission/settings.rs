//! Operator settings that submissions depend on.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::IngressTLS;

/// The default URL of the API server for drivers.
pub const IN_CLUSTER: &str = "k8s://https://kubernetes.default.svc:443";

/// An on/off setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    #[default]
    Off,
}

impl Switch {
    /// True if enabled.
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// How to handle `driverIngressOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverIngress {
    /// Create Services and Ingresses, as published.
    #[default]
    Served,
    /// Refuse applications that set them.
    Refused,
}

/// Limits for the Ingresses of applications. An empty list allows everything, as published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngressLimits {
    /// Suffixes of host names, without a leading dot.
    pub host_suffixes: Vec<String>,
    /// Values of the annotation [`CLASS_ANNOTATION`].
    pub classes: Vec<String>,
    /// Keys of annotations; one that ends with `*` or `/` is a prefix.
    pub annotations: Vec<String>,
}

/// The legacy annotation for the class of an Ingress.
pub const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// Operator settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The value of `spark.master`. Shape: `k8s://https://<host>:<port>`, see [`master`].
    pub master: String,
    /// Default Spark properties of all applications. The application's own override them.
    pub defaults: BTreeMap<String, String>,
    /// The web UI.
    pub web: WebSettings,
    /// Additional Services and Ingresses of drivers.
    pub driver_ingress: DriverIngress,
    /// Limits for the Ingresses of applications.
    pub ingress_limits: IngressLimits,
    /// Strict mode: applications can't affect anything outside their namespace.
    pub strict: Switch,
    /// Batch schedulers.
    pub batch: BatchSettings,
    /// Create a NetworkPolicy for executors, as Spark does since 4.2.
    pub network_policy: Switch,
    /// Create a PodDisruptionBudget for drivers of applications that ask for one.
    pub disruption_budget: Switch,
    /// Keep a driver's last output as its termination message, unless its template sets a policy.
    pub last_words: Switch,
    /// An admission policy sets the memory limit of executors, so the operator doesn't report it as ignored.
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
    /// Create a Service for every application.
    pub service: Switch,
    /// The URL of its Ingress, with `{{$appName}}`, `{{$appNamespace}}` and `{{$appId}}` replaced. Empty: no Ingress.
    pub url_format: String,
    /// The class of Ingresses. Empty: no class.
    pub ingress_class: String,
    /// Default annotations of Ingresses.
    pub annotations: BTreeMap<String, String>,
    /// Default TLS of Ingresses.
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
    /// Support batch schedulers.
    pub enabled: Switch,
    /// The default batch scheduler. Empty: none.
    pub default: String,
    /// Names of schedulers with the coscheduling plugin.
    pub kube_schedulers: Vec<String>,
}

/// Returns the value of `spark.master` for an API server.
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
