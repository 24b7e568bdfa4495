//! `make test`: every stage, side by side where that saves time, and one table at the end.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster::{self, OWN};
use crate::deep::Share;
use crate::image::{Build, OPERATORS};
use crate::programs::How;
use crate::stages::{Run, Stage, run as run_stages};
use crate::table::{Row, render};
use crate::{cases, demo, deps, image, kueue, leftovers, licences, paths, process, programs, sdk};

/// The cluster of the tests; a demo's cluster is left alone.
const NAME: &str = "test";
/// The test program of the faults between the operator and the API server.
pub const FAULTS: &str = "api_faults";
/// The test program of kills at random, beside the sweep that kills at every write.
pub const CRASHES: &str = "api_crash";
/// The test program of kills at every write.
const SWEEP: &str = "api_sweep";
/// The test program that runs the real `spark-submit`. It needs the images, and the others must not wait for those.
const SUBMIT: &str = "api_spark_submit";
/// Whether cargo keeps what makes a second build faster.
const INCREMENTAL: &str = "CARGO_INCREMENTAL";
/// Parts of names: of the tests against an API server and with pods, only those run.
const ONLY: &str = "TRAINYARD_TESTS";

// What each stage is, what it needs, and whom it follows. The long builds come first; those of other languages go on beside them.
const STAGES: &[Stage] = &[
    stage("packages", &[], &[], |_| {
        cluster::prerequisites().and_then(|()| sdk::prerequisites())
    }),
    stage("node", &[], &[], |_| {
        process::built("e2e/cluster/build").map(drop)
    }),
    stage("images", &["packages"], &[], |_| {
        cluster::workloads().map(drop)
    }),
    // The first time a cluster has all images to unpack, for minutes; that can go on beside the builds.
    stage("content", &["node", "images"], &[], |_| content()),
    // Two builds of Kubernetes' packages at once would only take turns, and most of the tests wait for the first.
    stage("kueue", &[], &["node"], |_| kueue::built().map(drop)),
    stage("sdk", &["packages"], &[], |_| sdk::python().map(drop)),
    stage("format", &[], &[], |s| {
        cargo(s, &["fmt", "--all", "--check"])
    }),
    stage("deps", &[], &[], |_| deps::check()),
    stage("built", &[], &["deps"], built),
    stage("lint", &[], &["built"], lint),
    stage("libs-alone", &[], &["lint"], libs_alone),
    stage("docs", &[], &["libs-alone"], docs),
    tests("unit", &["built"], &["docs"], unit),
    stage("manifests", &["built"], &["unit"], manifests),
    tests("go", &["node"], &[], go),
    stage("dockerfile", &["built", "packages"], &[], dockerfile),
    tests("api", &["built", "node"], &["manifests", "dockerfile"], api),
    tests("faults", &["built", "node"], &["api"], faults),
    tests("submit", &["built", "node", "images"], &["faults"], submit),
    tests(
        "pods",
        &["built", "node", "images", "kueue", "sdk"],
        &["submit", "content"],
        pods,
    ),
    tests(
        "clusters",
        &["built", "node", "images"],
        &["pods"],
        clusters,
    ),
];

/// A stage that builds or checks.
pub const fn stage(
    name: &'static str,
    needs: &'static [&'static str],
    after: &'static [&'static str],
    work: fn(&Run) -> Result<(), String>,
) -> Stage {
    Stage {
        name,
        has_tests: false,
        needs,
        after,
        work,
    }
}

/// A stage that runs tests.
pub const fn tests(
    name: &'static str,
    needs: &'static [&'static str],
    after: &'static [&'static str],
    work: fn(&Run) -> Result<(), String>,
) -> Stage {
    Stage {
        has_tests: true,
        ..stage(name, needs, after, work)
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
    let mut rows = run_stages(&stages, Share::ALL);
    if wanted(LAST) {
        // After everything, also after failures.
        let last = stage(LAST, &[], &[], |run| leftovers::check(run, NAME));
        rows.extend(run_stages(&[last], Share::ALL));
    }
    eprintln!("{}", render(&rows, begun.elapsed()).trim_end());
    judged(&rows)
}

/// Whether all is well. What is not stands in the table, whose last line is to be the last of all.
pub fn judged(rows: &[Row]) -> Result<(), String> {
    if rows.iter().any(Row::failed) {
        Err(String::new())
    } else {
        Ok(())
    }
}

/// Cargo, in the one way in which the tests and the programs that they start are compiled: nothing is compiled twice. Every command
/// names the whole workspace, too, since the packages named decide on the features of all others.
pub fn cargo_command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut cargo = image::static_cargo(args);
    // What would speed up the next build makes this one slower.
    if std::env::var_os(INCREMENTAL).is_none() {
        cargo.env(INCREMENTAL, "0");
    }
    cargo
}

fn cargo(run: &Run, args: &[&str]) -> Result<(), String> {
    run.run(&mut cargo_command(args))
}

/// All tests, and the operators that some of them start.
fn built(run: &Run) -> Result<(), String> {
    cargo(run, &["test", "--locked", "--workspace", "--no-run"])
}

fn unit(run: &Run) -> Result<(), String> {
    let all = ["test", "--locked", "--workspace"];
    let mut ours = programs::build(run, &mut cargo_command(all))?;
    // Of the end-to-end tests only those of what they share.
    ours.retain(|program| !program.is_tests_only || !program.directory.ends_with("e2e"));
    // The same random histories every time; `make test-deep` draws others.
    let how = How {
        env: vec![("PROPTEST_RNG_SEED", "1".into())],
        ..How::default()
    };
    let tested = programs::run(run, &ours, &how);
    let mut docs = cargo_command(all);
    let (passed, log) = run.output(docs.args(["--doc", "--no-fail-fast"]))?;
    let cases = cases::documented(&log);
    let failed = cases.iter().any(cases::Case::failed);
    for case in cases {
        run.ended(case, &log);
    }
    match tested {
        Ok(()) if !passed && !failed => Err("the documentation's tests don't compile".to_owned()),
        other => other,
    }
}

fn lint(run: &Run) -> Result<(), String> {
    // Warnings are denied by flag, never in source: a new compiler must not break a checkout.
    cargo(
        run,
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
fn libs_alone(run: &Run) -> Result<(), String> {
    let mut args = vec!["check", "--locked", "--lib", "--no-default-features"];
    for operator in OPERATORS {
        args.extend(["-p", operator]);
    }
    cargo(run, &args)?;
    // As they are shipped: what only compiles with the features that others ask for isn't built anywhere else.
    let mut args = vec!["check", "--locked", "--bins"];
    for operator in OPERATORS {
        args.extend(["-p", operator]);
    }
    cargo(run, &args)?;
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
        Ok(())
    } else {
        Err(format!("the core can do I/O: {}", found.join(", ")))
    }
}

fn docs(run: &Run) -> Result<(), String> {
    let mut cargo = cargo_command(["doc", "--locked", "--workspace", "--no-deps"]);
    run.run(cargo.env("RUSTDOCFLAGS", "-D warnings"))
}

fn manifests(run: &Run) -> Result<(), String> {
    // Built with its tests, like everything here: alone it would have other features.
    let mut build = cargo_command(["test", "--locked", "--workspace", "--no-run"]);
    run.run(build.args(["--test", "manifests"]))?;
    let program = paths::binaries(Build::Checked).join("training-manifests");
    run.run(&mut process::command(program, ["generate", "--check"]))
}

fn go(run: &Run) -> Result<(), String> {
    // Of the cluster's module only what is ours: its main package links all of Kubernetes, and vet would read all of it.
    let modules: [(&str, &[&str]); 2] = [
        (
            "e2e/cluster",
            &["./internal/base", "./internal/image", "./internal/cluster"],
        ),
        ("e2e/image", &["./..."]),
    ];
    let mut wrong = Vec::new();
    for (module, packages) in modules {
        let dir = paths::root().join(module);
        let vet = ["vet"].iter().chain(packages);
        wrong.extend(run.run(process::command("go", vet).current_dir(&dir)).err());
        wrong.extend(go_test(run, &dir, packages, &[]).err());
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}

/// Runs tests of Go, and keeps how they ended. Go ends those that hang by itself.
pub fn go_test(run: &Run, dir: &Path, args: &[&str], env: &[(&str, &Path)]) -> Result<(), String> {
    let mut command = process::command("go", ["test", "-json"].iter().chain(args));
    command.current_dir(dir).envs(env.iter().copied());
    let (passed, log) = run.output(&mut command)?;
    let cases = cases::go(&log);
    let failed = cases.iter().any(|(case, _)| case.failed());
    for (case, output) in cases {
        run.ended(case, &output);
    }
    if passed || failed {
        Ok(())
    } else {
        Err(format!("go test failed in {}", dir.display()))
    }
}

fn dockerfile(run: &Run) -> Result<(), String> {
    let has = |program: &str| process::quiet(&mut process::command("which", [program])).is_ok();
    if !has("buildah") {
        let install = "apt-get update -q && apt-get install -y -q --no-install-recommends buildah";
        if !process::may_install() {
            return Err(format!("buildah is missing; install it with: {install}"));
        }
        run.run(&mut process::command("sh", ["-c", install]))?;
    }
    let script = paths::root().join("e2e/image/prove-dockerfile");
    for operator in OPERATORS {
        licences::write(operator, &licences::place(operator, Build::Checked))?;
        let binary = paths::binaries(Build::Checked).join(operator);
        run.run(&mut process::command(&script, [binary]))?;
    }
    Ok(())
}

/// Runs the test programs of `e2e/tests` whose names begin so.
pub fn e2e(run: &Run, prefixes: &[&str], build: Build, mut how: How) -> Result<(), String> {
    let node = process::built("e2e/cluster/build")?;
    how.env.extend([
        ("TRAINYARD_NODE", node.into()),
        ("TRAINYARD_OPERATOR_BIN_DIR", paths::binaries(build).into()),
    ]);
    // Only these, for whoever looks into one of them.
    let only = std::env::var(ONLY).unwrap_or_default();
    how.only = only.split_whitespace().map(str::to_owned).collect();
    let mut cargo = cargo_command(["test", "--locked", "--workspace"]);
    for name in e2e_programs(prefixes)? {
        cargo.args(["--test", &name]);
    }
    let mut programs = programs::build(run, &mut cargo)?;
    // The longest begins first, so that nothing has to wait for it alone at the end.
    programs.sort_by_key(|program| (program.target != SWEEP, program.target.clone()));
    programs::run(run, &programs, &how)
}

/// The faults of the API. Each of these tests waits more than it works, so that many run side by side.
fn faults(run: &Run) -> Result<(), String> {
    let how = How {
        threads: Some(10),
        again: true,
        ..How::default()
    };
    e2e(run, &[FAULTS], Build::Checked, how)
}

/// What `spark-submit` makes of a few applications is what is recorded of it.
fn submit(run: &Run) -> Result<(), String> {
    let image = process::built("e2e/image/build")?;
    let how = How {
        env: vec![("TRAINYARD_IMAGE", image.into())],
        ..How::default()
    };
    e2e(run, &[SUBMIT], Build::Checked, how)
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

fn e2e_programs(prefixes: &[&str]) -> Result<Vec<String>, String> {
    let files = std::fs::read_dir(paths::root().join("e2e/tests")).map_err(|e| e.to_string())?;
    let mut names: Vec<String> = files
        .flatten()
        .filter_map(|f| {
            f.file_name()
                .to_str()?
                .strip_suffix(".rs")
                .map(str::to_owned)
        })
        // Stages of their own run these, by their whole names.
        .filter(|name| {
            if [FAULTS, CRASHES, SUBMIT].contains(&name.as_str()) {
                return prefixes.contains(&name.as_str());
            }
            let mut others = prefixes
                .iter()
                .filter(|p| ![FAULTS, CRASHES, SUBMIT].contains(p));
            others.any(|p| name.starts_with(p))
        })
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(format!(
            "there is no test program {}*",
            prefixes.join("*, ")
        ));
    }
    Ok(names)
}

/// The tests on a control plane of ours; on a cluster of the user's, those that can run there.
fn api(run: &Run) -> Result<(), String> {
    let is_own = std::env::var_os(OWN).is_some();
    let how = How {
        side_by_side: if is_own { 1 } else { 2 },
        again: true,
        ..How::default()
    };
    if !is_own {
        return e2e(run, &["api_", "harness"], Build::Checked, how);
    }
    run.skip(
        "e2e/harness",
        &format!("it tests our own control plane and {OWN} is set"),
    );
    e2e(run, &["api_"], Build::Checked, how)
}

/// The pod-level tests on a cluster of their own, or on the user's.
fn pods(run: &Run) -> Result<(), String> {
    with_pods(run, &["pods_"], Build::Checked)
}

/// Runs tests on a cluster with the operators.
pub fn with_pods(run: &Run, programs: &[&str], build: Build) -> Result<(), String> {
    let cluster = cluster::up(NAME)?;
    // On a cluster of the user's there is Kueue, or there isn't.
    let queues = || match cluster.name {
        Some(_) => kueue::deploy(&cluster).and_then(|()| kueue::ready(&cluster)),
        None => Ok(()),
    };
    // Kueue looks for its kinds when it starts.
    let mut operators = OPERATORS.iter();
    let deployed = operators.try_for_each(|operator| demo::deploy(&cluster, operator, build));
    // Nobody waits ten minutes here for an image that never comes.
    let deployed = deployed.and_then(|()| waiting_limit(&cluster, "=60s"));
    let deployed = deployed.and_then(|()| queues());
    let result = deployed.and_then(|()| {
        let mut env = vec![
            ("TRAINYARD_PODS_KUBECONFIG", (&cluster.kubeconfig).into()),
            ("TRAINYARD_SDK_PYTHON", sdk::python()?.into()),
        ];
        // With what a test waits for its turn.
        let mut limit = Duration::from_mins(30);
        if let Build::Shipped = build {
            env.push(("TRAINYARD_DEEP", "1".into()));
            limit = Duration::from_hours(4);
        }
        if let Some(name) = &cluster.name {
            let state = paths::cache().join("clusters").join(name);
            env.push(("TRAINYARD_PODS_STATE", state.into()));
        }
        let how = How {
            env,
            limit,
            // These tests wait more than they work, and take turns by themselves.
            threads: Some(8),
            ..How::default()
        };
        e2e(run, programs, build, how)
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
fn content() -> Result<(), String> {
    let cluster = cluster::up(NAME)?;
    if cluster.name.is_some() {
        cluster::down(NAME)?;
    }
    Ok(())
}

/// The tests of the local cluster itself.
fn clusters(run: &Run) -> Result<(), String> {
    if std::env::var_os(OWN).is_some() {
        run.skip("e2e/cluster_local", &format!("{OWN} is set"));
        return Ok(());
    }
    e2e(run, &["cluster_"], Build::Checked, How::default())
}
