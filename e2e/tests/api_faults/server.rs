//! F-63, F-64: the API server changes the resources it serves, restarts, or compacts its store.
//!
//! Both have their own control plane because they would disturb other tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::World;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use training_testkit::builders::{PYTORCH, TENSORFLOW};
use training_testkit::control_plane::{ADMIN, ControlPlane, Options, client_from, workspace};
use training_testkit::kubelet::run_and_succeed;
use training_testkit::manifest;
use training_testkit::proxy::{Proxy, Record};
use training_testkit::wait::{HANG, Seen, eventually};

use super::driver::{FaultTest, JOB, Phase};
use super::life::Life;

/// The first backoff of a failed watch; later ones are longer.
const FIRST_WAIT: Duration = Duration::from_millis(800);

/// The times of the operator's requests for a removed kind, by request.
fn missed(test: &FaultTest) -> BTreeMap<String, Vec<Instant>> {
    let mut missed: BTreeMap<String, Vec<Instant>> = BTreeMap::new();
    for record in test.proxy.records() {
        let read = !record.call.is_write();
        if read && record.call.resource == PYTORCH.plural && record.code == Some(404) {
            let what = format!("{} in {}", record.call, record.call.namespace);
            missed.entry(what).or_default().push(record.at);
        }
    }
    missed
}

/// A control plane for this test alone, or `None` where there can't be one. It ends with the process.
pub async fn own() -> Result<Option<&'static ControlPlane>> {
    let options = Options {
        controller_manager: true,
        audit: true,
        ..Options::default()
    };
    let control = ControlPlane::start(options).await?;
    if !control.can().audit {
        e2e::skip("there is no control plane for this test alone");
        return Ok(None);
    }
    Ok(Some(Box::leak(Box::new(control))))
}

#[tokio::test]
async fn f_63_a_kind_that_is_removed_and_installed_again_harms_no_other() -> Result<()> {
    let Some(control) = own().await? else {
        return Ok(());
    };
    let Some(mut test) = FaultTest::on(control, Life(PYTORCH), "f63").await? else {
        return Ok(());
    };
    control.install(TENSORFLOW.operator).await?;
    let script = run_and_succeed(50, 200);
    let Some(other) = World::made(TENSORFLOW, control, "f63tf", script).await? else {
        return Ok(());
    };
    let operator_of_other = other.operator().await?;
    test.run_phase(Phase::Creating).await?;
    test.until_canary().await?;

    let client = control.client(ADMIN).await?;
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = format!("{}.{}", PYTORCH.plural, PYTORCH.group);
    // With the kind the auditor's own watch of it is gone.
    test.world.auditor.expect_gaps();
    kinds.delete(&name, &DeleteParams::default()).await?;
    eventually("the kind to be gone", HANG, async || {
        Ok(match kinds.get_opt(&name).await? {
            None => Seen::Yes(()),
            Some(_) => Seen::NotYet("still there".into()),
        })
    })
    .await?;
    test.proxy.clear_records();
    test.proxy.cut().await?;
    eventually("the operator to look for it in vain", HANG, async || {
        let often = missed(&test).values().any(|times| times.len() >= 3);
        Ok(if often {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{:?}", test.proxy.counts()))
        })
    })
    .await?;
    anyhow::ensure!(test.operator()?.probe("/livez").await?.0 == 200);
    // Operators of other kinds are unaffected.
    let tf = TENSORFLOW.job("tf").master().workers(1).build();
    other.jobs.create(&tf).await?;
    other.jobs.until_true("tf", "Succeeded").await?;
    other.assert_clean(&operator_of_other).await?;

    let records = test.proxy.records();
    let in_vain = |r: &&Record| r.call.is_job_write() && r.code == Some(404);
    let in_vain = records.iter().filter(in_vain).count();
    anyhow::ensure!(in_vain < 10, "{in_vain} writes to what is gone");
    for (what, times) in missed(&test) {
        for pair in times.windows(2) {
            let pause = pair[1] - pair[0];
            anyhow::ensure!(pause >= FIRST_WAIT, "{what} again after {pause:?}");
        }
    }

    let definition = workspace()
        .join("manifests")
        .join(PYTORCH.operator)
        .join("crd.yaml");
    manifest::apply(&client, manifest::documents(&definition)?).await?;
    let again = Life(PYTORCH).canary("again");
    eventually("a job to be taken", HANG, async || {
        test.world.jobs.create(&again).await?;
        Ok(Seen::Yes(()))
    })
    .await?;
    let (kubelet, namespace) = (&test.world.kubelet, test.namespace());
    kubelet.until_pods(namespace, "again", 2).await?;
    kubelet.all_running(namespace, "again").await?;
    kubelet.all_succeeded(namespace, "again").await?;
    test.world.jobs.until_true("again", "Succeeded").await?;
    // Objects that were deleted with the kind stay deleted.
    kubelet.until_pods(namespace, JOB, 0).await?;
    test.world.auditor.settled().await?;
    let wrong = test.world.auditor.violations();
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    test.proxy.assert_guarded()?;
    let operator = test.operator_mut()?;
    anyhow::ensure!(!operator.has_ended()?, "the operator ended");
    operator.assert_no_panic()
}

/// A second API server on the store of a control plane, which the test may stop.
struct Second {
    program: PathBuf,
    arguments: Vec<String>,
    store: String,
    port: u16,
    child: Option<Child>,
}

impl Second {
    async fn of(control: &ControlPlane) -> Result<Self> {
        let (program, first) = running(control.scratch(), "kube-apiserver")?;
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        let dir = control.scratch().join("second");
        let own = [
            ("--secure-port=", port.to_string()),
            ("--cert-dir=", dir.display().to_string()),
            (
                "--audit-log-path=",
                dir.with_extension("log").display().to_string(),
            ),
        ];
        let store = first.iter().find_map(|a| a.strip_prefix("--etcd-servers="));
        let store = store.context("no store")?.to_owned();
        let ours = |argument: String| {
            let other = own.iter().find(|(flag, _)| argument.starts_with(flag));
            other.map_or(argument.clone(), |(flag, value)| format!("{flag}{value}"))
        };
        Ok(Self {
            program,
            arguments: first.into_iter().map(ours).collect(),
            store,
            port,
            child: None,
        })
    }

    /// Starts it and waits until it serves; returns the administrator's kubeconfig for it.
    async fn start(&mut self, control: &ControlPlane) -> Result<PathBuf> {
        let log = std::fs::File::create(control.scratch().join("second.out"))?;
        let mut command = Command::new("/usr/bin/setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&self.program);
        command.args(&self.arguments).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn()?);
        let mut config: Value =
            serde_saphyr::from_str(&std::fs::read_to_string(control.kubeconfig(ADMIN).await?)?)?;
        let server = format!("https://127.0.0.1:{}", self.port);
        config["clusters"][0]["cluster"]["server"] = json!(server);
        let path = control.scratch().join("second.kubeconfig");
        std::fs::write(&path, serde_json::to_vec(&config)?)?;
        let client = client_from(&path).await?;
        eventually("the second API server", HANG, async || {
            let ready = http::Request::get("/readyz").body(Vec::new())?;
            client.request_text(ready).await?;
            Ok(Seen::Yes(()))
        })
        .await?;
        Ok(path)
    }

    fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("it doesn't run")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Compacts the store to its current revision, so that no watch can resume from an older one.
    async fn compact(&self, control: &ControlPlane) -> Result<()> {
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::all(control.client(ADMIN).await?);
        let list = pods.list(&kube::api::ListParams::default()).await?;
        let version = list.metadata.resource_version.context("no version")?;
        let body = json!({ "revision": version, "physical": true }).to_string();
        let address = self.store.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await?;
        let head = format!(
            "POST /v3/kv/compaction HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::ensure!(answer.contains(" 200 "), "{answer}");
        Ok(())
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Has no effect if it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Program and arguments of a running component of the control plane in this directory.
fn running(scratch: &Path, component: &str) -> Result<(PathBuf, Vec<String>)> {
    let marker = format!("TRAINYARD_LIGHT={}", scratch.display());
    let words = |path: &Path| -> Vec<String> {
        let bytes = std::fs::read(path).unwrap_or_default();
        let words = bytes.split(|byte| *byte == 0);
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .filter(|word| !word.is_empty())
            .collect()
    };
    for process in std::fs::read_dir("/proc")?.flatten() {
        let dir = process.path();
        let command = words(&dir.join("cmdline"));
        let is_it = command.get(1).is_some_and(|name| name == component);
        if is_it && words(&dir.join("environ")).contains(&marker) {
            let arguments = command.into_iter().skip(1).collect();
            return Ok((std::fs::read_link(dir.join("exe"))?, arguments));
        }
    }
    anyhow::bail!("no {component} of {}", scratch.display())
}

#[tokio::test]
async fn f_64_a_server_that_comes_back_without_its_memory_is_listed_anew() -> Result<()> {
    let Some(control) = own().await? else {
        return Ok(());
    };
    let mut second = Second::of(control).await?;
    let kubeconfig = second.start(control).await?;
    let Some(mut test) = FaultTest::on(control, Life(PYTORCH), "f64").await? else {
        return Ok(());
    };
    test.go_through(Proxy::start(&kubeconfig).await?).await?;
    test.run_phase(Phase::Creating).await?;
    test.until_canary().await?;
    for phase in [Phase::Running, Phase::Finishing] {
        test.proxy.clear_records();
        second.kill()?;
        test.begin(phase).await?;
        // The operator's last version must be more than one behind the store's.
        test.noise().await;
        second.compact(control).await?;
        second.start(control).await?;
        // No watch can resume.
        test.until_listed("pods").await?;
        test.end(phase).await?;
    }
    test.assert_life();
    test.assert_clean().await
}
