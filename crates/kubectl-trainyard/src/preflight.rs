//! Checks a cluster and a namespace for what jobs need, and for what is in their way.

use std::collections::BTreeSet;

use anyhow::Result;
use futures::future::join_all;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
    WebhookClientConfig,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde::Serialize;
use serde_json::Value;

use crate::cluster::{Cluster, code, explain};
use crate::flags;
use crate::kinds::{self, Kind};
use crate::out::{self, Format, Line, Style};

/// The exit code if a check failed.
const FAILED: u8 = 1;
/// The oldest minor version of Kubernetes 1 with everything that the CRDs use.
const MINOR: u32 = 30;
/// Parts of the names of images of other operators for the same kinds.
const OTHERS: [&str; 3] = [
    "/training-operator",
    "mpioperator/mpi-operator",
    "/spark-operator/controller",
];
/// The namespace of Kueue, and its configuration.
const KUEUE: (&str, &str) = ("kueue-system", "kueue-manager-config");

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
pub async fn print(cluster: &Cluster, output: Option<Format>) -> Result<u8> {
    let checks = all(cluster).await?;
    if let Some(format) = output {
        out::print_data(&checks, format)?;
    } else {
        let lines: Vec<Line> = checks.iter().flat_map(Check::lines).collect();
        out::print(&lines)?;
    }
    let failed = checks.iter().any(|c| c.verdict == Verdict::Failed);
    Ok(if failed { FAILED } else { 0 })
}

async fn all(cluster: &Cluster) -> Result<Vec<Check>> {
    let info = cluster.version().await?;
    let mut checks = vec![version(&info.major, &info.minor)];
    let definitions = cluster.every::<CustomResourceDefinition>().await;
    let installed = match readable(
        definitions,
        "kinds",
        "customresourcedefinitions",
        &mut checks,
    )? {
        Some(definitions) => {
            let (installed, check) = definitions_of(&definitions);
            checks.push(check);
            installed
        }
        None => kinds::all(),
    };
    let deployments = cluster.every::<Deployment>().await;
    if let Some(deployments) = readable(deployments, "operators", "deployments", &mut checks)? {
        checks.extend(operators(&installed, &deployments));
        checks.extend(others(&deployments));
        checks.push(gang(cluster, &deployments).await?);
    }
    let services = cluster.every::<Service>().await;
    if let Some(services) = readable(services, "network", "services", &mut checks)? {
        checks.push(dns(&services));
        let webhooks = webhooks(cluster).await;
        if let Some(webhooks) =
            readable(webhooks, "webhooks", "webhook configurations", &mut checks)?
        {
            checks.push(unanswered(&webhooks, &services));
        }
    }
    checks.extend(kueue(cluster, &installed).await?);
    checks.extend(namespace(cluster).await?);
    checks.push(permissions(cluster, &installed).await?);
    Ok(checks)
}

/// Returns what was read. If the user may not read it, adds a check that says so.
fn readable<T>(
    read: kube::Result<T>,
    name: &'static str,
    what: &str,
    checks: &mut Vec<Check>,
) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if code(&error) == 403 => {
            let message = format!("not checked, because you may not list {what}");
            let mut check = Check::ok(name, message);
            check.verdict = Verdict::Unknown;
            checks.push(check);
            Ok(None)
        }
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

/// Returns the installed kinds, and whether their definitions are ours.
fn definitions_of(definitions: &[CustomResourceDefinition]) -> (Vec<Kind>, Check) {
    let mut installed = Vec::new();
    let mut outdated = Vec::new();
    for kind in kinds::all() {
        let name = format!("{}.{}", kind.resource.plural, kind.resource.group);
        let Some(found) = definitions.iter().find(|d| d.name_any() == name) else {
            continue;
        };
        let same = (kind.definition)().is_ok_and(|own| {
            let (own, found) = (schemas(&own), schemas(found));
            own.iter().all(|(version, own)| {
                let mut same = found.iter().filter(|(other, _)| other == version);
                same.any(|(_, found)| has_all(own, found))
            })
        });
        if !same {
            outdated.push((name, kind.operator));
        }
        installed.push(kind);
    }
    let check = if installed.is_empty() {
        let remedy = "apply the manifests of an operator: see docs/install.md";
        Check::bad("kinds", Verdict::Failed, "none is installed", remedy)
    } else if let Some((name, operator)) = outdated.first() {
        let message = format!("CRD {name} lacks fields of this version");
        let remedy = format!("kubectl apply --server-side -f manifests/{operator}/crd.yaml");
        Check::bad("kinds", Verdict::Failed, message, remedy)
    } else {
        let names: Vec<&str> = installed.iter().map(Kind::name).collect();
        Check::ok("kinds", names.join(", "))
    };
    (installed, check)
}

/// Returns the schemas of a definition, by version.
fn schemas(definition: &CustomResourceDefinition) -> Vec<(&str, Value)> {
    let versions = definition.spec.versions.iter();
    let schema = |schema| serde_json::to_value(schema).unwrap_or_default();
    let schemas = versions.map(|v| (&*v.name, schema(v.schema.as_ref())));
    schemas.collect()
}

/// Returns true if a schema has all properties of another one.
fn has_all(own: &Value, found: &Value) -> bool {
    match (own, found) {
        (Value::Object(own), Value::Object(found)) => own.iter().all(|(key, own)| {
            let structural = [
                "openAPIV3Schema",
                "properties",
                "items",
                "additionalProperties",
            ];
            let found = found.get(key);
            match found {
                Some(found) => has_all(own, found),
                // Keywords may differ; fields may not.
                None => !structural.contains(&&**key) && !own.is_object(),
            }
        }),
        _ => true,
    }
}

/// Checks that each installed kind has an operator that runs.
fn operators(installed: &[Kind], deployments: &[Deployment]) -> Vec<Check> {
    let names: BTreeSet<&str> = installed.iter().map(|kind| kind.operator).collect();
    let check = |name: &str| {
        let mut found = deployments.iter().filter(|d| flags::runs(name, d));
        let Some(deployment) = found.next() else {
            let remedy = format!("kubectl apply --server-side -k manifests/{name}");
            let message = format!("no Deployment runs {name}");
            return Check::bad("operators", Verdict::Failed, message, remedy);
        };
        let at = format!(
            "{}/{}",
            deployment.namespace().unwrap_or_default(),
            deployment.name_any()
        );
        let available = deployment
            .status
            .as_ref()
            .and_then(|s| s.available_replicas);
        if available.unwrap_or_default() > 0 {
            return Check::ok("operators", format!("{name} runs in {at}"));
        }
        let (namespace, name) = at.split_once('/').unwrap_or_default();
        let remedy = format!("kubectl -n {namespace} describe deployment,pods {name}");
        let message = format!("Deployment {at} has no available pod");
        Check::bad("operators", Verdict::Failed, message, remedy)
    };
    names.into_iter().map(check).collect()
}

/// Finds other operators for the same kinds.
fn others(deployments: &[Deployment]) -> Vec<Check> {
    let foreign = |d: &&Deployment| {
        let mut images = flags::containers(d).filter_map(|c| c.image.as_deref());
        !flags::is_ours(d)
            && d.spec.replicas != Some(0)
            && images.any(|image| OTHERS.iter().any(|other| image.contains(other)))
    };
    let check = |d: &Deployment| {
        let (namespace, name) = (d.namespace().unwrap_or_default(), d.name_any());
        let message = format!("Deployment {namespace}/{name} is another operator of these kinds");
        let remedy = format!("kubectl -n {namespace} scale deployment {name} --replicas=0");
        Check::bad("other operators", Verdict::Failed, message, remedy)
    };
    deployments.iter().filter(foreign).map(check).collect()
}

/// Checks that the cluster serves the groups of the gang schedulers that the operators use.
async fn gang(cluster: &Cluster, deployments: &[Deployment]) -> Result<Check> {
    let mut served = Vec::new();
    for kind in kinds::all() {
        for deployment in deployments.iter().filter(|d| flags::runs(kind.operator, d)) {
            let Some(provider) = flags::gang(&kind, deployment)? else {
                continue;
            };
            for group in provider.kinds() {
                let mut found = false;
                for version in group.versions() {
                    found |= cluster
                        .serves(&group.resource(version))
                        .await
                        .map_err(explain)?;
                }
                if !found {
                    let message = format!(
                        "{} uses {provider}, but the cluster does not serve {}.{}",
                        deployment.name_any(),
                        group.kind(),
                        group.group()
                    );
                    let remedy = format!("install {provider}, or remove --gang from the operator");
                    return Ok(Check::bad(
                        "gang scheduler",
                        Verdict::Failed,
                        message,
                        remedy,
                    ));
                }
            }
            served.push(provider.to_string());
        }
    }
    served.retain(|provider| provider != "none");
    served.sort();
    served.dedup();
    Ok(Check::ok(
        "gang scheduler",
        if served.is_empty() {
            "none is set".to_owned()
        } else {
            served.join(", ")
        },
    ))
}

/// Pods find each other by the names of Services.
fn dns(services: &[Service]) -> Check {
    let serves = |service: &Service| {
        let ports = service.spec.iter().flat_map(|spec| &spec.ports).flatten();
        let mut ports = ports.filter(|port| port.protocol.as_deref() == Some("UDP"));
        ports.any(|port| port.port == 53)
    };
    match services.iter().find(|service| serves(service)) {
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

/// A webhook for jobs or pods.
#[derive(Clone, Debug)]
struct Webhook {
    configuration: String,
    verb: &'static str,
    service: Option<(String, String)>,
    fails: bool,
}

impl Webhook {
    fn of(
        (verb, configuration): (&'static str, &str),
        client: &WebhookClientConfig,
        policy: Option<&str>,
        rules: Option<&Vec<RuleWithOperations>>,
    ) -> Option<Self> {
        let groups = rules
            .into_iter()
            .flatten()
            .flat_map(|rule| &rule.api_groups);
        let kinds = kinds::all();
        let ours = |group: &String| kinds.iter().any(|kind| kind.resource.group == *group);
        let concerns = groups.flatten().any(ours);
        let service = client.service.as_ref();
        concerns.then(|| Self {
            configuration: configuration.to_owned(),
            verb,
            service: service.map(|s| (s.namespace.clone(), s.name.clone())),
            fails: policy != Some("Ignore"),
        })
    }
}

async fn webhooks(cluster: &Cluster) -> kube::Result<Vec<Webhook>> {
    let mut all = Vec::new();
    for configuration in cluster.every::<ValidatingWebhookConfiguration>().await? {
        let of = ("validatingwebhookconfiguration", &*configuration.name_any());
        for webhook in configuration.webhooks.iter().flatten() {
            let policy = webhook.failure_policy.as_deref();
            let rules = webhook.rules.as_ref();
            all.extend(Webhook::of(of, &webhook.client_config, policy, rules));
        }
    }
    for configuration in cluster.every::<MutatingWebhookConfiguration>().await? {
        let of = ("mutatingwebhookconfiguration", &*configuration.name_any());
        for webhook in configuration.webhooks.iter().flatten() {
            let policy = webhook.failure_policy.as_deref();
            let rules = webhook.rules.as_ref();
            all.extend(Webhook::of(of, &webhook.client_config, policy, rules));
        }
    }
    Ok(all)
}

/// Finds webhooks that nobody answers, as a removed operator leaves them.
fn unanswered(webhooks: &[Webhook], services: &[Service]) -> Check {
    let exists = |(namespace, name): &(String, String)| {
        services
            .iter()
            .any(|s| s.namespace().as_ref() == Some(namespace) && s.name_any() == *name)
    };
    let dead = |webhook: &&Webhook| {
        let service = webhook.service.as_ref();
        webhook.fails && service.is_some_and(|service| !exists(service))
    };
    match webhooks.iter().find(dead) {
        Some(webhook) => {
            let (namespace, name) = webhook.service.clone().unwrap_or_default();
            let Webhook {
                configuration,
                verb,
                ..
            } = webhook;
            Check::bad(
                "webhooks",
                Verdict::Failed,
                format!(
                    "{configuration} refuses every job, because its Service {namespace}/{name} does not exist"
                ),
                format!("kubectl delete {verb} {configuration}"),
            )
        }
        None => Check::ok("webhooks", "each one for jobs has its Service"),
    }
}

/// Checks that Kueue, where it is installed, handles the kinds.
async fn kueue(cluster: &Cluster, installed: &[Kind]) -> Result<Option<Check>> {
    let (namespace, name) = KUEUE;
    let config = match cluster.api_in::<ConfigMap>(namespace).get_opt(name).await {
        Ok(None) => return Ok(None),
        Ok(Some(config)) => config,
        Err(error) => {
            let mut checks = Vec::new();
            readable::<()>(Err(error), "Kueue", "its configuration", &mut checks)?;
            return Ok(checks.pop());
        }
    };
    let text: Vec<String> = config
        .data
        .into_iter()
        .flatten()
        .map(|(_, text)| text)
        .collect();
    Ok(Some(integrations(&text.join("\n"), installed)))
}

fn integrations(config: &str, installed: &[Kind]) -> Check {
    let queued = |kind: &&Kind| kind.name() != "ScheduledSparkApplication";
    let names = installed.iter().filter(queued).map(|kind| {
        let name = kind.name().to_ascii_lowercase();
        format!("{}/{name}", kind.resource.group)
    });
    let listed = |name: &String| {
        let mut lines = config
            .lines()
            .map(|line| line.trim().trim_matches(['-', '"', ' ']));
        lines.any(|line| line == name)
    };
    let missing: Vec<String> = names.filter(|name| !listed(name)).collect();
    if missing.is_empty() {
        return Check::ok("Kueue", "its configuration lists all installed kinds");
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
async fn namespace(cluster: &Cluster) -> Result<Option<Check>> {
    let name = cluster.namespace.as_str();
    let found = cluster.cluster_wide::<Namespace>().get_opt(name).await;
    let mut checks = Vec::new();
    let Some(found) = readable(found, "namespace", "namespaces", &mut checks)? else {
        return Ok(checks.pop());
    };
    let Some(found) = found else {
        let remedy = format!("kubectl create namespace {name}");
        let message = format!("namespace {name} does not exist");
        return Ok(Some(Check::bad(
            "namespace",
            Verdict::Failed,
            message,
            remedy,
        )));
    };
    let level = found.labels().get("pod-security.kubernetes.io/enforce");
    Ok(Some(match level.map(String::as_str) {
        Some("restricted") => Check::bad(
            "namespace",
            Verdict::Warning,
            format!("namespace {name} enforces the Pod Security level restricted"),
            "set runAsNonRoot, allowPrivilegeEscalation: false, drop ALL capabilities and seccompProfile RuntimeDefault in the templates of jobs",
        ),
        level => Check::ok(
            "namespace",
            format!(
                "namespace {name}, Pod Security level {}",
                level.unwrap_or("not set")
            ),
        ),
    }))
}

/// Checks that the user may create and follow jobs.
async fn permissions(cluster: &Cluster, installed: &[Kind]) -> Result<Check> {
    let jobs = installed.iter().flat_map(|kind| {
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
