//! Strict mode: the rights of a user who may create jobs but no pods.

use futures::future::try_join_all;
use kube::Config;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use training_testkit::builders::{PYTORCH, operator_user};
use training_testkit::control_plane::{config_from, workspace};
use training_testkit::manifest as manifests;

use super::*;

/// A user who may create jobs.
const USER: &str = "submitter";

/// What operators create for jobs of their kinds, by API group.
const CREATED: [(&str, &[&str]); 4] = [
    (
        "",
        &[
            "pods",
            "services",
            "configmaps",
            "secrets",
            "persistentvolumeclaims",
        ],
    ),
    ("batch", &["jobs"]),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("networking.k8s.io", &["ingresses"]),
];

/// The pod spec in a job, which names its account and class.
fn pod_spec<'a>(kind: &Kind, job: &'a mut Value) -> &'a mut Value {
    match kind.name {
        "SparkApplication" => {
            let template = &mut job["spec"]["driver"]["template"];
            *template =
                json!({ "spec": { "containers": [{ "name": "spark-kubernetes-driver" }] } });
            &mut template["spec"]
        }
        _ => &mut job["spec"][kind.replica_map]["Worker"]["template"]["spec"],
    }
}

impl Tenant {
    /// Grants [`USER`] a right in this namespace.
    async fn allow(&self, name: &str, rules: &Value) -> Result<()> {
        let rbac = "rbac.authorization.k8s.io";
        let namespace = self.name();
        let objects = vec![
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "Role",
                "metadata": { "name": name, "namespace": namespace }, "rules": rules,
            }),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
                "metadata": { "name": name, "namespace": namespace },
                "roleRef": { "apiGroup": rbac, "kind": "Role", "name": name },
                "subjects": [{ "apiGroup": rbac, "kind": "User", "name": USER }],
            }),
        ];
        manifests::apply(&self.client, objects).await
    }

    /// Installs the shipped policy for this namespace alone, because others run tests of their own.
    async fn install_strict_policy(&self) -> Result<()> {
        let file = format!("manifests/{}/options/strict.yaml", self.kind.operator);
        let mut objects = manifests::documents(&workspace().join(file))?;
        for object in &mut objects {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let name = format!("{name}-{}", self.name());
            object["metadata"]["name"] = json!(name);
            if object["kind"] == "ValidatingAdmissionPolicyBinding" {
                object["spec"]["policyName"] = json!(name);
                object["spec"]["matchResources"] = json!({ "namespaceSelector": {
                    "matchLabels": { "kubernetes.io/metadata.name": self.name() },
                } });
            }
        }
        manifests::apply(&self.client, objects).await
    }

    /// Submits a job as [`USER`] in a dry run. `None` if it is accepted, otherwise the API server's message.
    async fn refuses(&self, client: &Client, job: &Value) -> Result<Option<String>> {
        let gvk = GroupVersionKind::gvk(
            self.kind.group,
            self.kind.version,
            job["kind"].as_str().unwrap_or_default(),
        );
        let plural = format!("{}s", gvk.kind.to_lowercase());
        let resource = ApiResource::from_gvk_with_plural(&gvk, &plural);
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), self.name(), &resource);
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let job: DynamicObject = serde_json::from_value(job.clone())?;
        match api.create(&dry, &job).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 403 || status.code == 422 => {
                Ok(Some(status.message))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until a submission has this result; rights and policies take effect a moment after they are stored.
    async fn until_answered(
        &self,
        client: &Client,
        job: &Value,
        refused: Option<&str>,
    ) -> Result<()> {
        let what = format!("{} to be answered {refused:?}", self.kind.name);
        eventually(&what, HANG, async || {
            let said = self.refuses(client, job).await?;
            let is_it = match (&said, refused) {
                (None, None) => true,
                (Some(said), Some(part)) => said.contains(part),
                _ => false,
            };
            Ok(if is_it {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{said:?}"))
            })
        })
        .await
    }
}

async fn as_user(control: &ControlPlane) -> Result<Client> {
    let mut config: Config = config_from(&control.kubeconfig(ADMIN).await?).await?;
    config.auth_info.impersonate = Some(USER.to_owned());
    Ok(Client::try_from(config)?)
}

/// A schedule of such applications, if the kind has one.
fn schedule(kind: &Kind, job: &Value) -> Option<Value> {
    (*kind == SPARK).then(|| {
        json!({
            "apiVersion": job["apiVersion"], "kind": "ScheduledSparkApplication", "metadata": { "name": "s" },
            "spec": { "schedule": "@every 1h", "template": job["spec"] },
        })
    })
}

#[tokio::test]
async fn mt_06_mt_11_mt_50_mt_57_in_strict_mode_a_job_yields_only_what_its_user_could_create()
-> Result<()> {
    try_join_all(kinds().map(|kind| async move {
        let Some(tenant) = Tenant::of(kind, "strict").await? else {
            return Ok(());
        };
        let user = as_user(tenant.control).await?;
        let own = json!([{
            "apiGroups": [kind.group], "resources": [kind.plural, "scheduledsparkapplications"],
            "verbs": ["create", "update"],
        }]);
        tenant.allow("jobs", &own).await?;
        let plain = manifest(&kind, "pt");
        // Without the policy, a user who may create jobs gets pods regardless of other rights.
        tenant.until_answered(&user, &plain, None).await?;

        tenant.install_strict_policy().await?;
        let mut all = vec![plain.clone()];
        all.extend(schedule(&kind, &plain));
        for job in &all {
            let refused = Some("submitter may not create pods in the namespace");
            tenant.until_answered(&user, job, refused).await?;
        }
        for (group, resources) in CREATED {
            let name = format!("creates-{}", resources[0]);
            let rules = json!([{ "apiGroups": [group], "resources": resources, "verbs": ["create"] }]);
            tenant.allow(&name, &rules).await?;
        }
        for job in &all {
            tenant.until_answered(&user, job, None).await?;
        }

        let mut powerful = plain.clone();
        pod_spec(&kind, &mut powerful)["serviceAccountName"] = json!("powerful");
        let mut all = vec![powerful.clone()];
        all.extend(schedule(&kind, &powerful));
        let refused = Some("ServiceAccounts powerful");
        for job in &all {
            tenant.until_answered(&user, job, refused).await?;
        }
        let mut older = plain.clone();
        pod_spec(&kind, &mut older)["serviceAccount"] = json!("powerful");
        tenant.until_answered(&user, &older, refused).await?;
        let rules = json!([{
            "apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["powerful"], "verbs": ["impersonate"],
        }]);
        tenant.allow("uses-powerful", &rules).await?;
        for job in &all {
            tenant.until_answered(&user, job, None).await?;
        }

        let mut urgent = plain.clone();
        pod_spec(&kind, &mut urgent)["priorityClassName"] = json!("system-node-critical");
        let refused = Some("priority classes that begin with system-");
        tenant.until_answered(&user, &urgent, refused).await?;
        // An administrator may use the account, but not the class. The operator is exempt, because its schedules were checked.
        let admin = tenant.client.clone();
        tenant.until_answered(&admin, &powerful, None).await?;
        tenant.until_answered(&admin, &urgent, refused).await?;
        if kind == SPARK {
            let operator = tenant.control.client(&operator_user(kind.operator)).await?;
            tenant.until_answered(&operator, &powerful, None).await?;
        }
        Ok(())
    }))
    .await
    .map(drop)
}

#[tokio::test]
async fn mt_06_mt_08_an_operator_in_strict_mode_runs_nothing_that_reaches_beyond_its_namespace()
-> Result<()> {
    try_join_all([PYTORCH, MPI, SPARK].map(|kind| async move {
        let Some(tenant) = Tenant::of(kind, "strict-run").await? else {
            return Ok(());
        };
        let options = tenant.options().await?.flag("strict", "true");
        let operator = OperatorProcess::start(options).await?;
        let mut urgent = manifest(&kind, "urgent");
        pod_spec(&kind, &mut urgent)["priorityClassName"] = json!("system-node-critical");
        let mut all = vec![("urgent", urgent, "priorityClassName")];
        if kind == SPARK {
            let mut open = manifest(&kind, "open");
            open["spec"]["driverIngressOptions"] =
                json!([{ "servicePort": 8080, "ingressURLFormat": "a.example.com" }]);
            all.push(("open", open, "spec.driverIngressOptions"));
        }
        for (name, job, field) in all {
            tenant.jobs.create(&job).await?;
            eventually(&format!("{name} to fail"), HANG, async || {
                let status = tenant.jobs.get(name).await?["status"].to_string();
                let said = status.contains(field) && status.contains("--strict");
                let failed = ["\"FAILED\"", "\"Failed\""]
                    .iter()
                    .any(|f| status.contains(f));
                Ok(if said && failed {
                    Seen::Yes(())
                } else {
                    Seen::NotYet(status)
                })
            })
            .await?;
        }
        tenant.until_quiet().await?;
        ensure!(tenant.pods().await?.is_empty(), "{}", kind.name);
        tenant.assert_well(&operator).await
    }))
    .await
    .map(drop)
}
