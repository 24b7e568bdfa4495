//! `make test`: runs every stage, in parallel where that saves time, and prints one table at the end.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster::{self, OWN};
use crate::deep::Share;
use crate::image::{Build, OPERATORS};
use crate::programs::How;
use crate::stages::{Run, Stage, run as run_stages};
use crate::table::{Row, render};
use crate::{
    book, cases, demo, deps, image, kueue, leftovers, licences, paths, process, programs, release,
    sdk,
};

/// The cluster of the tests; it doesn't affect a demo's cluster.
const NAME: &str = "test";
/// The test program that injects faults between the operator and the API server.
pub const FAULTS: &str = "api_faults";
/// The test program that kills at random; the sweep kills at every write.
pub const CRASHES: &str = "api_crash";
/// The test programs that keep the processors busy the longest. One lane runs them first, one after the other; the others mostly wait.
const LONGEST: [&str; 2] = ["api_sweep", "api_tenants"];
/// The test programs that fill the cluster's node or restart operators.
const EXCLUSIVE: [&str; 2] = ["pods_gang", "pods_operator"];
/// The test program that runs the real `spark-submit`. It is separate because only it has to wait for the images.
pub const SUBMIT: &str = "api_spark_submit";
/// The comparison with recordings of the Go operators. It expects each step of a job within seconds, so it runs alone.
pub const RECORDED: &str = "api_peers";
/// The tests with running Go operators, for `make test-deep`.
pub const PEERS: &str = "peers_live";
/// Cargo's switch for incremental builds.
const INCREMENTAL: &str = "CARGO_INCREMENTAL";
/// Parts of names that select tests against an API server and with pods.
const ONLY: &str = "TRAINYARD_TESTS";

// The stages with their dependencies. The long builds come first; those of other languages run in parallel.
const STAGES: &[Stage] = &[
    stage("packages", &[], &[], |_| {
        cluster::prerequisites()?;
        sdk::prerequisites()?;
        process::built("e2e/prometheus/build").map(drop)
    }),
    stage("node", &[], &[], |_| {
        process::built("e2e/cluster/build").map(drop)
    }),
    stage("images", &["packages"], &[], |_| {
        cluster::workloads(&[]).map(drop)
    }),
    // A new cluster unpacks all images, which takes minutes; this runs in parallel with the builds.
    stage("content", &["node", "images"], &[], |_| content()),
    // These share packages with the node. They build after it, so that Go compiles the packages once, and the node, which most tests
    // need, is ready first.
    stage("collector", &[], &["node"], |_| {
        process::built("e2e/collector/build").map(drop)
    }),
    stage("kueue", &[], &["node", "collector"], |_| {
        kueue::built().map(drop)
    }),
    stage("sdk", &["packages"], &[], |_| sdk::python().map(drop)),
    stage("format", &[], &[], |s| {
        cargo(s, &["fmt", "--all", "--check"])
    }),
    stage("deps", &[], &[], |_| deps::check()),
    stage("built", &[], &["deps"], built),
    stage("lint", &[], &["built"], lint),
    stage("libs-alone", &[], &["lint"], libs_alone),
    stage("docs", &[], &["libs-alone"], docs),
    tests("unit", &["built"], &[], unit),
    stage("manifests", &["built"], &["docs", "unit"], manifests),
    stage("release", &["built", "node"], &["manifests"], release),
    tests("go", &["node"], &[], go),
    stage("dockerfile", &["built", "packages"], &[], dockerfile),
    tests(
        "api",
        &["built", "node"],
        &["manifests", "dockerfile", "collector"],
        api,
    ),
    tests("faults", &["built", "node"], &["api"], faults),
    // These mostly wait, and don't disturb tests that have a control plane of their own.
    tests("exclusive", PODS, &["api", "content"], exclusive),
    tests("submit", &["built", "node", "images"], &["faults"], submit),
    // Runs beside `submit`: pods start slowly, and alone these tests leave a third of the processors idle.
    tests("pods", PODS, &["exclusive", "faults", "content"], pods),
    tests(
        "clusters",
        &["built", "node", "images"],
        &["pods", "submit"],
        clusters,
    ),
];

/// What the tests with pods need.
const PODS: &[&str] = &["built", "node", "images", "kueue", "sdk"];

/// Returns a stage that builds or checks.
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

/// Returns a stage that runs tests.
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

/// Runs all stages, or the named ones.
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
    if wanted("exclusive") && !wanted("pods") {
        cluster::down(NAME)?;
    }
    if wanted(LAST) {
        // Runs last, also after failures.
        let last = stage(LAST, &[], &[], |run| leftovers::check(run, NAME));
        rows.extend(run_stages(&[last], Share::ALL));
    }
    eprintln!("{}", render(&rows, begun.elapsed()).trim_end());
    judged(&rows)
}

/// Returns an error without a message if a stage failed: the table already lists failures and must be the last output.
pub fn judged(rows: &[Row]) -> Result<(), String> {
    if rows.iter().any(Row::failed) {
        Err(String::new())
    } else {
        Ok(())
    }
}

/// Returns a cargo command with the options for the tests and the programs that they start, so that nothing is compiled twice.
/// Every command also names the whole workspace, since the named packages determine the features of all dependencies.
pub fn cargo_command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut cargo = image::static_cargo(args);
    // Incremental data would speed up the next build and slow down this one.
    if std::env::var_os(INCREMENTAL).is_none() {
        cargo.env(INCREMENTAL, "0");
    }
    cargo
}

fn cargo(run: &Run, args: &[&str]) -> Result<(), String> {
    run.run(&mut cargo_command(args))
}

/// Builds all tests, and the operators that some of them start.
fn built(run: &Run) -> Result<(), String> {
    cargo(run, &["test", "--locked", "--workspace", "--no-run"])
}

fn unit(run: &Run) -> Result<(), String> {
    let all = ["test", "--locked", "--workspace"];
    let mut ours = programs::build(run, &mut cargo_command(all))?;
    // Of `e2e` only the tests of its library.
    ours.retain(|program| !program.is_tests_only || !program.directory.ends_with("e2e"));
    // The same random histories every time; `make test-deep` uses others.
    let how = How {
        env: vec![("PROPTEST_RNG_SEED", "1".into())],
        // Otherwise a processor idles while the longest test of a program ends.
        side_by_side: 2,
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
    // Deny warnings by flag, not in source: a new compiler must not break a checkout.
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

/// Checks that the frameworks compile without I/O.
fn libs_alone(run: &Run) -> Result<(), String> {
    let mut args = vec!["check", "--locked", "--lib", "--no-default-features"];
    for operator in OPERATORS {
        args.extend(["-p", operator]);
    }
    cargo(run, &args)?;
    // With the shipped features: elsewhere, features of other packages could hide compile errors.
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
    run.run(cargo.env("RUSTDOCFLAGS", "-D warnings"))?;
    book::build().map(drop)
}

fn manifests(run: &Run) -> Result<(), String> {
    // Built with its tests, like everything here: alone it would get other features.
    let mut build = cargo_command(["test", "--locked", "--workspace", "--no-run"]);
    run.run(build.args(["--test", "manifests"]))?;
    let program = paths::binaries(Build::Checked).join("training-manifests");
    run.run(&mut process::command(program, ["generate", "--check"]))
}

/// Writes the artifacts of a release, of the programs that `built` compiled.
fn release(run: &Run) -> Result<(), String> {
    let out = paths::target().join("release-test");
    // It may not exist.
    let _ = fs::remove_dir_all(&out);
    let choice = release::Choice {
        registry: "registry.example",
        url: "https://example.com",
    };
    release::write(&out, &[Build::Checked], choice)?;
    let check = ["--check", "--quiet", release::SUMS];
    run.run(process::command("sha256sum", check).current_dir(&out))?;
    fs::remove_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))
}

fn go(run: &Run) -> Result<(), String> {
    // Only our own packages of the cluster's module: its main package links all of Kubernetes, and vet would read all of it.
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
        wrong.extend(run.run(process::go(vet).current_dir(&dir)).err());
        wrong.extend(go_test(run, &dir, packages, &[]).err());
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}

/// Runs Go tests and records their results. Go itself kills tests that hang.
pub fn go_test(run: &Run, dir: &Path, args: &[&str], env: &[(&str, &Path)]) -> Result<(), String> {
    let mut command = process::go(["test", "-json"].iter().chain(args));
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
        let place = licences::place(operator, Build::Checked);
        licences::write(operator, Build::Checked, &place)?;
        let binary = paths::binaries(Build::Checked).join(operator);
        run.run(&mut process::command(&script, [binary]))?;
    }
    Ok(())
}

/// Runs the test programs of `e2e/tests` whose names have one of these prefixes.
pub fn e2e(run: &Run, prefixes: &[&str], build: Build, mut how: How) -> Result<(), String> {
    let node = process::built("e2e/cluster/build")?;
    how.env.extend([
        ("TRAINYARD_NODE", node.into()),
        ("TRAINYARD_OPERATOR_BIN_DIR", paths::binaries(build).into()),
    ]);
    // Selected tests only, for debugging.
    let only = std::env::var(ONLY).unwrap_or_default();
    how.only = only.split_whitespace().map(str::to_owned).collect();
    let mut cargo = cargo_command(["test", "--locked", "--workspace"]);
    for name in e2e_programs(prefixes)? {
        cargo.args(["--test", &name]);
    }
    let mut programs = programs::build(run, &mut cargo)?;
    programs.sort_by_cached_key(|program| {
        let at = LONGEST.iter().position(|name| *name == program.target);
        (at.unwrap_or(LONGEST.len()), program.target.clone())
    });
    programs::run(run, &programs, &how)
}

/// Runs the API faults. These tests mostly wait, so many run in parallel.
fn faults(run: &Run) -> Result<(), String> {
    let how = How {
        threads: Some(10),
        again: true,
        ..How::default()
    };
    e2e(run, &[FAULTS], Build::Checked, how)
}

/// Checks that `spark-submit` still creates the recorded objects for a few applications, and Spark's driver the recorded executors.
fn submit(run: &Run) -> Result<(), String> {
    let image = process::built("e2e/image/build")?;
    let how = How {
        env: vec![("TRAINYARD_IMAGE", image.into())],
        ..How::default()
    };
    e2e(run, &[SUBMIT], Build::Checked, how)
}

/// Records the objects of `spark-submit` for every application in the comparison.
pub fn spark_recordings() -> Result<(), String> {
    let mut cargo = cargo_command(["test", "--locked", "--workspace", "--test", SUBMIT]);
    cargo
        .args(["--", "--nocapture", "spark_submit_makes"])
        .env(
            "TRAINYARD_RECORD",
            std::env::var_os("TRAINYARD_RECORD").unwrap_or_default(),
        )
        .env("TRAINYARD_NODE", process::built("e2e/cluster/build")?)
        .env("TRAINYARD_IMAGE", process::built("e2e/image/build")?);
    process::run(&mut cargo)
}

/// Builds the Go operators that ours are compared with, unless they are in the cache.
pub fn peers() -> Result<(), String> {
    for peer in ["training", "mpi", "spark"] {
        process::run(&mut process::command("e2e/peers/build", [peer]))?;
    }
    Ok(())
}

/// Records what the Go operators do with every job of the comparison, or only with those that have no recording.
pub fn peer_recordings(which: &str) -> Result<(), String> {
    let mut cargo = cargo_command(["test", "--locked", "--workspace", "--test", PEERS]);
    cargo
        .args(["--", "--nocapture", "recorded"])
        .env("TRAINYARD_RECORD_PEERS", which)
        .env("TRAINYARD_NODE", process::built("e2e/cluster/build")?);
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
        // Other stages run these, by their full names.
        .filter(|name| {
            let apart =
                |name: &str| [FAULTS, CRASHES, SUBMIT].contains(&name) || EXCLUSIVE.contains(&name);
            if apart(name) {
                return prefixes.contains(&name.as_str());
            }
            let mut others = prefixes.iter().filter(|p| !apart(p));
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

/// Runs the tests on our own control plane; on the user's own cluster, those that can run there.
fn api(run: &Run) -> Result<(), String> {
    let how = |side_by_side| How {
        side_by_side,
        apart: &[RECORDED],
        again: true,
        ..How::default()
    };
    if std::env::var_os(OWN).is_none() {
        return e2e(run, &["api_", "harness"], Build::Checked, how(2));
    }
    run.skip(
        "e2e/harness",
        &format!("it tests our own control plane and {OWN} is set"),
    );
    e2e(run, &["api_"], Build::Checked, how(1))
}

/// Runs the tests that need the cluster for themselves. The next stage continues with the cluster.
fn exclusive(run: &Run) -> Result<(), String> {
    on_cluster(run, &EXCLUSIVE, Build::Checked, 1)
}

/// Runs the other tests with pods. They wait much of the time, also for the end of the last test of their program.
fn pods(run: &Run) -> Result<(), String> {
    let tested = on_cluster(run, &["pods_"], Build::Checked, 2);
    remove_cluster().and(tested)
}

/// Runs tests on a new cluster with the operators, or on the user's.
pub fn with_pods(run: &Run, programs: &[&str], build: Build) -> Result<(), String> {
    let tested = on_cluster(run, programs, build, 1);
    remove_cluster().and(tested)
}

fn remove_cluster() -> Result<(), String> {
    if std::env::var_os(OWN).is_none() {
        cluster::down(NAME)?;
    }
    Ok(())
}

/// Starts the cluster unless it runs, deploys the operators and runs tests.
fn on_cluster(
    run: &Run,
    programs: &[&str],
    build: Build,
    side_by_side: usize,
) -> Result<(), String> {
    let cluster = cluster::up(NAME)?;
    // The user's own cluster may or may not have Kueue.
    let queues = || match cluster.name {
        Some(_) => kueue::deploy(&cluster).and_then(|()| kueue::ready(&cluster)),
        None => Ok(()),
    };
    // Kueue discovers its kinds when it starts.
    let mut operators = OPERATORS.iter();
    let deployed = operators.try_for_each(|operator| demo::deploy(&cluster, operator, build));
    // Avoids waiting ten minutes for an image that never arrives.
    let deployed = deployed.and_then(|()| waiting_limit(&cluster, "=60s"));
    let deployed = deployed.and_then(|()| queues());
    let result = deployed.and_then(|()| {
        let mut env = vec![
            ("TRAINYARD_PODS_KUBECONFIG", (&cluster.kubeconfig).into()),
            ("TRAINYARD_SDK_PYTHON", sdk::python()?.into()),
        ];
        // Includes the time that a test waits for its turn.
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
            // These tests mostly wait, and coordinate their turns themselves.
            threads: Some(8),
            side_by_side,
            ..How::default()
        };
        e2e(run, programs, build, how)
    });
    if cluster.name.is_none() {
        waiting_limit(&cluster, "-")?;
    }
    result
}

/// Sets how long a driver may wait for its image, or unsets it if the value is `-`.
fn waiting_limit(cluster: &cluster::Cluster, said: &str) -> Result<(), String> {
    let (deployment, variable) = ("spark-operator", "TRAINYARD_DRIVER_WAITING_LIMIT");
    let (what, set) = (
        format!("deployment/{deployment}"),
        format!("{variable}{said}"),
    );
    process::quiet(&mut cluster.kubectl(["-n", demo::SYSTEM, "set", "env", &what, &set]))?;
    cluster.rolled_out(demo::SYSTEM, deployment)
}

/// Loads the images into the tests' cluster, which keeps them while it is stopped.
fn content() -> Result<(), String> {
    let cluster = cluster::up(NAME)?;
    if cluster.name.is_some() {
        cluster::down(NAME)?;
    }
    Ok(())
}

/// Runs the tests of the local cluster itself.
fn clusters(run: &Run) -> Result<(), String> {
    if std::env::var_os(OWN).is_some() {
        run.skip("e2e/cluster_local", &format!("{OWN} is set"));
        return Ok(());
    }
    e2e(run, &["cluster_"], Build::Checked, How::default())
}
