//! Distributes objects to files, and generates the kustomizations.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use crate::install::{self, OWN_IMAGE_ARGUMENT, Scope};
use crate::operator::{Argument, Operator};
use crate::{admission, guard, rights, yaml};

/// The comment of the kustomization for one namespace.
const NAMESPACED: &str = "\
# An operator for the jobs of its own namespace. Set your namespace below, or in an overlay. The CRD is cluster-wide and
# not included: apply ../crd.yaml once.
";

/// The comment of the kustomization for the account of jobs' own pods.
const JOBS: &str = "\
# The account of jobs' own pods, for one namespace of jobs. Set your namespace below, or in an overlay.
";

/// The comment of the patch that restricts egress.
const EGRESS: &str = "\
# Set the addresses and ports below, one ipBlock per address:
# - first of the API servers: kubectl get endpointslices -n default -l kubernetes.io/service-name=kubernetes
# - then of their Service: kubectl get service kubernetes -n default
# Both are necessary: network plugins apply policies before or after the translation of the Service. If your DNS has other labels
# or runs on the nodes, change the last rule.
";

type Files = BTreeMap<PathBuf, String>;

/// Returns the manifests of every operator, of all together, and of the component for their network policies.
///
/// # Errors
/// If an object can't be written as YAML.
pub fn files(operators: &[Operator]) -> anyhow::Result<Files> {
    let mut files = Files::new();
    for operator in operators {
        let directory = PathBuf::from("manifests").join(operator.name);
        let mut cluster = vec![("namespace.yaml", vec![install::namespace()])];
        cluster.extend(of_cluster(operator)?);
        add(&mut files, &directory, &cluster, None, &[operator])?;
        options(&mut files, &directory, operator, Scope::Cluster)?;
        options(
            &mut files,
            &directory.join("namespaced"),
            operator,
            Scope::Namespace,
        )?;
        let pods = rights::of_job_pods(operator);
        if !pods.is_empty() {
            let namespace = Some(Scope::Namespace.namespace());
            let content = [("rbac.yaml", pods)];
            add(
                &mut files,
                &directory.join("jobs"),
                &content,
                namespace,
                &[],
            )?;
        }
        // Without the CRD and other cluster-wide objects, which a cluster administrator applies once.
        let namespaced = local(operator, Scope::Namespace)?;
        let namespace = Some(Scope::Namespace.namespace());
        add(
            &mut files,
            &directory.join("namespaced"),
            &namespaced,
            namespace,
            &[operator],
        )?;
    }
    all(&mut files, operators)?;
    api_server(&mut files)?;
    Ok(files)
}

/// Adds the kustomization of all operators, and one for each of them without the Namespace, which can be combined with others.
fn all(files: &mut Files, operators: &[Operator]) -> anyhow::Result<()> {
    let directory = PathBuf::from("manifests/all");
    let namespace = install::namespace();
    let delete = json!({
        "apiVersion": namespace["apiVersion"],
        "kind": namespace["kind"],
        "metadata": { "name": namespace["metadata"]["name"] },
        "$patch": "delete",
    })
    .to_string();
    for operator in operators {
        let mut kustomization = kustomization(&[format!("../../{}", operator.name)], &[]);
        kustomization["patches"] = json!([{ "patch": delete }]);
        files.insert(
            directory.join(operator.name).join("kustomization.yaml"),
            yaml::documents(&[kustomization])?,
        );
    }
    let mut resources = vec!["namespace.yaml"];
    resources.extend(operators.iter().map(|operator| operator.name));
    files.insert(
        directory.join("namespace.yaml"),
        yaml::documents(&[namespace])?,
    );
    let operators: Vec<&Operator> = operators.iter().collect();
    files.insert(
        directory.join("kustomization.yaml"),
        yaml::documents(&[kustomization(&resources, &operators)])?,
    );
    Ok(())
}

/// Adds the component that restricts the egress of all operators in a kustomization.
fn api_server(files: &mut Files) -> anyhow::Result<()> {
    let directory = PathBuf::from("manifests/api-server");
    let component = json!({
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "patches": [{
            "path": "egress.yaml",
            "target": {
                "kind": "NetworkPolicy",
                "labelSelector": "app.kubernetes.io/part-of=trainyard",
            },
        }],
    });
    let mut patch = yaml::documents(&[install::narrow_egress()])?;
    patch.insert_str(yaml::HEADER.len(), EGRESS);
    files.insert(
        directory.join("kustomization.yaml"),
        yaml::documents(&[component])?,
    );
    files.insert(directory.join("egress.yaml"), patch);
    Ok(())
}

/// Returns the objects of a cluster-wide install except the namespace, by file.
///
/// # Errors
/// If an object can't be written as YAML.
pub fn of_cluster(operator: &Operator) -> anyhow::Result<Vec<(&'static str, Vec<Value>)>> {
    let crds = operator.kinds.iter().map(|kind| kind.crd.clone());
    let mut files = vec![("crd.yaml", crds.collect::<Vec<_>>())];
    files.extend(local(operator, Scope::Cluster)?);
    files.push(("user-roles.yaml", rights::of_users(operator)));
    let policies = admission::policies(operator);
    if !policies.is_empty() {
        files.push(("admission-policy.yaml", policies));
    }
    files.push(("guard-policy.yaml", guard::policies(operator)));
    Ok(files)
}

fn local(operator: &Operator, scope: Scope) -> anyhow::Result<Vec<(&'static str, Vec<Value>)>> {
    let mut files = vec![("rbac.yaml", rights::of_operator(operator, scope))];
    if let Some(config) = install::config(operator, scope)? {
        files.push(("config.yaml", vec![config]));
    }
    files.push((
        "deployment.yaml",
        vec![install::deployment(operator, scope)],
    ));
    files.push((
        "service.yaml",
        vec![install::metrics_service(operator, scope)],
    ));
    files.push((
        "network-policy.yaml",
        vec![install::network_policy(operator, scope)],
    ));
    Ok(files)
}

/// Returns the objects of each option, with the path of its file without extension.
pub fn of_options(operator: &Operator, scope: Scope) -> Vec<(String, Vec<Value>)> {
    let mut all = rights::of_options(operator, scope);
    if scope == Scope::Cluster {
        let policies = operator.policies.iter();
        all.extend(policies.map(|(file, objects)| ((*file).to_owned(), objects(operator))));
    }
    all
}

/// Adds one file per option. No kustomization contains them: an operator only gets the rights for the options in use.
fn options(
    files: &mut Files,
    directory: &std::path::Path,
    operator: &Operator,
    scope: Scope,
) -> anyhow::Result<()> {
    for (file, objects) in of_options(operator, scope) {
        let path = directory.join(format!("{file}.yaml"));
        files.insert(path, yaml::documents(&objects)?);
    }
    Ok(())
}

fn add(
    files: &mut Files,
    directory: &std::path::Path,
    content: &[(&str, Vec<Value>)],
    namespace: Option<&str>,
    operators: &[&Operator],
) -> anyhow::Result<()> {
    for (name, objects) in content {
        files.insert(directory.join(name), yaml::documents(objects)?);
    }
    let resources: Vec<&str> = content.iter().map(|(name, _)| *name).collect();
    let mut kustomization = kustomization(&resources, operators);
    if let Some(namespace) = namespace {
        kustomization["namespace"] = namespace.into();
    }
    let mut text = yaml::documents(&[kustomization])?;
    if namespace.is_some() {
        let what = if operators.is_empty() {
            JOBS
        } else {
            NAMESPACED
        };
        text.insert_str(yaml::HEADER.len(), what);
    }
    files.insert(directory.join("kustomization.yaml"), text);
    Ok(())
}

/// Returns a kustomization of these resources, in which an operator's image can be set.
fn kustomization(resources: &[impl Serialize], operators: &[&Operator]) -> Value {
    let mut kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    });
    let replacements: Vec<Value> = operators
        .iter()
        .filter(|operator| repeats_image(operator))
        .map(|o| replacement(o))
        .collect();
    if !replacements.is_empty() {
        kustomization["replacements"] = replacements.into();
    }
    kustomization
}

fn repeats_image(operator: &Operator) -> bool {
    operator
        .args
        .iter()
        .any(|argument| matches!(argument, Argument::OwnImage(_)))
}

/// Copies the Deployment's image, even if set with `kustomize edit set image`, to the flag that repeats it.
fn replacement(operator: &Operator) -> Value {
    let deployment = json!({ "kind": "Deployment", "name": operator.name });
    json!({
        "source": {
            "kind": "Deployment",
            "name": operator.name,
            "fieldPath": "spec.template.spec.containers.0.image",
        },
        "targets": [{
            "select": deployment,
            "fieldPaths": [format!("spec.template.spec.containers.0.args.{OWN_IMAGE_ARGUMENT}")],
            "options": { "delimiter": "=", "index": 1 },
        }],
    })
}
