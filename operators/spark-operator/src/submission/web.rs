//! The Services and Ingresses that expose a driver.
//!
//! Source: the published behaviour.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule,
    IngressServiceBackend, IngressSpec, IngressTLS, ServiceBackendPort,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::cx::Cx;
use super::object;
use crate::api::DriverIngressOptions;
use crate::{label, names};

/// The default port of the web UI.
pub const UI_PORT: i32 = 4040;
/// The default name of the Service's port.
pub const UI_PORT_NAME: &str = "spark-driver-ui-port";
/// Lets nginx strip the application's path.
const REWRITE: &str = "nginx.ingress.kubernetes.io/rewrite-target";

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The scheme; `http` by default.
    pub scheme: String,
    /// Host and port.
    pub host: String,
    /// The path, with its leading slash; may be empty.
    pub path: String,
}

impl Url {
    /// Returns the URL of a format for an application. The default scheme is `http`.
    pub fn of(format: &str, cx: &Cx<'_>) -> Self {
        let text = replaced(
            format,
            &[
                ("$appName", cx.name),
                ("$appNamespace", cx.namespace),
                ("$appId", cx.app_id),
            ],
        );
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", &text));
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        Self {
            scheme: scheme.to_owned(),
            host: host.to_owned(),
            path: path.to_owned(),
        }
    }

    /// The path, if it is not the root.
    pub fn sub_path(&self) -> Option<&str> {
        Some(self.path.as_str()).filter(|path| !path.is_empty() && *path != "/")
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.host, self.path)
    }
}

/// Replaces `{{word}}`, with or without blanks, by its value.
fn replaced(text: &str, words: &[(&str, &str)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(from) = rest.find("{{") {
        let (before, inside) = (&rest[..from], &rest[from + 2..]);
        out.push_str(before);
        let end = inside.find("}}");
        let known =
            end.and_then(|end| words.iter().find(|(word, _)| inside[..end].trim() == *word));
        if let (Some(end), Some((_, value))) = (end, known) {
            out.push_str(value);
            rest = &inside[end + 2..];
        } else {
            out.push_str("{{");
            rest = inside;
        }
    }
    out + rest
}

/// The URL of the web UI, if it has an Ingress.
pub fn ui_url(cx: &Cx<'_>) -> Option<Url> {
    let web = &cx.inputs.settings.web;
    (web.service.is_on() && !web.url_format.is_empty()).then(|| Url::of(&web.url_format, cx))
}

/// Sets the path of the exposed UI for Spark, unless the application does.
pub fn properties(cx: &Cx<'_>, to: &mut BTreeMap<String, String>) {
    let url = ui_url(cx);
    if let Some(path) = url.as_ref().and_then(Url::sub_path) {
        to.entry("spark.ui.proxyBase".to_owned())
            .or_insert_with(|| path.to_owned());
        to.entry("spark.ui.proxyRedirectUri".to_owned())
            .or_insert_with(|| "/".to_owned());
    }
}

/// The port of the UI's Service, for a driver with this UI port.
pub fn ui_port(cx: &Cx<'_>, target: i32) -> i32 {
    match &cx.spec.spark_ui_options {
        Some(options) => options.service_port.unwrap_or(UI_PORT),
        None => target,
    }
}

/// The address recorded for the UI's Service. Shape: `<IP>:<port>`.
pub fn ui_address(cluster_ip: &str, port: i32) -> String {
    format!("{cluster_ip}:{port}")
}

struct Wanted<'a> {
    name: String,
    port: i32,
    port_name: String,
    target: i32,
    type_: Option<&'a String>,
    labels: &'a BTreeMap<String, String>,
    annotations: &'a BTreeMap<String, String>,
}

fn service(cx: &Cx<'_>, wanted: Wanted<'_>) -> Service {
    let mut metadata = object::metadata(cx, wanted.name);
    if !wanted.labels.is_empty() {
        // The user's labels replace the usual ones, as published, but not those that identify the Service.
        let ours = metadata.labels.take().unwrap_or_default();
        let mut labels = wanted.labels.clone();
        labels.extend(ours);
        metadata.labels = Some(labels);
    }
    metadata.annotations = some(wanted.annotations);
    let selector = [(label::APP_NAME, cx.name), (label::ROLE, "driver")];
    let selector = selector.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some(type_of(wanted.type_)),
            selector: Some(selector.into()),
            ports: Some(vec![ServicePort {
                name: Some(wanted.port_name),
                port: wanted.port,
                target_port: Some(IntOrString::Int(wanted.target)),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn type_of(asked: Option<&String>) -> String {
    let asked = asked.filter(|t| !t.is_empty());
    asked.map_or_else(|| "ClusterIP".to_owned(), Clone::clone)
}

fn some(map: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then(|| map.clone())
}

/// Builds the Service of the web UI, which has this port in the driver. All properties decide, including the operator's defaults.
pub fn ui_service(cx: &Cx<'_>, target: i32) -> Option<Service> {
    if !cx.inputs.settings.web.service.is_on() {
        return None;
    }
    let options = cx.spec.spark_ui_options.clone().unwrap_or_default();
    let port_name = options.service_port_name.filter(|n| !n.is_empty());
    Some(service(
        cx,
        Wanted {
            name: names::ui_service(cx.name),
            port: ui_port(cx, target),
            port_name: port_name.unwrap_or_else(|| UI_PORT_NAME.to_owned()),
            target,
            type_: options.service_type.as_ref(),
            labels: &options.service_labels,
            annotations: &options.service_annotations,
        },
    ))
}

struct Exposure<'a> {
    name: String,
    url: &'a Url,
    service: String,
    port: i32,
    annotations: &'a BTreeMap<String, String>,
    tls: &'a [IngressTLS],
}

fn ingress(cx: &Cx<'_>, exposure: Exposure<'_>) -> Ingress {
    let web = &cx.inputs.settings.web;
    let own = exposure.annotations;
    let mut annotations = if own.is_empty() {
        &web.annotations
    } else {
        own
    }
    .clone();
    let tls = if exposure.tls.is_empty() {
        &web.tls
    } else {
        exposure.tls
    };
    let path = match exposure.url.sub_path() {
        Some(path) => {
            annotations.insert(REWRITE.to_owned(), "/$2".to_owned());
            format!("{path}(/|$)(.*)")
        }
        None => exposure.url.path.clone(),
    };
    let mut metadata = object::metadata(cx, exposure.name);
    metadata.annotations = some(&annotations);
    let class = Some(web.ingress_class.clone()).filter(|c| !c.is_empty());
    let backend = IngressBackend {
        service: Some(IngressServiceBackend {
            name: exposure.service,
            port: Some(ServiceBackendPort {
                number: Some(exposure.port),
                name: None,
            }),
        }),
        resource: None,
    };
    Ingress {
        metadata,
        spec: Some(IngressSpec {
            ingress_class_name: class,
            rules: Some(vec![IngressRule {
                host: Some(exposure.url.host.clone()).filter(|h| !h.is_empty()),
                http: Some(HTTPIngressRuleValue {
                    paths: vec![HTTPIngressPath {
                        backend,
                        path: Some(path).filter(|p| !p.is_empty()),
                        path_type: "ImplementationSpecific".to_owned(),
                    }],
                }),
            }]),
            tls: (!tls.is_empty()).then(|| tls.to_vec()),
            ..IngressSpec::default()
        }),
        status: None,
    }
}

/// Builds the Ingress of the web UI, and its URL; see [`ui_service`].
pub fn ui_ingress(cx: &Cx<'_>, target: i32) -> Option<(Ingress, String)> {
    let url = ui_url(cx)?;
    let options = cx.spec.spark_ui_options.clone().unwrap_or_default();
    let made = ingress(
        cx,
        Exposure {
            name: names::ui_ingress(cx.name),
            url: &url,
            service: names::ui_service(cx.name),
            port: ui_port(cx, target),
            annotations: &options.ingress_annotations,
            tls: &options.ingress_tls,
        },
    );
    Some((made, url.to_string()))
}

/// Builds the Services and Ingresses of `driverIngressOptions`.
pub fn driver_ingresses(cx: &Cx<'_>) -> Vec<(Service, Option<Ingress>)> {
    let all = cx.spec.driver_ingress_options.iter();
    all.filter_map(|options| driver_ingress(cx, options))
        .collect()
}

fn driver_ingress(
    cx: &Cx<'_>,
    options: &DriverIngressOptions,
) -> Option<(Service, Option<Ingress>)> {
    let port = options.service_port?;
    let name = names::driver_port(cx.name, port);
    let port_name = options.service_port_name.clone().filter(|n| !n.is_empty());
    let made = service(
        cx,
        Wanted {
            name: name.clone(),
            port,
            port_name: port_name.unwrap_or_else(|| format!("driver-ing-{port}")),
            target: port,
            type_: options.service_type.as_ref(),
            labels: &options.service_labels,
            annotations: &options.service_annotations,
        },
    );
    let format = options
        .ingress_url_format
        .as_ref()
        .filter(|f| !f.is_empty());
    let ingress = format.map(|format| {
        ingress(
            cx,
            Exposure {
                name: names::driver_ingress(cx.name, port),
                url: &Url::of(format, cx),
                service: name,
                port,
                annotations: &options.ingress_annotations,
                tls: &options.ingress_tls,
            },
        )
    });
    Some((made, ingress))
}
