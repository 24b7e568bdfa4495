//! F-30 to F-36: faults of watches.

use anyhow::Result;
use e2e::for_each_kind;
use futures::future::try_join_all;
use training_testkit::builders::{EVERY_KIND, KINDS, Kind, PYTORCH};
use training_testkit::is_deep;
use training_testkit::proxy::{Action, Gate, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

use super::campaign::{on, watches};
use super::driver::{FaultTest, JOB, Phase, WORKER};
use super::life::Life;
use super::table::{
    F_30_SEVEN, F_30_THREE, F_30_TWO, F_31, F_32_FIVE, F_32_TWO, F_33_JOBS, F_33_PODS, F_34_1,
    F_34_4, F_34_10, F_34_60, WatchFault, events_with,
};

const ALL: &[&str] = &["pytorchjobs", "pods", "services"];

const LIFE: Life = Life(PYTORCH);

#[tokio::test]
async fn f_30_every_second_event_is_lost() -> Result<()> {
    watches(LIFE, &F_30_TWO).await
}

#[tokio::test]
async fn f_30_every_third_event_is_lost() -> Result<()> {
    watches(LIFE, &F_30_THREE).await
}

#[tokio::test]
async fn f_30_every_seventh_event_is_lost() -> Result<()> {
    watches(LIFE, &F_30_SEVEN).await
}

#[tokio::test]
async fn f_31_no_change_of_a_job_is_ever_told() -> Result<()> {
    watches(LIFE, &F_31).await
}

/// The response to a status write is lost, and so is the event: only a read shows the new version.
async fn stored_in_silence(kind: Kind) -> Result<()> {
    let life = Life(kind);
    let Some(mut test) = FaultTest::of(life, "f31stored").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    let lost = on(
        test.namespace(),
        ("watch", kind.plural),
        events_with(&["\"type\":\"MODIFIED\""]),
    );
    let answer = on(
        test.namespace(),
        ("patch", life.status()),
        Action::ResetAfter,
    );
    let rules = [lost, answer.nth(1)];
    test.rule(&rules);
    test.reopen(&rules[..1]).await?;
    let begun = tokio::time::Instant::now();
    test.run_phase(Phase::Running).await?;
    test.until_hit(&rules, 1).await?;
    test.run_phase(Phase::Finishing).await?;
    test.assert_life();
    // It is read before anything is decided from its old version.
    let records = test.proxy.records();
    let conflict = records.iter().find(|r| {
        let ours = r.at >= begun && r.call.namespace == test.namespace();
        ours && r.code == Some(409) && r.call.is_for_jobs("patch", life.status())
    });
    assert!(conflict.is_none(), "{conflict:?}");
    test.assert_clean().await
}

#[tokio::test]
async fn f_31_f_03_a_job_of_any_kind_is_read_if_neither_response_nor_event_shows_its_status()
-> Result<()> {
    try_join_all(EVERY_KIND.map(stored_in_silence))
        .await
        .map(drop)
}

/// The worker disappears before it runs, and again while the job runs; or it fails. The watch doesn't show it.
async fn pods_in_silence(
    name: &str,
    lost: fn() -> Action,
    happens: impl AsyncFn(&FaultTest) -> Result<()>,
) -> Result<()> {
    let Some(mut test) = FaultTest::set_up(name).await? else {
        return Ok(());
    };
    let rule = || on(test.namespace(), ("watch", "pods"), lost());
    let (early, late) = (rule(), rule());
    test.rule(std::slice::from_ref(&early));
    for rule in [early, late] {
        test.rule(std::slice::from_ref(&rule));
        if test.operator().is_err() {
            test.begin(Phase::Creating).await?;
            test.world
                .kubelet
                .until_pods(test.namespace(), JOB, 3)
                .await?;
        } else {
            test.proxy.cut().await?;
        }
        let old = test.worker().await?;
        happens(&test).await?;
        test.until_hit(&[rule], 1).await?;
        test.relist().await?;
        test.until_another(&old).await?;
        test.end(Phase::Creating).await?;
    }
    test.run_phase(Phase::Finishing).await?;
    test.assert_made(&[("pt-master-0", 1), ("pt-worker-0", 1), (WORKER, 3)]);
    test.assert_clean().await
}

#[tokio::test]
async fn f_31_no_end_of_a_pod_is_ever_told() -> Result<()> {
    pods_in_silence(
        "f31deleted",
        || events_with(&["\"type\":\"DELETED\""]),
        async |test| test.world.kubelet.disappear(test.namespace(), WORKER).await,
    )
    .await
}

/// No watch of pods shows anything, so only reads show that a pod vanished after its create.
async fn vanishes_unseen(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f31unseen").await? else {
        return Ok(());
    };
    let gate = Gate::closed();
    let silent = Action::HoldEvents(gate.clone());
    let rule = on(test.namespace(), ("watch", "pods"), silent);
    test.rule(std::slice::from_ref(&rule));
    test.begin(Phase::Creating).await?;
    let (kubelet, namespace) = (&test.world.kubelet, test.world.namespace());
    kubelet.until_pods(namespace, JOB, 3).await?;
    let old = test.worker().await?;
    kubelet.disappear(namespace, WORKER).await?;
    test.until_another(&old).await?;
    test.until_hit(&[rule], 1).await?;
    test.proxy.clear_rules();
    gate.open();
    test.end(Phase::Creating).await?;
    test.run_phase(Phase::Finishing).await?;
    test.assert_worker_made(2);
    test.assert_clean().await
}

#[tokio::test]
async fn f_31_a_pod_that_vanished_before_its_watch_showed_it_is_made_again() -> Result<()> {
    for_each_kind(KINDS, vanishes_unseen).await
}

#[tokio::test]
async fn f_31_no_failure_of_a_pod_is_ever_told() -> Result<()> {
    let lost = || events_with(&["\"type\":\"MODIFIED\"", "\"phase\":\"Failed\""]);
    pods_in_silence("f31failed", lost, async |test| {
        test.world.kubelet.fail(test.namespace(), WORKER, 137).await
    })
    .await
}

#[tokio::test]
async fn f_32_news_that_come_twice_or_five_times_mean_the_same() -> Result<()> {
    watches(LIFE, &F_32_TWO).await?;
    watches(LIFE, &F_32_FIVE).await
}

#[tokio::test]
async fn f_33_news_of_pods_come_before_those_of_their_job() -> Result<()> {
    watches(LIFE, &F_33_JOBS).await?;
    watches(LIFE, &F_33_PODS).await
}

#[tokio::test]
async fn f_34_news_are_late_while_writes_are_instant() -> Result<()> {
    let late: &[&WatchFault] = if is_deep() {
        &[&F_34_1, &F_34_10, &F_34_60]
    } else {
        &[&F_34_1, &F_34_4]
    };
    for fault in late {
        watches(LIFE, fault).await?;
    }
    Ok(())
}

#[tokio::test]
async fn f_35_a_stream_that_ends_after_every_event_costs_no_list() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("f35").await? else {
        return Ok(());
    };
    let rules: Vec<Rule> = ALL
        .iter()
        .map(|resource| {
            on(
                test.namespace(),
                ("watch", resource),
                Action::CloseWatchAfter(1),
            )
        })
        .collect();
    test.rule(&rules);
    for phase in Phase::ALL {
        let before: usize = rules.iter().map(Rule::hits).sum();
        test.run_phase(phase).await?;
        let after: usize = rules.iter().map(Rule::hits).sum();
        anyhow::ensure!(after > before, "nothing was hit while {phase:?}");
    }
    let records = test.proxy.records();
    for resource in ALL {
        // The read of one job before something of it is created again doesn't come from a watch.
        let lists = records
            .iter()
            .filter(|r| r.call.is("list", resource) && r.call.name.is_empty());
        // One in each namespace, when the operator starts.
        assert_eq!(lists.count(), 2, "{resource}: {:?}", test.proxy.counts());
    }
    test.assert_clean().await
}

#[tokio::test]
async fn f_36_a_stream_that_stalls_is_noticed() -> Result<()> {
    let Some(test) = FaultTest::set_up("f36").await? else {
        return Ok(());
    };
    let mut test = test.flag("watch-timeout", "2s");
    for phase in Phase::ALL {
        let rules: Vec<Rule> = ALL
            .iter()
            .map(|resource| on(test.namespace(), ("watch", resource), Action::StallWatch))
            .collect();
        test.rule(&rules);
        if phase != Phase::Creating {
            test.proxy.cut().await?;
        }
        test.begin(phase).await?;
        test.until_hit(&rules, 1).await?;
        if phase == Phase::Running {
            // Every watch reconnects again and again and gets an answer, but no events.
            eventually("the operator to be unready", HANG, async || {
                let (code, body) = test.operator()?.probe("/readyz").await?;
                let told = code == 503 && body.contains("jobs") && body.contains("pods");
                Ok(if told {
                    Seen::Yes(())
                } else {
                    Seen::NotYet(format!("{code} {body}"))
                })
            })
            .await?;
            anyhow::ensure!(test.operator()?.probe("/livez").await?.0 == 200);
        }
        test.proxy.clear_rules();
        test.end(phase).await?;
        eventually("the operator to be ready", HANG, async || {
            let (code, body) = test.operator()?.probe("/readyz").await?;
            Ok(if code == 200 {
                Seen::Yes(())
            } else {
                Seen::NotYet(body)
            })
        })
        .await?;
    }
    test.assert_clean().await
}

#[tokio::test]
async fn f_36_a_watch_that_broke_counts_as_open_when_it_is_answered_again() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("f36up").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    test.until_canary().await?;
    let up = async |value: u8| {
        eventually(
            &format!("trainyard_watch_up to be {value}"),
            HANG,
            async || {
                let metrics = test.operator()?.metrics().await?;
                let lines: Vec<&str> = metrics
                    .lines()
                    .filter(|line| line.starts_with("trainyard_watch_up{"))
                    .collect();
                let all = lines
                    .iter()
                    .all(|line| line.ends_with(&format!(" {value}")));
                Ok(if all && lines.len() >= 3 {
                    Seen::Yes(())
                } else {
                    Seen::NotYet(format!("{lines:?}"))
                })
            },
        )
        .await
    };
    up(1).await?;
    test.proxy.refuse();
    up(0).await?;
    test.proxy.accept().await?;
    // No change in the cluster causes a watch event.
    up(1).await?;
    for phase in [Phase::Running, Phase::Finishing] {
        test.run_phase(phase).await?;
    }
    test.assert_clean().await
}
