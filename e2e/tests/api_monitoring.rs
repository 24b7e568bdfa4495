//! Metrics of jobs, and the alerts and dashboards that use them, by a real Prometheus. Traces, by the receiver of a real OpenTelemetry collector.

#[path = "api_monitoring/drawing.rs"]
mod drawing;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drawing::Line;
use e2e::lives::{Life, MpiLife, SparkLife};
use e2e::{World, for_each_kind};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::{EVERY_KIND, Kind, MPI, PYTORCH, SPARK};
use training_testkit::control_plane::{built, workspace};
use training_testkit::kubelet::{Act, Replica, State, Step, lockstep};
use training_testkit::operator::{OperatorProcess, free_address};
use training_testkit::wait::{HANG, Seen, eventually};

/// A life cycle in which a replica fails and is replaced.
fn retried(kind: Kind) -> Life {
    match kind {
        MPI => Life::Mpi(MpiLife::WorkerReplaced),
        SPARK => Life::Spark(SparkLife::Retried),
        _ => Life::RetryableExit,
    }
}

async fn until_shown(operator: &OperatorProcess, series: &[String]) -> Result<()> {
    eventually("the metrics of the jobs", HANG, async || {
        let text = operator.metrics().await?;
        let missing = series
            .iter()
            .find(|line| !text.lines().any(|l| l == **line));
        Ok(match missing {
            None => Seen::Yes(()),
            Some(line) => Seen::NotYet(format!("{line} is not in\n{text}")),
        })
    })
    .await
}

#[tokio::test]
async fn jobs_of_every_kind_are_counted_by_phase_and_their_restarts_by_reason() -> Result<()> {
    for_each_kind(EVERY_KIND, counted).await
}

async fn counted(kind: Kind) -> Result<()> {
    let Some(world) = World::of(kind, "counted", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    retried(kind).run(&world.actor("pt")).await?;
    let suspended = kind.small_job("later", 2);
    let suspended = match kind {
        SPARK => Life::Spark(SparkLife::Succeeds)
            .job(kind, "later")
            .set("/spec/suspend", true),
        _ => suspended.run_policy("suspend", true),
    };
    world.jobs.create(&suspended.build()).await?;
    let (name, namespace) = (kind.name, world.namespace());
    let jobs = |phase| {
        format!(
            "trainyard_jobs{{kind=\"{name}\",job_namespace=\"{namespace}\",phase=\"{phase}\"}} 1"
        )
    };
    let series = [
        jobs("succeeded"),
        jobs("suspended"),
        format!("trainyard_job_start_seconds_count{{kind=\"{name}\"}} 1"),
        format!("trainyard_job_duration_seconds_count{{kind=\"{name}\",result=\"succeeded\"}} 1"),
        format!("trainyard_job_duration_seconds_count{{kind=\"{name}\",result=\"failed\"}} 0"),
        format!("trainyard_job_restarts_total{{kind=\"{name}\",reason=\"Error\"}} 1"),
    ];
    until_shown(&operator, &series).await?;
    world.assert_clean(&operator).await
}

/// A program that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Prometheus that scrapes operators.
struct Prometheus {
    _server: Server,
    programs: PathBuf,
    address: SocketAddr,
}

/// Returns the directory of Prometheus' programs.
fn programs() -> Result<PathBuf> {
    built("e2e/prometheus/build", &[])
}

fn promtool(programs: &Path, args: &[&str]) -> Result<String> {
    let out = Command::new(programs.join("promtool"))
        .args(args)
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    ensure!(
        out.status.success(),
        "promtool {args:?}: {text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(text)
}

impl Prometheus {
    fn start(directory: &Path, operators: &[(&str, SocketAddr)]) -> Result<Self> {
        let programs = programs()?;
        let scrapes = operators.iter().map(|(job, address)| {
            let labels = json!({ "namespace": "trainyard-system", "pod": format!("{job}-0") });
            json!({
                "job_name": job,
                "static_configs": [{ "targets": [address.to_string()], "labels": labels }],
            })
        });
        let config = json!({
            "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms" },
            "scrape_configs": scrapes.collect::<Vec<_>>(),
        });
        let file = directory.join("prometheus.json");
        fs::write(&file, config.to_string())?;
        let address = free_address()?;
        let log = fs::File::create(directory.join("prometheus.log"))?;
        let child = Command::new(programs.join("prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("prometheus").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Self {
            _server: Server(child),
            programs,
            address,
        })
    }

    /// Returns the results of a query for each second since a time, which is in seconds since 1970.
    fn query_range(&self, expr: &str, begin: f64) -> Result<Value> {
        let server = format!("http://{}", self.address);
        let [begin, end] = [begin, now()].map(|time| format!("{time:.0}"));
        let args = [
            "query", "-o", "json", "range", "--start", &begin, "--end", &end,
        ];
        let text = promtool(
            &self.programs,
            &[&args[..], &["--step", "1s", &server, expr]].concat(),
        )?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Returns the results of a query, a line for each.
    fn query(&self, expr: &str) -> Result<String> {
        let server = format!("http://{}", self.address);
        promtool(&self.programs, &["query", "instant", &server, expr])
    }

    async fn until_results(&self, expr: &str) -> Result<String> {
        eventually(expr, HANG, async || {
            Ok(match self.query(expr) {
                Ok(text) if !text.trim().is_empty() => Seen::Yes(text),
                Ok(_) => Seen::NotYet("no result".to_owned()),
                Err(error) => Seen::NotYet(error.to_string()),
            })
        })
        .await
    }
}

fn monitoring() -> PathBuf {
    workspace().join("manifests/monitoring")
}

const DASHBOARDS: [&str; 3] = ["trainyard-jobs", "trainyard-operators", "trainyard-spark"];

/// Reads a shipped dashboard.
fn dashboard(name: &str) -> Result<Value> {
    let text = fs::read_to_string(monitoring().join(format!("{name}.json")))?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns a panel's expressions, with all values of the dashboard's variables, and their legends.
fn targets(panel: &Value) -> Vec<(String, &str)> {
    let targets = panel["targets"].as_array().into_iter().flatten();
    let read = targets.filter_map(|target| {
        let expr = target["expr"].as_str()?.replace("$__rate_interval", "1m");
        let expr = ["$kind", "$job_namespace", "$job"]
            .into_iter()
            .fold(expr, |expr, variable| expr.replace(variable, ".*"));
        Some((expr, target["legendFormat"].as_str().unwrap_or_default()))
    });
    read.collect()
}

/// Seconds since 1970.
fn now() -> f64 {
    Timestamp::now().as_duration().as_secs_f64()
}

/// The directory for drawings of the dashboards after many jobs: `make pictures` sets it. Otherwise they are drawn after a few jobs, into a
/// temporary directory.
const PICTURES: &str = "TRAINYARD_PICTURES";
/// The number of jobs in `make pictures`.
const JOBS: u32 = 30;

/// Pods of the jobs `day-N` start within seconds, and end within a minute: a few badly.
fn scripted(pod: &Replica) -> Vec<Step> {
    let Some(number) = pod.job.strip_prefix("day-") else {
        return Vec::new();
    };
    let number: u64 = number.parse().unwrap_or_default();
    let exit = |exit_code| State::Failed {
        exit_code,
        message: String::new(),
    };
    let end = match (number % 6, pod.incarnation, &*pod.role, pod.index) {
        (1, 0, "worker", 0) => exit(137),
        (2, 0, "worker", 0) => State::Evicted,
        (4, _, "worker", 0) => exit(1),
        _ => State::Succeeded,
    };
    let run = if number % 10 == 9 {
        State::Waiting {
            reason: "ErrImagePull".to_owned(),
            message: "not found".to_owned(),
        }
    } else {
        State::Running
    };
    vec![
        Step::after_ms(1_000 + number * 700 % 6_000, Act::Become(run)),
        Step::after_ms(12_000 + number * 7_000 % 40_000, Act::Become(end)),
    ]
}

/// Creates many jobs, one after the other.
async fn run_many_jobs(torch: &World, spark: &World) -> Result<()> {
    let lives = [SparkLife::Succeeds, SparkLife::Retried, SparkLife::Fails];
    for (number, life) in (0..JOBS).zip(lives.into_iter().cycle()) {
        let job = PYTORCH.small_job(&format!("day-{number}"), 2);
        let job = job.restart_policy("Worker", "ExitCode");
        torch.jobs.create(&job.build()).await?;
        let app = format!("day-{number}");
        Life::Spark(life).run(&spark.actor(&app)).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    Ok(())
}

/// Draws all dashboards.
fn draw(prometheus: &Prometheus, directory: &Path, begin: f64) -> Result<()> {
    fs::create_dir_all(directory)?;
    for name in DASHBOARDS {
        let file = directory.join(format!("{name}.svg"));
        let lines = |panel: &Value| -> Result<Vec<Line>> {
            let mut lines = Vec::new();
            for (expr, legend) in targets(panel) {
                let results = prometheus.query_range(&expr, begin)?;
                lines.extend(Line::read(&results, legend, begin)?);
            }
            Ok(lines)
        };
        let note = "a test run with scripted pods";
        drawing::draw(&file, &dashboard(name)?, note, now() - begin, lines)?;
    }
    Ok(())
}

#[tokio::test]
async fn every_query_of_the_dashboards_has_results() -> Result<()> {
    let Some(torch) = World::of(PYTORCH, "dashboards", Arc::new(scripted)).await? else {
        return Ok(());
    };
    let Some(spark) = World::of(SPARK, "dashboards", lockstep()).await? else {
        return Ok(());
    };
    let operators = (torch.operator().await?, spark.operator().await?);
    let directory = torch.file("monitoring");
    fs::create_dir_all(&directory)?;
    let scraped = [
        ("pytorch-operator", operators.0.metrics_address()),
        ("spark-operator", operators.1.metrics_address()),
    ];
    let prometheus = Prometheus::start(&directory, &scraped)?;
    prometheus.until_results("sum(up) == 2").await?;
    let begin = now();

    // One job's service has a name that somebody else's has.
    let services: Api<Service> = Api::namespaced(torch.client.clone(), torch.namespace());
    let theirs: Service = serde_json::from_value(json!({
        "metadata": { "name": "stuck-worker-0" }, "spec": { "ports": [{ "port": 80 }] },
    }))?;
    services.create(&PostParams::default(), &theirs).await?;
    torch
        .jobs
        .create(&PYTORCH.small_job("stuck", 2).build())
        .await?;
    let active = torch.actor("active");
    active.create(PYTORCH.small_job("active", 2)).await?;
    active.run_all().await?;
    retried(PYTORCH).run(&torch.actor("pt")).await?;
    for (life, name) in [
        (SparkLife::Succeeds, "good"),
        (SparkLife::Retried, "retried"),
        (SparkLife::Fails, "bad"),
    ] {
        Life::Spark(life).run(&spark.actor(name)).await?;
    }
    for name in DASHBOARDS {
        for panel in dashboard(name)?["panels"].as_array().context("no panels")? {
            for (expr, _) in targets(panel) {
                prometheus.until_results(&expr).await?;
            }
        }
    }
    let stuck = "trainyard_jobs_waiting{reason=\"NameConflict\"} == 1";
    prometheus.until_results(stuck).await?;
    for rule in rules()? {
        prometheus.query(rule["expr"].as_str().context("no expression")?)?;
    }
    match std::env::var_os(PICTURES) {
        Some(pictures) => {
            run_many_jobs(&torch, &spark).await?;
            draw(&prometheus, Path::new(&pictures), begin)?;
        }
        None => draw(&prometheus, &directory, begin)?,
    }
    torch.jobs.delete("stuck").await?;
    torch.assert_clean(&operators.0).await?;
    spark.assert_clean(&operators.1).await
}

/// Returns the groups of the shipped alerts, as Prometheus reads them.
fn groups() -> Result<Value> {
    let text = fs::read_to_string(monitoring().join("prometheus-rule.yaml"))?;
    let rule: Value = serde_saphyr::from_str(&text)?;
    Ok(rule["spec"].clone())
}

/// Returns the shipped alerts.
fn rules() -> Result<Vec<Value>> {
    let rules = groups()?["groups"][0]["rules"].as_array().cloned();
    rules.context("no rules")
}

#[test]
fn alerts_fire_when_they_should_and_only_then() -> Result<()> {
    let directory = training_testkit::control_plane::target_directory()?;
    let directory = directory.join(format!("alerts-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("rules.json"), groups()?.to_string())?;
    let tests = workspace().join("e2e/prometheus/alerts.yaml");
    let text = fs::read_to_string(&tests)?;
    for rule in rules()? {
        let name = rule["alert"].as_str().context("no name")?;
        ensure!(
            text.contains(&format!("alertname: {name}\n")),
            "{name} is not tested"
        );
    }
    fs::write(directory.join("tests.yaml"), text)?;
    let programs = programs()?;
    let file = |name: &str| directory.join(name).display().to_string();
    promtool(&programs, &["check", "rules", &file("rules.json")])?;
    let result = promtool(&programs, &["test", "rules", &file("tests.yaml")]);
    fs::remove_dir_all(&directory)?;
    result.map(drop)
}

async fn until_logged(log: &Path, words: &[&str]) -> Result<()> {
    eventually(&format!("{words:?}"), HANG, async || {
        let text = fs::read_to_string(log)?;
        Ok(match words.iter().find(|part| !text.contains(**part)) {
            None => Seen::Yes(()),
            Some(part) => Seen::NotYet(format!("no {part} in {}: {text}", log.display())),
        })
    })
    .await
}

/// Starts a collector's receiver with this certificate. It writes the spans that it gets into its log.
async fn collector(
    directory: &Path,
    certificate: &rcgen::CertifiedKey<rcgen::KeyPair>,
) -> Result<(Server, SocketAddr)> {
    let address = free_address()?;
    let file = |name: &str| directory.join(name);
    fs::write(file("tls.crt"), certificate.cert.pem())?;
    fs::write(file("tls.key"), certificate.signing_key.serialize_pem())?;
    let tls = json!({ "cert_file": file("tls.crt"), "key_file": file("tls.key") });
    let grpc = json!({ "endpoint": address.to_string(), "tls": tls });
    let config = json!({ "protocols": { "grpc": grpc } });
    fs::write(file("collector.json"), config.to_string())?;
    let log = fs::File::create(file("collector.log"))?;
    let child = Command::new(built("e2e/collector/build", &[])?)
        .arg(file("collector.json"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    let server = Server(child);
    until_logged(&file("collector.log"), &["ready"]).await?;
    Ok((server, address))
}

#[tokio::test]
async fn traces_reach_a_collector_over_tls_if_its_certificate_is_trusted() -> Result<()> {
    let Some(world) = World::of(PYTORCH, "traces", lockstep()).await? else {
        return Ok(());
    };
    let made = || rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
    let directory = world.file("collector");
    fs::create_dir_all(&directory)?;
    let (_server, address) = collector(&directory, &made()?).await?;
    fs::write(directory.join("other.crt"), made()?.cert.pem())?;
    let trusting = async |file: &str| {
        let kubeconfig = world.control.kubeconfig(&world.kind.user()).await?;
        let options = world
            .options(&kubeconfig)
            .flag("otlp-endpoint", &format!("https://{address}"))
            .flag("otlp-ca-file", &directory.join(file).display().to_string());
        OperatorProcess::start(options).await
    };
    let log = directory.join("collector.log");
    // A collector that it doesn't trust costs spans, not jobs.
    let mut operator = trusting("other.crt").await?;
    retried(PYTORCH).run(&world.actor("refused")).await?;
    operator.terminate(HANG).await?;
    ensure!(
        operator.log().contains("the last spans were not sent"),
        "{}",
        operator.log_tail()
    );
    world.jobs.delete("refused").await?;
    let text = fs::read_to_string(&log)?;
    ensure!(!text.contains("reconcile"), "{text}");
    let operator = trusting("tls.crt").await?;
    retried(PYTORCH).run(&world.actor("trusted")).await?;
    let span = [
        r#"{"key":"service.name","value":{"stringValue":"pytorch-operator"}}"#,
        "reconcile",
        "trusted",
    ];
    until_logged(&log, &span).await?;
    world.assert_clean(&operator).await
}
