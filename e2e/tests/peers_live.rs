//! The published Go operators, running. `make test-deep` runs these tests, because it takes minutes to build them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::peers::compare::{Difference, differences, is_expected, is_explained, is_random};
use e2e::peers::drivers::Drivers;
use e2e::peers::history::{History, JOB, Stage};
use e2e::peers::lives::{self, Life};
use e2e::peers::process::{Flags, Peer, PeerProcess};
use e2e::peers::{
    EXECUTORS, SERVED, Stages, executors, executors_recording, options, ours, recorded, recording,
    title,
};
use e2e::read;
use futures::future::try_join_all;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Barrier, Mutex};
use training_testkit::builders::{Kind, SPARK};
use training_testkit::control_plane::{ADMIN, ControlPlane, workspace};
use training_testkit::operator::OperatorProcess;

/// Writes what the Go operators do, instead of comparing it.
const RECORD: &str = "TRAINYARD_RECORD_PEERS";

/// The longest time in which the Spark operator submits all applications that are taken over.
const SUBMISSIONS: Duration = Duration::from_mins(5);

/// The longest time between an act and the end of an operator.
const MOMENT: u64 = 400;

/// Returns the Go operators, or the one that is given, with the kinds that they serve.
fn by_peer() -> Vec<(Peer, Vec<Kind>)> {
    let kinds = |peer: Peer| {
        let kinds = SERVED.iter().filter(|(_, of)| *of == peer);
        (peer, kinds.map(|(kind, _)| *kind).collect())
    };
    let mut all = vec![Peer::Training, Peer::Mpi, Peer::Spark];
    if let Ok(only) = std::env::var("TRAINYARD_PEER") {
        all.retain(|peer| peer.name() == only);
    }
    assert!(!all.is_empty(), "TRAINYARD_PEER is no Go operator");
    all.into_iter().map(kinds).collect()
}

/// Returns the number of jobs that a Go operator takes through their lives at the same time. A submission takes seconds.
fn at_a_time(kind: &Kind) -> usize {
    if *kind == SPARK { 6 } else { usize::MAX }
}

/// Returns true for an application whose next run is about to be submitted.
fn is_between_runs(stages: &[Stage]) -> bool {
    let mut jobs = stages.iter().rev();
    let job = jobs.find_map(|stage| stage.objects.get(JOB));
    let state = job.map(|job| &job["status"]["applicationState"]["state"]);
    state.is_some_and(|state| ["PENDING_RERUN", "RESUMING"].iter().any(|s| state == s))
}

/// Takes jobs of some kinds through their lives with their Go operator.
async fn played(
    peer: Peer,
    kinds: &[Kind],
    lives: impl Fn(&Kind) -> Result<Vec<Life>>,
) -> Result<Vec<History>> {
    let control = ControlPlane::start(options()).await?;
    peer.install(&control).await?;
    let process = peer.start(&control, Flags::Tuned).await?;
    let played = kinds.iter().map(async |kind| {
        let mut stages = Stages::on(&control, *kind).await?;
        let lives = lives(kind)?;
        if lives.iter().any(Life::has_driver) {
            stages.drivers = Some(Drivers::open(&control).await?);
        }
        let mut all = History::default();
        for lives in lives.chunks(at_a_time(kind)) {
            let at_rest =
                |_: &str, stages: &[Stage]| !process.is_submitting() && !is_between_runs(stages);
            let history = stages.play(lives, async |_| Ok(()), at_rest).await;
            all.0.extend(history.with_context(|| title(kind))?.0);
        }
        anyhow::Ok(all)
    });
    let played = try_join_all(played).await;
    played.with_context(|| process.tail())
}

#[tokio::test]
async fn the_go_operators_do_what_is_recorded() -> Result<()> {
    for (peer, kinds) in by_peer() {
        let new = |kind: &Kind| without_recording(lives::all(kind)?, &recording(kind));
        let all = played(peer, &kinds, new).await?;
        for (kind, history) in kinds.iter().zip(all) {
            let of = lives::all(kind)?;
            keep_or_compare(history, &recording(kind), &title(kind), &of)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_executors_of_the_spark_operator_are_as_recorded() -> Result<()> {
    if by_peer().iter().all(|(peer, _)| *peer != Peer::Spark) {
        return Ok(());
    }
    let of = lives::with_executors()?;
    let new = |_: &Kind| without_recording(lives::with_executors()?, &executors_recording());
    for history in played(Peer::Spark, &[SPARK], new).await? {
        keep_or_compare(executors(history), &executors_recording(), EXECUTORS, &of)?;
    }
    Ok(())
}

/// What to record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Record {
    All,
    /// Only lives without a recording.
    Missing,
}

fn record() -> Option<Record> {
    let value = std::env::var_os(RECORD)?;
    Some(if value == "missing" {
        Record::Missing
    } else {
        Record::All
    })
}

/// Returns the lives that have to be played: all, or those whose recording is missing.
fn without_recording(mut lives: Vec<Life>, file: &Path) -> Result<Vec<Life>> {
    if record() == Some(Record::Missing) {
        let known = recorded(file)?;
        lives.retain(|life| !known.0.contains_key(&read::name(&life.job)));
    }
    Ok(lives)
}

/// Records what the Go operator did, or compares it with the recording. `wanted` are all lives that the recording has to have.
fn keep_or_compare(mut history: History, file: &Path, title: &str, wanted: &[Life]) -> Result<()> {
    if let Some(record) = record() {
        if record == Record::Missing {
            let mut known = recorded(file)?;
            known.0.append(&mut history.0);
            let names: BTreeSet<String> = wanted.iter().map(|life| read::name(&life.job)).collect();
            known.0.retain(|name, _| names.contains(name));
            history = known;
        }
        std::fs::create_dir_all(file.parent().context("no directory")?)?;
        return Ok(std::fs::write(file, history.to_text()?)?);
    }
    let history = &history;
    let rules = training_manifests::differences::read(&workspace())?;
    let mut differ = differences(&recorded(file)?, history);
    differ.retain(|difference| is_no_event(difference) && !is_random(&rules, title, difference));
    let lines: Vec<String> = differ.iter().map(ToString::to_string).collect();
    ensure!(lines.is_empty(), "{title}:\n{}", lines.join("\n"));
    Ok(())
}

/// The Go operators' queue of events loses some under load, and ours folds them.
fn is_no_event(difference: &Difference) -> bool {
    difference.object != "event"
}

/// What takes over while jobs live.
struct TakeOver<'a> {
    control: &'a ControlPlane,
    peer: Peer,
    kinds: &'a [Kind],
    namespaces: Vec<String>,
    /// The Go operator, until ours takes over.
    go: Option<PeerProcess>,
    ours: Vec<OperatorProcess>,
}

impl TakeOver<'_> {
    /// Kills the Go operator, deletes its webhooks, and starts ours. Prints how many jobs are in which state.
    async fn take(&mut self, act: usize) -> Result<()> {
        for (kind, namespace) in self.kinds.iter().zip(&self.namespaces) {
            let client = self.control.client(ADMIN).await?;
            let jobs: Api<DynamicObject> =
                Api::namespaced_with(client, namespace, &kind.resource());
            let mut states: BTreeMap<String, usize> = BTreeMap::new();
            for job in jobs.list(&ListParams::default()).await? {
                *states.entry(state(&job.data["status"])).or_default() += 1;
            }
            eprintln!("{} taken over in act {act}: {states:?}", title(kind));
        }
        if let Some(go) = self.go.take() {
            go.kill().await?;
        }
        let client = self.control.client(ADMIN).await?;
        delete_all::<ValidatingWebhookConfiguration>(&client).await?;
        delete_all::<MutatingWebhookConfiguration>(&client).await?;
        for kind in self.kinds {
            self.control.install(kind.operator).await?;
        }
        for (kind, namespace) in self.kinds.iter().zip(&self.namespaces) {
            let options = ours(self.control, kind, namespace).await?;
            self.ours.push(OperatorProcess::start(options).await?);
        }
        Ok(())
    }

    /// Kills ours and starts the Go operator again.
    async fn back(&mut self) -> Result<()> {
        for mut operator in self.ours.drain(..) {
            operator.assert_no_panic()?;
            operator.kill()?;
        }
        // Our CRDs stay: the training operator's can't replace one that has stored MPIJobs as v2beta1.
        self.go = Some(self.peer.start(self.control, Flags::Tuned).await?);
        Ok(())
    }

    fn log(&self) -> String {
        let ours = self.ours.iter().map(OperatorProcess::log_tail);
        let go = self.go.iter().map(PeerProcess::tail);
        ours.chain(go).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the last true condition, or the state of an application.
fn state(status: &Value) -> String {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let last = conditions.rfind(|c| c["status"] == "True");
    let state = last.map_or(&status["applicationState"]["state"], |c| &c["type"]);
    state.as_str().unwrap_or("without a status").to_owned()
}

async fn delete_all<K>(client: &Client) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let all: Api<K> = Api::all(client.clone());
    all.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    Ok(())
}

/// Ours takes over during the act with this number, and gives back during a later one.
async fn taken_over(peer: Peer, kinds: &[Kind], at: usize, back: Option<usize>) -> Result<()> {
    let control = ControlPlane::start(options()).await?;
    peer.install(&control).await?;
    let go = Some(peer.start(&control, Flags::Tuned).await?);
    let stages = kinds.iter().map(|kind| Stages::on(&control, *kind));
    let mut stages = try_join_all(stages).await?;
    if peer == Peer::Spark {
        // Two applications at a time are submitted.
        for stages in &mut stages {
            stages.patience = SUBMISSIONS;
        }
    }
    let rules = training_manifests::differences::read(&workspace())?;
    let over = Mutex::new(TakeOver {
        control: &control,
        peer,
        kinds,
        namespaces: stages.iter().map(|s| s.namespace().to_owned()).collect(),
        go,
        ours: Vec::new(),
    });
    // All kinds are in the same act, because one process serves them.
    let together = Barrier::new(kinds.len());
    let played = kinds.iter().zip(&stages).map(async |(kind, stages)| {
        let turn = async |number: usize| {
            if number > at && Some(number) != back {
                return Ok(());
            }
            let leads = together.wait().await.is_leader();
            if leads && (number == at || Some(number) == back) {
                let moment = Duration::from_millis(fastrand::u64(0..MOMENT));
                tokio::time::sleep(moment).await;
                let mut over = over.lock().await;
                if number == at {
                    over.take(at).await?;
                } else {
                    over.back().await?;
                }
            }
            together.wait().await;
            Ok(())
        };
        let mut go = recorded(&recording(kind))?;
        let mut lives = lives::all(kind)?;
        // Jobs that the Go operator serves. Of applications, those to which more happens: each submission takes seconds.
        lives.retain(|life| go.0.get(life.name()).is_some_and(|go| !ends_early(go)));
        lives.retain(|life| *kind != SPARK || life.is_eventful());
        let name = title(kind);
        let expected = |job: &str, stages: &[Stage]| {
            is_expected(&rules, &name, &go, (job, stages), is_no_event)
        };
        let history = stages.play(&lives, turn, expected).await;
        let history = history.with_context(|| name.clone())?;
        go.0.retain(|job, _| history.0.contains_key(job));
        let mut found = differences(&go, &history);
        found.retain(|found| is_no_event(found) && !is_explained(&rules, &name, found));
        anyhow::Ok((name, found))
    });
    let played = try_join_all(played).await;
    let over = over.into_inner();
    let took_over = over.go.is_none() || back.is_some();
    let played = played.with_context(|| over.log())?;
    for operator in &over.ours {
        operator.assert_no_panic()?;
    }
    ensure!(took_over, "no job has so many acts");
    // Every difference from the Go operator's recording must have a listed reason.
    let mut wrong = Vec::new();
    for (title, found) in played {
        wrong.extend(found.iter().map(|found| format!("{title}: {found}")));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Returns true if the job was refused, or never came to rest.
fn ends_early(stages: &[Stage]) -> bool {
    stages.iter().any(|s| s.refused.is_some() || s.restless)
}

/// Returns the act to take over in, if it is given: to repeat a failure.
fn only() -> Option<Range<usize>> {
    let act = std::env::var("TRAINYARD_ACT").ok()?.parse().ok()?;
    Some(act..act + 1)
}

/// In each act of the lives in turn, the Go operators are killed, and ours go on.
#[tokio::test]
async fn jobs_of_every_kind_and_state_are_taken_over() -> Result<()> {
    for (peer, kinds) in by_peer() {
        let mut most = 0;
        for kind in &kinds {
            let acts = lives::all(kind)?.into_iter().map(|life| life.acts.len());
            most = most.max(acts.max().unwrap_or_default());
        }
        for at in only().unwrap_or(0..most + 1) {
            let taken = taken_over(peer, &kinds, at, None).await;
            taken.with_context(|| format!("{peer:?}, act {at}"))?;
        }
    }
    Ok(())
}

/// Ours take over, and the Go operators take back.
#[tokio::test]
async fn the_go_operators_can_take_jobs_back() -> Result<()> {
    for (peer, kinds) in by_peer() {
        for at in only().unwrap_or(1..3) {
            let taken = taken_over(peer, &kinds, at, Some(at + 1)).await;
            taken.with_context(|| format!("{peer:?}, act {at}"))?;
        }
    }
    Ok(())
}
