//! The Helm charts, by real Helm.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use training_testkit::builders::{EVERY_KIND, Kind, MPI, PYTORCH, SPARK, application};
use training_testkit::control_plane::{ADMIN, ControlPlane, Options, target_directory, workspace};
use training_testkit::job::Jobs;
use training_testkit::operator::find;

/// The namespace in the kustomizations.
const SYSTEM: &str = "trainyard-system";

/// Returns the directory of the charts, written once.
fn charts() -> Result<&'static Path> {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    if let Some(directory) = DIRECTORY.get() {
        return Ok(directory);
    }
    let directory = target_directory()?.join(format!("charts-{}", std::process::id()));
    run(Command::new(find("training-manifests")?)
        .arg("charts")
        .arg(&directory))?;
    Ok(DIRECTORY.get_or_init(|| directory))
}

fn node() -> Result<OsString> {
    std::env::var_os("TRAINYARD_NODE").context("TRAINYARD_NODE is not set")
}

fn output(command: &mut Command) -> Result<Output> {
    Ok(command.output()?)
}

/// Runs a command that must succeed, and returns its standard output.
fn run(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    ensure!(output.status.success(), "{command:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns Helm with its own directories.
fn helm() -> Result<Command> {
    let home = charts()?.join("helm");
    let mut command = Command::new(node()?);
    command.arg("helm").current_dir(charts()?);
    for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(name, &home);
    }
    Ok(command)
}

/// Returns the objects of a chart with these values.
fn template(chart: &str, values: &Value) -> Result<Vec<Value>> {
    let name = format!("{chart}-{}.json", uuid(values));
    let file = charts()?.join(name);
    std::fs::write(&file, values.to_string())?;
    let mut command = helm()?;
    command.args(["template", "release", chart, "-n", SYSTEM, "-f"]);
    objects(&run(command.arg(&file))?)
}

/// A number for a file name.
fn uuid(values: &Value) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    values.to_string().hash(&mut hasher);
    hasher.finish()
}

fn objects(text: &str) -> Result<Vec<Value>> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text)?;
    Ok(all.into_iter().filter(Value::is_object).collect())
}

/// Returns the objects of a kustomization.
fn kustomization(directory: &str) -> Result<Vec<Value>> {
    let path = workspace().join("manifests").join(directory);
    objects(&run(Command::new(node()?)
        .args(["kubectl", "kustomize"])
        .arg(path))?)
}

/// Returns kind, namespace and name.
fn key(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        "{} {} {}",
        object["kind"], metadata["namespace"], metadata["name"]
    )
}

fn by_key(objects: Vec<Value>) -> BTreeMap<String, Value> {
    objects.into_iter().map(|o| (key(&o), o)).collect()
}

/// Checks that both have the same objects.
fn assert_equal(found: Vec<Value>, expected: Vec<Value>) -> Result<()> {
    let (found, expected) = (by_key(found), by_key(expected));
    let names = |of: &BTreeMap<String, Value>| of.keys().cloned().collect::<BTreeSet<_>>();
    ensure!(
        names(&found) == names(&expected),
        "{:?}\n{:?}",
        names(&found),
        names(&expected)
    );
    for (name, object) in found {
        ensure!(
            object == expected[&name],
            "{name}: {object:#}\n{:#}",
            expected[&name]
        );
    }
    Ok(())
}

/// Returns the only object of a kind.
fn only<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    let mut of_kind = objects.iter().filter(|object| object["kind"] == kind);
    let first = of_kind.next().with_context(|| format!("no {kind}"))?;
    ensure!(of_kind.next().is_none(), "several {kind}");
    Ok(first)
}

/// Returns the operators, each once.
fn operators() -> BTreeSet<&'static str> {
    EVERY_KIND.iter().map(|kind| kind.operator).collect()
}

#[test]
fn the_charts_have_the_objects_of_the_kustomizations() -> Result<()> {
    let separate = |object: &Value| {
        let kind = object["kind"].as_str().unwrap_or_default();
        !["Namespace", "CustomResourceDefinition"].contains(&kind)
    };
    let mut all = Vec::new();
    for operator in operators() {
        let mut expected = kustomization(operator)?;
        expected.retain(separate);
        let found = template(operator, &json!({}))?;
        assert_equal(found.clone(), expected).context(operator)?;
        all.extend(found);
    }
    assert_equal(template("trainyard", &json!({}))?, all)?;
    let mut crds = kustomization("all")?;
    crds.retain(|object| object["kind"] == "CustomResourceDefinition");
    for crd in &mut crds {
        crd["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
    }
    assert_equal(template("trainyard-crds", &json!({}))?, crds)
}

#[test]
fn an_option_of_a_chart_adds_the_objects_of_its_manifest() -> Result<()> {
    for operator in operators() {
        let before: BTreeSet<String> = template(operator, &json!({}))?.iter().map(key).collect();
        let directory = workspace().join("manifests").join(operator);
        // One gang scheduler at a time, and all options together.
        let mut all = json!({});
        let mut cases = vec![];
        let mut of_options = Vec::new();
        for folder in ["gang", "options", "batch-scheduler"] {
            let Ok(files) = std::fs::read_dir(directory.join(folder)) else {
                continue;
            };
            for file in files {
                let path = file?.path();
                let name = path.file_stem().and_then(|name| name.to_str());
                let name = name.context("no name")?;
                let objects = training_testkit::manifest::documents(&path)?;
                if folder == "gang" {
                    cases.push((json!({ "gang": name }), objects));
                } else {
                    all[option(folder, name)] = json!(true);
                    of_options.extend(objects);
                }
            }
        }
        cases.push((json!({ "options": all }), of_options));
        for (values, expected) in cases {
            let mut found = template(operator, &values)?;
            found.retain(|object| !before.contains(&key(object)));
            assert_equal(found, expected).with_context(|| format!("{operator}: {values}"))?;
        }
    }
    Ok(())
}

/// Returns an option's name: `batchSchedulerVolcano` for `batch-scheduler/volcano.yaml`.
fn option(folder: &str, name: &str) -> String {
    let folder = if folder == "options" { "" } else { folder };
    let words = folder
        .split('-')
        .chain(name.split('-'))
        .filter(|word| !word.is_empty());
    let capital = |(at, word): (usize, &str)| match at {
        0 => word.to_owned(),
        _ => word[..1].to_uppercase() + &word[1..],
    };
    words.enumerate().map(capital).collect()
}

#[test]
fn every_value_of_a_chart_takes_effect() -> Result<()> {
    let affinity = json!({ "nodeAffinity": {} });
    let toleration = json!({ "key": "infra", "operator": "Exists" });
    let spread =
        json!({ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway" });
    let resources =
        json!({ "limits": { "memory": "2Gi" }, "requests": { "cpu": "1", "memory": "1Gi" } });
    let variable = json!({ "name": "TZ", "value": "UTC" });
    let values = json!({
        "global": { "imageRegistry": "registry.local/ml", "imagePullSecrets": ["pull"] },
        "image": { "repository": "operator", "tag": "v2", "pullPolicy": "Always" },
        "replicas": 2, "namespaces": ["a", "b"], "gang": "kueue", "env": [variable],
        "flags": { "log-filter": "debug", "max-replicas-per-job": 20_000_000, "clean-failed-jobs": true },
        "resources": resources, "nodeSelector": { "pool": "infra" }, "tolerations": [toleration],
        "affinity": affinity, "topologySpreadConstraints": [spread], "priorityClassName": "high",
        "podAnnotations": { "a": "b" }, "userRoles": false, "admissionPolicy": false, "guardPolicy": false,
        "networkPolicy": { "apiServers": ["192.0.2.1/32"] },
        "serviceMonitor": { "enabled": true, "interval": "15s", "labels": { "release": "prometheus" } },
    });
    let objects = template(PYTORCH.operator, &values)?;
    let deployment = only(&objects, "Deployment")?;
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let image = "registry.local/ml/operator:v2";
    let expected = json!([
        "--leader-elect",
        format!("--pytorch-init-container-image={image}"),
        "--gang=kueue",
        "--namespace=a,b",
        "--clean-failed-jobs=true",
        "--log-filter=debug",
        "--max-replicas-per-job=20000000",
    ]);
    for (found, expected) in [
        (&container["args"], &expected),
        (&container["image"], &json!(image)),
        (&container["imagePullPolicy"], &json!("Always")),
        (&container["resources"], &resources),
        (&container["env"][3], &variable),
        (&deployment["spec"]["replicas"], &json!(2)),
        (
            &deployment["spec"]["template"]["metadata"]["annotations"],
            &json!({ "a": "b" }),
        ),
        (&pod["imagePullSecrets"], &json!([{ "name": "pull" }])),
        (&pod["nodeSelector"], &json!({ "pool": "infra" })),
        (&pod["tolerations"], &json!([toleration])),
        (&pod["affinity"], &affinity),
        (&pod["topologySpreadConstraints"], &json!([spread])),
        (&pod["priorityClassName"], &json!("high")),
    ] {
        ensure!(found == expected, "{found} is not {expected}");
    }
    let policy = only(&objects, "NetworkPolicy")?;
    let to = &policy["spec"]["egress"][0]["to"];
    ensure!(
        *to == json!([{ "ipBlock": { "cidr": "192.0.2.1/32" } }]),
        "{policy}"
    );
    let budget = only(&objects, "PodDisruptionBudget")?;
    ensure!(budget["spec"]["maxUnavailable"] == 1, "{budget}");
    let monitor = only(&objects, "ServiceMonitor")?;
    ensure!(
        monitor["spec"]["endpoints"][0]["interval"] == "15s",
        "{monitor}"
    );
    ensure!(
        monitor["metadata"]["labels"]["release"] == "prometheus",
        "{monitor}"
    );
    let policies = objects
        .iter()
        .filter(|object| object["kind"] == "ValidatingAdmissionPolicy");
    ensure!(policies.count() == 0);
    ensure!(
        !objects
            .iter()
            .any(|o| o["metadata"]["name"] == "trainyard-pytorchjobs-edit")
    );
    Ok(())
}

#[test]
fn a_chart_spreads_replicas_and_follows_the_namespace_of_its_release() -> Result<()> {
    let two = template(PYTORCH.operator, &json!({ "replicas": 2 }))?;
    let pod = &only(&two, "Deployment")?["spec"]["template"]["spec"];
    let spread =
        &pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    ensure!(
        spread[0]["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname",
        "{pod}"
    );

    // Policies name the operator's account, with the namespace of the release.
    let mut command = helm()?;
    let text = run(command.args(["template", "release", PYTORCH.operator, "-n", "elsewhere"]))?;
    ensure!(!text.contains(SYSTEM), "{text}");
    Ok(())
}

#[test]
fn the_charts_install_some_kinds_and_the_accounts_of_drivers() -> Result<()> {
    let jobs = template(
        SPARK.operator,
        &json!({ "jobNamespaces": ["team-a", "team-b"] }),
    )?;
    for namespace in ["team-a", "team-b"] {
        let mut of = training_testkit::manifest::documents(
            &workspace().join("manifests/spark-operator/jobs/rbac.yaml"),
        )?;
        for object in &mut of {
            object["metadata"]["namespace"] = json!(namespace);
            if let Some(subject) = object.pointer_mut("/subjects/0/namespace") {
                *subject = json!(namespace);
            }
            ensure!(jobs.contains(object), "{object}");
        }
    }
    let some = json!({ "kinds": { "spark": false, "mpi": false } });
    for chart in ["trainyard", "trainyard-crds"] {
        let text = json!(template(chart, &some)?).to_string();
        ensure!(
            !text.contains("spark") && text.contains("pytorchjobs"),
            "{chart}"
        );
    }
    Ok(())
}

#[test]
fn a_wrong_value_of_a_chart_is_refused_by_its_name() -> Result<()> {
    for (operator, value, name) in [
        (PYTORCH.operator, "replica=2", "replica"),
        (PYTORCH.operator, "gang=volcanoes", "gang"),
        (MPI.operator, "options.strikt=true", "strikt"),
        (MPI.operator, "jobNamespaces={a}", "jobNamespaces"),
        ("trainyard", "spark-operator.replicas=many", "replicas"),
    ] {
        let mut command = helm()?;
        let output = output(command.args(["template", "release", operator, "--set", value]))?;
        let err = String::from_utf8(output.stderr)?;
        ensure!(
            !output.status.success() && err.contains(name),
            "{value}: {err}"
        );
    }
    Ok(())
}

#[test]
fn helm_lint_finds_nothing() -> Result<()> {
    for chart in operators()
        .into_iter()
        .chain(["trainyard", "trainyard-crds"])
    {
        let mut command = helm()?;
        run(command.args(["lint", "--strict", "--quiet", chart]))?;
    }
    Ok(())
}

#[tokio::test]
async fn install_upgrade_and_uninstall_touch_no_job() -> Result<()> {
    let control = ControlPlane::start(Options::default()).await?;
    if !control.can().play_kubelet {
        e2e::skip("there is no control plane for this test alone");
        return Ok(());
    }
    let client = control.client(ADMIN).await?;
    let kubeconfig = control.kubeconfig(ADMIN).await?;
    let with = |args: &[&str]| {
        let mut command = helm()?;
        command.args(args).args(["-n", SYSTEM, "--kubeconfig"]);
        run(command.arg(&kubeconfig))
    };
    with(&["install", "crds", "trainyard-crds", "--create-namespace"])?;
    let notes = with(&["install", "trainyard", "trainyard"])?;
    ensure!(notes.contains("STATUS: deployed"), "{notes}");
    let mut stored = Vec::new();
    for kind in EVERY_KIND {
        let jobs = Jobs::of(client.clone(), "default", &kind.resource());
        let created = jobs.create(&job(&kind)).await?;
        stored.push((jobs, created));
    }
    let upgraded = [
        "--set",
        "pytorch-operator.replicas=2",
        "--set",
        "kinds.tf=false",
    ];
    with(&[&["upgrade", "trainyard", "trainyard"], &upgraded[..]].concat())?;
    with(&["upgrade", "crds", "trainyard-crds"])?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM);
    let replicas = deployments.get(PYTORCH.operator).await?.spec.replicas;
    ensure!(replicas == Some(2), "{replicas:?}");
    ensure!(deployments.get_opt("tf-operator").await?.is_none());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM);
    for secret in secrets.list(&ListParams::default()).await? {
        let bytes = secret
            .data
            .into_iter()
            .flatten()
            .map(|(_, data)| data.0.len());
        let bytes: usize = bytes.sum();
        ensure!(
            bytes < 1 << 20,
            "{:?} has {bytes} bytes",
            secret.metadata.name
        );
    }
    with(&["uninstall", "trainyard"])?;
    with(&["uninstall", "crds"])?;
    ensure!(
        deployments
            .list(&ListParams::default())
            .await?
            .items
            .is_empty()
    );
    for (jobs, created) in stored {
        let name = created["metadata"]["name"].as_str().unwrap_or_default();
        let found = jobs.get(name).await?;
        ensure!(found == created, "{found:#}");
    }
    // Helm takes the CRDs over that it has kept.
    with(&["install", "crds", "trainyard-crds"]).map(drop)
}

/// A job that no operator has seen.
fn job(kind: &Kind) -> Value {
    if *kind == SPARK {
        return application("pi");
    }
    kind.small_job("pt", 1).build()
}
