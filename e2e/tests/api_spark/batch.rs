//! Applications for batch schedulers in the shapes that users have, each with its scheduler's CRD and the shipped rights.

use std::process::Command;

use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};

use super::*;

/// The files of the CRDs of `PodGroup`: Volcano's, and the coscheduling plugin's. Both modules are Apache 2.0.
const CRDS: [(&str, &str); 2] = [
    (
        "volcano.sh/volcano@v1.15.0",
        "config/crd/volcano/bases/scheduling.volcano.sh_podgroups.yaml",
    ),
    (
        "sigs.k8s.io/scheduler-plugins@v0.34.7",
        "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml",
    ),
];

async fn stage(prefix: &str) -> Result<Option<Stage>> {
    let flags = |options: Options| {
        options
            .flag("enable-batch-scheduler", "true")
            .flag("kube-scheduler-names", "kube-scheduler")
    };
    let control = ControlPlane::shared().await?;
    if control.can().play_kubelet {
        let client = control.client(ADMIN).await?;
        for (module, file) in CRDS {
            let mut command = Command::new("go");
            command.args(["mod", "download", "-json", module]);
            let output = command.current_dir(control.scratch()).output();
            let output = output.context("go is needed to fetch the CRDs of schedulers")?;
            let answer: Value = serde_json::from_slice(&output.stdout)?;
            let dir = answer["Dir"].as_str();
            let dir = dir.with_context(|| format!("can't download {module}: {answer}"))?;
            let objects = manifest::documents(&PathBuf::from(dir).join(file))?;
            manifest::apply(&client, objects).await?;
        }
        let rights = workspace().join("manifests/spark-operator/batch-scheduler");
        for file in manifest::files(&rights)? {
            manifest::apply(&client, manifest::documents(&file)?).await?;
        }
    }
    let stage = Stage::with(prefix, flags).await?;
    if let Some(stage) = &stage {
        let account = json!({ "metadata": { "name": "spark-operator-spark" } });
        let account: ServiceAccount = serde_json::from_value(account)?;
        let post = PostParams::default();
        stage.api().create(&post, &account).await?;
    }
    Ok(stage)
}

/// Submits a published shape, and returns its driver.
async fn submitted(stage: &Stage, scheduler: &str) -> Result<Pod> {
    let file = workspace()
        .join("e2e/tests/pods_spark/manifests")
        .join(format!("spark-pi-{scheduler}.yaml"));
    let mut app = manifest::documents(&file)?
        .pop()
        .context("no application")?;
    app["metadata"]["namespace"] = json!(stage.name());
    stage.apply(&app).await?;
    let driver = format!("spark-pi-{scheduler}-driver");
    eventually("a driver", HANG, async || {
        let pod = stage.api::<Pod>().get_opt(&driver).await?;
        Ok(pod.map_or(Seen::NotYet("none".to_owned()), Seen::Yes))
    })
    .await
}

/// A stored group.
async fn group(stage: &Stage, group: &str, version: &str, name: &str) -> Result<Value> {
    let kind = GroupVersionKind::gvk(group, version, "PodGroup");
    let groups: Api<DynamicObject> = Api::namespaced_with(
        stage.client.clone(),
        stage.name(),
        &ApiResource::from_gvk(&kind),
    );
    Ok(serde_json::to_value(groups.get(name).await?)?)
}

fn scheduler(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.scheduler_name.as_deref()
}

#[tokio::test]
async fn batch_schedulers_get_what_they_look_for() -> Result<()> {
    let Some(stage) = stage("spark-batch").await? else {
        return Ok(());
    };
    let driver = submitted(&stage, "volcano").await?;
    let name = "spark-spark-pi-volcano-pg";
    ensure!(scheduler(&driver) == Some("volcano"));
    ensure!(driver.annotations()["scheduling.k8s.io/group-name"] == name);
    let made = group(&stage, "scheduling.volcano.sh", "v1beta1", name).await?;
    let spec = &made["spec"];
    ensure!(
        spec["minMember"] == 1
            && spec["queue"] == "research"
            && spec["priorityClassName"] == "routine"
            && spec["minResources"] == json!({ "cpu": "2", "memory": "4Gi" }),
        "{spec}"
    );

    let driver = submitted(&stage, "yunikorn").await?;
    ensure!(scheduler(&driver) == Some("yunikorn"));
    let annotations = driver.annotations();
    ensure!(annotations["yunikorn.apache.org/task-group-name"] == "spark-driver");
    let groups: Value = serde_json::from_str(&annotations["yunikorn.apache.org/task-groups"])?;
    let of = |n: usize| (&groups[n]["name"], &groups[n]["minMember"]);
    ensure!(
        of(0) == (&json!("spark-driver"), &json!(1))
            && of(1) == (&json!("spark-executor"), &json!(2)),
        "{groups}"
    );
    ensure!(groups[1]["minResource"]["memory"] == "896Mi", "{groups}");
    ensure!(driver.labels()["queue"] == "root.default");

    let driver = submitted(&stage, "kube-scheduler").await?;
    let name = "spark-pi-kube-scheduler-pg";
    ensure!(scheduler(&driver) == Some("kube-scheduler"));
    ensure!(driver.labels()["scheduling.x-k8s.io/pod-group"] == name);
    let made = group(&stage, "scheduling.x-k8s.io", "v1alpha1", name).await?;
    ensure!(made["spec"]["minMember"] == 1, "{made}");
    // A driver and two executors with a core each.
    ensure!(made["spec"]["minResources"]["cpu"] == "3", "{made}");
    stage.assert_clean().await
}
