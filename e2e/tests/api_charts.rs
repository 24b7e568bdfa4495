//! The Helm charts, by real Helm.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
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

/// Returns the objects of a shipped kustomization.
fn kustomization(directory: &str) -> Result<Vec<Value>> {
    kustomized(&workspace().join("manifests").join(directory))
}

fn kustomized(directory: &Path) -> Result<Vec<Value>> {
    objects(&run(Command::new(node()?)
        .args(["kubectl", "kustomize"])
        .arg(directory))?)
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

/// Checks values at JSON pointers.
fn assert_at(object: &Value, expected: &Value) -> Result<()> {
    for (pointer, value) in expected.as_object().into_iter().flatten() {
        let found = object.pointer(pointer);
        ensure!(found == Some(value), "{pointer}: {found:?} is not {value}");
    }
    Ok(())
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
    let volume = json!({ "name": "ca", "configMap": { "name": "ca" } });
    let mount = json!({ "name": "ca", "mountPath": "/ca" });
    let rule = json!({ "ports": [{ "port": 4317 }] });
    let values = json!({
        "global": { "imageRegistry": "registry.local/ml/", "imagePullSecrets": ["pull", { "name": "two" }] },
        "image": { "repository": "operator", "tag": "v2", "pullPolicy": "Always" },
        "replicas": 2, "namespaces": ["a", "123"], "env": [variable], "volumes": [volume], "volumeMounts": [mount],
        "flags": { "log-filter": "debug, #x: {{y}}", "job-cache-mib": 20_000_000, "zap-devel": true, "events": ["off", "full"] },
        "resources": resources, "nodeSelector": { "pool": "infra" }, "tolerations": [toleration],
        "affinity": affinity, "topologySpreadConstraints": [spread], "priorityClassName": "high",
        "podAnnotations": { "a": "b" }, "podLabels": { "c": "1" }, "podSecurityContext": { "runAsUser": 1 }, "securityContext": { "runAsUser": 2 },
        "userRoles": false, "admissionPolicy": false, "guardPolicy": false,
        "networkPolicy": { "apiServers": ["192.0.2.1/32"], "extraEgress": [rule] },
        "serviceMonitor": { "enabled": true, "interval": "60", "labels": { "release": "prometheus" } },
    });
    for operator in operators() {
        let objects = template(operator, &values)?;
        let deployment = only(&objects, "Deployment")?;
        let image = "registry.local/ml/operator:v2";
        let own_image = match operator {
            "pytorch-operator" => Some("--pytorch-init-container-image"),
            "mpi-operator" => Some("--launcher-gate-image"),
            _ => None,
        };
        let mut args = vec!["--leader-elect".to_owned()];
        args.extend(own_image.map(|flag| format!("{flag}={image}")));
        args.extend(
            [
                "--namespace=a,123",
                "--events=off",
                "--events=full",
                "--job-cache-mib=20000000",
                "--log-filter=debug, #x: {{y}}",
                "--zap-devel=true",
            ]
            .map(str::to_owned),
        );
        let template = json!({
            "/spec/replicas": 2,
            "/spec/template/metadata/annotations": { "a": "b" },
            "/spec/template/metadata/labels/c": "1",
        });
        assert_at(deployment, &template)?;
        let pod = &deployment["spec"]["template"]["spec"];
        let expected = json!({
            "/imagePullSecrets": [{ "name": "pull" }, { "name": "two" }],
            "/nodeSelector": { "pool": "infra" }, "/tolerations": [toleration], "/affinity": affinity,
            "/topologySpreadConstraints": [spread], "/priorityClassName": "high",
            "/securityContext/runAsUser": 1, "/containers/0/securityContext/runAsUser": 2,
            "/containers/0/args": args, "/containers/0/image": image, "/containers/0/imagePullPolicy": "Always",
            "/containers/0/resources": resources, "/containers/0/env/4": variable,
        });
        assert_at(pod, &expected).context(operator)?;
        // Those of the manifests come first.
        let last = |list: &Value| list.as_array().and_then(|items| items.last().cloned());
        assert_eq!(last(&pod["volumes"]), Some(volume.clone()), "{operator}");
        let mounts = &pod["containers"][0]["volumeMounts"];
        assert_eq!(last(mounts), Some(mount.clone()), "{operator}");
        let egress = json!({
            "/spec/egress/0/to": [{ "ipBlock": { "cidr": "192.0.2.1/32" } }], "/spec/egress/2": rule,
        });
        assert_at(only(&objects, "NetworkPolicy")?, &egress)?;
        let budget = json!({ "/spec/maxUnavailable": 1 });
        assert_at(only(&objects, "PodDisruptionBudget")?, &budget)?;
        let monitor =
            json!({ "/spec/endpoints/0/interval": "60", "/metadata/labels/release": "prometheus" });
        assert_at(only(&objects, "ServiceMonitor")?, &monitor)?;
        let left_out = |object: &&Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            object["kind"] == "ValidatingAdmissionPolicy" || name.ends_with("-edit")
        };
        ensure!(objects.iter().find(left_out).is_none(), "{operator}");
    }
    Ok(())
}

/// Renders the overlay below a heading of a page, which lies beside a checkout.
fn overlay(page: &str, heading: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(workspace().join(page))?;
    let block = text
        .split_once(heading)
        .and_then(|(_, rest)| rest.split_once("```yaml\n"))
        .and_then(|(_, rest)| rest.split_once("```"));
    let (overlay, _) = block.with_context(|| format!("{page} has no overlay below {heading:?}"))?;
    let name = format!(
        "overlay-{}-{}",
        std::process::id(),
        heading.replace(['#', ' '], "")
    );
    let directory = target_directory()?.join(name);
    let checkout = directory.join("trainyard");
    std::fs::create_dir_all(&checkout)?;
    std::fs::write(directory.join("kustomization.yaml"), overlay)?;
    run(Command::new("cp")
        .arg("-r")
        .args([workspace().join("manifests"), checkout]))?;
    let objects = kustomized(&directory)?;
    std::fs::remove_dir_all(&directory)?;
    Ok(objects)
}

#[test]
fn the_overlay_of_the_page_about_metrics_labels_what_prometheus_selects() -> Result<()> {
    let objects = overlay("docs/metrics.md", "## Alerts and dashboards")?;
    let label = json!({ "/metadata/labels/release": "kube-prometheus-stack" });
    assert_at(only(&objects, "PrometheusRule")?, &label)?;
    let monitor = only(&objects, "ServiceMonitor")?;
    assert_at(monitor, &label)?;
    ensure!(
        monitor
            .pointer("/spec/selector/matchLabels/release")
            .is_none(),
        "the operators' Services don't have the label"
    );
    Ok(())
}

#[test]
fn the_overlay_of_the_page_about_installing_has_its_settings() -> Result<()> {
    let objects = overlay("docs/install.md", "### Your own overlay")?;
    let deployment = only(&objects, "Deployment")?;
    let image = "registry.example.com/pytorch-operator:42";
    let expected = json!({
        "/spec/replicas": 2,
        "/spec/template/spec/containers/0/image": image,
        "/spec/template/spec/containers/0/args/1": format!("--pytorch-init-container-image={image}"),
        "/spec/template/spec/containers/0/args/2": "--gang=volcano",
        "/spec/template/spec/containers/0/volumeMounts/1/name": "otlp",
        "/spec/template/spec/volumes/1/name": "otlp",
    });
    assert_at(deployment, &expected)?;
    let egress = json!({ "/spec/egress/2/ports/0/port": 4317 });
    assert_at(only(&objects, "NetworkPolicy")?, &egress)?;
    let gang = |object: &&Value| object["metadata"]["name"] == "pytorch-operator-gang-volcano";
    let gang = objects
        .iter()
        .find(gang)
        .context("no rights for the gang scheduler")?;
    assert_eq!(gang["kind"], "ClusterRole");
    Ok(())
}

#[test]
fn the_overlay_of_several_operators_has_the_objects_of_each() -> Result<()> {
    let found = overlay("docs/install.md", "For several operators")?;
    let mut expected = kustomization("pytorch-operator")?;
    let mut second = kustomization("tf-operator")?;
    second.retain(|object| object["kind"] != "Namespace");
    expected.extend(second);
    assert_equal(found, expected)
}

#[test]
fn a_flag_replaces_the_charts_own_and_a_digest_the_tag() -> Result<()> {
    let values = json!({
        "flags": { "leader-elect": false, "pytorch-init-container-image": "registry.local/alpine" },
        "image": { "digest": "sha256:0" }, "global": { "imageTag": "v3" }, "networkPolicy": { "enabled": false },
        "gang": "kueue", "gangRights": ["volcano"],
    });
    let objects = template(PYTORCH.operator, &values)?;
    let args = [
        "--gang=kueue",
        "--leader-elect=false",
        "--pytorch-init-container-image=registry.local/alpine",
    ];
    let expected = json!({
        "/spec/template/spec/containers/0/args": args,
        "/spec/template/spec/containers/0/image": "trainyard/pytorch-operator@sha256:0",
    });
    assert_at(only(&objects, "Deployment")?, &expected)?;
    ensure!(
        objects
            .iter()
            .all(|object| object["kind"] != "NetworkPolicy")
    );
    // Jobs may still run under the former scheduler.
    let rights = |object: &&Value| object["metadata"]["name"] == "pytorch-operator-gang-volcano";
    ensure!(objects.iter().filter(rights).count() == 2);
    let tag = template(
        PYTORCH.operator,
        &json!({ "global": { "imageTag": "1.10" } }),
    )?;
    let image =
        json!({ "/spec/template/spec/containers/0/image": "trainyard/pytorch-operator:1.10" });
    assert_at(only(&tag, "Deployment")?, &image)
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
        &json!({ "jobNamespaces": ["no", "123"], "jobAccountAnnotations": { "role": "reader" } }),
    )?;
    for namespace in ["no", "123"] {
        let mut of = training_testkit::manifest::documents(
            &workspace().join("manifests/spark-operator/jobs/rbac.yaml"),
        )?;
        for object in &mut of {
            object["metadata"]["namespace"] = json!(namespace);
            object["metadata"]["annotations"] = json!({ "helm.sh/resource-policy": "keep" });
            if object["kind"] == "ServiceAccount" {
                object["metadata"]["annotations"]["role"] = json!("reader");
            }
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
    let unknown = "additional properties ";
    for (chart, value, expected) in [
        (PYTORCH.operator, "replica=2", format!("{unknown}'replica'")),
        (PYTORCH.operator, "gang=volcanoes", "at '/gang'".to_owned()),
        (
            PYTORCH.operator,
            "flags.log-filtre=debug",
            format!("{unknown}'log-filtre'"),
        ),
        (
            PYTORCH.operator,
            "flags.gang=volcano",
            format!("{unknown}'gang'"),
        ),
        (
            PYTORCH.operator,
            "namespaces={a b}",
            "at '/namespaces/0'".to_owned(),
        ),
        (
            PYTORCH.operator,
            "networkPolicy.apiServers={10.0.0.1}",
            "at '/networkPolicy/apiServers/0'".to_owned(),
        ),
        (
            MPI.operator,
            "options.strikt=true",
            format!("{unknown}'strikt'"),
        ),
        (
            MPI.operator,
            "jobNamespaces={a}",
            format!("{unknown}'jobNamespaces'"),
        ),
        (
            "trainyard",
            "spark-operator.replicas=many",
            "at '/replicas'".to_owned(),
        ),
        (
            "trainyard",
            "kinds.pytroch=false",
            format!("{unknown}'pytroch'"),
        ),
        (
            "trainyard",
            "pytorch.replicas=2",
            format!("{unknown}'pytorch'"),
        ),
        (
            "trainyard-crds",
            "kinds.spark=no",
            "at '/kinds/spark'".to_owned(),
        ),
    ] {
        let mut command = helm()?;
        let args = ["template", "release", chart, "-n", SYSTEM, "--set", value];
        let output = output(command.args(args))?;
        let err = String::from_utf8(output.stderr)?;
        ensure!(
            !output.status.success() && err.contains(&expected),
            "{value}: {err}"
        );
    }
    // The guard policy would keep the operator from the jobs there, or from its lease.
    for namespace in ["default", "kube-system"] {
        let mut command = helm()?;
        let args = ["template", "release", PYTORCH.operator, "-n", namespace];
        let output = output(command.args(args))?;
        let err = String::from_utf8(output.stderr)?;
        let expected = "install with -n trainyard-system, or set guardPolicy=false";
        ensure!(!output.status.success() && err.contains(expected), "{err}");
        let mut command = helm()?;
        run(command.args(args).args(["--set", "guardPolicy=false"]))?;
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
    // One operator comes from the manifests.
    control.install(PYTORCH.operator).await?;
    let take = ["--take-ownership", "--force-conflicts"];
    with(&[&["install", "crds", "trainyard-crds"], &take[..]].concat())?;
    let spark = ["--set", "spark-operator.jobNamespaces={default}"];
    let install = ["install", "trainyard", "trainyard"];
    let notes = with(&[&install[..], &take, &spark].concat())?;
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
    let releases = secrets.list(&ListParams::default()).await?;
    ensure!(releases.items.len() >= 2, "{:?}", releases.items.len());
    for secret in releases {
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
    // Running drivers need their account, also after an upgrade without its namespace.
    let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
    accounts.get("spark-operator-spark").await?;
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
