//! `preflight` on clusters with one thing wrong. They have a control plane of their own, because they would disturb other tests.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use training_testkit::control_plane::{ControlPlane, Options};

use super::*;

pub const OPERATOR: &str = "pytorch-operator";
pub const SYSTEM: &str = "trainyard-system";

/// Runs `preflight`, and checks that exactly this fails, with its remedy.
async fn fails(plugin: &Plugin, cause: &str, remedy: &str) -> Result<()> {
    let outcome = plugin.run(&["preflight"]).await?;
    let failed = outcome.out.lines().filter(|line| line.starts_with("x "));
    let failed: Vec<&str> = failed.collect();
    ensure!(outcome.code == Some(1), "{outcome:?}");
    ensure!(failed == [format!("x  {cause}")], "{outcome:#?}");
    let follows = outcome.out.contains(&format!("{cause}\n   > {remedy}"));
    ensure!(follows, "{outcome:#?}");
    Ok(())
}

/// The shipped Deployment, whose pod runs, with these flags.
pub async fn operator(client: &Client, args: Value) -> Result<()> {
    let file = workspace().join("manifests").join(OPERATOR);
    let mut objects = manifest::documents(&file.join("deployment.yaml"))?;
    objects[0]["spec"]["template"]["spec"]["containers"][0]["args"] = args;
    manifest::apply(client, objects).await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM);
    let runs = json!({ "status": { "replicas": 1, "readyReplicas": 1, "availableReplicas": 1 } });
    let (how, runs) = (PatchParams::default(), Patch::Merge(runs));
    deployments.patch_status(OPERATOR, &how, &runs).await?;
    Ok(())
}

/// The Deployment of the Go operator.
async fn go_operator(client: &Client, replicas: u32) -> Result<()> {
    let labels = json!({ "app": "training-operator" });
    let container = json!({ "name": "training-operator", "image": "docker.io/kubeflow/training-operator:v1-855e096" });
    let template =
        json!({ "metadata": { "labels": labels }, "spec": { "containers": [container] } });
    let selector = json!({ "matchLabels": labels });
    let spec = json!({ "replicas": replicas, "selector": selector, "template": template });
    let metadata = json!({ "name": "training-operator", "namespace": "default" });
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec });
    manifest::apply(client, vec![deployment]).await
}

/// The webhook that the Go operator leaves, whose Service is gone. Returns its name.
pub async fn dead_webhook(client: &Client) -> Result<String> {
    let name = "validator.training-operator.kubeflow.org";
    let rule = json!({
        "apiGroups": ["kubeflow.org"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pytorchjobs"],
    });
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": name },
        "webhooks": [{
            "name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": [rule],
            "clientConfig": { "service": { "namespace": "kubeflow", "name": "training-operator" } },
        }],
    });
    manifest::apply(client, vec![webhook]).await?;
    Ok(name.to_owned())
}

#[tokio::test]
async fn preflight_names_the_cause_of_every_broken_cluster_and_the_remedy() -> Result<()> {
    let control = ControlPlane::start(Options::default()).await?;
    if !control.can().play_kubelet {
        e2e::skip("there is no control plane for this test alone");
        return Ok(());
    }
    let client = control.client(ADMIN).await?;
    let mut plugin = Plugin {
        kubeconfig: control.kubeconfig(ADMIN).await?,
        namespace: "default".to_owned(),
    };
    let nobody = "operators: no operator serves namespace default";
    let install = "kubectl apply --server-side -k manifests/pytorch-operator";
    fails(&plugin, nobody, install).await?;
    go_operator(&client, 1).await?;
    let outcome = plugin.run(&["preflight"]).await?;
    let found =
        "x  other operators: Deployment default/training-operator also serves PyTorchJob, TFJob";
    ensure!(outcome.out.contains(found), "{outcome:#?}");
    go_operator(&client, 0).await?;
    control.install(OPERATOR).await?;
    fails(&plugin, nobody, install).await?;
    let shipped = json!(["--leader-elect"]);
    operator(&client, shipped.clone()).await?;
    let whole = plugin.run(&["preflight"]).await?;
    ensure!(whole.code == Some(0), "{whole:#?}");
    go_operator(&client, 1).await?;
    let outcome = plugin.run(&["preflight"]).await?;
    outcome.assert_documented("preflight", &outcome.out)?;
    go_operator(&client, 0).await?;

    let system: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM);
    let runs = |pods: u32| json!({ "status": { "availableReplicas": pods } });
    let (how, none) = (PatchParams::default(), Patch::Merge(runs(0)));
    system.patch_status(OPERATOR, &how, &none).await?;
    fails(
        &plugin,
        "operators: Deployment trainyard-system/pytorch-operator has no available pod",
        "kubectl -n trainyard-system describe deployment,pods pytorch-operator",
    )
    .await?;

    // The namespaced install.
    operator(&client, json!(["--namespace=$(POD_NAMESPACE)"])).await?;
    fails(&plugin, nobody, install).await?;

    operator(&client, json!(["--leader-elect", "--gang=volcano"])).await?;
    fails(
        &plugin,
        "gang scheduler: trainyard-system/pytorch-operator uses volcano, but the cluster does not serve PodGroup.scheduling.volcano.sh",
        "install volcano, or remove --gang from the operator",
    )
    .await?;
    operator(&client, shipped).await?;

    go_operator(&client, 1).await?;
    fails(
        &plugin,
        "other operators: Deployment default/training-operator also serves PyTorchJob",
        "kubectl -n default scale deployment training-operator --replicas=0, and delete its webhook configurations",
    )
    .await?;
    go_operator(&client, 0).await?;

    let webhook = dead_webhook(&client).await?;
    fails(
        &plugin,
        "webhooks: validator.training-operator.kubeflow.org refuses jobs, because its Service kubeflow/training-operator has no ready endpoint",
        "kubectl delete validatingwebhookconfiguration validator.training-operator.kubeflow.org",
    )
    .await?;
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    webhooks.delete(&webhook, &DeleteParams::default()).await?;

    plugin.namespace = "nowhere".to_owned();
    let missing = "namespace: namespace nowhere does not exist";
    fails(&plugin, missing, "kubectl create namespace nowhere").await?;
    plugin.namespace = "default".to_owned();

    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/ready";
    let remove = serde_json::from_value(json!([{ "op": "remove", "path": path }]))?;
    let remove: Patch<()> = Patch::Json(remove);
    let how = PatchParams::default();
    definitions
        .patch("pytorchjobs.kubeflow.org", &how, &remove)
        .await?;
    let apply = "kubectl apply --server-side -f manifests/pytorch-operator/crd.yaml";
    let lacks = "kinds: CRD pytorchjobs.kubeflow.org lacks fields of this version";
    fails(&plugin, lacks, apply).await?;
    definitions
        .delete("pytorchjobs.kubeflow.org", &DeleteParams::default())
        .await?;
    eventually("the CRD to be gone", HANG, async || {
        let found = definitions.get_opt("pytorchjobs.kubeflow.org").await?;
        Ok(match found {
            None => Seen::Yes(()),
            Some(_) => Seen::NotYet("it exists".to_owned()),
        })
    })
    .await?;
    let missing = "kinds: CRD pytorchjobs.kubeflow.org is not installed";
    fails(&plugin, missing, apply).await
}

/// What the user may not read is not checked, and that is said.
#[tokio::test]
async fn preflight_needs_no_permission_but_says_what_it_could_not_check() -> Result<()> {
    let Some(world) = World::of(PYTORCH, "kubectl-preflight", lockstep()).await? else {
        return Ok(());
    };
    let plugin = without_events(&world).await?;
    let outcome = plugin.run(&["preflight", "-o", "json"]).await?;
    ensure!(outcome.code == Some(0), "{outcome:?}");
    let checks: Vec<Value> = serde_json::from_str(&outcome.out)?;
    let verdict = |name: &str| {
        let mut all = checks.iter();
        let found = all.find(|check| check["name"] == name);
        found.map(|check| check["verdict"].clone())
    };
    for name in [
        "operators",
        "other operators",
        "gang scheduler",
        "kinds",
        "network",
        "webhooks",
        "Kueue",
        "namespace",
    ] {
        ensure!(
            verdict(name) == Some(json!("unknown")),
            "{name}: {checks:#?}"
        );
    }
    ensure!(
        verdict("permissions") == Some(json!("warning")),
        "{checks:#?}"
    );
    Ok(())
}
