//! Runs `kubectl trainyard` against a real API server with real operators. The tests play the kubelet, so there are no logs.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use e2e::{World, for_each_kind};
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use training_testkit::builders::{Kind, MPI, PYTORCH, SPARK, application};
use training_testkit::control_plane::{ADMIN, workspace};
use training_testkit::job::is_true;
use training_testkit::kubelet::{SeenPod, State, lockstep};
use training_testkit::manifest;
use training_testkit::operator::find;
use training_testkit::wait::{HANG, Seen, eventually};

#[path = "api_kubectl/migrate.rs"]
mod migrate;
#[path = "api_kubectl/preflight.rs"]
mod preflight;
#[path = "api_kubectl/rendered.rs"]
mod rendered;

const KINDS: [Kind; 3] = [PYTORCH, MPI, SPARK];
/// A user with few permissions.
const READER: &str = "reader";

/// The plugin with the kubeconfig of a user and a namespace.
struct Plugin {
    kubeconfig: PathBuf,
    namespace: String,
}

/// The exit code and the output of a run.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Outcome {
    /// Checks that the plugin's page shows this output of a command.
    fn assert_documented(&self, command: &str, out: &str) -> Result<()> {
        let page = std::fs::read_to_string(workspace().join("docs/kubectl.md"))?;
        // The page's job has another name than the tests'.
        let out = out.replace("pt-", "ddp-");
        let out = match out.strip_prefix("pt ") {
            Some(rest) => format!("ddp {rest}"),
            None => out,
        };
        let block = format!("$ kubectl trainyard {command}\n{out}```");
        ensure!(
            page.contains(&block),
            "docs/kubectl.md lacks\n{block}\n{}",
            self.err
        );
        Ok(())
    }

    fn first_line(&self) -> &str {
        self.out.lines().next().unwrap_or_default()
    }
}

impl Plugin {
    async fn of(world: &World) -> Result<Self> {
        Ok(Self {
            kubeconfig: world.control.kubeconfig(ADMIN).await?,
            namespace: world.namespace().to_owned(),
        })
    }

    /// Starts the plugin in the background.
    fn start(&self, args: &[&str]) -> Result<Child> {
        let child = Command::new(find("kubectl-trainyard")?)
            .args(args)
            .args(["-n", &self.namespace, "--kubeconfig"])
            .arg(&self.kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(child)
    }

    async fn run(&self, args: &[&str]) -> Result<Outcome> {
        wait_for_exit(self.start(args)?).await
    }

    /// Runs the plugin until it succeeds: a new role takes effect a moment after it is stored.
    async fn until_allowed(&self, args: &[&str]) -> Result<Outcome> {
        eventually("the plugin to be allowed", HANG, async || {
            let outcome = self.run(args).await?;
            Ok(match outcome.code {
                Some(0) => Seen::Yes(outcome),
                _ => Seen::NotYet(outcome.err),
            })
        })
        .await
    }
}

/// The plugin of a user who may read the job and its pods, but not its events.
async fn without_events(world: &World) -> Result<Plugin> {
    let (kind, namespace) = (&world.kind, world.namespace());
    let rbac = "rbac.authorization.k8s.io";
    let objects = vec![
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "Role",
            "metadata": { "name": READER, "namespace": namespace },
            "rules": [
                { "apiGroups": [kind.group], "resources": [kind.plural], "verbs": ["get"] },
                { "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] },
            ],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
            "metadata": { "name": READER, "namespace": namespace },
            "roleRef": { "apiGroup": rbac, "kind": "Role", "name": READER },
            "subjects": [{ "apiGroup": rbac, "kind": "User", "name": READER }],
        }),
    ];
    manifest::apply(&world.client, objects).await?;
    let mut config = Kubeconfig::read_from(world.control.kubeconfig(ADMIN).await?)?;
    for user in &mut config.auth_infos {
        let own = user.auth_info.as_mut().context("no credentials")?;
        own.impersonate = Some(READER.to_owned());
    }
    let kubeconfig = world.file("kubeconfig");
    std::fs::write(&kubeconfig, serde_json::to_vec(&config)?)?;
    Ok(Plugin {
        kubeconfig,
        namespace: namespace.to_owned(),
    })
}

/// Waits until the plugin exits.
async fn wait_for_exit(mut child: Child) -> Result<Outcome> {
    let running = &mut child;
    let exited = eventually("the plugin to exit", HANG, async || {
        Ok(match running.try_wait()? {
            Some(_) => Seen::Yes(()),
            None => Seen::NotYet("it still runs".to_owned()),
        })
    });
    if let Err(error) = exited.await {
        child.kill()?;
        let output = child.wait_with_output()?;
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(error.context(err));
    }
    let output = child.wait_with_output()?;
    Ok(Outcome {
        code: output.status.code(),
        out: String::from_utf8(output.stdout)?,
        err: String::from_utf8(output.stderr)?,
    })
}

/// A job that fails with its first failed pod.
fn manifest(kind: &Kind, name: &str) -> Value {
    let mut job = match kind.name {
        "SparkApplication" => return application(name),
        _ => kind.small_job(name, 2).run_policy("backoffLimit", 0),
    };
    if *kind == MPI {
        job = job.restart_policy("Launcher", "Never");
    }
    job.build()
}

fn pod_count(kind: &Kind) -> usize {
    if *kind == SPARK { 1 } else { 3 }
}

/// Returns the name of a pod that the job of [`manifest`] needs.
fn required_pod(kind: &Kind) -> &'static str {
    if *kind == SPARK {
        "pt-driver"
    } else {
        "pt-worker-1"
    }
}

/// Runs a test for every kind, in a world with an operator, and checks the invariants at its end.
async fn with_operator(
    name: &str,
    test: impl AsyncFn(&World, &Plugin) -> Result<()>,
) -> Result<()> {
    for_each_kind(KINDS, async |kind| {
        let Some(world) = World::of(kind, name, lockstep()).await? else {
            return Ok(());
        };
        let operator = world.operator().await?;
        test(&world, &Plugin::of(&world).await?).await?;
        world.assert_clean(&operator).await
    })
    .await
}

/// Runs all pods of a job until it succeeds.
async fn run_to_success(world: &World, name: &str) -> Result<()> {
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    kubelet
        .until_pods(namespace, name, pod_count(&world.kind))
        .await?;
    kubelet.all_running(namespace, name).await?;
    if world.kind == MPI {
        world.actor(name).launcher_succeeds().await
    } else {
        kubelet.all_succeeded(namespace, name).await.map(drop)
    }
}

/// True if the status of a job reports a problem.
fn is_waiting(job: &Value) -> bool {
    is_true(job, "Stalled") || job["status"]["applicationState"]["errorMessage"].is_string()
}

#[tokio::test]
async fn why_names_the_cause_in_its_first_line_and_wait_ends_with_the_failure() -> Result<()> {
    with_operator("kubectl-why", async |world, plugin| {
        let kind = world.kind;
        let (kubelet, namespace) = (&world.kubelet, world.namespace());
        world.jobs.create(&manifest(&kind, "pt")).await?;
        kubelet
            .until_pods(namespace, "pt", pod_count(&kind))
            .await?;
        let waiting = plugin.start(&["wait", "pt"])?;
        let stuck = State::Waiting {
            reason: "ErrImagePull".to_owned(),
            message: "not found".to_owned(),
        };
        kubelet.set(namespace, required_pod(&kind), &stuck).await?;
        let job = world.jobs.until("pt", "waiting", is_waiting).await?;
        let status = &job["status"];
        ensure!(
            status["waiting"] == "ImagePullBackOff"
                && status["observedGeneration"] == job["metadata"]["generation"],
            "{status}"
        );
        let outcome = plugin.run(&["why", "pt"]).await?;
        let (state, cause) = match kind.name {
            "SparkApplication" => ("SUBMITTED", "ErrImagePull"),
            _ => ("WAITING", "ImagePullBackOff"),
        };
        let first = outcome.first_line();
        ensure!(
            outcome.code == Some(0) && first.starts_with(&format!("pt  {}  {state}", kind.name)),
            "{outcome:?}"
        );
        ensure!(first.ends_with(&format!("  {cause}")), "{outcome:?}");
        for part in [
            "  x ".to_owned(),
            format!("{}: ", required_pod(&kind)),
            "not found".to_owned(),
            "\n  > Check the image's name and tag".to_owned(),
        ] {
            ensure!(outcome.out.contains(&part), "{part}: {outcome:?}");
        }
        let all = plugin.run(&["why"]).await?;
        ensure!(all.first_line().ends_with(&format!("  {cause}")), "{all:?}");
        let wide = plugin.run(&["why", "-o", "wide"]).await?;
        ensure!(
            wide.out.contains("\n  > Check the image's name and tag"),
            "{wide:?}"
        );
        for args in [&["top"] as &[&str], &["top", "-A"], &["top", "-o", "wide"]] {
            let top = plugin.run(args).await?;
            let row = |line: &str| line.starts_with(namespace) && line.contains(kind.name);
            ensure!(
                top.code == Some(0) && top.out.lines().any(row) && top.err.is_empty(),
                "{top:?}"
            );
        }
        let data = plugin
            .run(&["why", &format!("{}/pt", kind.name), "-o", "json"])
            .await?;
        let data: Value = serde_json::from_str(&data.out)?;
        ensure!(
            data["cause"] == cause && data["kind"] == kind.name,
            "{data}"
        );

        let failed = State::Failed {
            exit_code: 3,
            message: "no data".to_owned(),
        };
        if kind == MPI {
            world.actor("pt").launcher_fails().await?;
        } else {
            kubelet.set(namespace, required_pod(&kind), &failed).await?;
        }
        let outcome = wait_for_exit(waiting).await?;
        ensure!(outcome.code == Some(1), "{outcome:?}");
        let code = match kind.name {
            "SparkApplication" => "ExitCode: 3, Reason: Error: no data",
            "MPIJob" => "exit ",
            _ => "BackoffLimitExceeded: exit 3 in pt-worker-1: no data",
        };
        ensure!(
            outcome.first_line().contains("  FAILED ") && outcome.first_line().contains(code),
            "{outcome:?}"
        );
        if kind != MPI {
            ensure!(
                outcome.out.contains("    termination message: no data"),
                "{outcome:?}"
            );
        }
        let again = plugin.run(&["wait", "pt"]).await?;
        ensure!(again.code == Some(1), "{again:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn wait_ends_with_success_at_once_where_it_came_before_and_with_deletion_and_time()
-> Result<()> {
    with_operator("kubectl-wait", async |world, plugin| {
        let kind = world.kind;
        world.jobs.create(&manifest(&kind, "pt")).await?;
        let waiting = plugin.start(&["wait", "pt"])?;
        run_to_success(world, "pt").await?;
        let state = if kind == SPARK {
            "COMPLETED"
        } else {
            "SUCCEEDED"
        };
        for outcome in [
            wait_for_exit(waiting).await?,
            plugin.run(&["wait", "pt"]).await?,
        ] {
            ensure!(outcome.code == Some(0), "{outcome:?}");
            ensure!(
                outcome
                    .first_line()
                    .starts_with(&format!("pt  {}  {state}", kind.name)),
                "{outcome:?}"
            );
            if kind == PYTORCH {
                // It has succeeded some seconds ago.
                let (before, after) = outcome.out.split_once("s  ready").context("no age")?;
                let before = before.trim_end_matches(|c: char| c.is_ascii_digit());
                outcome.assert_documented("wait ddp", &format!("{before}1s  ready{after}"))?;
            }
        }
        world.jobs.create(&manifest(&kind, "gone")).await?;
        let outcome = plugin.run(&["wait", "gone", "--timeout", "2s"]).await?;
        ensure!(outcome.code == Some(124), "{outcome:?}");
        let waiting = plugin.start(&["wait", "gone"])?;
        world.jobs.delete("gone").await?;
        let outcome = wait_for_exit(waiting).await?;
        // The job may be deleted before the plugin reads it.
        let deleted = outcome.code == Some(1) && outcome.out == "gone was deleted\n";
        let before =
            outcome.code == Some(2) && outcome.err.starts_with("error: job gone not found");
        ensure!(deleted || before, "{outcome:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_is_suspended_waited_for_and_resumed() -> Result<()> {
    with_operator("kubectl-suspend", async |world, plugin| {
        let kind = world.kind;
        let (kubelet, namespace) = (&world.kubelet, world.namespace());
        world.jobs.create(&manifest(&kind, "pt")).await?;
        kubelet
            .until_pods(namespace, "pt", pod_count(&kind))
            .await?;
        let outcome = plugin.run(&["suspend", "pt"]).await?;
        ensure!(
            outcome.code == Some(0) && outcome.out == "pt suspended\n",
            "{outcome:?}"
        );
        kubelet.until_pods(namespace, "pt", 0).await?;
        let outcome = plugin.run(&["suspend", "pt"]).await?;
        ensure!(outcome.out == "pt is already suspended\n", "{outcome:?}");
        let outcome = plugin.run(&["wait", "pt", "--timeout", "2s"]).await?;
        ensure!(
            outcome.code == Some(124) && outcome.err.contains("SUSPEND"),
            "{outcome:?}"
        );
        let outcome = plugin.run(&["why", "pt"]).await?;
        ensure!(
            outcome.out.contains("\n  > kubectl trainyard resume pt"),
            "{outcome:?}"
        );
        let outcome = plugin.run(&["resume", "pt"]).await?;
        ensure!(
            outcome.code == Some(0) && outcome.out == "pt resumed\n",
            "{outcome:?}"
        );
        let waiting = plugin.start(&["wait", "pt"])?;
        run_to_success(world, "pt").await?;
        let outcome = wait_for_exit(waiting).await?;
        ensure!(outcome.code == Some(0), "{outcome:?}");
        let outcome = plugin.run(&["resume", "pt"]).await?;
        ensure!(
            outcome.code == Some(2) && outcome.err.starts_with("error: pt has finished"),
            "{outcome:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_is_restarted_with_new_pods_until_it_has_finished() -> Result<()> {
    with_operator("kubectl-restart", async |world, plugin| {
        let kind = world.kind;
        let (kubelet, namespace) = (&world.kubelet, world.namespace());
        world.jobs.create(&manifest(&kind, "pt")).await?;
        world.actor("pt").run_all().await?;
        let former = kubelet.pods(namespace, "pt");
        let outcome = plugin.run(&["restart", "pt"]).await?;
        ensure!(
            outcome.code == Some(0) && outcome.out == "pt restart requested\n",
            "{outcome:?}"
        );
        eventually("new pods", HANG, async || {
            let pods = kubelet.pods(namespace, "pt");
            let is_new = |pod: &SeenPod| !former.iter().any(|f| f.uid == pod.uid);
            let new = pods.iter().filter(|pod| is_new(pod)).count();
            Ok(if new == pods.len() && new >= pod_count(&kind) - 1 {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await?;
        run_to_success(world, "pt").await?;
        let waiting = plugin.start(&["wait", "pt"])?;
        ensure!(wait_for_exit(waiting).await?.code == Some(0));
        let outcome = plugin.run(&["restart", "pt"]).await?;
        ensure!(
            outcome.code == Some(2) && outcome.err.starts_with("error: pt has finished"),
            "{outcome:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn run_creates_a_job_and_ends_with_it() -> Result<()> {
    with_operator("kubectl-run", async |world, plugin| {
        let kind = world.kind;
        let file = world.file("job.json");
        std::fs::write(&file, manifest(&kind, "pt").to_string())?;
        let path = file.display().to_string();
        let running = plugin.start(&["run", "-f", &path])?;
        run_to_success(world, "pt").await?;
        let outcome = wait_for_exit(running).await?;
        ensure!(outcome.code == Some(0), "{outcome:?}");
        ensure!(outcome.err.contains("/pt created\n"), "{outcome:?}");
        let outcome = plugin.run(&["run", "-f", &path]).await?;
        let taken = format!("error: {} pt already exists", kind.name);
        ensure!(
            outcome.code == Some(2) && outcome.err.starts_with(&taken),
            "{outcome:?}"
        );
        // A rejection is one line.
        let mut invalid = manifest(&kind, "invalid");
        invalid["spec"] = json!({});
        std::fs::write(&file, invalid.to_string())?;
        let outcome = plugin.run(&["run", "-f", &path]).await?;
        ensure!(
            outcome.code == Some(2) && outcome.err.lines().count() == 1,
            "{outcome:?}"
        );
        Ok(())
    })
    .await
}

/// Sets the image of all pods.
fn set_image(kind: &Kind, job: &mut Value, image: &str) {
    if *kind == SPARK {
        job["spec"]["image"] = image.into();
        return;
    }
    let replicas = job["spec"][kind.replica_map].as_object_mut();
    for replica in replicas.into_iter().flat_map(|map| map.values_mut()) {
        replica["template"]["spec"]["containers"][0]["image"] = image.into();
    }
}

#[tokio::test]
async fn diff_shows_how_a_manifest_changes_the_objects_of_a_job() -> Result<()> {
    with_operator("kubectl-diff", async |world, plugin| {
        let file = world.file("job.json");
        let path = file.display().to_string();
        let diff = ["diff", "-f", &path];
        let mut job = manifest(&world.kind, "pt");
        std::fs::write(&file, job.to_string())?;
        let outcome = plugin.run(&diff).await?;
        let unknown = outcome.err.contains("pt does not exist in namespace");
        ensure!(outcome.code == Some(1) && unknown, "{outcome:?}");
        world.jobs.create(&job).await?;
        run_to_success(world, "pt").await?;
        let outcome = plugin.run(&diff).await?;
        let same = outcome.out.is_empty() && outcome.err.is_empty();
        ensure!(outcome.code == Some(0) && same, "{outcome:?}");
        set_image(&world.kind, &mut job, "example.com/other:2");
        std::fs::write(&file, job.to_string())?;
        let outcome = plugin.run(&diff).await?;
        let images = |sign: &str| {
            let lines = outcome.out.lines().filter(|line| line.starts_with(sign));
            lines.filter(|line| line.contains("image: ")).count()
        };
        ensure!(outcome.code == Some(1), "{outcome:?}");
        ensure!(images("+") > 0 && images("+") == images("-"), "{outcome:?}");
        ensure!(outcome.out.contains("example.com/other:2"), "{outcome:?}");
        if world.kind == PYTORCH {
            let mut job = manifest(&world.kind, "pt");
            let master = &mut job["spec"]["pytorchReplicaSpecs"]["Master"];
            master["template"]["spec"]["containers"][0]["image"] = json!("example.com/other:2");
            std::fs::write(&file, job.to_string())?;
            let outcome = plugin.run(&diff).await?;
            // The header has the times of the files.
            let lines = outcome.out.lines().map(|line| line.split('\t').next());
            let text: Vec<&str> = lines.map(Option::unwrap_or_default).collect();
            outcome.assert_documented("diff -f ddp.yaml", &(text.join("\n") + "\n"))?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn render_and_diff_follow_the_flags_of_the_operators_deployment() -> Result<()> {
    let Some(world) = World::of(PYTORCH, "kubectl-flags", lockstep()).await? else {
        return Ok(());
    };
    let plugin = Plugin::of(&world).await?;
    let labels = json!({ "app": "operator" });
    let container = json!({
        "name": "operator", "image": "any", "command": ["/pytorch-operator"], "args": ["--gang=volcano"],
        "volumeMounts": [{ "name": "config", "mountPath": "/etc/config" }],
    });
    let volumes = json!([{ "name": "config", "configMap": { "name": "init" } }]);
    let template = json!({
        "metadata": { "labels": labels }, "spec": { "containers": [container], "volumes": volumes },
    });
    let spec =
        json!({ "replicas": 0, "selector": { "matchLabels": labels }, "template": template });
    let metadata = |name: &str| json!({ "name": name, "namespace": world.namespace() });
    let objects = vec![
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata("mine"), "spec": spec }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("init"),
            "data": { "initContainer.yaml": "- {name: wait, image: example.com/wait}" },
        }),
    ];
    manifest::apply(&world.client, objects).await?;
    let file = world.file("job.json");
    std::fs::write(&file, manifest(&PYTORCH, "pt").to_string())?;
    let (path, deployment) = (
        file.display().to_string(),
        format!("{}/mine", world.namespace()),
    );
    let read = ["render", "-f", &path, "--operator-deployment", &deployment];
    let outcome = plugin.run(&read).await?;
    for part in [
        "kind: PodGroup",
        "schedulerName: volcano",
        "image: example.com/wait",
    ] {
        ensure!(outcome.out.contains(part), "{part}: {outcome:?}");
    }
    let given = ["render", "-f", &path, "--operator-flags=--gang=volcano"];
    let outcome = plugin.run(&given).await?;
    ensure!(outcome.out.contains("kind: PodGroup"), "{outcome:?}");
    let compare = ["diff", "-f", &path, "--operator-deployment", &deployment];
    let outcome = plugin.run(&compare).await?;
    ensure!(outcome.out.contains("+kind: PodGroup"), "{outcome:?}");
    let missing = [
        "render",
        "-f",
        &path,
        "--operator-deployment",
        "default/none",
    ];
    let outcome = plugin.run(&missing).await?;
    let named = outcome.err.contains("deployments.apps \"none\" not found");
    ensure!(outcome.code == Some(2) && named, "{outcome:?}");
    Ok(())
}

/// Returns a program with a user's environment: kubectl and the plugin are the only other programs on the PATH.
fn with_kubectl(world: &World, plugin: &Plugin, program: &str) -> Result<Command> {
    let path = world.file("bin");
    std::fs::create_dir(&path)?;
    let node = std::env::var_os("TRAINYARD_NODE").context("TRAINYARD_NODE is not set")?;
    symlink(&node, path.join("kubectl"))?;
    for name in ["kubectl-trainyard", "kubectl_complete-trainyard"] {
        symlink(find("kubectl-trainyard")?, path.join(name))?;
    }
    let mut command = Command::new(match program {
        "kubectl" => path.join(program),
        other => PathBuf::from(other),
    });
    command
        .env("PATH", &path)
        .env("HOME", &path)
        .env("KUBECONFIG", &plugin.kubeconfig)
        .env_remove("TRAINYARD_NODE")
        .stdin(Stdio::null());
    Ok(command)
}

/// The script of a CI pipeline: what follows the training needs its success.
const PIPELINE: &str = "\
set -eu
kubectl trainyard run -n \"$1\" -f \"$2\" --timeout 10m
kubectl trainyard wait -n \"$1\" \"$3\"
echo evaluate
";

#[tokio::test]
async fn the_script_of_a_ci_pipeline_ends_with_the_jobs_result() -> Result<()> {
    with_operator("kubectl-ci", async |world, plugin| {
        let kind = world.kind;
        let (kubelet, namespace) = (&world.kubelet, world.namespace());
        let script = world.file("pipeline.sh");
        std::fs::write(&script, PIPELINE)?;
        for (name, succeeds) in [("good", true), ("bad", false)] {
            let file = world.file("job.json");
            std::fs::write(&file, manifest(&kind, name).to_string())?;
            let mut command = with_kubectl(world, plugin, "/bin/sh")?;
            command.arg(&script).arg(namespace).arg(&file).arg(name);
            let pipeline = command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            if succeeds {
                run_to_success(world, name).await?;
            } else {
                kubelet
                    .until_pods(namespace, name, pod_count(&kind))
                    .await?;
                kubelet.all_running(namespace, name).await?;
                let failed = State::Failed {
                    exit_code: 3,
                    message: "no data".to_owned(),
                };
                let pod = required_pod(&kind).replace("pt-", "bad-");
                match kind {
                    MPI => world.actor(name).launcher_fails().await?,
                    _ => kubelet.set(namespace, &pod, &failed).await?,
                }
            }
            let outcome = wait_for_exit(pipeline).await?;
            let expected = if succeeds { Some(0) } else { Some(1) };
            ensure!(outcome.code == expected, "{name}: {outcome:?}");
            ensure!(
                outcome.out.ends_with("evaluate\n") == succeeds,
                "{outcome:?}"
            );
        }
        Ok(())
    })
    .await
}

/// Runs kubectl's own completion of `kubectl trainyard WORDS`, which bash and zsh use.
fn complete(world: &World, plugin: &Plugin, words: &[&str]) -> Result<String> {
    let output = with_kubectl(world, plugin, "kubectl")?
        .args(["__complete", "trainyard"])
        .args(words)
        .output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

#[tokio::test]
async fn kubectl_completes_verbs_flags_and_jobs() -> Result<()> {
    let Some(world) = World::of(PYTORCH, "kubectl-complete", lockstep()).await? else {
        return Ok(());
    };
    let plugin = Plugin::of(&world).await?;
    for name in ["ddp-a", "ddp-b", "other"] {
        world.jobs.create(&manifest(&PYTORCH, name)).await?;
    }
    let verbs = complete(&world, &plugin, &["wh"])?;
    ensure!(
        verbs.starts_with("why\tExplain") && verbs.ends_with("\n:4\n"),
        "{verbs}"
    );
    let flags = complete(&world, &plugin, &["logs", "--fo"])?;
    ensure!(flags.starts_with("--follow\t"), "{flags}");
    // It gives up after a moment, because somebody waits at the terminal.
    eventually("the jobs", HANG, async || {
        let jobs = complete(&world, &plugin, &["why", "-n", world.namespace(), "ddp"])?;
        Ok(match jobs.as_str() {
            "ddp-a\tPyTorchJob\nddp-b\tPyTorchJob\n:4\n" => Seen::Yes(()),
            _ => Seen::NotYet(jobs),
        })
    })
    .await
}

#[tokio::test]
async fn a_tree_shows_what_a_job_owns_and_what_may_not_be_read_is_said() -> Result<()> {
    with_operator("kubectl-tree", async |world, plugin| {
        let kind = world.kind;
        world.jobs.create(&manifest(&kind, "pt")).await?;
        world
            .kubelet
            .until_pods(world.namespace(), "pt", pod_count(&kind))
            .await?;
        let outcome = plugin.run(&["tree", "pt"]).await?;
        let pod = format!("\n  Pod/{}  Pending", required_pod(&kind));
        ensure!(
            outcome
                .first_line()
                .starts_with(&format!("{}/pt  ", kind.name)),
            "{outcome:?}"
        );
        ensure!(
            outcome.out.contains(&pod) && outcome.out.contains("\n  Service/pt"),
            "{outcome:?}"
        );
        ensure!(
            !outcome.out.contains("not shown") && !outcome.out.contains("not owned"),
            "{outcome:?}"
        );
        if kind == MPI {
            ensure!(
                outcome
                    .out
                    .contains("\n  Job/pt-launcher\n    Pod/pt-launcher-"),
                "{outcome:?}"
            );
            // The controller of Jobs chooses the end of the pod's name, and the test a node.
            let renamed = outcome.out.replace("/pt", "/pi");
            let unplaced = renamed.lines().map(|line| {
                let line = line.split(" on scripted-").next().unwrap_or_default();
                format!("{line}\n")
            });
            let renamed: String = unplaced.collect();
            let (before, rest) = renamed
                .split_once("Pod/pi-launcher-")
                .context("no launcher")?;
            let rest = rest.trim_start_matches(char::is_alphanumeric);
            let shown = format!("{before}Pod/pi-launcher-x7k2p{rest}");
            outcome.assert_documented("tree pi", &shown)?;
        }
        let narrow = without_events(world).await?;
        let job = format!("{}/pt", kind.name);
        let outcome = narrow.until_allowed(&["why", &job]).await?;
        ensure!(
            outcome
                .out
                .ends_with("  not shown: events, because you may not list them\n"),
            "{outcome:?}"
        );
        let outcome = plugin.run(&["why", "nothing"]).await?;
        ensure!(
            outcome.code == Some(2)
                && outcome
                    .err
                    .starts_with("error: job nothing not found in namespace"),
            "{outcome:?}"
        );
        Ok(())
    })
    .await
}
