//! Spark's real driver, which creates the executors of an application.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::Api;
use kube::config::Kubeconfig;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use spark_operator::label::APP_SELECTOR;
use tokio::task::spawn_blocking;
use training_testkit::control_plane::{ADMIN, ControlPlane};

use crate::submit::sandbox::Sandbox;
use crate::submit::{IMAGE, SPARK_SUBMIT, server};

/// The number of drivers that run at the same time.
const AT_A_TIME: usize = 2;
/// Where a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The driver's file of properties.
const PROPERTIES: &str = "/opt/spark/conf/spark.properties";
/// The executors' pod template.
const TEMPLATE: &str = "/opt/spark/pod-template/pod-spec-template.yml";
/// The keys of both in `ConfigMaps`.
const FILES: [(&str, &str); 2] = [
    ("spark.properties", PROPERTIES),
    ("podspec-configmap-key", TEMPLATE),
];
/// The program of every driver.
const PROGRAM: (&str, &str) = (
    "/tmp/wait.py",
    "import time\nfrom pyspark import SparkContext\nSparkContext.getOrCreate()\ntime.sleep(600)\n",
);
/// Turns off what needs files or ports.
const OVERRIDES: [&str; 13] = [
    "spark.dynamicAllocation.enabled=false",
    "spark.ui.enabled=false",
    "spark.eventLog.enabled=false",
    "spark.driver.extraJavaOptions=",
    "spark.driver.extraClassPath=",
    "spark.driver.memory=512m",
    "spark.driver.resource.gpu.amount=0",
    "spark.pyspark.driver.python=python3",
    "spark.jars=",
    "spark.jars.packages=",
    "spark.files=",
    "spark.archives=",
    "spark.submit.pyFiles=",
];
/// Runs a driver until a list of the API server has so many executors, and kills it. Otherwise it would delete them.
const RUNNER: &str = r#"
import json, os, signal, ssl, subprocess, sys, time, urllib.request

account, url, count, *command = sys.argv[1:]
with open(account + "/token") as file:
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + file.read()})
trusted = ssl.create_default_context(cafile=account + "/ca.crt")
with open("/tmp/driver.log", "w+") as log:
    driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    created = 0
    try:
        for _ in range(600):
            with urllib.request.urlopen(request, context=trusted, timeout=10) as answer:
                created = len(json.load(answer)["items"])
            if created >= int(count) or driver.poll() is not None:
                break
            time.sleep(0.2)
    finally:
        try:
            os.killpg(driver.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        driver.wait()
    if created < int(count):
        log.seek(0)
        sys.exit("no executors: " + log.read()[-4000:])
"#;

/// Copies of the image in which drivers run.
#[derive(Debug)]
pub struct Drivers {
    /// Each has its own address, so that their drivers can use the same ports.
    sandboxes: Vec<(String, Arc<Mutex<Sandbox>>)>,
    server: String,
    account: BTreeMap<String, String>,
}

impl Drivers {
    /// Prepares to run drivers against an API server.
    pub async fn open(control: &ControlPlane) -> Result<Self> {
        let text = std::fs::read_to_string(control.kubeconfig(ADMIN).await?)?;
        let kubeconfig: Kubeconfig = serde_saphyr::from_str(&text)?;
        let cluster = kubeconfig.clusters.into_iter().find_map(|c| c.cluster);
        let ca = cluster.and_then(|c| c.certificate_authority_data);
        let ca: ByteString = serde_json::from_value(json!(ca.context("no certificate")?))?;
        let account = [
            ("token", control.token(ADMIN).await?),
            ("ca.crt", String::from_utf8(ca.0)?),
        ];
        let sandboxes = (1..=AT_A_TIME).map(|number| {
            let sandbox = Mutex::new(Sandbox::open(IMAGE)?);
            Ok((format!("127.0.0.{number}"), Arc::new(sandbox)))
        });
        Ok(Self {
            sandboxes: sandboxes.collect::<Result<_>>()?,
            server: server(&text)?,
            account: account
                .map(|(name, text)| (format!("{ACCOUNT}/{name}"), text))
                .into(),
        })
    }

    /// Runs the driver of a pod until it has created this many executors, or ends without.
    pub async fn run(&self, client: &Client, driver: &Pod, executors: u32) -> Result<()> {
        let namespace = driver.namespace().context("no namespace")?;
        let run = driver.labels().get(APP_SELECTOR).context("no run")?;
        let mut files = self.account.clone();
        files.insert(PROGRAM.0.to_owned(), PROGRAM.1.to_owned());
        let spec = driver.spec.as_ref().context("no spec")?;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
        let mounted = spec.volumes.iter().flatten();
        for source in mounted.filter_map(|volume| volume.config_map.as_ref()) {
            let map = maps.get_opt(&source.name).await?;
            let mut data = map.and_then(|map| map.data).unwrap_or_default();
            for (key, path) in FILES {
                files.extend(data.remove(key).map(|text| (path.to_owned(), text)));
            }
        }
        ensure!(files.contains_key(PROPERTIES), "no properties");
        let list = format!(
            "{}/api/v1/namespaces/{namespace}/pods?labelSelector=spark-role%3Dexecutor%2C{APP_SELECTOR}%3D{run}",
            self.server
        );
        let mut command = ["python3", "-c", RUNNER, ACCOUNT, &list]
            .map(str::to_owned)
            .to_vec();
        command.extend([executors.to_string(), "env".to_owned()]);
        let variables = spec.containers.iter().flat_map(|c| c.env.iter().flatten());
        let variables = variables.filter_map(|v| Some(format!("{}={}", v.name, v.value.as_ref()?)));
        command.extend(variables);
        command.extend(
            [
                SPARK_SUBMIT,
                "--deploy-mode",
                "client",
                "--properties-file",
                PROPERTIES,
            ]
            .map(str::to_owned),
        );
        let (address, sandbox) = self.free();
        let overrides = OVERRIDES.map(str::to_owned).into_iter().chain([
            format!("spark.kubernetes.driver.master={}", self.server),
            format!("spark.driver.bindAddress={address}"),
            format!("spark.executor.instances={executors}"),
        ]);
        command.extend(overrides.flat_map(|conf| ["--conf".to_owned(), conf]));
        command.push(PROGRAM.0.to_owned());
        let sandbox = Arc::clone(sandbox);
        let ended = spawn_blocking(move || {
            let mut sandbox = sandbox.lock().map_err(|_| anyhow::anyhow!("it panicked"))?;
            sandbox.run(&command, &files)
        });
        let ended = ended.await??;
        if ended.code != 0 {
            eprintln!("{}: {}", driver.name_any(), ended.output);
        }
        Ok(())
    }

    /// Returns the sandbox with the fewest drivers.
    fn free(&self) -> &(String, Arc<Mutex<Sandbox>>) {
        let drivers = |(_, sandbox): &&_| Arc::strong_count(sandbox);
        let fewest = self.sandboxes.iter().min_by_key(drivers);
        fewest.unwrap_or_else(|| unreachable!("AT_A_TIME is positive"))
    }
}
