//! Metrics of jobs, and the alerts and dashboards that use them, by a real Prometheus.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use e2e::lives::{Life, MpiLife, SparkLife};
use e2e::{World, for_each_kind};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::{EVERY_KIND, Kind, MPI, PYTORCH, SPARK};
use training_testkit::control_plane::{built, workspace};
use training_testkit::kubelet::lockstep;
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
    retried(kind).conduct(&world.actor("pt")).await?;
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

/// A Prometheus that scrapes operators. It ends with the test.
struct Prometheus {
    child: Child,
    programs: PathBuf,
    address: SocketAddr,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
            child,
            programs,
            address,
        })
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

/// Returns the expressions of a shipped dashboard, with all values of its variables.
fn expressions(dashboard: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(monitoring().join(format!("{dashboard}.json")))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let exprs = targets
        .flatten()
        .filter_map(|target| target["expr"].as_str());
    let exprs = exprs.map(|expr| {
        let expr = expr.replace("$__rate_interval", "1m");
        ["$kind", "$job_namespace", "$job"]
            .into_iter()
            .fold(expr, |expr, variable| expr.replace(variable, ".*"))
    });
    Ok(exprs.collect())
}

#[tokio::test]
async fn every_query_of_the_dashboards_has_results() -> Result<()> {
    let Some(torch) = World::of(PYTORCH, "dashboards", lockstep()).await? else {
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
    retried(PYTORCH).conduct(&torch.actor("pt")).await?;
    for (life, name) in [
        (SparkLife::Succeeds, "good"),
        (SparkLife::Retried, "retried"),
        (SparkLife::Fails, "bad"),
    ] {
        Life::Spark(life).conduct(&spark.actor(name)).await?;
    }
    for dashboard in ["trainyard-jobs", "trainyard-operators", "trainyard-spark"] {
        for expr in expressions(dashboard)? {
            prometheus.until_results(&expr).await?;
        }
    }
    let stuck = "trainyard_jobs_waiting{reason=\"NameConflict\"} == 1";
    prometheus.until_results(stuck).await?;
    for rule in rules()? {
        prometheus.query(rule["expr"].as_str().context("no expression")?)?;
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
