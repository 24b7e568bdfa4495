//! `make test`: every stage, side by side where that saves time, and one table at the end.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Instant;

use crate::cluster::{self, OWN};
use crate::image::{Build, OPERATORS};
use crate::stages::{Stage, run as run_stages};
use crate::table::{Count, End, render};
use crate::{demo, deps, image, kueue, leftovers, paths, process, sdk};

/// The cluster of the tests; a demo's cluster is left alone.
const NAME: &str = "test";
/// The test program of the faults between the operator and the API server.
const FAULTS: &str = "api_faults";
/// The test program of kills at random, beside the sweep that kills at every write.
const CRASHES: &str = "api_crash";
/// The test program that runs the real `spark-submit`. It needs the images, and the others must not wait for those.
const SUBMIT: &str = "api_spark_submit";
/// Whether cargo keeps what makes a second build faster.
const INCREMENTAL: &str = "CARGO_INCREMENTAL";
/// Parts of names: of the tests against an API server and with pods, only those run.
const ONLY: &str = "TRAINYARD_TESTS";

// What each stage is, what it needs, and whom it follows. The long builds come first; those of other languages go on beside them.
const STAGES: &[Stage] = &[
    stage("packages", &[], &[], |_| {
        cluster::prerequisites()
            .and_then(|()| sdk::prerequisites())
            .map(|()| nothing())
    }),
    stage("node", &[], &[], |_| {
        process::built("e2e/cluster/build").map(|_| nothing())
    }),
    stage("images", &["packages"], &[], |_| {
        cluster::workloads().map(|_| nothing())
    }),
    // The first time a cluster has all images to unpack, for minutes; that can go on beside the builds.
    stage("content", &["node", "images"], &[], |_| content()),
    // Two builds of Kubernetes' packages at once would only take turns, and most of the tests wait for the first.
    stage("kueue", &[], &["node"], |_| {
        kueue::built().map(|_| nothing())
    }),
    stage("sdk", &["packages"], &[], |_| {
        sdk::python().map(|_| nothing())
    }),
    stage("format", &[], &[], |s| {
        cargo(s, &["fmt", "--all", "--check"])
    }),
    stage("deps", &[], &[], |_| deps::check().map(|()| nothing())),
    stage("built", &[], &["deps"], built),
    stage("lint", &[], &["built"], lint),
    stage("libs-alone", &[], &["lint"], libs_alone),
    stage("docs", &[], &["libs-alone"], docs),
    stage("unit", &["built"], &["docs"], unit),
    stage("manifests", &["built"], &["unit"], manifests),
    stage("go", &["node"], &[], go),
    stage("dockerfile", &["built", "packages"], &[], dockerfile),
    stage("api", &["built", "node"], &["manifests", "dockerfile"], api),
    stage("faults", &["built", "node"], &["api"], faults),
    stage("submit", &["built", "node", "images"], &["faults"], submit),
    stage(
        "pods",
        &["built", "node", "images", "kueue", "sdk"],
        &["submit", "content"],
        pods,
    ),
    stage(
        "clusters",
        &["built", "node", "images"],
        &["pods"],
        clusters,
    ),
];

/// What `make test` does once, done often and with the binaries that are shipped: the figures of the last run stand in the
/// documents.
const DEEP: &[Stage] = &[
    stage("node", &[], &[], |_| {
        process::built("e2e/cluster/build").map(|_| nothing())
    }),
    stage("binary", &[], &[], |_| {
        image::binaries(OPERATORS).map(|()| nothing())
    }),
    stage("histories", &[], &["binary"], histories),
    stage("crashes", &["node", "binary"], &["histories"], crashes),
    stage("sweep", &["node", "binary"], &["crashes"], deep_sweep),
    stage("faults", &["node", "binary"], &["sweep"], deep_faults),
    stage("images", &[], &["faults"], images),
    stage("mpi", &["node", "binary"], &["images"], deep_mpi),
    stage("spark", &["node", "binary"], &["mpi"], deep_spark),
    stage("mutate", &[], &["spark"], mutate),
];

const fn stage(
    name: &'static str,
    needs: &'static [&'static str],
    after: &'static [&'static str],
    work: fn(&Stage) -> Result<End, String>,
) -> Stage {
    Stage {
        name,
        needs,
        after,
        work,
    }
}

/// Runs all stages, or those named.
pub fn run(names: &[&str]) -> Result<(), String> {
    const LAST: &str = "leftovers";
    let mut known = STAGES.iter().map(|s| s.name).chain([LAST]);
    if let Some(unknown) = names
        .iter()
        .find(|name| !known.clone().any(|k| k == **name))
    {
        let all: Vec<&str> = known.by_ref().collect();
        return Err(format!(
            "there is no stage {unknown}; there are {}",
            all.join(", ")
        ));
    }
    let begun = Instant::now();
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    let stages: Vec<Stage> = STAGES.iter().filter(|s| wanted(s.name)).copied().collect();
    let mut rows = run_stages(&stages);
    if wanted(LAST) {
        // After everything, also after failures.
        rows.extend(run_stages(&[stage(LAST, &[], &[], |s| {
            leftovers::check(s, NAME)
        })]));
    }
    eprintln!("{}", render(&rows, begun.elapsed()));
    let failed: Vec<&str> = rows
        .iter()
        .filter(|r| matches!(r.end, End::Failed(..)))
        .map(|r| r.stage)
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")))
    }
}

/// Runs the deep stages.
pub fn deep() -> Result<(), String> {
    let begun = Instant::now();
    let rows = run_stages(DEEP);
    eprintln!("{}", render(&rows, begun.elapsed()));
    if rows.iter().any(|r| matches!(r.end, End::Failed(..))) {
        Err("failed".to_owned())
    } else {
        Ok(())
    }
}

/// Random histories of a simulated world, fifty times as many.
#[expect(
    clippy::unnecessary_wraps,
    reason = "a stage's work may fail; this one's is one call"
)]
fn histories(stage: &Stage) -> Result<End, String> {
    let mut args = vec!["test", "--locked", "--release", "--test", "properties"];
    for operator in OPERATORS {
        args.extend(["-p", operator]);
    }
    let mut cargo = process::command("cargo", args);
    Ok(counted(stage, cargo.env("PROPTEST_CASES", "100000")))
}

/// The kills of the crash test, with ten seeds.
fn crashes(stage: &Stage) -> Result<End, String> {
    for seed in 1..=10 {
        let mut cargo = e2e_command(&[CRASHES], Build::Shipped)?;
        stage.run(cargo.env("TRAINYARD_SEED", seed.to_string()))?;
    }
    Ok(End::Passed(stage.count()))
}

/// Breaks single lines of a copy; each must make a test fail.
#[expect(
    clippy::unnecessary_wraps,
    reason = "a stage's work may fail; this one's is one call"
)]
fn mutate(stage: &Stage) -> Result<End, String> {
    let mut cargo = process::command(
        "cargo",
        ["run", "--locked", "-q", "-p", "xtask", "--", "mutate"],
    );
    Ok(counted(stage, &mut cargo))
}

/// Builds image layers for real, twice, and compares them.
#[expect(
    clippy::unnecessary_wraps,
    reason = "a stage's work may fail; this one's is one call"
)]
fn images(stage: &Stage) -> Result<End, String> {
    let dir = paths::root().join("e2e/image");
    let mut go = process::command(
        "go",
        ["test", "-tags", "deep", "-run", "RealBuild", "-v", "."],
    );
    Ok(counted(
        stage,
        go.current_dir(dir)
            .env("TRAINYARD_IMAGE_CACHE", paths::cache()),
    ))
}

fn nothing() -> End {
    End::Passed(Count::default())
}

/// Cargo, in the one way in which the tests and the programs that they start are compiled: nothing is compiled twice. Every command
/// names the whole workspace, too, since the packages named decide on the features of all others.
fn cargo_command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut cargo = image::static_cargo(args);
    // What would speed up the next build makes this one slower.
    if std::env::var_os(INCREMENTAL).is_none() {
        cargo.env(INCREMENTAL, "0");
    }
    cargo
}

/// Runs cargo, and counts the tests that it ran.
#[expect(
    clippy::unnecessary_wraps,
    reason = "most stages are nothing but one call of this"
)]
fn cargo(stage: &Stage, args: &[&str]) -> Result<End, String> {
    Ok(counted(stage, &mut cargo_command(args)))
}

/// All tests, and the operators that some of them start.
fn built(stage: &Stage) -> Result<End, String> {
    cargo(stage, &["test", "--locked", "--workspace", "--no-run"])
}

fn unit(stage: &Stage) -> Result<End, String> {
    let all = ["test", "--locked", "--workspace", "--no-fail-fast"];
    let ours = [&all[..], &["--exclude", "e2e"]].concat();
    let first = cargo(stage, &ours)?;
    if !matches!(first, End::Passed(_)) {
        return Ok(first);
    }
    // The tests of what the end-to-end tests share.
    cargo(stage, &[&all[..], &["--lib", "--", "sweep::"]].concat())
}

/// A test stage that ran nothing has failed.
fn counted(stage: &Stage, command: &mut Command) -> End {
    let result = stage.run(command);
    let count = stage.count();
    match result {
        Ok(()) if count.failed == 0 => End::Passed(count),
        Ok(()) => End::Failed(count, "tests failed".to_owned()),
        Err(message) => End::Failed(count, message),
    }
}

fn lint(stage: &Stage) -> Result<End, String> {
    // Warnings are denied by flag, never in source: a new compiler must not break a checkout.
    cargo(
        stage,
        &[
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
    )
}

/// A framework that reaches for I/O doesn't compile here.
fn libs_alone(stage: &Stage) -> Result<End, String> {
    let mut args = vec!["check", "--locked", "--lib", "--no-default-features"];
    for operator in OPERATORS {
        args.extend(["-p", operator]);
    }
    cargo(stage, &args)?;
    // As they are shipped: what only compiles with the features that others ask for isn't built anywhere else.
    let mut args = vec!["check", "--locked", "--bins"];
    for operator in OPERATORS {
        args.extend(["-p", operator]);
    }
    cargo(stage, &args)?;
    let tree = process::quiet(&mut process::command(
        "cargo",
        [
            "tree",
            "--locked",
            "-p",
            "training-core",
            "-e",
            "normal",
            "--prefix",
            "none",
        ],
    ))?;
    let forbidden = ["tokio ", "hyper ", "futures ", "kube-client ", "rand "];
    let found: Vec<&str> = tree
        .lines()
        .filter(|l| forbidden.iter().any(|f| l.starts_with(f)))
        .collect();
    if found.is_empty() {
        Ok(nothing())
    } else {
        Err(format!("the core can do I/O: {}", found.join(", ")))
    }
}

fn docs(stage: &Stage) -> Result<End, String> {
    let mut cargo = cargo_command(["doc", "--locked", "--workspace", "--no-deps"]);
    stage
        .run(cargo.env("RUSTDOCFLAGS", "-D warnings"))
        .map(|()| nothing())
}

fn manifests(stage: &Stage) -> Result<End, String> {
    // Built with its tests, like everything here: alone it would have other features.
    let mut build = cargo_command(["test", "--locked", "--workspace", "--no-run"]);
    stage.run(build.args(["--test", "manifests"]))?;
    let program = paths::binaries(Build::Checked).join("training-manifests");
    let mut generate = process::command(program, ["generate", "--check"]);
    Ok(counted(stage, &mut generate))
}

fn go(stage: &Stage) -> Result<End, String> {
    // Of the cluster's module only what is ours: its main package links all of Kubernetes, and vet would read all of it.
    let modules: [(&str, &[&str]); 2] = [
        (
            "e2e/cluster",
            &["./internal/base", "./internal/image", "./internal/cluster"],
        ),
        ("e2e/image", &["./..."]),
    ];
    for (module, packages) in modules {
        let dir = paths::root().join(module);
        for verb in [&["vet"][..], &["test", "-v"][..]] {
            stage.run(process::command("go", verb.iter().chain(packages)).current_dir(&dir))?;
        }
    }
    Ok(End::Passed(stage.count()))
}

fn dockerfile(stage: &Stage) -> Result<End, String> {
    let has = |program: &str| process::quiet(&mut process::command("which", [program])).is_ok();
    if !has("buildah") {
        let install = "apt-get update -q && apt-get install -y -q --no-install-recommends buildah";
        if !process::may_install() {
            return Err(format!("buildah is missing; install it with: {install}"));
        }
        stage.run(&mut process::command("sh", ["-c", install]))?;
    }
    let script = paths::root().join("e2e/image/prove-dockerfile");
    for operator in OPERATORS {
        let binary = paths::binaries(Build::Checked).join(operator);
        stage.run(&mut process::command(&script, [binary]))?;
    }
    Ok(nothing())
}

/// Runs the test programs of `e2e/tests` whose names begin so.
fn e2e(stage: &Stage, prefixes: &[&str]) -> Result<End, String> {
    Ok(counted(stage, &mut e2e_command(prefixes, Build::Checked)?))
}

fn e2e_command(prefixes: &[&str], how: Build) -> Result<Command, String> {
    let node = process::built("e2e/cluster/build")?;
    let mut cargo = cargo_command(e2e_args(prefixes)?);
    cargo
        .env("TRAINYARD_NODE", node)
        .env("TRAINYARD_OPERATOR_BIN_DIR", paths::binaries(how));
    Ok(cargo)
}

/// The faults of the API. Each of these tests waits more than it works, so that many run side by side.
fn faults(stage: &Stage) -> Result<End, String> {
    let mut cargo = e2e_command(&[FAULTS], Build::Checked)?;
    Ok(counted(stage, cargo.env("RUST_TEST_THREADS", "10")))
}

/// What `spark-submit` makes of a few applications is what is recorded of it.
fn submit(stage: &Stage) -> Result<End, String> {
    let mut cargo = e2e_command(&[SUBMIT], Build::Checked)?;
    let image = process::built("e2e/image/build")?;
    Ok(counted(stage, cargo.env("TRAINYARD_IMAGE", image)))
}

/// Records what `spark-submit` makes of every application that ours is compared with.
pub fn spark_recordings() -> Result<(), String> {
    let mut cargo = cargo_command(["test", "--locked", "--workspace", "--test", SUBMIT]);
    cargo
        .args(["--", "--nocapture"])
        .env(
            "TRAINYARD_RECORD",
            std::env::var_os("TRAINYARD_RECORD").unwrap_or_default(),
        )
        .env("TRAINYARD_NODE", process::built("e2e/cluster/build")?)
        .env("TRAINYARD_IMAGE", process::built("e2e/image/build")?);
    process::run(&mut cargo)
}

/// A cut of each kind around every write of every life; and how fast a standby takes over.
fn deep_sweep(stage: &Stage) -> Result<End, String> {
    let mut cargo = e2e_command(&["api_sweep", "api_spark", "api_election"], Build::Shipped)?;
    Ok(counted(stage, cargo.env("TRAINYARD_DEEP", "1")))
}

/// The same in every phase of a job's life again and again, and for as long as the programme says.
fn deep_faults(stage: &Stage) -> Result<End, String> {
    let mut cargo = e2e_command(&[FAULTS], Build::Shipped)?;
    cargo
        .env("RUST_TEST_THREADS", "6")
        .env("TRAINYARD_DEEP", "1");
    Ok(counted(stage, &mut cargo))
}

fn e2e_args(prefixes: &[&str]) -> Result<Vec<String>, String> {
    let mut args: Vec<String> = ["test", "--locked", "--workspace"]
        .map(str::to_owned)
        .into();
    let files = std::fs::read_dir(paths::root().join("e2e/tests")).map_err(|e| e.to_string())?;
    let mut names: Vec<String> = files
        .flatten()
        .filter_map(|f| {
            f.file_name()
                .to_str()?
                .strip_suffix(".rs")
                .map(str::to_owned)
        })
        .filter(|name| prefixes.iter().any(|p| name.starts_with(p)))
        // Stages of their own run these.
        .filter(|name| {
            let apart = [FAULTS, CRASHES, SUBMIT].contains(&name.as_str());
            !apart || prefixes.contains(&name.as_str())
        })
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(format!(
            "there is no test program {}*",
            prefixes.join("*, ")
        ));
    }
    for name in names {
        args.extend(["--test".to_owned(), name]);
    }
    // A test that fails must not hide the others.
    args.push("--no-fail-fast".to_owned());
    // What the tests saw goes into the log, and with it whatever they had to skip.
    args.extend(["--", "--show-output"].map(str::to_owned));
    // Only these, for whoever looks into one of them.
    let only = std::env::var(ONLY).unwrap_or_default();
    args.extend(only.split_whitespace().map(str::to_owned));
    Ok(args)
}

/// The tests on a control plane of ours; on a cluster of the user's, those that can run there.
fn api(stage: &Stage) -> Result<End, String> {
    if std::env::var_os(OWN).is_none() {
        return e2e(stage, &["api_", "harness"]);
    }
    eprintln!("[api] harness: skipped, it tests our own control plane and {OWN} is set");
    let skipped = |mut count: Count| {
        count.skipped += 1;
        count
    };
    Ok(match e2e(stage, &["api_"])? {
        End::Passed(count) => End::Passed(skipped(count)),
        End::Failed(count, why) => End::Failed(skipped(count), why),
        other @ End::Skipped(_) => other,
    })
}

/// The pod-level tests on a cluster of their own, or on the user's.
fn pods(stage: &Stage) -> Result<End, String> {
    with_pods(stage, &["pods_"], Build::Checked)
}

/// Every MPI in every way in which a job may go, again and again.
fn deep_mpi(stage: &Stage) -> Result<End, String> {
    with_pods(stage, &["pods_mpi"], Build::Shipped)
}

/// Every published shape of a SparkApplication, and a queue of them to its end.
fn deep_spark(stage: &Stage) -> Result<End, String> {
    with_pods(stage, &["pods_spark", "pods_kueue"], Build::Shipped)
}

fn with_pods(stage: &Stage, programs: &[&str], how: Build) -> Result<End, String> {
    let cluster = cluster::up(NAME)?;
    // On a cluster of the user's there is Kueue, or there isn't.
    let queues = || match cluster.name {
        Some(_) => kueue::deploy(&cluster),
        None => Ok(()),
    };
    // Kueue looks for its kinds when it starts.
    let mut operators = OPERATORS.iter();
    let deployed = operators.try_for_each(|operator| demo::deploy(&cluster, operator, how));
    // Nobody waits ten minutes here for an image that never comes.
    let deployed = deployed.and_then(|()| waiting_limit(&cluster, "=60s"));
    let deployed = deployed.and_then(|()| queues());
    let result = deployed.and_then(|()| {
        let mut cargo = cargo_command(e2e_args(programs)?);
        cargo
            .env("TRAINYARD_PODS_KUBECONFIG", &cluster.kubeconfig)
            .env("TRAINYARD_NODE", &cluster.node)
            .env("TRAINYARD_OPERATOR_BIN_DIR", paths::binaries(how))
            .env("TRAINYARD_SDK_PYTHON", sdk::python()?)
            // These tests wait more than they work, and take turns by themselves.
            .env("RUST_TEST_THREADS", "8");
        if let Build::Shipped = how {
            cargo.env("TRAINYARD_DEEP", "1");
        }
        if let Some(name) = &cluster.name {
            cargo.env(
                "TRAINYARD_PODS_STATE",
                paths::cache().join("clusters").join(name),
            );
        }
        Ok(counted(stage, &mut cargo))
    });
    if cluster.name.is_some() {
        cluster::down(NAME)?;
    } else {
        waiting_limit(&cluster, "-")?;
    }
    result
}

/// Sets or, where nothing follows its name but `-`, takes back how long a driver may wait for its image.
fn waiting_limit(cluster: &cluster::Cluster, said: &str) -> Result<(), String> {
    let (deployment, variable) = ("spark-operator", "TRAINYARD_DRIVER_WAITING_LIMIT");
    let (what, set) = (
        format!("deployment/{deployment}"),
        format!("{variable}{said}"),
    );
    process::quiet(&mut cluster.kubectl(["-n", demo::SYSTEM, "set", "env", &what, &set]))?;
    cluster.rolled_out(demo::SYSTEM, deployment)
}

/// Gives the tests' cluster its images, which it keeps while it is down.
fn content() -> Result<End, String> {
    let cluster = cluster::up(NAME)?;
    if cluster.name.is_some() {
        cluster::down(NAME)?;
    }
    Ok(nothing())
}

/// The tests of the local cluster itself.
fn clusters(stage: &Stage) -> Result<End, String> {
    if std::env::var_os(OWN).is_some() {
        return Ok(End::Skipped(format!("{OWN} is set")));
    }
    e2e(stage, &["cluster_"])
}
