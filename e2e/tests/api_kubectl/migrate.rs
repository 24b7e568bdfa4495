//! `migrate` on a cluster with the Deployment, the webhook and the jobs of the Go training operator.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use training_testkit::builders::pytorch_jobs;
use training_testkit::control_plane::{ControlPlane, Options};
use training_testkit::job::Jobs;

use super::preflight::{OPERATOR, SYSTEM, dead_webhook, operator};
use super::*;

const FROM: [&str; 3] = ["migrate", "--from", "training-operator"];
const WEBHOOK: &str = "validator.training-operator.kubeflow.org";

/// Creates the Deployment of the Go operator, and the Service of its webhook.
async fn go_operator(client: &Client) -> Result<()> {
    let labels = json!({ "control-plane": "kubeflow-training-operator" });
    let container = json!({
        "name": "training-operator", "image": "docker.io/kubeflow/training-operator:v1-855e096",
        "command": ["/manager"], "args": ["--enable-scheme=pytorchjob", "--webhook-server-port=9443"],
    });
    let template = json!({ "metadata": { "labels": labels }, "spec": { "serviceAccountName": "training-operator", "containers": [container] } });
    let selector = json!({ "matchLabels": labels });
    let spec = json!({ "replicas": 2, "selector": selector, "template": template });
    let metadata = json!({ "name": "training-operator", "namespace": "kubeflow" });
    let ports = json!([{ "port": 443, "targetPort": 9443 }]);
    let objects = vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "kubeflow" } }),
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec }),
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "selector": labels, "ports": ports } }),
    ];
    manifest::apply(client, objects).await?;
    // There is no controller of Deployments.
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "kubeflow");
    let runs = json!({ "status": { "replicas": 2, "readyReplicas": 2, "availableReplicas": 2 } });
    let how = PatchParams::default();
    deployments
        .patch_status("training-operator", &how, &Patch::Merge(runs))
        .await?;
    bind(client, "training-operator", "kubeflow").await
}

/// Binds the role of the Go operator to a ServiceAccount.
async fn bind(client: &Client, account: &str, namespace: &str) -> Result<()> {
    let subject = json!({ "kind": "ServiceAccount", "name": account, "namespace": namespace });
    let role =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "training-operator" }, "roleRef": role, "subjects": [subject],
    });
    manifest::apply(client, vec![binding]).await
}

/// What `migrate` may change, and the jobs.
struct Objects {
    deployment: Deployment,
    webhook: ValidatingWebhookConfiguration,
    jobs: Vec<Value>,
}

impl Objects {
    async fn read(client: &Client, jobs: &Jobs) -> Result<Self> {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), "kubeflow");
        let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        Ok(Self {
            deployment: deployments.get("training-operator").await?,
            webhook: webhooks.get(WEBHOOK).await?,
            jobs: vec![jobs.get("ddp").await?, jobs.get("host").await?],
        })
    }

    fn replicas(&self) -> Option<i32> {
        self.deployment.spec.replicas
    }

    fn policy(&self) -> Option<&str> {
        let webhook = self.webhook.webhooks.as_ref()?.first()?;
        webhook.failure_policy.as_deref()
    }

    fn annotations(&self) -> usize {
        let own = |annotations: &Option<std::collections::BTreeMap<String, String>>| {
            let keys = annotations.iter().flatten();
            keys.filter(|(key, _)| key.starts_with("trainyard.dev/"))
                .count()
        };
        own(&self.deployment.metadata.annotations) + own(&self.webhook.metadata.annotations)
    }
}

/// A job that the Go operator runs.
async fn running(client: &Client, jobs: &Jobs, job: &Value) -> Result<()> {
    let created = jobs.create(job).await?;
    let name = created["metadata"]["name"].as_str().unwrap_or_default();
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": format!("PyTorchJob{type_}"), "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z",
        })
    };
    let conditions = json!([condition("Created"), condition("Running")]);
    let status = json!({ "conditions": conditions, "startTime": "2026-01-01T00:00:00Z" });
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &pytorch_jobs());
    let status = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &status)
        .await?;
    Ok(())
}

#[tokio::test]
async fn migrate_shows_what_changes_and_stops_the_go_operator_and_starts_it_again() -> Result<()> {
    let control = ControlPlane::start(Options::default()).await?;
    if !control.can().play_kubelet {
        e2e::skip("there is no control plane for this test alone");
        return Ok(());
    }
    let client = control.client(ADMIN).await?;
    let plugin = Plugin {
        kubeconfig: control.kubeconfig(ADMIN).await?,
        namespace: "default".to_owned(),
    };
    let outcome = plugin.run(&FROM).await?;
    let expected =
        "error: no Deployment of this cluster runs training-operator: check --from and --context\n";
    ensure!(
        outcome.code == Some(2) && outcome.err == expected,
        "{outcome:?}"
    );
    control.install(OPERATOR).await?;
    go_operator(&client).await?;
    let jobs = Jobs::pytorch(client.clone(), "default");
    running(&client, &jobs, &manifest(&PYTORCH, "ddp")).await?;
    let mut host = manifest(&PYTORCH, "host");
    host["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["hostNetwork"] = json!(true);
    running(&client, &jobs, &host).await?;
    dead_webhook(&client).await?;

    let before = Objects::read(&client, &jobs).await?;
    let shown = plugin.run(&FROM).await?;
    ensure!(shown.code == Some(0), "{shown:?}");
    shown.assert_documented("migrate --from training-operator", &shown.out)?;
    let after = Objects::read(&client, &jobs).await?;
    ensure!(after.deployment == before.deployment && after.webhook == before.webhook);
    ensure!(after.jobs == before.jobs);

    let apply = [&FROM[..], &["--apply"]].concat();
    for _ in 0..2 {
        let outcome = plugin.run(&apply).await?;
        ensure!(outcome.code == Some(0), "{outcome:?}");
        let stopped = "Deployment kubeflow/training-operator: stopped\nNext:\n";
        ensure!(outcome.out.contains(stopped), "{outcome:?}");
        let after = Objects::read(&client, &jobs).await?;
        ensure!(after.replicas() == Some(0), "{:?}", after.deployment);
        ensure!(after.policy() == Some("Ignore"), "{:?}", after.webhook);
        ensure!(after.jobs == before.jobs);
    }
    // Nobody answers the webhook, and jobs can be created all the same.
    jobs.create(&manifest(&PYTORCH, "new")).await?;

    operator(&client, json!(["--leader-elect"])).await?;
    let undo = [&FROM[..], &["--undo"]].concat();
    let outcome = plugin.run(&undo).await?;
    let why = "error: Deployment trainyard-system/pytorch-operator still runs, and two operators must not serve the same jobs: ";
    let how = "kubectl -n trainyard-system scale deployment pytorch-operator --replicas=0\n";
    ensure!(
        outcome.code == Some(2) && outcome.err == format!("{why}{how}"),
        "{outcome:?}"
    );
    let system: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM);
    let none = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    system
        .patch(OPERATOR, &PatchParams::default(), &none)
        .await?;
    bind(&client, OPERATOR, SYSTEM).await?;
    let outcome = plugin.run(&undo).await?;
    let why =
        "error: no ClusterRoleBinding has the ServiceAccount kubeflow/training-operator any more";
    ensure!(
        outcome.code == Some(2) && outcome.err.starts_with(why),
        "{outcome:?}"
    );
    bind(&client, "training-operator", "kubeflow").await?;
    let outcome = plugin.run(&undo).await?;
    ensure!(outcome.code == Some(0), "{outcome:?}");
    let after = Objects::read(&client, &jobs).await?;
    ensure!(after.replicas() == Some(2), "{:?}", after.deployment);
    ensure!(after.policy() == before.policy(), "{:?}", after.webhook);
    ensure!(after.annotations() == 0, "{:?}", after.deployment.metadata);
    ensure!(after.jobs == before.jobs);
    Ok(())
}
