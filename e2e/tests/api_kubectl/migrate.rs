//! `migrate` on a cluster with the Deployments, the webhooks and the jobs of the Go operators. There is no controller of Deployments:
//! the tests create and delete their pods.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use training_testkit::builders::{SPARK, pytorch_jobs};
use training_testkit::control_plane::{ControlPlane, Options};
use training_testkit::job::Jobs;

use super::preflight::{OPERATOR, SYSTEM, dead_webhook, operator};
use super::*;

const FROM: [&str; 3] = ["migrate", "--from", "training-operator"];
const WEBHOOK: &str = "validator.training-operator.kubeflow.org";
const KUBEFLOW: &str = "kubeflow";

/// A cluster with a Go operator in a namespace.
struct Site {
    client: Client,
    deployments: Api<Deployment>,
    pods: Api<Pod>,
    plugin: Plugin,
}

impl Site {
    /// `None` if there is no control plane for this test alone.
    async fn start() -> Result<Option<(ControlPlane, Self)>> {
        let control = ControlPlane::start(Options::default()).await?;
        if !control.can().play_kubelet {
            e2e::skip("there is no control plane for this test alone");
            return Ok(None);
        }
        let client = control.client(ADMIN).await?;
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": KUBEFLOW } });
        manifest::apply(&client, vec![namespace]).await?;
        let site = Self {
            deployments: Api::namespaced(client.clone(), KUBEFLOW),
            pods: Api::namespaced(client.clone(), KUBEFLOW),
            plugin: Plugin {
                kubeconfig: control.kubeconfig(ADMIN).await?,
                namespace: KUBEFLOW.to_owned(),
            },
            client,
        };
        Ok(Some((control, site)))
    }

    /// Creates a Deployment with its Service and one pod.
    async fn deployment(&self, name: &str, replicas: u32, container: Value) -> Result<()> {
        let metadata = json!({ "name": name, "namespace": KUBEFLOW });
        let labels = json!({ "app": name });
        let template = json!({ "metadata": { "labels": labels }, "spec": { "serviceAccountName": name, "containers": [container] } });
        let spec = json!({ "replicas": replicas, "selector": { "matchLabels": labels }, "template": template });
        let service = json!({ "selector": labels, "ports": [{ "port": 443, "targetPort": 9443 }] });
        let objects = vec![
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec }),
            json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service }),
        ];
        manifest::apply(&self.client, objects).await?;
        self.create_pod(name, name).await?;
        self.available(name, replicas).await
    }

    async fn create_pod(&self, deployment: &str, name: &str) -> Result<()> {
        let container = json!({ "name": "operator", "image": "operator" });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "spec": { "containers": [container] },
            "metadata": { "name": name, "namespace": KUBEFLOW, "labels": { "app": deployment } },
        });
        manifest::apply(&self.client, vec![pod]).await
    }

    async fn available(&self, name: &str, replicas: u32) -> Result<()> {
        let status = json!({ "replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas });
        let status = Patch::Merge(json!({ "status": status }));
        let how = PatchParams::default();
        self.deployments.patch_status(name, &how, &status).await?;
        Ok(())
    }

    async fn replicas(&self, name: &str) -> Result<Option<i32>> {
        Ok(self.deployments.get(name).await?.spec.replicas)
    }

    async fn until_replicas(&self, name: &str, replicas: i32) -> Result<()> {
        eventually(&format!("{name} scaled to {replicas}"), HANG, async || {
            let found = self.replicas(name).await?;
            Ok(if found == Some(replicas) {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{found:?}"))
            })
        })
        .await
    }

    /// Returns the failure policy of a webhook configuration.
    async fn policy(&self, configuration: &str) -> Result<Option<String>> {
        let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        if let Some(found) = webhooks.get_opt(configuration).await? {
            let mut all = found.webhooks.into_iter().flatten();
            return Ok(all.next().and_then(|webhook| webhook.failure_policy));
        }
        let found = mutating.get(configuration).await?;
        let mut all = found.webhooks.into_iter().flatten();
        Ok(all.next().and_then(|webhook| webhook.failure_policy))
    }

    /// Counts the annotations of `migrate` that are left on the Deployments.
    async fn annotations(&self) -> Result<usize> {
        let all = self.deployments.list(&ListParams::default()).await?;
        let keys = all
            .items
            .iter()
            .flat_map(|d| d.metadata.annotations.iter().flatten());
        Ok(keys
            .filter(|(key, _)| key.starts_with("trainyard.dev/"))
            .count())
    }

    /// Gives a ServiceAccount the right to write the status of jobs, or takes it away.
    async fn may_write_status(&self, account: &str, verbs: &[&str]) -> Result<()> {
        let rbac = "rbac.authorization.k8s.io";
        let subject = json!({ "kind": "ServiceAccount", "name": account, "namespace": KUBEFLOW });
        let metadata = json!({ "name": account });
        let resources = ["pytorchjobs/status", "sparkapplications/status"];
        let groups = ["kubeflow.org", "sparkoperator.k8s.io"];
        let rules = json!([{ "apiGroups": groups, "resources": resources, "verbs": verbs }]);
        let role = json!({ "apiGroup": rbac, "kind": "ClusterRole", "name": account });
        let objects = vec![
            json!({ "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": metadata, "rules": rules }),
            json!({ "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": role, "subjects": [subject] }),
        ];
        manifest::apply(&self.client, objects).await
    }

    /// Runs the plugin, which must fail with an error that begins so.
    async fn refuses(&self, args: &[&str], error: &str) -> Result<()> {
        let outcome = self.plugin.run(args).await?;
        ensure!(
            outcome.code == Some(2) && outcome.err.starts_with(&format!("error: {error}")),
            "{outcome:?}"
        );
        Ok(())
    }
}

/// A job that an operator runs.
async fn running(
    jobs: &Jobs,
    resource: Api<DynamicObject>,
    job: &Value,
    status: Value,
) -> Result<()> {
    let created = jobs.create(job).await?;
    let name = created["metadata"]["name"].as_str().unwrap_or_default();
    let status = Patch::Merge(json!({ "status": status }));
    resource
        .patch_status(name, &PatchParams::default(), &status)
        .await?;
    Ok(())
}

/// The status of a running job of the Go training operator.
fn running_status() -> Value {
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": format!("PyTorchJob{type_}"), "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z",
        })
    };
    let conditions = json!([condition("Created"), condition("Running")]);
    json!({ "conditions": conditions, "startTime": "2026-01-01T00:00:00Z" })
}

#[tokio::test]
async fn migrate_shows_what_changes_and_stops_the_go_operator_and_starts_it_again() -> Result<()> {
    let Some((control, site)) = Site::start().await? else {
        return Ok(());
    };
    let (client, plugin) = (&site.client, &site.plugin);
    let nothing = "no Deployment of namespace kubeflow has an image named training-operator: check --from, --namespace and --context\n";
    site.refuses(&FROM, nothing).await?;
    control.install(OPERATOR).await?;
    let container = json!({
        "name": "training-operator", "image": "registry.local/mirror/training-operator:v1-855e096",
        "command": ["/manager"], "args": ["--enable-scheme=pytorchjob"], "env": [{ "name": "KUBEFLOW_NAMESPACE", "value": "default" }],
    });
    let name = "training-operator";
    site.deployment(name, 2, container).await?;
    let jobs = Jobs::pytorch(client.clone(), "default");
    let api = || Api::namespaced_with(client.clone(), "default", &pytorch_jobs());
    running(&jobs, api(), &manifest(&PYTORCH, "ddp"), running_status()).await?;
    let mut host = manifest(&PYTORCH, "host");
    host["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["hostNetwork"] = json!(true);
    running(&jobs, api(), &host, running_status()).await?;
    dead_webhook(client).await?;
    // An evicted pod of the Deployment never goes away.
    site.create_pod(name, "evicted").await?;
    let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
    site.pods
        .patch_status("evicted", &PatchParams::default(), &failed)
        .await?;

    let before = (site.deployments.get(name).await?, jobs.list().await?);
    let shown = plugin.run(&[&FROM[..], &["--dry-run"]].concat()).await?;
    ensure!(shown.code == Some(0), "{shown:?}");
    // The tests' plugin has a namespace, so its command has one, too.
    let text = shown.out.replace(" -n kubeflow --apply", " --apply");
    shown.assert_documented("migrate --from training-operator", &text)?;
    let after = (site.deployments.get(name).await?, jobs.list().await?);
    ensure!(after == before);
    ensure!(site.policy(WEBHOOK).await?.as_deref() == Some("Fail"));

    // Something scales it up again while its last pod is terminating.
    let apply = [&FROM[..], &["--apply"]].concat();
    let child = plugin.start(&apply)?;
    site.until_replicas(name, 0).await?;
    let two = Patch::Merge(json!({ "spec": { "replicas": 2 } }));
    site.deployments
        .patch(name, &PatchParams::default(), &two)
        .await?;
    site.pods.delete(name, &DeleteParams::default()).await?;
    let outcome = wait_for_exit(child).await?;
    let again = "error: Deployment kubeflow/training-operator was scaled up again: pause what manages it, such as Argo CD or Flux, then repeat this\n";
    ensure!(
        outcome.code == Some(2) && outcome.err == again,
        "{outcome:?}"
    );

    for _ in 0..2 {
        let outcome = plugin.run(&apply).await?;
        ensure!(outcome.code == Some(0), "{outcome:?}");
        let stopped = "Deployment kubeflow/training-operator: stopped\nNext:\n 3. kubectl apply";
        ensure!(outcome.out.contains(stopped), "{outcome:?}");
        ensure!(site.replicas(name).await? == Some(0));
        ensure!(site.policy(WEBHOOK).await?.as_deref() == Some("Ignore"));
        ensure!(jobs.list().await? == before.1);
    }
    // Nobody answers the webhook, and jobs can be created all the same.
    jobs.create(&manifest(&PYTORCH, "new")).await?;

    operator(client, json!(["--leader-elect"])).await?;
    let undo = [&FROM[..], &["--undo"]].concat();
    let why = "Deployment trainyard-system/pytorch-operator still runs, and two operators must not serve the same jobs: ";
    let how = "kubectl -n trainyard-system scale deployment pytorch-operator --replicas=0\n";
    site.refuses(&undo, &format!("{why}{how}")).await?;
    let system: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM);
    let none = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    system
        .patch(OPERATOR, &PatchParams::default(), &none)
        .await?;
    site.may_write_status(name, &["patch"]).await?;
    let why = "ServiceAccount kubeflow/training-operator may not update the status of jobs";
    site.refuses(&undo, why).await?;
    ensure!(site.replicas(name).await? == Some(0));
    site.may_write_status(name, &["update"]).await?;
    site.available(name, 0).await?;
    let child = plugin.start(&undo)?;
    site.until_replicas(name, 2).await?;
    ensure!(site.policy(WEBHOOK).await?.as_deref() == Some("Ignore"));
    site.available(name, 2).await?;
    let outcome = wait_for_exit(child).await?;
    ensure!(outcome.code == Some(0), "{outcome:?}");
    ensure!(site.policy(WEBHOOK).await?.as_deref() == Some("Fail"));
    ensure!(site.annotations().await? == 0);
    ensure!(jobs.get("ddp").await? == before.1[0]);
    // What migrate has not stopped, it doesn't start.
    let why = "migrate has stopped no Deployment: scale up the one to start\n";
    site.deployments
        .patch(name, &PatchParams::default(), &none)
        .await?;
    site.refuses(&undo, why).await
}

#[tokio::test]
async fn migrate_stops_the_webhook_of_the_spark_operator_last_and_starts_it_first() -> Result<()> {
    let Some((control, site)) = Site::start().await? else {
        return Ok(());
    };
    let (client, plugin) = (&site.client, &site.plugin);
    control.install("spark-operator").await?;
    let (controller, webhook) = ("spark-operator-controller", "spark-operator-webhook");
    for name in [controller, webhook] {
        let verb = name.rsplit('-').next().unwrap_or_default();
        let image = "ghcr.io/kubeflow/spark-operator/controller:2.3.0";
        let container = json!({ "name": name, "image": image, "args": [verb, "start"] });
        site.deployment(name, 1, container).await?;
    }
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": { "name": webhook },
        "webhooks": [{
            "name": "mutate--v1-pod.sparkoperator.k8s.io", "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": [rule],
            "objectSelector": { "matchLabels": { "sparkoperator.k8s.io/launched-by-spark-operator": "true" } },
            "clientConfig": { "service": { "namespace": KUBEFLOW, "name": webhook } },
        }],
    });
    manifest::apply(client, vec![configuration]).await?;
    site.may_write_status(controller, &["update"]).await?;
    let apps = Jobs::of(client.clone(), "default", &SPARK.resource());
    let api = Api::namespaced_with(client.clone(), "default", &SPARK.resource());
    let status = json!({ "applicationState": { "state": "RUNNING" }, "driverInfo": {} });
    running(&apps, api, &application("pi"), status).await?;

    let from = ["migrate", "--from", "spark-operator"];
    let shown = plugin.run(&from).await?;
    for line in [
        "Deployment kubeflow/spark-operator-webhook (replicas: 1) serves webhooks",
        "mutatingwebhookconfiguration spark-operator-webhook (failurePolicy: Fail)",
        "0 of 1 unfinished jobs need attention",
        "!  1 SparkApplications are active: executors that their drivers create after --apply lack",
    ] {
        let mut lines = shown.out.lines();
        ensure!(
            lines.any(|found| found.starts_with(line)),
            "{line}\n{shown:#?}"
        );
    }

    let child = plugin.start(&[&from[..], &["--apply"]].concat())?;
    site.until_replicas(controller, 0).await?;
    // Its pod may still create drivers.
    ensure!(site.policy(webhook).await?.as_deref() == Some("Fail"));
    site.pods
        .delete(controller, &DeleteParams::default())
        .await?;
    site.until_replicas(webhook, 0).await?;
    ensure!(site.policy(webhook).await?.as_deref() == Some("Ignore"));
    site.pods.delete(webhook, &DeleteParams::default()).await?;
    let outcome = wait_for_exit(child).await?;
    ensure!(outcome.code == Some(0), "{outcome:?}");

    for name in [controller, webhook] {
        site.available(name, 0).await?;
    }
    let child = plugin.start(&[&from[..], &["--undo"]].concat())?;
    site.until_replicas(webhook, 1).await?;
    ensure!(site.replicas(controller).await? == Some(0));
    ensure!(site.policy(webhook).await?.as_deref() == Some("Ignore"));
    site.available(webhook, 1).await?;
    site.until_replicas(controller, 1).await?;
    ensure!(site.policy(webhook).await?.as_deref() == Some("Fail"));
    site.available(controller, 1).await?;
    let outcome = wait_for_exit(child).await?;
    ensure!(outcome.code == Some(0), "{outcome:?}");
    ensure!(site.annotations().await? == 0);
    Ok(())
}
