//! The local cluster itself: it starts, is isolated, and leaves nothing behind however it ends.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::local::{Host, LightCluster, Local, Program, kill};

/// Far more than a slow machine needs.
const LONG: Duration = Duration::from_mins(2);

/// The tests compare the host before and after, so only one runs at a time.
static HOST: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    // A failed test has taken its clusters down as well.
    HOST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The user's own kubeconfig directory is untouched.
fn assert_home_untouched(program: &Program) -> Result<()> {
    let kube = program.home().join(".kube");
    ensure!(!kube.exists(), "{} was made", kube.display());
    Ok(())
}

#[test]
fn starting_twice_is_starting_once() -> Result<()> {
    let _alone = alone();
    let program = Program::given("twice")?;
    let cluster = Local::new(&program, "e2e-twice")?;
    let before = Host::read(&[&cluster.name])?;
    // Files that the first start on a machine creates for all later ones don't count.
    cluster.up()?;
    cluster.down()?;
    cluster.assert_gone()?;

    let (_, ready) = cluster.up()?;
    assert!(ready < LONG, "{ready:?}");
    assert!(cluster.is_healthy());
    let uid = [
        "get",
        "namespace",
        "kube-system",
        "-o",
        "jsonpath={.metadata.uid}",
    ];
    let first = cluster.kubectl(&uid)?;
    let (said, again) = cluster.up()?;
    assert!(said.contains("already up and healthy"), "{said}");
    assert_eq!(cluster.kubectl(&uid)?, first);

    cluster.down()?;
    cluster.assert_gone()?;
    let said = cluster.down()?;
    assert!(said.contains("there was no cluster"), "{said}");
    Host::read(&[&cluster.name])?.assert_as(&before)?;
    assert_home_untouched(&program)?;
    eprintln!("ready after {ready:.1?}; the second start took {again:.1?}");
    Ok(())
}

#[test]
fn two_clusters_stand_side_by_side() -> Result<()> {
    let _alone = alone();
    let program = Program::given("beside")?;
    let names = ["e2e-left", "e2e-right"];
    let before = Host::read(&names)?;
    let left = Local::new(&program, names[0])?;
    let right = Local::new(&program, names[1])?;
    let start = |cluster: &Local, pod: &str| {
        let (_, ready) = cluster.up()?;
        cluster.run_pod(pod)?;
        anyhow::Ok(ready)
    };
    let (a, b) = thread::scope(|scope| {
        let other = scope.spawn(|| start(&right, "mine"));
        let this = start(&left, "yours");
        (this, other.join())
    });
    let (a, b) = (a?, b.ok().context("a panic")??);
    let pods = ["get", "pods", "--all-namespaces", "-o", "name"];
    assert_eq!(left.kubectl(&pods)?, "pod/yours\n");
    assert_eq!(right.kubectl(&pods)?, "pod/mine\n");

    // Stopping one doesn't affect the other.
    left.down()?;
    left.assert_gone()?;
    assert!(right.is_healthy());
    assert_eq!(right.kubectl(&pods)?, "pod/mine\n");
    right.down()?;
    right.assert_gone()?;
    Host::read(&names)?.assert_as(&before)?;
    assert_home_untouched(&program)?;
    eprintln!("ready after {a:.1?} and {b:.1?}, each with a pod of its own");
    Ok(())
}

#[test]
fn nothing_is_left_whatever_is_killed() -> Result<()> {
    let _alone = alone();
    let program = Program::given("killed")?;
    let cluster = Local::new(&program, "e2e-killed")?;
    let before = Host::read(&[&cluster.name])?;
    for victim in [
        "node-init",
        "etcd",
        "kube-apiserver",
        "kubelet",
        "containerd",
        "containerd-shim-runc-v2",
        "everything",
    ] {
        cluster.up()?;
        cluster.run_pod("pod")?;
        let processes = cluster.processes()?;
        let pids: Vec<u32> = processes
            .iter()
            .filter(|(_, part)| part == victim || victim == "everything")
            .map(|(pid, _)| *pid)
            .collect();
        ensure!(!pids.is_empty(), "no {victim} in {processes:?}");
        kill(&pids)?;
        let begun = Instant::now();
        cluster.down()?;
        let took = begun.elapsed();
        cluster
            .assert_gone()
            .and_then(|()| Host::read(&[&cluster.name])?.assert_as(&before))
            .with_context(|| format!("after {victim} was killed"))?;
        eprintln!(
            "{victim} killed ({} processes): gone {took:.1?} later",
            pids.len()
        );
    }
    assert_home_untouched(&program)
}

#[test]
fn light_modes_stand_side_by_side_and_end_with_their_parent() -> Result<()> {
    let _alone = alone();
    let program = Program::given("light")?;
    let begun = Instant::now();
    let mut lights = Vec::new();
    for name in ["one", "two", "three"] {
        lights.push(LightCluster::start(&program, name)?);
    }
    for light in &mut lights {
        light.until_ready()?;
    }
    let ready = begun.elapsed();
    assert!(ready < LONG, "{ready:?}");
    for light in &mut lights {
        assert_eq!(light.health(&program)?, "ok");
        let parts = light.parts()?;
        assert_eq!(parts.len(), 3, "etcd, API server, controllers: {parts:?}");
    }
    for light in &mut lights {
        let took = light.kill()?;
        eprintln!("its parts ended {took:.1?} after the first process was killed");
    }
    eprintln!("three were ready after {ready:.1?}");
    Ok(())
}
