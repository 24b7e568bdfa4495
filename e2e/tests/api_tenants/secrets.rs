//! Values of users don't leak, and they can't make the operator open connections or files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures::future::try_join_all;
use k8s_openapi::ByteString;
use tokio::net::TcpListener;

use super::*;

/// Part of every value that only the job's own pods may see.
const MARK: &str = "k3pt-secr3t";

/// A job whose values contain the mark.
fn marked(kind: &Kind) -> Value {
    let mut job = manifest(kind, "pt");
    let spec = &mut job["spec"];
    let env = json!([{ "name": "PASSWORD", "value": format!("{MARK}-env") }]);
    if *kind == SPARK {
        for role in ["driver", "executor"] {
            spec[role]["env"] = env.clone();
            spec[role]["envVars"] = json!({ "OTHER": format!("{MARK}-{role}") });
        }
        spec["sparkConf"] = json!({
            "spark.hadoop.fs.s3a.secret.key": format!("{MARK}-conf"),
            "spark.executorEnv.AWS_SECRET_ACCESS_KEY": format!("{MARK}-executor-env"),
            "spark.my.setting": format!("{MARK}-setting"),
        });
        spec["hadoopConf"] = json!({ "fs.azure.account.key": format!("{MARK}-hadoop") });
        spec["arguments"] = json!([format!("{MARK}-argument")]);
        return job;
    }
    for role in spec[kind.replica_map].as_object_mut().into_iter().flatten() {
        let container = &mut role.1["template"]["spec"]["containers"][0];
        container["env"] = env.clone();
        container["args"] = json!([format!("{MARK}-argument")]);
    }
    job
}

/// All outputs of an operator: log, metrics, probes, events and statuses.
async fn told(tenant: &Tenant, operator: &OperatorProcess) -> Result<Vec<(&'static str, String)>> {
    let job = tenant.jobs.get("pt").await?;
    Ok(vec![
        ("log", operator.log()),
        ("metrics", operator.metrics().await?),
        ("readyz", operator.probe("/readyz?verbose").await?.1),
        ("events", serde_json::to_string(&tenant.events().await?)?),
        ("status", job["status"].to_string()),
    ])
}

#[tokio::test]
async fn mt_25_i_51_values_of_users_keys_and_tokens_are_told_nowhere() -> Result<()> {
    try_join_all(kinds().map(|kind| async move {
        let Some(tenant) = Tenant::of(kind, "values").await? else {
            return Ok(());
        };
        let options = tenant.options().await?.flag("log-filter", "debug");
        let operator = OperatorProcess::start(options).await?;
        tenant.jobs.create(&marked(&kind)).await?;
        let pods = tenant.until_pods(pods_of(&kind)).await?;
        let texts = serde_json::to_string(&pods)?;
        ensure!(texts.contains(MARK), "{}: the pods have no mark", kind.name);
        let status = |phase: &str, state: Value| {
            json!({ "phase": phase, "containerStatuses": [{
                "name": "any", "image": "any", "imageID": "", "ready": false, "restartCount": 0, "state": state }] })
        };
        let ended = json!({ "terminated": { "exitCode": 7, "reason": "Error", "message": "the last words" } });
        for pod in &pods {
            let name = pod.name_any();
            let mut failed = status("Failed", ended.clone());
            failed["containerStatuses"][0]["name"] =
                json!(pod.spec.as_ref().map(|s| s.containers[0].name.clone()));
            tenant.says(&name, json!({ "phase": "Running" })).await?;
            tenant.says(&name, failed).await?;
        }
        tenant.until_quiet().await?;
        let mut secrets = vec![
            MARK.to_owned(),
            tenant.control.token(&kind.user()).await?,
        ];
        for secret in tenant.api::<Secret>().list(&ListParams::default()).await? {
            for ByteString(key) in secret.data.into_iter().flatten().map(|(_, value)| value) {
                let key = String::from_utf8_lossy(&key);
                secrets.extend(key.lines().filter(|l| l.len() > 40).map(str::to_owned));
            }
        }
        ensure!(kind != MPI || secrets.len() > 4, "no keys of an MPIJob");
        for (place, text) in told(&tenant, &operator).await? {
            ensure!(!text.is_empty(), "{}: nothing in {place}", kind.name);
            for secret in &secrets {
                let at = text.find(secret.as_str());
                let around = at.map(|at| text[..at].chars().rev().take(200).collect::<Vec<_>>());
                let around = around.map(|c| c.into_iter().rev().collect::<String>());
                ensure!(at.is_none(), "{}: {secret} in {place}, behind {around:?}", kind.name);
            }
        }
        tenant.assert_well(&operator).await
    }))
    .await
    .map(drop)
}

/// A port that nobody should connect to.
async fn canary() -> Result<(u16, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (port, heard) = (listener.local_addr()?.port(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&heard);
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    Ok((port, heard))
}

/// A job that names an address and a file wherever a careless operator would use them.
fn leading(kind: &Kind, port: u16, file: &str) -> Value {
    let url = format!("http://127.0.0.1:{port}/x");
    let (address, local) = (format!("127.0.0.1:{port}"), format!("file://{file}"));
    let mut job = manifest(kind, "pt");
    job["metadata"]["annotations"] = json!({
        "trainyard.dev/webhook": url, "kubeflow.org/callback": url, "trainyard.dev/config-file": file,
    });
    let spec = &mut job["spec"];
    let env = json!([
        { "name": "HTTPS_PROXY", "value": url }, { "name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1" },
        { "name": "KUBERNETES_SERVICE_PORT", "value": port.to_string() }, { "name": "KUBECONFIG", "value": file },
    ]);
    if *kind == SPARK {
        spec["driver"]["env"] = env;
        spec["driver"]["kubernetesMaster"] = json!(format!("k8s://{url}"));
        spec["image"] = json!(format!("{address}/spark:1"));
        spec["mainApplicationFile"] = json!(url);
        spec["mainClass"] = json!("Main");
        spec["deps"] =
            json!({ "jars": [url], "files": [url], "packages": ["a:b:1"], "repositories": [url] });
        spec["sparkConf"] = json!({
            "spark.jars.ivySettings": file, "spark.kubernetes.file.upload.path": url, "spark.eventLog.dir": url,
            "spark.kubernetes.driver.podTemplateFile": file, "spark.kubernetes.executor.podTemplateFile": local,
            "spark.kubernetes.authenticate.submission.caCertFile": file, "spark.jars.repositories": url,
            "spark.kubernetes.authenticate.submission.oauthTokenFile": file,
        });
        spec["hadoopConf"] = json!({ "fs.defaultFS": url });
        return job;
    }
    for role in spec[kind.replica_map].as_object_mut().into_iter().flatten() {
        let template = &mut role.1["template"]["spec"];
        let container = &mut template["containers"][0];
        container["env"] = env.clone();
        container["image"] = json!(format!("{address}/train:1"));
        container["args"] = json!([url, local]);
        container["lifecycle"] =
            json!({ "preStop": { "httpGet": { "host": "127.0.0.1", "port": port } } });
        container["livenessProbe"] = json!({ "httpGet": { "host": "127.0.0.1", "port": port } });
        template["dnsConfig"] = json!({ "nameservers": ["127.0.0.1"] });
    }
    if kind.name == "PyTorchJob" {
        spec["elasticPolicy"] =
            json!({ "rdzvHost": "127.0.0.1", "rdzvPort": port, "rdzvBackend": "c10d" });
    }
    job
}

/// The TCP sockets of a process: the ports it is connected to and those it listens on. All processes here share a network.
fn sockets(pid: u32) -> Result<(BTreeSet<u16>, BTreeSet<u16>)> {
    let mut own = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A socket may close between the list and this read.
        if let Ok(link) = fs::read_link(entry?.path())
            && let Some(inode) = link.to_string_lossy().strip_prefix("socket:[")
        {
            own.insert(inode.trim_end_matches(']').to_owned());
        }
    }
    let (mut remote, mut listening) = (BTreeSet::new(), BTreeSet::new());
    for file in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let port = |at: usize| -> Result<u16> {
                let (_, port) = fields[at].rsplit_once(':').context("no port")?;
                Ok(u16::from_str_radix(port, 16)?)
            };
            if !fields.get(9).is_some_and(|inode| own.contains(*inode)) {
                continue;
            }
            // Listeners come first in the table. A connection to one of them is not the process's own.
            if fields[3] == "0A" {
                listening.insert(port(1)?);
            } else if !listening.contains(&port(1)?) {
                remote.insert(port(2)?);
            }
        }
    }
    Ok((remote, listening))
}

/// Creates a named pipe, which blocks its reader until a writer opens it.
fn trap(path: &Path) -> Result<()> {
    let made = Command::new("mkfifo").arg(path).status()?;
    ensure!(made.success(), "mkfifo {}", path.display());
    Ok(())
}

/// Whether it has a reader: without one, it can't be opened for writing.
fn is_sprung(path: &Path) -> bool {
    const NONBLOCK: i32 = 0o4000;
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(NONBLOCK);
    options.open(path).is_ok()
}

#[tokio::test]
async fn mt_14_mt_15_mt_28_i_50_the_operator_goes_to_the_api_server_and_reads_no_file_of_users()
-> Result<()> {
    try_join_all(kinds().map(|kind| async move {
        let Some(tenant) = Tenant::of(kind, "canary").await? else {
            return Ok(());
        };
        let options = tenant.options().await?;
        let file = options.log.with_extension("trap");
        trap(&file)?;
        let kubeconfig = fs::read_to_string(&options.kubeconfig)?;
        let server = kubeconfig
            .split("https://127.0.0.1:")
            .nth(1)
            .context("no server")?;
        let server: String = server.chars().take_while(char::is_ascii_digit).collect();
        let server: u16 = server.parse()?;
        let (port, heard) = canary().await?;
        let operator = OperatorProcess::start(options).await?;
        let job = leading(&kind, port, &file.display().to_string());
        tenant.jobs.create(&job).await?;
        let looks = async || {
            let (remote, listening) = sockets(operator.pid())?;
            ensure!(
                remote.contains(&server),
                "{}: {remote:?}, the server is {server}",
                kind.name
            );
            let beside = remote.iter().filter(|port| **port != server);
            let beside: Vec<_> = beside.collect();
            ensure!(beside.is_empty(), "{}: connected to {beside:?}", kind.name);
            // Probes and metrics.
            ensure!(
                listening.len() == 2,
                "{}: listens on {listening:?}",
                kind.name
            );
            ensure!(heard.load(Ordering::SeqCst) == 0, "{}: came by", kind.name);
            Ok(())
        };
        looks().await?;
        let pods = tenant.until_pods(pods_of(&kind)).await?;
        looks().await?;
        for pod in pods {
            tenant
                .says(&pod.name_any(), json!({ "phase": "Running" }))
                .await?;
        }
        tenant.until_quiet().await?;
        looks().await?;
        tenant.jobs.delete("pt").await?;
        tenant.until_quiet().await?;
        looks().await?;
        ensure!(
            !is_sprung(&file),
            "{}: it opened a file that the job names",
            kind.name
        );
        tenant.assert_well(&operator).await
    }))
    .await
    .map(drop)
}

#[test]
fn a_trap_shows_who_is_in_it() -> Result<()> {
    let file = std::env::temp_dir().join(format!("trap-{}", std::process::id()));
    trap(&file)?;
    ensure!(!is_sprung(&file), "nobody is in it");
    let reader = {
        let file = file.clone();
        std::thread::spawn(move || fs::read(file))
    };
    while !is_sprung(&file) {
        std::thread::yield_now();
    }
    reader.join().ok().context("the reader")??;
    fs::remove_file(&file)?;
    Ok(())
}
