//! Compares the cost of a submission by the operator and by `spark-submit` of the workload image on the same API server.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::submit::IMAGE;
use http::Method;
use kube::config::Kubeconfig;
use serde::Deserialize;
use training_testkit::control_plane::workspace;

use crate::application::PROGRAM;
use crate::bodies::Resource;
use crate::child::Helper;
use crate::counts::LOAD;
use crate::http::Ask;
use crate::load::{Load, Processes};
use crate::machine;
use crate::runs::{HANG, SHORT, milliseconds, names, number, warmed_up};
use crate::size::{Setting, Size};
use crate::stage::{Audit, Stage};
use crate::stats::median;
use crate::store::{Figures, Pair, Side};

/// Warm-up submissions, which read files into the page cache.
const WARM_UP: usize = 1;
/// The time limit to unpack the image, and of one submission.
const STEP: Duration = Duration::from_mins(5);
/// The key of a pair without figures of `spark-submit`.
pub const UNMEASURED: &str = "unmeasured";

/// The sandbox's script. It prints the wall and CPU seconds of every submission.
const SCRIPT: &str = r#"
set -e
work=$(mktemp -d)
printf %s "$CA" | base64 -d >"$work/ca.pem"
submit() {
    "$SPARK_HOME/bin/spark-submit" --master "k8s://$SERVER" --deploy-mode cluster --name "$1" \
        --conf "spark.kubernetes.namespace=$NAMESPACE" \
        --conf "spark.kubernetes.container.image=trainyard.test/spark:1" \
        --conf "spark.kubernetes.authenticate.submission.caCertFile=$work/ca.pem" \
        --conf "spark.kubernetes.authenticate.submission.oauthToken=$TOKEN" \
        --conf "spark.kubernetes.driver.pod.name=$1-driver" \
        --conf "spark.kubernetes.submission.waitAppCompletion=false" \
        --conf spark.executor.instances=2 \
        --conf spark.driver.memory=1g \
        --conf spark.executor.memory=2g \
        "$PROGRAM" 100 >"$work/$1.log" 2>&1 || { tail -n 20 "$work/$1.log" >&2; return 1; }
}
pair() {
    submit "$1-a" & first=$!
    submit "$1-b"
    wait "$first"
}
submit warm-up
echo begun
for i in $(seq 1 "$COUNT"); do
    TIMEFORMAT='one %R %U %S'
    { time submit "submitted-$i"; } 2>&1
done
TIMEFORMAT='two %R %U %S'
{ time pair submitted-at-once; } 2>&1
echo done
"#;

/// Measures both. Without the image, the pair gets [`UNMEASURED`] instead of figures of `spark-submit`.
pub async fn submission(setting: &Setting, say: &dyn Fn(&str)) -> Result<Pair> {
    let stage = Stage::start(setting.kind, Audit::Off, Side::Ours).await?;
    let ours = by_operator(&stage, &setting.size).await?;
    say(&format!("by the operator: {ours:.2?}"));
    let floor = match by_spark(&stage, setting.size.spark_submits).await? {
        Ok(figures) => figures,
        Err(why) => {
            say(&format!("spark-submit was not timed: {why}"));
            [(UNMEASURED.to_owned(), 1.0)].into()
        }
    };
    say(&format!("by spark-submit: {floor:.2?}"));
    Ok(Pair::new(floor, ours))
}

/// Creates applications one after the other, and two at once.
async fn by_operator(stage: &Stage, size: &Size) -> Result<Figures> {
    let load = Load::start(stage).await?;
    let mut driver = stage.driver(SHORT).await?;
    let mut client = stage.client(Side::Ours).await?;
    let mut processes = Processes {
        client: &mut client,
        driver: &mut driver,
        stage,
    };
    let meter = warmed_up(&load, size, &mut processes).await?;
    let (mut ones, mut pairs) = (Vec::new(), Vec::new());
    for (prefix, together, times) in [("one", 1, &mut ones), ("two", 2, &mut pairs)] {
        for round in 0..size.ones {
            let apps = names(&format!("{prefix}-{round}"), together);
            let begun = Instant::now();
            load.create_all(&apps).await?;
            load.until_succeeded(&apps, HANG, &mut processes).await?;
            let made = apps.iter().map(|app| load.seen(app, |seen| seen.complete));
            let last = made.flatten().max().flatten();
            let last = last.context("an application without a driver")?;
            times.push(milliseconds(last.saturating_duration_since(begun)));
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
    let apps = number(ones.len() + 2 * pairs.len());
    let figures = meter.end(stage, processes.client, Side::Ours, apps).await?;
    let cpu = figures["cpu_ms_per_job"];
    let memory = machine::memory(client.pid())?;
    Ok(named(&ones, &[median(&pairs)], &[cpu], memory.peak))
}

/// Names the figures, which are the same on both sides. Units: milliseconds, MB.
fn named(ones: &[f64], pairs: &[f64], cpu: &[f64], peak: f64) -> Figures {
    let figures = [
        ("submit_ms", median(ones)),
        ("submit_two_ms", median(pairs)),
        ("submit_cpu_ms", median(cpu)),
        ("submit_peak_mb", peak),
    ];
    figures.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Measures `spark-submit`, or returns why that isn't possible.
async fn by_spark(stage: &Stage, count: usize) -> Result<Result<Figures, String>> {
    let built = Command::new(workspace().join("e2e/image/build")).output();
    let program = match built {
        Ok(built) if built.status.success() => {
            String::from_utf8_lossy(&built.stdout).trim().to_owned()
        }
        Ok(built) => {
            return Ok(Err(String::from_utf8_lossy(&built.stderr)
                .trim()
                .to_owned()));
        }
        Err(error) => return Ok(Err(error.to_string())),
    };
    let cache = Path::new(&program).ancestors().nth(2);
    let cache = cache.context("a program outside of the cache")?;
    let log = stage.log("spark-submit");
    let mut command = sandbox(Path::new(&program));
    command.args(["run", "--cache"]).arg(cache);
    for (name, value) in environment(stage, count).await? {
        command.arg("--env").arg(format!("{name}={value}"));
    }
    command.args([IMAGE, "/bin/bash", "-c", SCRIPT]);
    let mut helper = Helper::spawn("spark-submit", &mut command, &log)?;

    let (mut ones, mut pairs, mut cpu, mut peak) = (vec![], vec![], vec![], 0.0_f64);
    let mut until = Instant::now() + STEP;
    loop {
        peak = peak.max(most_memory(helper.pid()));
        let line = match helper.line(Duration::from_millis(100)).await {
            Ok(line) => line,
            Err(_) if !helper.has_ended()? => {
                if let Some(why) = is_missing(&fs::read_to_string(&log)?) {
                    return Ok(Err(why));
                }
                ensure!(Instant::now() < until, "spark-submit hangs");
                continue;
            }
            Err(_) => {
                let said = fs::read_to_string(&log)?;
                // Before the first submission, the sandbox itself doesn't work here.
                if ones.is_empty() && !said.contains("unpacked") {
                    return Ok(Err(said));
                }
                bail!("spark-submit failed: {said}");
            }
        };
        until = Instant::now() + STEP;
        match Timing::parse(&line) {
            Some(Timing {
                together: 1,
                wall,
                cpu: used,
            }) => {
                ones.push(wall);
                cpu.push(used);
            }
            Some(timing) => pairs.push(timing.wall),
            None if line == "begun" => {}
            None if line == "done" => break,
            None => bail!("the sandbox says: {line}"),
        }
    }
    let wanted = count + WARM_UP + 2;
    let made = drivers(stage).await?;
    ensure!(
        made == wanted,
        "{made} drivers of spark-submit, not {wanted}"
    );
    Ok(Ok(named(&ones, &pairs, &cpu, peak)))
}

/// Returns the command that unpacks the image; it ends with the bench.
fn sandbox(program: &Path) -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    if !setpriv.exists() {
        return Command::new(program);
    }
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Returns the script's environment.
async fn environment(stage: &Stage, count: usize) -> Result<[(&'static str, String); 6]> {
    let kubeconfig = Kubeconfig::read_from(stage.control.kubeconfig(LOAD).await?)?;
    let cluster = kubeconfig.clusters.into_iter().find_map(|c| c.cluster);
    let cluster = cluster.context("a kubeconfig without a cluster")?;
    let (server, ca) = (cluster.server, cluster.certificate_authority_data);
    Ok([
        ("SERVER", server.context("no server")?),
        ("CA", ca.context("no certificate")?),
        ("TOKEN", stage.control.token(LOAD).await?),
        ("NAMESPACE", stage.namespace.clone()),
        ("COUNT", count.to_string()),
        ("PROGRAM", PROGRAM.to_owned()),
    ])
}

/// Returns why the image is missing. The bench doesn't build it, because that takes long.
fn is_missing(said: &str) -> Option<String> {
    let builds = said.contains(": building the ");
    builds.then(|| format!("{IMAGE} is not in the cache; build it with e2e/image"))
}

/// A line of the script's output.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Timing {
    together: usize,
    /// Units: milliseconds, like CPU.
    wall: f64,
    cpu: f64,
}

impl Timing {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [word, wall, user, system] = words[..] else {
            return None;
        };
        let together = match word {
            "one" => 1,
            "two" => 2,
            _ => return None,
        };
        let milliseconds = |text: &str| Some(text.parse::<f64>().ok()? * 1000.0);
        Some(Self {
            together,
            wall: milliseconds(wall)?,
            cpu: milliseconds(user)? + milliseconds(system)?,
        })
    }
}

/// Returns the maximum memory of any Java process below a process so far. Units: MB.
fn most_memory(root: u32) -> f64 {
    let all = machine::descendants(root).into_iter();
    let java = all.filter(|pid| machine::name(*pid).as_deref() == Some("java"));
    java.filter_map(|pid| machine::memory(pid).ok())
        .map(|memory| memory.peak)
        .fold(0.0, f64::max)
}

/// Counts the drivers that `spark-submit` created.
async fn drivers(stage: &Stage) -> Result<usize> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<serde::de::IgnoredAny>,
    }
    let path = Resource::Pod.path(&stage.namespace);
    let query = "labelSelector=spark-role%3Ddriver%2C%21sparkoperator.k8s.io%2Fapp-name";
    let list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let path = format!("{path}?{query}");
    let body = stage.api.must(Method::GET, &path, Ask::read(list)).await?;
    Ok(serde_json::from_slice::<List>(&body)?.items.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_script_are_milliseconds() {
        let one = Timing {
            together: 1,
            wall: 4250.0,
            cpu: 6500.0,
        };
        assert_eq!(Timing::parse("one 4.250 6.000 0.500"), Some(one));
        assert_eq!(Timing::parse("two 4.250 6 0.5").unwrap().together, 2);
        assert_eq!(Timing::parse("done"), None);
        assert_eq!(Timing::parse("three 1 2 3"), None);
    }

    #[test]
    fn an_image_that_would_be_built_is_missing() {
        let builds = "trainyard-image: trainyard/spark:1: building the apt layer: tini\n";
        assert!(is_missing(builds).unwrap().contains("not in the cache"));
        assert_eq!(
            is_missing("trainyard-image: trainyard/spark:1: unpacked in 9.0 s\n"),
            None
        );
    }
}
