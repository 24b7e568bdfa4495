//! F-37 to F-43: what makes the operator list again, and what such a list may say.

use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::{for_each_kind, look};
use serde_json::json;
use training_testkit::builders::{EVERY_KIND, KINDS, Kind, MPI, PYTORCH, TRAINING};
use training_testkit::job::is_true;
use training_testkit::proxy::{Action, Answer, Call, Change, Effect, Gate, Record, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

use super::campaign::{on, watches};
use super::driver::{JOB, Phase, Trial};
use super::life::{Life, WORKERS};
use super::table::{F_37, F_38, F_39, F_39_LOST};

const LIFE: Life = Life(PYTORCH);

#[tokio::test]
async fn f_37_an_error_410_in_the_stream_leads_to_a_list() -> Result<()> {
    watches(LIFE, &F_37).await
}

#[tokio::test]
async fn f_37_a_list_is_not_asked_for_again_at_once() -> Result<()> {
    let Some(mut trial) = Trial::set_up("f37rate").await? else {
        return Ok(());
    };
    trial.run_phase(Phase::Creating).await?;
    let gone = Answer::new(410, "Expired", "too old resource version");
    let rule = on(
        trial.namespace(),
        ("watch", "pods"),
        Action::Answer(Effect::Without, gone),
    );
    trial.rule(std::slice::from_ref(&rule));
    trial.proxy.cut().await?;
    trial.until_hit(&[rule], 3).await?;
    trial.proxy.clear_rules();
    let namespace = trial.namespace().to_owned();
    let lists: Vec<_> = trial
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
        trial.run_phase(phase).await?;
    }
    trial.assert_clean().await
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

/// One job of several can't be read: neither in the list at the start nor as an event.
async fn unreadable(kind: Kind) -> Result<()> {
    let Some(mut trial) = Trial::of(Life(kind), "f40").await? else {
        return Ok(());
    };
    let odd = |name: &str| {
        let mut job = Life(kind).canary(name);
        job["spec"]["runPolicy"]["backoffLimit"] = json!(77);
        job
    };
    // The type says number; the wire says text.
    let poison = || Change::text("\"backoffLimit\":77", "\"backoffLimit\":\"many\"");
    let rules = || {
        [
            on(
                trial.namespace(),
                ("list", kind.plural),
                Action::AlterAnswer(poison()),
            ),
            on(
                trial.namespace(),
                ("watch", kind.plural),
                Action::AlterEvents(poison()),
            ),
        ]
    };
    let rules = rules();
    trial.rule(&rules);
    trial.world.jobs.create(&odd("listed")).await?;
    trial.begin(Phase::Creating).await?;
    trial.until_hit(&rules[..1], 1).await?;
    trial.end(Phase::Creating).await?;
    trial.world.jobs.create(&odd("told")).await?;
    trial.until_hit(&rules[1..], 1).await?;
    for phase in [Phase::Running, Phase::Finishing] {
        trial.run_phase(phase).await?;
    }
    for name in ["listed", "told"] {
        look::events_with(&trial.world.client, trial.namespace(), name, "InvalidSpec").await?;
        let pods = look::pods(&trial.world.client, trial.namespace(), name).await?;
        anyhow::ensure!(pods.is_empty(), "{name}: {:?}", look::names(&pods));
    }
    // Readable again, they are served.
    trial.relist().await?;
    for name in ["listed", "told"] {
        trial
            .world
            .kubelet
            .until_pods(trial.namespace(), name, 2)
            .await?;
        trial
            .world
            .kubelet
            .all_running(trial.namespace(), name)
            .await?;
        trial.world.jobs.until_true(name, "Running").await?;
    }
    trial.assert_clean().await
}

#[tokio::test]
async fn f_40_f_73_mt_30_a_job_that_cant_be_read_is_set_aside_alone() -> Result<()> {
    for_each_kind(TRAINING, unreadable).await
}

async fn older_list(kind: Kind) -> Result<()> {
    let Some(mut trial) = Trial::of(Life(kind), "f41").await? else {
        return Ok(());
    };
    let all = trial.life.watched();
    for phase in Phase::ALL {
        trial.run_phase(phase).await?;
        // As it was when the job was submitted; then the watch goes on from there.
        let version = trial.submitted().to_owned();
        let mut rules: Vec<Rule> = Vec::new();
        for resource in &all {
            let exact = format!("resourceVersion={version}&resourceVersionMatch=Exact");
            rules.push(
                on(
                    trial.namespace(),
                    ("list", resource),
                    Action::AddQuery(exact),
                )
                .nth(1),
            );
        }
        for resource in &all {
            let gone = Answer::new(410, "Expired", "too old resource version");
            let action = Action::Answer(Effect::Without, gone);
            rules.push(on(trial.namespace(), ("watch", resource), action).nth(1));
        }
        trial.rule(&rules);
        trial.proxy.cut().await?;
        trial.until_hit(&rules, 1).await?;
        trial.proxy.clear_rules();
        // What it makes of that it does at once.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    trial.assert_life();
    trial.assert_clean().await
}

#[tokio::test]
async fn f_41_a_list_from_an_older_revision_does_no_harm() -> Result<()> {
    for_each_kind(EVERY_KIND, older_list).await
}

impl Trial {
    /// The list of pods after the one that this rule broke asks for the first page, and not for one that comes later.
    fn assert_begun_anew(&self, rule: &str) -> Result<()> {
        let records = self.proxy.records();
        let ours = records
            .iter()
            .filter(|r| r.call.is("list", "pods") && r.call.namespace == self.namespace());
        let ours: Vec<_> = ours.collect();
        let is_it = |r: &&Record| r.rule.as_deref() == Some(rule);
        let broken = ours.iter().rposition(is_it).context("no page was broken")?;
        anyhow::ensure!(ours[broken].call.uri.contains("continue="));
        let next = ours.get(broken + 1).context("no list came after it")?;
        let uri = &next.call.uri;
        anyhow::ensure!(!uri.contains("continue="), "{uri} goes on");
        Ok(())
    }
}

/// The second page of a list of pods is answered so.
async fn half_a_list(kind: Kind, name: &str, broken: &Answer) -> Result<()> {
    let Some(mut trial) = Trial::of(Life(kind), name).await? else {
        return Ok(());
    };
    for phase in Phase::ALL {
        if phase == Phase::Creating {
            trial.run_phase(phase).await?;
            continue;
        }
        let (namespace, later) = (trial.namespace().to_owned(), trial.namespace().to_owned());
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
            trial.namespace(),
            ("watch", "pods"),
            Action::Answer(Effect::Without, gone),
        );
        let rules = [second, pages, relist.nth(1)];
        trial.rule(&rules);
        trial.proxy.cut().await?;
        trial.begin(phase).await?;
        trial.until_hit(&rules, 1).await?;
        trial.end(phase).await?;
        // The list was begun anew, and had three pages then.
        trial
            .until_hit(&rules[1..2], if phase == Phase::Running { 3 } else { 1 })
            .await?;
        trial.assert_begun_anew("second page")?;
    }
    trial.assert_life();
    trial.assert_clean().await
}

#[tokio::test]
async fn f_42_a_page_that_fails_makes_no_half_of_a_list_the_truth() -> Result<()> {
    let lost = Answer::new(500, "InternalError", "the second page is lost");
    for_each_kind(KINDS, |kind| half_a_list(kind, "f42", &lost)).await
}

#[tokio::test]
async fn f_26_a_page_that_has_expired_makes_no_half_of_a_list_the_truth() -> Result<()> {
    let words = "The provided continue parameter is too old to display a consistent list result.";
    half_a_list(PYTORCH, "f26", &Answer::new(410, "Expired", words)).await
}

async fn made_again(kind: Kind) -> Result<()> {
    let Some(mut trial) = Trial::of(Life(kind), "f43").await? else {
        return Ok(());
    };
    let all = trial.life.watched();
    trial.begin(Phase::Creating).await?;
    let before = trial.world.jobs.until_true(JOB, "Created").await?;
    if kind == MPI {
        // The controller of Jobs waits for a pod of a former Job, which a Job of the same name then has to wait out for five minutes
        // (kubernetes/kubernetes#131917).
        let (kubelet, namespace) = (&trial.world.kubelet, trial.namespace());
        kubelet
            .until_pods(namespace, JOB, trial.life.pods(WORKERS))
            .await?;
    }
    for phase in [Phase::Creating, Phase::Running] {
        if phase == Phase::Running {
            trial.end(Phase::Creating).await?;
        }
        // While nothing is heard, the job is deleted and made again; then everything is listed.
        let gate = Gate::closed();
        let deaf: Vec<Rule> = all
            .iter()
            .map(|r| {
                on(
                    trial.namespace(),
                    ("watch", r),
                    Action::HoldEvents(gate.clone()),
                )
            })
            .collect();
        trial.rule(&deaf);
        trial.proxy.cut().await?;
        trial.world.jobs.delete(JOB).await?;
        eventually("the job to be gone", HANG, async || {
            Ok(match trial.world.jobs.get(JOB).await {
                Err(_) => Seen::Yes(()),
                Ok(job) => Seen::NotYet(job["metadata"].to_string()),
            })
        })
        .await?;
        let after = trial.world.jobs.create(&trial.life.job(WORKERS)).await?;
        anyhow::ensure!(before["metadata"]["uid"] != after["metadata"]["uid"]);
        trial.until_hit(&deaf, 1).await?;
        trial.relist().await?;
        gate.open();
        let job = trial.world.jobs.until_true(JOB, "Created").await?;
        anyhow::ensure!(job["metadata"]["uid"] == after["metadata"]["uid"]);
        anyhow::ensure!(!is_true(&job, "Failed"), "{}", job["status"]);
        eventually("the pods of the new job alone", HANG, async || {
            let mut pods = look::pods(&trial.world.client, trial.namespace(), JOB).await?;
            // A launcher's pods are its Job's.
            pods.retain(|pod| pod["metadata"]["ownerReferences"][0]["kind"] == kind.name);
            let uid = &after["metadata"]["uid"];
            let all = pods
                .iter()
                .all(|pod| pod["metadata"]["ownerReferences"][0]["uid"] == *uid);
            Ok(if all && look::names(&pods) == trial.life.ranks(WORKERS) {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{:?}", look::names(&pods)))
            })
        })
        .await?;
    }
    trial.end(Phase::Creating).await?;
    trial.run_phase(Phase::Finishing).await?;
    // Who lists the pods before the jobs knows that they are gone, and not that their job is: what it makes then goes after it.
    trial.assert_clean_but_for(Some("I-05")).await
}

#[tokio::test]
async fn f_43_a_job_of_the_same_name_is_another_job() -> Result<()> {
    for_each_kind(TRAINING, made_again).await
}
