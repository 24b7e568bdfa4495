//! Checks a cluster and a namespace for what jobs need, and for what is in their way.

use std::collections::BTreeSet;

use anyhow::Result;
use futures::future::join_all;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhook, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde::Serialize;
use serde_json::Value;
use training_core::Provider;

use crate::cluster::{Cluster, code, explain};
use crate::flags::Settings;
use crate::kinds::{self, Kind};
use crate::others;
use crate::out::{self, Line, Output, Style};

/// The exit code if a check failed.
const FAILED: u8 = 1;
/// The oldest minor version of Kubernetes 1 with everything that the CRDs use.
const MINOR: u32 = 30;
/// The namespace of Kueue, and its configuration.
const KUEUE: (&str, &str) = ("kueue-system", "kueue-manager-config");
/// The label of a Service's endpoints with its name.
const OF_SERVICE: &str = "kubernetes.io/service-name";

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing is wrong.
    Ok,
    /// The user may not read what the check needs.
    Unknown,
    /// Some jobs may not run.
    Warning,
    /// Jobs can't run.
    Failed,
}

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// The result.
    pub verdict: Verdict,
    /// What is right or wrong.
    pub message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            message: message.into(),
            remedy: None,
        }
    }

    fn unknown(name: &'static str, what: &str) -> Self {
        Self {
            verdict: Verdict::Unknown,
            ..Self::ok(
                name,
                format!("not checked, because you may not read {what}"),
            )
        }
    }

    fn bad(
        name: &'static str,
        verdict: Verdict,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            verdict,
            message: message.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn lines(&self) -> Vec<Line> {
        let (mark, style) = match self.verdict {
            Verdict::Ok => ("ok", Style::Good),
            Verdict::Unknown => ("?", Style::Faint),
            Verdict::Warning => ("!", Style::Warn),
            Verdict::Failed => ("x", Style::Bad),
        };
        let text = format!("{mark:<2} {}: {}", self.name, self.message);
        let mut lines = vec![Line::new(style, text)];
        if let Some(remedy) = &self.remedy {
            lines.push(Line::new(Style::Strong, format!("   > {remedy}")));
        }
        lines
    }
}

/// Prints all checks and returns the exit code.
pub async fn print(cluster: &Cluster, output: Output) -> Result<u8> {
    let checks = all(cluster).await?;
    if let Some(format) = output.data() {
        out::print_data(&checks, format)?;
    } else {
        let lines: Vec<Line> = checks.iter().flat_map(Check::lines).collect();
        out::print(&lines)?;
    }
    let failed = checks.iter().any(|c| c.verdict == Verdict::Failed);
    Ok(if failed { FAILED } else { 0 })
}

async fn all(cluster: &Cluster) -> Result<Vec<Check>> {
    let info = cluster.version().await.map_err(explain)?;
    let mut checks = vec![version(&info.major, &info.minor)];
    let mut served = kinds::all();
    if let Some(deployments) = readable(cluster.every::<Deployment>().await)? {
        let (operators, more) = operators(&cluster.namespace, &deployments);
        checks.extend(more);
        served.retain(|kind| operators.iter().any(|o| o.kind.name() == kind.name()));
        let all = kinds::all();
        // Before an operator is installed, any other one may be in its way.
        let ours = if served.is_empty() { &all } else { &served };
        checks.extend(others(ours, &deployments));
        checks.push(gang(cluster, &operators).await?);
    } else {
        let names = ["operators", "other operators", "gang scheduler"];
        checks.extend(names.map(|name| Check::unknown(name, "deployments")));
    }
    let definition = ApiResource::erase::<CustomResourceDefinition>(&());
    let definitions = cluster.every_of(&definition).await;
    checks.push(match readable(definitions)? {
        Some(definitions) => definitions_of(&served, &definitions),
        None => Check::unknown("kinds", "customresourcedefinitions"),
    });
    checks.push(match readable(cluster.every::<Service>().await)? {
        Some(services) => dns(&services),
        None => Check::unknown("network", "services"),
    });
    checks.push(match readable(webhooks(cluster).await)? {
        Some(check) => check,
        None => Check::unknown("webhooks", "webhook configurations and endpoints"),
    });
    checks.extend(kueue(cluster, &served).await?);
    checks.push(namespace(cluster).await?);
    checks.push(permissions(cluster, &served).await?);
    Ok(checks)
}

/// Returns what was read; `None` if the user may not read it.
fn readable<T>(read: kube::Result<T>) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if code(&error) == 403 => Ok(None),
        Err(error) => Err(explain(error)),
    }
}

fn version(major: &str, minor: &str) -> Check {
    let digits = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit());
        text[..end.unwrap_or(text.len())].parse::<u32>().ok()
    };
    let message = format!("Kubernetes {major}.{minor}");
    if digits(major) == Some(1) && digits(minor).is_some_and(|minor| minor < MINOR) {
        let remedy = format!("upgrade to Kubernetes 1.{MINOR} or newer");
        return Check::bad("version", Verdict::Failed, message, remedy);
    }
    Check::ok("version", message)
}

/// A kind's operator for the checked namespace.
struct Served {
    kind: Kind,
    deployment: String,
    settings: Settings,
}

/// Finds the operators that serve the namespace, and checks that they run.
fn operators(namespace: &str, deployments: &[Deployment]) -> (Vec<Served>, Vec<Check>) {
    let (mut served, mut checks) = (Vec::new(), Vec::new());
    let mut named = BTreeSet::new();
    for kind in kinds::all() {
        for deployment in deployments.iter().filter(|d| kind.operator.is_run_by(d)) {
            let at = place(deployment);
            let settings = match kind.operator.settings(deployment) {
                Ok(settings) => settings,
                Err(error) => {
                    if named.insert(at.clone()) {
                        let message = format!("Deployment {at}: {error}");
                        let remedy = "use the kubectl plugin and the operator of one version";
                        checks.push(Check::bad("operators", Verdict::Warning, message, remedy));
                    }
                    continue;
                }
            };
            let all = settings.namespaces.is_empty();
            if !all && !settings.namespaces.iter().any(|name| name == namespace) {
                continue;
            }
            if named.insert(at.clone()) {
                checks.push(runs(kind.operator.name, &at, deployment));
            }
            served.push(Served {
                kind: kind.clone(),
                deployment: at,
                settings,
            });
        }
    }
    if served.is_empty() {
        checks.push(Check::bad(
            "operators",
            Verdict::Failed,
            format!("no operator serves namespace {namespace}"),
            "kubectl apply --server-side -k manifests/pytorch-operator, or that of another kind: see docs/install.md",
        ));
    }
    (served, checks)
}

fn place(deployment: &Deployment) -> String {
    let namespace = deployment.namespace().unwrap_or_default();
    format!("{namespace}/{}", deployment.name_any())
}

fn runs(operator: &str, at: &str, deployment: &Deployment) -> Check {
    let status = deployment.status.as_ref();
    if status
        .and_then(|s| s.available_replicas)
        .unwrap_or_default()
        > 0
    {
        return Check::ok("operators", format!("{operator} runs in {at}"));
    }
    let (namespace, name) = at.split_once('/').unwrap_or_default();
    let remedy = format!("kubectl -n {namespace} describe deployment,pods {name}");
    let message = format!("Deployment {at} has no available pod");
    Check::bad("operators", Verdict::Failed, message, remedy)
}

/// Finds other operators for the same kinds.
fn others(served: &[Kind], deployments: &[Deployment]) -> Vec<Check> {
    let check = |deployment: &Deployment| {
        let names = kinds_of_other(deployment);
        let both: Vec<&str> = served
            .iter()
            .map(Kind::name)
            .filter(|name| names.contains(name))
            .collect();
        let at = place(deployment);
        let (namespace, name) = at.split_once('/').unwrap_or_default();
        (!both.is_empty()).then(|| {
            Check::bad(
                "other operators",
                Verdict::Failed,
                format!("Deployment {at} also serves {}", both.join(", ")),
                format!(
                    "kubectl -n {namespace} scale deployment {name} --replicas=0, and delete its webhook configurations"
                ),
            )
        })
    };
    let found: Vec<Check> = deployments.iter().filter_map(check).collect();
    if found.is_empty() {
        return vec![Check::ok("other operators", "none for these kinds")];
    }
    found
}

/// Returns the kinds that a Deployment of another operator serves.
fn kinds_of_other(deployment: &Deployment) -> Vec<&'static str> {
    if deployment.spec.replicas == Some(0) {
        return Vec::new();
    }
    others::of(deployment).map_or_else(Vec::new, |served| served.kinds)
}

/// Checks that the cluster serves what the gang schedulers of the operators need.
async fn gang(cluster: &Cluster, operators: &[Served]) -> Result<Check> {
    let mut used = BTreeSet::new();
    for operator in operators {
        let Some(provider) = &operator.settings.gang else {
            continue;
        };
        let mut needed: Vec<(String, Vec<ApiResource>)> = provider
            .kinds()
            .iter()
            .map(|kind| {
                let versions = kind.versions().iter().map(|version| kind.resource(version));
                (
                    format!("{}.{}", kind.kind(), kind.group()),
                    versions.collect(),
                )
            })
            .collect();
        if *provider == Provider::Kueue {
            let workload = |version| {
                ApiResource::from_gvk(&GroupVersionKind::gvk(
                    "kueue.x-k8s.io",
                    version,
                    "Workload",
                ))
            };
            needed.push((
                "Workload.kueue.x-k8s.io".to_owned(),
                ["v1beta2", "v1beta1"].map(workload).into(),
            ));
        }
        for (name, versions) in needed {
            let mut found = false;
            for version in versions {
                found |= cluster.serves(&version).await.map_err(explain)?;
            }
            if !found {
                let at = &operator.deployment;
                let message =
                    format!("{at} uses {provider}, but the cluster does not serve {name}");
                let remedy = format!("install {provider}, or remove --gang from the operator");
                return Ok(Check::bad(
                    "gang scheduler",
                    Verdict::Failed,
                    message,
                    remedy,
                ));
            }
        }
        if *provider != Provider::None {
            used.insert(provider.to_string());
        }
    }
    let used: Vec<String> = used.into_iter().collect();
    Ok(Check::ok(
        "gang scheduler",
        if used.is_empty() {
            "none is set".to_owned()
        } else {
            used.join(", ")
        },
    ))
}

/// Checks that the CRDs of the served kinds are installed, with all fields.
fn definitions_of(served: &[Kind], definitions: &[DynamicObject]) -> Check {
    for kind in served {
        let name = format!("{}.{}", kind.resource.plural, kind.resource.group);
        let found = definitions.iter().find(|d| d.name_any() == name);
        let remedy = format!(
            "kubectl apply --server-side -f manifests/{}/crd.yaml; --force-conflicts replaces what another tool owns",
            kind.operator.name
        );
        let Some(found) = found else {
            let message = format!("CRD {name} is not installed");
            return Check::bad("kinds", Verdict::Failed, message, remedy);
        };
        let own = (kind.definition)().and_then(serde_json::to_value);
        let same = own.is_ok_and(|own| {
            let (own, found) = (schemas(&own), schemas(&found.data));
            own.iter().all(|(version, own)| {
                let mut same = found.iter().filter(|(other, _)| other == version);
                same.any(|(_, found)| has_all(own, found))
            })
        });
        if !same {
            let message = format!("CRD {name} lacks fields of this version");
            return Check::bad("kinds", Verdict::Failed, message, remedy);
        }
    }
    let names: Vec<&str> = served.iter().map(Kind::name).collect();
    Check::ok(
        "kinds",
        if names.is_empty() {
            "none is served".to_owned()
        } else {
            names.join(", ")
        },
    )
}

/// Returns the schemas of a definition, by version.
fn schemas(definition: &Value) -> Vec<(&str, &Value)> {
    let versions = definition["spec"]["versions"].as_array();
    let versions = versions.into_iter().flatten();
    let named = versions.filter_map(|v| Some((v["name"].as_str()?, &v["schema"])));
    named.collect()
}

/// Returns true if a schema has all fields of another one. Other keywords may differ.
fn has_all(own: &Value, found: &Value) -> bool {
    const STRUCTURE: [&str; 4] = [
        "openAPIV3Schema",
        "properties",
        "items",
        "additionalProperties",
    ];
    let (Value::Object(own), Value::Object(found)) = (own, found) else {
        return true;
    };
    own.iter().all(|(key, own)| match found.get(key) {
        Some(found) => has_all(own, found),
        None => !STRUCTURE.contains(&&**key) && !own.is_object(),
    })
}

/// Pods find each other by the names of Services.
fn dns(services: &[Service]) -> Check {
    let serves = |service: &&Service| {
        let ports = service.spec.iter().flat_map(|spec| &spec.ports).flatten();
        let mut ports = ports.filter(|port| port.protocol.as_deref() == Some("UDP"));
        ports.any(|port| port.port == 53)
    };
    match services.iter().find(serves) {
        Some(service) => Check::ok(
            "network",
            format!("DNS is served by {}", service.name_any()),
        ),
        None => Check::bad(
            "network",
            Verdict::Warning,
            "no Service serves DNS, by which pods find each other",
            "install CoreDNS, unless nodes serve names another way",
        ),
    }
}

/// A webhook that must accept jobs or pods.
struct Webhook {
    /// The resource and the name of its configuration.
    configuration: (&'static str, String),
    /// What it sees: `jobs` or `pods`.
    sees: &'static str,
    /// The namespace and the name of its Service.
    service: (String, String),
}

impl Webhook {
    fn of(configuration: (&'static str, String), webhook: &ValidatingWebhook) -> Option<Self> {
        let service = webhook.client_config.service.as_ref()?;
        if webhook.failure_policy.as_deref() == Some("Ignore") {
            return None;
        }
        let any = |list: &Option<Vec<String>>, is: &dyn Fn(&str) -> bool| {
            let mut words = list.iter().flatten();
            words.any(|word| word == "*" || word == "*/*" || is(word))
        };
        let matches = |group: &str, plural: &str| {
            webhook.rules.iter().flatten().any(|rule| {
                any(&rule.operations, &|word| word == "CREATE")
                    && any(&rule.api_groups, &|word| word == group)
                    && any(&rule.resources, &|word| word == plural)
            })
        };
        let ours = kinds::all();
        let mut ours = ours.iter().map(|kind| &kind.resource);
        let sees = if ours.any(|resource| matches(&resource.group, &resource.plural)) {
            "jobs"
        } else if matches("", "pods") {
            "pods"
        } else {
            return None;
        };
        Some(Self {
            configuration,
            sees,
            service: (service.namespace.clone(), service.name.clone()),
        })
    }
}

/// Finds webhooks that nobody answers, as a removed operator leaves them.
async fn webhooks(cluster: &Cluster) -> kube::Result<Check> {
    let mut all = Vec::new();
    let configurations = [
        (
            "validatingwebhookconfiguration",
            ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
        ),
        (
            "mutatingwebhookconfiguration",
            ApiResource::erase::<MutatingWebhookConfiguration>(&()),
        ),
    ];
    for (resource, api) in configurations {
        for configuration in cluster.every_of(&api).await? {
            // A mutating webhook has the fields of a validating one.
            let webhooks = configuration.data["webhooks"].clone();
            let webhooks: Vec<ValidatingWebhook> =
                serde_json::from_value(webhooks).unwrap_or_default();
            let name = configuration.name_any();
            let of = |webhook| Webhook::of((resource, name.clone()), webhook);
            all.extend(webhooks.iter().filter_map(of));
        }
    }
    for webhook in all {
        let (namespace, service) = &webhook.service;
        let label = format!("{OF_SERVICE}={service}");
        let slices: Vec<EndpointSlice> = cluster.list_in(namespace, &label).await?;
        let mut endpoints = slices.iter().flat_map(|slice| &slice.endpoints).flatten();
        let ready = endpoints.any(|endpoint| {
            let ready = endpoint.conditions.as_ref().and_then(|c| c.ready);
            ready != Some(false)
        });
        if ready {
            continue;
        }
        let (resource, name) = webhook.configuration;
        let sees = webhook.sees;
        // A webhook for pods may leave out the namespaces of jobs.
        let verdict = if sees == "jobs" {
            Verdict::Failed
        } else {
            Verdict::Warning
        };
        return Ok(Check::bad(
            "webhooks",
            verdict,
            format!(
                "{name} refuses {sees}, because its Service {namespace}/{service} has no ready endpoint"
            ),
            format!("kubectl delete {resource} {name}, if its program is not to come back"),
        ));
    }
    Ok(Check::ok(
        "webhooks",
        "each one for jobs and pods has an endpoint",
    ))
}

/// Checks that Kueue, where it is installed, handles the kinds.
async fn kueue(cluster: &Cluster, served: &[Kind]) -> Result<Option<Check>> {
    let (namespace, name) = KUEUE;
    let config = cluster.api_in::<ConfigMap>(namespace).get_opt(name).await;
    Ok(match readable(config)? {
        Some(None) => None,
        Some(Some(config)) => {
            let texts = config.data.into_iter().flatten().map(|(_, text)| text);
            let texts: Vec<Value> = texts
                .filter_map(|text| serde_saphyr::from_str(&text).ok())
                .collect();
            Some(integrations(&texts, served))
        }
        None => Some(Check::unknown("Kueue", "its configuration")),
    })
}

fn integrations(configurations: &[Value], served: &[Kind]) -> Check {
    let frameworks = configurations
        .iter()
        .filter_map(|config| config["integrations"]["frameworks"].as_array());
    let frameworks: Vec<&str> = frameworks.flatten().filter_map(Value::as_str).collect();
    let queued = |kind: &&Kind| kind.name() != "ScheduledSparkApplication";
    let names = served.iter().filter(queued).map(|kind| {
        let name = kind.name().to_ascii_lowercase();
        format!("{}/{name}", kind.resource.group)
    });
    let missing: Vec<String> = names
        .filter(|name| !frameworks.contains(&name.as_str()))
        .collect();
    if missing.is_empty() {
        return Check::ok("Kueue", "its configuration lists all served kinds");
    }
    Check::bad(
        "Kueue",
        Verdict::Warning,
        format!("its configuration does not list {}", missing.join(", ")),
        format!(
            "add them to integrations.frameworks in ConfigMap {}/{}, and restart Kueue, to queue such jobs",
            KUEUE.0, KUEUE.1
        ),
    )
}

/// Checks the namespace and its Pod Security level.
async fn namespace(cluster: &Cluster) -> Result<Check> {
    let name = cluster.namespace.as_str();
    let found = cluster.cluster_wide::<Namespace>().get_opt(name).await;
    let Some(found) = readable(found)? else {
        return Ok(Check::unknown("namespace", "namespaces"));
    };
    let Some(found) = found else {
        let remedy = format!("kubectl create namespace {name}");
        let message = format!("namespace {name} does not exist");
        return Ok(Check::bad("namespace", Verdict::Failed, message, remedy));
    };
    let level = found.labels().get("pod-security.kubernetes.io/enforce");
    Ok(match level.map(String::as_str) {
        Some("restricted") => Check::bad(
            "namespace",
            Verdict::Warning,
            format!("namespace {name} enforces the Pod Security level restricted"),
            "in the templates of jobs, set runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities that drop ALL, and the seccompProfile RuntimeDefault",
        ),
        level => Check::ok(
            "namespace",
            format!(
                "namespace {name}, Pod Security level {}",
                level.unwrap_or("not set")
            ),
        ),
    })
}

/// Checks that the user may create and follow jobs.
async fn permissions(cluster: &Cluster, served: &[Kind]) -> Result<Check> {
    let jobs = served.iter().flat_map(|kind| {
        let of = |verb| {
            (
                kind.resource.group.clone(),
                kind.resource.plural.clone(),
                verb,
            )
        };
        [of("create"), of("watch")]
    });
    let pods = ["list", "watch"].map(|verb| (String::new(), "pods".to_owned(), verb));
    let logs = [(String::new(), "pods/log".to_owned(), "get")];
    let asked = jobs
        .chain(pods)
        .chain(logs)
        .map(async |(group, resource, verb)| {
            let (plain, sub) = resource.split_once('/').unwrap_or((&*resource, ""));
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        namespace: Some(cluster.namespace.clone()),
                        verb: Some(verb.to_owned()),
                        group: Some(group),
                        resource: Some(plain.to_owned()),
                        subresource: Some(sub.to_owned()).filter(|sub| !sub.is_empty()),
                        ..ResourceAttributes::default()
                    }),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let reviews = cluster.cluster_wide::<SelfSubjectAccessReview>();
            let answer = reviews.create(&PostParams::default(), &review).await?;
            let allowed = answer.status.is_some_and(|status| status.allowed);
            Ok((!allowed).then(|| format!("{verb} {resource}")))
        });
    let answers: kube::Result<Vec<Option<String>>> = join_all(asked).await.into_iter().collect();
    let denied: Vec<String> = answers.map_err(explain)?.into_iter().flatten().collect();
    let namespace = &cluster.namespace;
    Ok(if denied.is_empty() {
        let message = format!("you may create and follow jobs in namespace {namespace}");
        Check::ok("permissions", message)
    } else {
        Check::bad(
            "permissions",
            Verdict::Warning,
            format!("in namespace {namespace} you may not {}", denied.join(", ")),
            "ask a cluster administrator for a ClusterRole such as trainyard-pytorchjobs-edit",
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(image: &str, args: &[&str]) -> Deployment {
        let container = json!({ "name": "a", "image": image, "args": args });
        let template = json!({ "spec": { "containers": [container] } });
        let spec = json!({ "selector": {}, "template": template });
        let metadata = json!({ "name": "go", "namespace": "kubeflow" });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    #[test]
    fn other_operators_are_known_by_their_images_and_kinds() {
        let served = kinds::all();
        let said = |image: &str, args: &[&str]| {
            others(&served, &[deployment(image, args)])[0]
                .message
                .clone()
        };
        let go = "Deployment kubeflow/go also serves";
        for (image, kinds) in [
            (
                "docker.io/kubeflow/training-operator:v1-855e096",
                "PyTorchJob, TFJob, XGBoostJob, JAXJob, PaddleJob, MPIJob",
            ),
            ("mpioperator/mpi-operator:0.6.0", "MPIJob"),
            (
                "ghcr.io/kubeflow/spark-operator/controller:2.3.0",
                "SparkApplication, ScheduledSparkApplication",
            ),
            (
                "docker.io/kubeflow/spark-operator:v1beta2-1.4.3-3.5.0",
                "SparkApplication, ScheduledSparkApplication",
            ),
        ] {
            assert_eq!(said(image, &[]), format!("{go} {kinds}"), "{image}");
        }
        let some = ["--enable-scheme=tfjob", "-enable-scheme=mpijob"];
        let image = "kubeflow/training-operator:v1";
        assert_eq!(said(image, &some), format!("{go} TFJob, MPIJob"));
        assert_eq!(said("example.com/other:1", &[]), "none for these kinds");
        let pytorch = &served[..1];
        let mpi = [deployment("mpioperator/mpi-operator:0.6.0", &[])];
        assert_eq!(others(pytorch, &mpi)[0].verdict, Verdict::Ok);
    }

    #[test]
    fn kueues_configuration_is_read_in_any_form_of_yaml() {
        let served = &kinds::all()[..1];
        for text in [
            "integrations: {frameworks: ['batch/job', 'kubeflow.org/pytorchjob']}",
            "integrations:\n  frameworks:\n  - \"kubeflow.org/pytorchjob\" # queued\n",
        ] {
            let config: Value = serde_saphyr::from_str(text).unwrap();
            assert_eq!(
                integrations(&[config], served).verdict,
                Verdict::Ok,
                "{text}"
            );
        }
        let check = integrations(&[json!({})], served);
        assert_eq!(
            (check.verdict, &*check.message),
            (
                Verdict::Warning,
                "its configuration does not list kubeflow.org/pytorchjob"
            )
        );
    }

    #[test]
    fn only_required_webhooks_that_see_new_jobs_or_pods_count() {
        let webhook = |group: &str, resource: &str, operation: &str, policy: Option<&str>| {
            let rule = json!({
                "apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": [operation],
            });
            let webhook = serde_json::from_value(json!({
                "clientConfig": { "service": { "namespace": "a", "name": "b" } },
                "failurePolicy": policy, "rules": [rule],
            }));
            let found = Webhook::of(("kind", "name".to_owned()), &webhook.unwrap());
            found.map(|webhook| webhook.sees)
        };
        assert_eq!(
            webhook("kubeflow.org", "tfjobs", "CREATE", None),
            Some("jobs")
        );
        assert_eq!(webhook("*", "*", "*", Some("Fail")), Some("jobs"));
        assert_eq!(webhook("", "pods", "CREATE", None), Some("pods"));
        assert_eq!(webhook("kubeflow.org", "notebooks", "CREATE", None), None);
        assert_eq!(webhook("kubeflow.org", "tfjobs", "DELETE", None), None);
        assert_eq!(
            webhook("kubeflow.org", "tfjobs", "CREATE", Some("Ignore")),
            None
        );
    }

    #[test]
    fn versions_of_providers_are_compared_by_their_numbers() {
        assert_eq!(version("1", "29+").verdict, Verdict::Failed);
        assert_eq!(version("1", "30").verdict, Verdict::Ok);
        assert_eq!(version("1", "31-gke.1").verdict, Verdict::Ok);
    }
}
