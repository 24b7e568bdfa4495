//! F-37 to F-43: what makes the operator list again, and what such a list may contain.

use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::lives::StepRunner;
use e2e::{for_each_kind, read};
use k8s_openapi::api::batch::v1::Job;
use kube::Api;
use serde_json::{Value, json};
use training_testkit::builders::{EVERY_KIND, Kind, MPI, PYTORCH};
use training_testkit::proxy::{Action, Answer, Call, Change, Effect, Gate, Record, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

use super::campaign::{on, watches};
use super::driver::{FaultTest, JOB, Phase};
use super::life::{Life, WORKERS};
use super::table::{F_37, F_38, F_39, F_39_LOST};

const LIFE: Life = Life(PYTORCH);

#[tokio::test]
async fn f_37_an_error_410_in_the_stream_leads_to_a_list() -> Result<()> {
    watches(LIFE, &F_37).await
}

#[tokio::test]
async fn f_37_a_list_is_not_asked_for_again_at_once() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("f37rate").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    let gone = Answer::new(410, "Expired", "too old resource version");
    let rule = on(
        test.namespace(),
        ("watch", "pods"),
        Action::Answer(Effect::Without, gone),
    );
    test.rule(std::slice::from_ref(&rule));
    test.proxy.cut().await?;
    test.until_hit(&[rule], 3).await?;
    test.proxy.clear_rules();
    let namespace = test.namespace().to_owned();
    let lists: Vec<_> = test
        .proxy
        .records()
        .into_iter()
        .filter(|r| r.call.is("list", "pods") && r.call.namespace == namespace)
        .map(|r| r.at)
        .collect();
    anyhow::ensure!(lists.len() >= 3, "{lists:?}");
    for pair in lists.windows(2) {
        let between = pair[1] - pair[0];
        anyhow::ensure!(
            between >= Duration::from_millis(4900),
            "{between:?} between two lists"
        );
    }
    for phase in [Phase::Running, Phase::Finishing] {
        test.run_phase(phase).await?;
    }
    test.assert_clean().await
}

#[tokio::test]
async fn f_38_an_old_bookmark_and_one_without_progress_change_nothing() -> Result<()> {
    watches(LIFE, &F_38).await
}

#[tokio::test]
async fn f_39_garbage_in_a_stream_is_no_end() -> Result<()> {
    watches(LIFE, &F_39).await
}

#[tokio::test]
async fn f_39_what_an_unreadable_event_said_is_listed() -> Result<()> {
    watches(LIFE, &F_39_LOST).await
}

/// One of several jobs can't be decoded, in the initial list and as an event.
async fn unreadable(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f40").await? else {
        return Ok(());
    };
    let odd = |name: &str| {
        let mut job = Life(kind).canary(name);
        let (field, object) = Life(kind).number(&mut job);
        object[field] = json!(77);
        (job, field)
    };
    // The type expects a number; the object has text.
    let (_, field) = odd("any");
    let number = format!("\"{field}\":77");
    let wrong = format!("\"{field}\":\"many\"");
    let poison = || Change::text(&number, &wrong);
    let rules = || {
        [
            on(
                test.namespace(),
                ("list", kind.plural),
                Action::AlterAnswer(poison()),
            ),
            on(
                test.namespace(),
                ("watch", kind.plural),
                Action::AlterEvents(poison()),
            ),
        ]
    };
    let rules = rules();
    test.rule(&rules);
    test.world.jobs.create(&odd("listed").0).await?;
    test.begin(Phase::Creating).await?;
    test.until_hit(&rules[..1], 1).await?;
    test.end(Phase::Creating).await?;
    test.world.jobs.create(&odd("told").0).await?;
    test.until_hit(&rules[1..], 1).await?;
    for phase in [Phase::Running, Phase::Finishing] {
        test.run_phase(phase).await?;
    }
    for name in ["listed", "told"] {
        read::events_with(&test.world.client, test.namespace(), name, "InvalidSpec").await?;
        let pods = read::pods(&test.world.client, test.namespace(), name).await?;
        anyhow::ensure!(pods.is_empty(), "{name}: {:?}", read::names(&pods));
    }
    // Once they can be decoded, they are reconciled.
    test.relist().await?;
    for name in ["listed", "told"] {
        test.run_beside(name).await?;
    }
    test.assert_clean().await
}

#[tokio::test]
async fn f_40_f_73_mt_30_a_job_that_cant_be_read_is_set_aside_alone() -> Result<()> {
    for_each_kind(EVERY_KIND, unreadable).await
}

async fn older_list(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f41").await? else {
        return Ok(());
    };
    let all = test.life.watched();
    for phase in Phase::ALL {
        test.run_phase(phase).await?;
        // The list is as old as the job's submission; then the watch goes on from there.
        let version = test.submitted().to_owned();
        let mut rules: Vec<Rule> = Vec::new();
        for resource in &all {
            let exact = format!("resourceVersion={version}&resourceVersionMatch=Exact");
            rules.push(
                on(
                    test.namespace(),
                    ("list", resource),
                    Action::AddQuery(exact),
                )
                .nth(1),
            );
        }
        for resource in &all {
            let gone = Answer::new(410, "Expired", "too old resource version");
            let action = Action::Answer(Effect::Without, gone);
            rules.push(on(test.namespace(), ("watch", resource), action).nth(1));
        }
        test.rule(&rules);
        test.proxy.cut().await?;
        test.until_hit(&rules, 1).await?;
        test.proxy.clear_rules();
        // The operator would react at once.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    test.assert_life();
    test.assert_clean().await
}

#[tokio::test]
async fn f_41_a_list_from_an_older_revision_does_no_harm() -> Result<()> {
    for_each_kind(EVERY_KIND, older_list).await
}

impl FaultTest {
    /// Waits for the next pod list after the one that this rule broke, which must ask for the first page. An `MPIJob` ends without it.
    async fn until_begun_anew(&self, rule: &str) -> Result<()> {
        let next = eventually("a list after the broken one", HANG, async || {
            let mut ours = self.proxy.records();
            ours.retain(|r| r.call.is("list", "pods") && r.call.namespace == self.namespace());
            let is_it = |r: &Record| r.rule.as_deref() == Some(rule);
            let broken = ours.iter().rposition(is_it).context("no page was broken")?;
            anyhow::ensure!(ours[broken].call.uri.contains("continue="));
            Ok(match ours.get(broken + 1) {
                Some(next) => Seen::Yes(next.call.uri.clone()),
                None => Seen::NotYet("no list came after it".into()),
            })
        })
        .await?;
        anyhow::ensure!(!next.contains("continue="), "{next} goes on");
        Ok(())
    }

    /// The operator took no pod for deleted: it created none twice, and read none.
    fn assert_none_missed(&self) -> Result<()> {
        let missed = |r: &&Record| {
            let call = &r.call;
            let made = call.is("create", "pods") && r.code == Some(409);
            let sought = call.is("get", "pods") || call.is("list", "pods") && !call.name.is_empty();
            call.namespace == self.namespace() && (made || sought)
        };
        let records = self.proxy.records();
        let missed = records.iter().find(missed).map(|r| r.call.to_string());
        anyhow::ensure!(missed.is_none(), "{missed:?}");
        Ok(())
    }
}

/// Answers the second page of a pod list with this error.
async fn half_a_list(kind: Kind, name: &str, broken: &Answer) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), name).await? else {
        return Ok(());
    };
    for phase in Phase::ALL {
        if phase == Phase::Creating {
            test.run_phase(phase).await?;
            // Where a job has only one pod, another job's pod is on the second page.
            test.world.jobs.create(&Life(kind).canary("beside")).await?;
            test.run_beside("beside").await?;
            continue;
        }
        let (namespace, later) = (test.namespace().to_owned(), test.namespace().to_owned());
        let page = |call: &Call| call.uri.contains("continue=");
        let second = Rule::new(
            "second page",
            Action::Answer(Effect::Without, broken.clone()),
            move |call| call.namespace == namespace && call.is("list", "pods") && page(call),
        )
        .nth(1);
        let pages = Rule::new(
            "pages",
            Action::SetQuery("limit", "1".into()),
            move |call| call.namespace == later && call.is("list", "pods"),
        );
        let gone = Answer::new(410, "Expired", "too old resource version");
        let relist = on(
            test.namespace(),
            ("watch", "pods"),
            Action::Answer(Effect::Without, gone),
        );
        let rules = [second, pages, relist.nth(1)];
        test.rule(&rules);
        test.proxy.cut().await?;
        test.begin(phase).await?;
        test.until_hit(&rules, 1).await?;
        test.end(phase).await?;
        // The list restarted, and had one page per pod.
        let pages = match phase {
            Phase::Running => test.life.pods(WORKERS) + test.life.pods(1),
            Phase::Creating | Phase::Finishing => 1,
        };
        test.until_hit(&rules[1..2], pages).await?;
        test.until_begun_anew("second page").await?;
    }
    test.assert_none_missed()?;
    test.assert_life();
    test.assert_clean().await
}

#[tokio::test]
async fn f_42_a_page_that_fails_makes_no_half_of_a_list_the_truth() -> Result<()> {
    let lost = Answer::new(500, "InternalError", "the second page is lost");
    for_each_kind(EVERY_KIND, |kind| half_a_list(kind, "f42", &lost)).await
}

#[tokio::test]
async fn f_26_a_page_that_has_expired_makes_no_half_of_a_list_the_truth() -> Result<()> {
    let words = "The provided continue parameter is too old to display a consistent list result.";
    half_a_list(PYTORCH, "f26", &Answer::new(410, "Expired", words)).await
}

/// Whether a job's pods, its launcher's included, are all that the API and the kubelet have.
async fn of_job_alone(test: &FaultTest, job: &Value) -> Result<Seen<()>> {
    let (client, namespace) = (&test.world.client, test.namespace());
    let owner = |object: &Value| object["metadata"]["ownerReferences"][0].clone();
    let launcher: Api<Job> = Api::namespaced(client.clone(), namespace);
    let launcher = json!(launcher.get_opt(&format!("{JOB}-launcher")).await?);
    let is_owned = |pod: &Value| match owner(pod) {
        of if of["kind"] == "Job" => {
            of["uid"] == launcher["metadata"]["uid"]
                && owner(&launcher)["uid"] == job["metadata"]["uid"]
        }
        of if of["kind"] == job["kind"] => of["uid"] == job["metadata"]["uid"],
        _ => true,
    };
    let pods = read::pods(client, namespace, JOB).await?;
    let ranks = pods.iter().filter(|pod| owner(pod)["kind"] == job["kind"]);
    let ranks: Vec<_> = ranks.cloned().collect();
    let mut uids: Vec<_> = pods.iter().map(|p| p["metadata"]["uid"].clone()).collect();
    let kubelet = test.world.kubelet.pods(namespace, JOB);
    let mut known: Vec<_> = kubelet.iter().map(|pod| json!(pod.uid)).collect();
    uids.sort_by_key(Value::to_string);
    known.sort_by_key(Value::to_string);
    let ranks = read::names(&ranks);
    Ok(
        if pods.iter().all(is_owned) && ranks == test.life.ranks(WORKERS) && uids == known {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{:?}, {known:?}", read::names(&pods)))
        },
    )
}

async fn made_again(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f43").await? else {
        return Ok(());
    };
    let all = test.life.watched();
    test.begin(Phase::Creating).await?;
    let taken_up = |job: &_| test.life.is_taken_up(job);
    let jobs = &test.world.jobs;
    let before = jobs.until(JOB, "accepted", taken_up).await?;
    for phase in [Phase::Creating, Phase::Running] {
        if phase == Phase::Running {
            test.end(Phase::Creating).await?;
        }
        // While all events are held, the job is deleted and created again; then everything is listed.
        let gate = Gate::closed();
        let deaf: Vec<Rule> = all
            .iter()
            .map(|r| {
                on(
                    test.namespace(),
                    ("watch", r),
                    Action::HoldEvents(gate.clone()),
                )
            })
            .collect();
        test.rule(&deaf);
        test.proxy.cut().await?;
        test.world.jobs.delete(JOB).await?;
        eventually("the job to be gone", HANG, async || {
            Ok(match test.world.jobs.get(JOB).await {
                Err(_) => Seen::Yes(()),
                Ok(job) => Seen::NotYet(job["metadata"].to_string()),
            })
        })
        .await?;
        let after = test.world.jobs.create(&test.life.job(WORKERS)).await?;
        anyhow::ensure!(before["metadata"]["uid"] != after["metadata"]["uid"]);
        test.until_hit(&deaf, 1).await?;
        test.relist().await?;
        gate.open();
        let taken_up = |job: &_| test.life.is_taken_up(job);
        let jobs = &test.world.jobs;
        let job = jobs.until(JOB, "accepted", taken_up).await?;
        anyhow::ensure!(job["metadata"]["uid"] == after["metadata"]["uid"]);
        anyhow::ensure!(!Life::has_failed(&job), "{}", job["status"]);
        eventually("the pods of the new job alone", HANG, async || {
            of_job_alone(&test, &after).await
        })
        .await?;
    }
    test.end(Phase::Creating).await?;
    test.run_phase(Phase::Finishing).await?;
    // An operator that lists pods before jobs sees deleted pods of a job that seems to exist; it deletes the pods that it creates then.
    test.assert_clean_but_for(Some("I-05")).await
}

#[tokio::test]
async fn f_43_a_job_of_the_same_name_is_another_job() -> Result<()> {
    for_each_kind(EVERY_KIND, made_again).await
}

/// A pod is deleted while a new process has all children, and waits for its list of jobs.
async fn deleted_before_the_list(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "early").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    if kind == MPI {
        // Its last event for now.
        let (client, namespace) = (test.world.client.clone(), test.namespace());
        let jobs: Api<Job> = Api::namespaced(client, namespace);
        eventually("the launcher to be ready", HANG, async || {
            let launcher = jobs.get(&format!("{JOB}-launcher")).await?;
            let ready = launcher.status.as_ref().and_then(|status| status.ready);
            Ok(if ready == Some(1) {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{:?}", launcher.status))
            })
        })
        .await?;
    }
    let gate = Gate::closed();
    let deleted = "\"type\":\"DELETED\"";
    let rules = [
        on(
            test.namespace(),
            ("list", kind.plural),
            Action::Hold(gate.clone()),
        ),
        on(
            test.namespace(),
            ("watch", "pods"),
            Action::AlterEvents(Change::text(deleted, deleted)),
        ),
    ];
    test.rule(&rules);
    test.proxy.clear_records();
    test.replace_operator()?;
    let mut children = test.life.watched();
    children.retain(|resource| *resource != kind.plural);
    if kind == MPI {
        children.extend(["jobs", "configmaps"]);
    }
    for resource in children {
        test.until_listed(resource).await?;
    }
    let pod = test.life.victim();
    test.world.kubelet.disappear(test.namespace(), pod).await?;
    test.until_hit(&rules, 1).await?;
    let job = StepRunner {
        world: &test.world,
        name: JOB,
        held: None,
        happenings: None,
    };
    job.suspend(true).await?;
    gate.open();
    job.until_suspended().await?;
    test.operator_mut()?.until_ready().await?;
    test.assert_clean().await
}

#[tokio::test]
async fn a_pod_deleted_before_jobs_are_listed_takes_nothing_else_from_its_job() -> Result<()> {
    for_each_kind(EVERY_KIND, deleted_before_the_list).await
}
