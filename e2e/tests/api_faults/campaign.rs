//! Whole lives of a job through one fault after another.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use training_testkit::builders::SPARK;
use training_testkit::control_plane::ControlPlane;
use training_testkit::proxy::{Action, Call, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

use super::driver::{JOB, Phase, Trial, deep};
use super::life::{Life, Target};
use super::table::{Cure, DEADLINE, Fault, News};

/// So many pods fail at most until a fault of watches has struck news of one.
const FAILURES: usize = 3;

/// A rule for the requests of a namespace that have this verb and resource.
pub fn on(namespace: &str, (verb, resource): Target, action: Action) -> Rule {
    let namespace = namespace.to_owned();
    Rule::new(&format!("{verb} {resource}"), action, move |call: &Call| {
        call.namespace == namespace && call.is(verb, resource)
    })
}

/// How often the operator has asked for this in the job's namespace.
fn asked(trial: &Trial, (verb, resource): Target) -> usize {
    let records = trial.proxy.records();
    let ours = records.iter().map(|record| &record.call);
    ours.filter(|call| call.namespace == trial.namespace() && call.is(verb, resource))
        .count()
}

/// A whole life in which a fault strikes each phase's requests once.
///
/// Deep, it also strikes the second and third request of their kind, in lives of their own; where a phase has so many.
pub async fn requests(life: Life, fault: &Fault) -> Result<()> {
    let rounds = if deep() { 3 } else { 1 };
    for nth in 1..=rounds {
        let Some(mut trial) = Trial::of(life, fault.name).await? else {
            return Ok(());
        };
        trial = trial.flags(fault.flags);
        for phase in Phase::ALL {
            let targets = fault.targets(life, phase);
            let which = |target: &Target| {
                let one = matches!(target.0, "list" | "watch") || phase == Phase::Running;
                if one { 1 } else { nth }
            };
            let rules = targets
                .iter()
                .map(|target| on(trial.namespace(), *target, (fault.action)()).nth(which(target)));
            let rules: Vec<Rule> = rules.collect();
            trial.rule(&rules);
            let before: Vec<usize> = targets.iter().map(|t| asked(&trial, *t)).collect();
            trial.run_phase(phase).await?;
            for ((target, rule), before) in targets.iter().zip(&rules).zip(before) {
                let (wanted, came) = (which(target), asked(&trial, *target) - before);
                // A status may be complete before its next write of this phase is due.
                if wanted > life.least(phase, *target).max(came) {
                    let (verb, resource) = target;
                    eprintln!(
                        "{}: no request {wanted} to {verb} {resource} while {phase:?}",
                        fault.name
                    );
                    continue;
                }
                trial.until_hit(std::slice::from_ref(rule), 1).await?;
            }
        }
        trial.assert_life();
        trial.assert_clean().await?;
    }
    Ok(())
}

/// What strikes one target of one phase: a request fails without effect, and the next one, which is sent in its place, has
/// effect and fails all the same.
#[derive(Default)]
struct Slot<'a> {
    refused: Option<&'a Fault>,
    done: Option<&'a Fault>,
}

/// One life's share of the faults.
struct Share<'a>(Vec<(Phase, Target, Slot<'a>)>);

impl<'a> Share<'a> {
    fn empty(life: Life) -> Self {
        let of_phase = |phase: Phase| {
            let targets = life.targets(phase).into_iter();
            targets.map(move |target| (phase, target, Slot::default()))
        };
        Self(Phase::ALL.into_iter().flat_map(of_phase).collect())
    }

    /// Whether there was room for it.
    fn takes(&mut self, life: Life, fault: &'a Fault) -> bool {
        let done = fault.has_effect();
        let free = self.0.iter_mut().find(|(phase, target, slot)| {
            let place = if done { slot.done } else { slot.refused };
            place.is_none() && fault.targets(life, *phase).contains(target)
        });
        let Some((_, _, slot)) = free else {
            return false;
        };
        *(if done {
            &mut slot.done
        } else {
            &mut slot.refused
        }) = Some(fault);
        true
    }

    fn rules(&self, namespace: &str, phase: Phase) -> Vec<Rule> {
        let slots = self.0.iter().filter(|(of, _, _)| *of == phase);
        slots
            .flat_map(|(_, target, slot)| {
                let both = [slot.refused, slot.done].into_iter().flatten();
                both.map(|fault| on(namespace, *target, (fault.action)()).nth(1))
            })
            .collect()
    }
}

/// As few whole lives as are needed for each of these faults to strike once.
pub async fn all_requests(life: Life, faults: &[&Fault]) -> Result<()> {
    all_requests_on(ControlPlane::shared().await?, life, faults).await
}

/// The same on a control plane that the test has prepared.
pub async fn all_requests_on(
    control: &'static ControlPlane,
    life: Life,
    faults: &[&Fault],
) -> Result<()> {
    let mut shares: Vec<Share<'_>> = Vec::new();
    for fault in faults {
        if shares.iter_mut().any(|share| share.takes(life, fault)) {
            continue;
        }
        let mut share = Share::empty(life);
        anyhow::ensure!(
            share.takes(life, fault),
            "{} strikes nothing of a {}",
            fault.name,
            life.0.name
        );
        shares.push(share);
    }
    for share in shares {
        let Some(trial) = Trial::on(control, life, "faults").await? else {
            return Ok(());
        };
        let mut trial = trial.flags(DEADLINE);
        for phase in Phase::ALL {
            let rules = share.rules(trial.namespace(), phase);
            trial.rule(&rules);
            trial.run_phase(phase).await?;
            trial.until_hit(&rules, 1).await?;
        }
        trial.assert_life();
        trial.assert_clean().await?;
    }
    Ok(())
}

/// A whole life in which a fault lasts until it has hit often enough, and then ends: first at one target, then at the next.
pub async fn lasting(
    life: Life,
    name: &str,
    targets: impl Fn(Phase) -> Vec<Target>,
    action: impl Fn() -> Action,
    times: usize,
    at_least: Duration,
    mut after: impl FnMut(&Trial) -> Result<()>,
) -> Result<()> {
    let Some(mut trial) = Trial::of(life, name).await? else {
        return Ok(());
    };
    for phase in Phase::ALL {
        let aims = targets(phase).into_iter();
        let rules: Vec<Rule> = aims
            .map(|target| on(trial.namespace(), target, action()))
            .collect();
        trial.proxy.clear_records();
        trial.rule(&rules);
        trial.begin(phase).await?;
        // What a write waits for is let through before it.
        for (nth, rule) in rules.iter().enumerate() {
            let hits = if nth == 0 { times } else { 1 };
            trial.until_hit(std::slice::from_ref(rule), hits).await?;
            if nth == 0 {
                tokio::time::sleep(at_least).await;
            }
            trial.rule(&rules[nth + 1..]);
        }
        trial.end(phase).await?;
        after(&trial)?;
    }
    trial.assert_life();
    trial.assert_clean().await
}

/// The rules of a fault of watches.
fn broken(trial: &Trial, news: &News, version: &str) -> Vec<Rule> {
    let resources = news.resources(trial.life).into_iter();
    resources
        .map(|resource| {
            let action = (news.action)(trial.life, resource, version);
            on(trial.namespace(), ("watch", resource), action)
        })
        .collect()
}

/// The end of a fault of watches.
async fn cure(trial: &Trial, news: &News) -> Result<()> {
    match news.cure {
        Cure::None => {}
        Cure::End => trial.proxy.clear_rules(),
        Cure::Reopen => {
            trial.proxy.clear_rules();
            trial.proxy.cut().await?;
        }
        Cure::Relist => {
            // Long enough for whatever is made of half the news.
            tokio::time::sleep(Duration::from_millis(500)).await;
            trial.relist().await?;
        }
    }
    Ok(())
}

/// Waits until a rule for a watch has hit once more than so often; or until the failure is dealt with, so that nothing is left that
/// it could hit. Answers whether it has hit.
async fn until_struck(trial: &Trial, rule: &Rule, before: usize) -> Result<bool> {
    eventually("news of a failure to be struck", HANG, async || {
        let hit = rule.hits() > before;
        // Of a job there are news in any case: what was decided of the failure.
        let over = rule.name() == "watch pods" && trial.is_replaced();
        Ok(if hit || over {
            Seen::Yes(hit)
        } else {
            let job = trial.world.jobs.get(JOB).await?;
            Seen::NotYet(format!(
                "{} hit nothing; replaced: {}; {}",
                rule.name(),
                trial.is_replaced(),
                job["status"]
            ))
        })
    })
    .await
}

/// A pod fails while the watches are broken, and is replaced. Nothing else happens before the fault has struck news of that.
async fn failure(trial: &mut Trial, news: &News, version: &str) -> Result<()> {
    let rules = broken(trial, news, version);
    let of_pods = rules.iter().find(|rule| rule.name() == "watch pods");
    let matters = of_pods.or(rules.first()).context("no watch is broken")?;
    trial.rule(&rules);
    // A list would show what the watch is not to.
    trial.reopen(&rules).await?;
    // What is lost is the news of the failure itself.
    for _ in 0..news.spared(trial.life) {
        trial.noise().await;
    }
    let mut struck = false;
    // Where a stream has ended in between, it counts anew, and may let all news of one failure pass.
    for _ in 0..FAILURES {
        // A stalled watch is struck when it is opened.
        let before = if news.cure == Cure::End {
            0
        } else {
            matters.hits()
        };
        trial.fail_next().await?;
        struck = until_struck(trial, matters, before).await?;
        if struck {
            break;
        }
        trial.run_replacement().await?;
    }
    anyhow::ensure!(struck, "{} struck no news of a failure", news.name);
    trial.until_heard(&rules).await?;
    if news.cure == Cure::End {
        anyhow::ensure!(!trial.is_replaced(), "{}: it was heard", news.name);
    }
    cure(trial, news).await?;
    trial.run_replacement().await?;
    trial.until_active().await
}

/// A phase in which the watches are broken.
async fn phase_of(trial: &mut Trial, phase: Phase, news: &News, version: &str) -> Result<()> {
    if phase == Phase::Running {
        return failure(trial, news, version).await;
    }
    let rules = broken(trial, news, version);
    trial.rule(&rules);
    if phase != Phase::Creating {
        trial.proxy.cut().await?;
    }
    trial.begin(phase).await?;
    trial.until_heard(&rules).await?;
    cure(trial, news).await?;
    trial.end(phase).await
}

/// A whole life in which the watches are broken in each phase.
pub async fn watches(life: Life, news: &News) -> Result<()> {
    let Some(trial) = Trial::of(life, news.name).await? else {
        return Ok(());
    };
    let mut trial = trial.flags(news.flags());
    let version = trial.old_version().await?;
    for phase in Phase::ALL {
        phase_of(&mut trial, phase, news, &version).await?;
    }
    trial.assert_life();
    trial.assert_clean().await
}

/// Whole lives in which each of these faults breaks the watches once.
pub async fn all_watches(life: Life, faults: &[&News]) -> Result<()> {
    all_watches_on(ControlPlane::shared().await?, life, faults).await
}

/// The same on a control plane that the test has prepared.
pub async fn all_watches_on(
    control: &'static ControlPlane,
    life: Life,
    faults: &[&News],
) -> Result<()> {
    // The one pod of an application is replaced later each time that it fails.
    let most = if life.0 == SPARK { 4 } else { faults.len() };
    let lives = faults.chunks(most);
    let lives = lives.map(|share| one_life(control, life, share));
    try_join_all(lives).await.map(drop)
}

/// The first fault strikes while the job is created, the last one when it ends, and each of the others while another pod fails.
async fn one_life(control: &'static ControlPlane, life: Life, faults: &[&News]) -> Result<()> {
    anyhow::ensure!(faults.len() >= Phase::ALL.len(), "a phase without a fault");
    let Some(trial) = Trial::on(control, life, "news").await? else {
        return Ok(());
    };
    let flags: Vec<_> = faults
        .iter()
        .flat_map(|news| news.flags())
        .copied()
        .collect();
    let workers = u32::try_from(faults.len())?;
    let mut trial = trial.flags(&flags).workers(workers);
    let version = trial.old_version().await?;
    for (nth, news) in faults.iter().enumerate() {
        let phase = match nth {
            0 => Phase::Creating,
            _ if nth + 1 == faults.len() => Phase::Finishing,
            _ => Phase::Running,
        };
        let outcome = phase_of(&mut trial, phase, news, &version).await;
        outcome.with_context(|| format!("{} while {phase:?}", news.name))?;
    }
    trial.assert_life();
    trial.assert_clean().await
}
