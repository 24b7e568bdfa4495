//! A job's full life cycle through one fault after another.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use training_testkit::builders::SPARK;
use training_testkit::control_plane::ControlPlane;
use training_testkit::is_deep;
use training_testkit::proxy::{Action, Call, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

use super::driver::{FaultTest, JOB, Phase};
use super::life::{Life, Target};
use super::table::{DEADLINE, Fault, Recovery, WatchFault};

/// The most pods that fail until a watch fault hits an event of a failure.
const FAILURES: usize = 3;

/// Returns a rule for requests of this verb and resource in a namespace.
pub fn on(namespace: &str, (verb, resource): Target, action: Action) -> Rule {
    let namespace = namespace.to_owned();
    Rule::new(&format!("{verb} {resource}"), action, move |call: &Call| {
        call.namespace == namespace && call.is_for_jobs(verb, resource)
    })
}

/// The number of such requests by the operator in the job's namespace.
fn asked(test: &FaultTest, (verb, resource): Target) -> usize {
    let records = test.proxy.records();
    let ours = records.iter().map(|record| &record.call);
    ours.filter(|call| call.namespace == test.namespace() && call.is_for_jobs(verb, resource))
        .count()
}

/// Runs a full life cycle in which a fault hits the requests of each phase once.
///
/// A deep run also hits the second and third request of each kind, where a phase has that many, in separate life cycles.
pub async fn requests(life: Life, fault: &Fault) -> Result<()> {
    let rounds = if is_deep() { 3 } else { 1 };
    for nth in 1..=rounds {
        let Some(mut test) = FaultTest::of(life, fault.name).await? else {
            return Ok(());
        };
        test = test.flags(fault.flags);
        for phase in Phase::ALL {
            let targets = fault.targets(life, phase);
            let which = |target: &Target| {
                let one = matches!(target.0, "list" | "watch") || phase == Phase::Running;
                if one { 1 } else { nth }
            };
            let rules = targets
                .iter()
                .map(|target| on(test.namespace(), *target, (fault.action)()).nth(which(target)));
            let rules: Vec<Rule> = rules.collect();
            test.rule(&rules);
            let before: Vec<usize> = targets.iter().map(|t| asked(&test, *t)).collect();
            test.run_phase(phase).await?;
            for ((target, rule), before) in targets.iter().zip(&rules).zip(before) {
                let (wanted, came) = (which(target), asked(&test, *target) - before);
                // The status may be complete before the next write of this phase is due.
                if wanted > life.least(phase, *target).max(came) {
                    let (verb, resource) = target;
                    eprintln!(
                        "{}: no request {wanted} to {verb} {resource} while {phase:?}",
                        fault.name
                    );
                    continue;
                }
                test.until_hit(std::slice::from_ref(rule), 1).await?;
            }
        }
        test.assert_life();
        test.assert_clean().await?;
    }
    Ok(())
}

/// The faults for one target in one phase: a request that fails without effect, then its retry, which takes effect and fails
/// nevertheless.
#[derive(Default)]
struct Slot<'a> {
    refused: Option<&'a Fault>,
    done: Option<&'a Fault>,
}

/// The faults that one life cycle covers.
struct Share<'a>(Vec<(Phase, Target, Slot<'a>)>);

impl<'a> Share<'a> {
    fn empty(life: Life) -> Self {
        let of_phase = |phase: Phase| {
            let targets = life.targets(phase).into_iter();
            targets.map(move |target| (phase, target, Slot::default()))
        };
        Self(Phase::ALL.into_iter().flat_map(of_phase).collect())
    }

    /// Adds the fault if there is a free slot; returns whether there was one.
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

/// Runs as few full life cycles as it takes for each of these faults to hit once.
pub async fn all_requests(life: Life, faults: &[&Fault]) -> Result<()> {
    all_requests_on(ControlPlane::shared().await?, life, faults).await
}

/// Same as [`all_requests`] on a prepared control plane.
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
            "{} hits no request of a {}",
            fault.name,
            life.0.name
        );
        shares.push(share);
    }
    for share in shares {
        let Some(test) = FaultTest::on(control, life, "faults").await? else {
            return Ok(());
        };
        let mut test = test.flags(DEADLINE);
        for phase in Phase::ALL {
            let rules = share.rules(test.namespace(), phase);
            test.rule(&rules);
            test.run_phase(phase).await?;
            test.until_hit(&rules, 1).await?;
        }
        test.assert_life();
        test.assert_clean().await?;
    }
    Ok(())
}

/// Runs a full life cycle in which a fault lasts until it has hit often enough, at one target after another.
pub async fn lasting(
    life: Life,
    name: &str,
    targets: impl Fn(Phase) -> Vec<Target>,
    action: impl Fn() -> Action,
    times: usize,
    at_least: Duration,
    mut after: impl FnMut(&FaultTest) -> Result<()>,
) -> Result<()> {
    let Some(mut test) = FaultTest::of(life, name).await? else {
        return Ok(());
    };
    for phase in Phase::ALL {
        let aims = targets(phase).into_iter();
        let rules: Vec<Rule> = aims
            .map(|target| on(test.namespace(), target, action()))
            .collect();
        test.proxy.clear_records();
        test.rule(&rules);
        test.begin(phase).await?;
        // Releases the requests in order, because later writes wait for earlier ones.
        for (nth, rule) in rules.iter().enumerate() {
            let hits = if nth == 0 { times } else { 1 };
            test.until_hit(std::slice::from_ref(rule), hits).await?;
            if nth == 0 {
                tokio::time::sleep(at_least).await;
            }
            test.rule(&rules[nth + 1..]);
        }
        test.end(phase).await?;
        after(&test)?;
    }
    test.assert_life();
    test.assert_clean().await
}

/// The rules of a watch fault.
fn broken(test: &FaultTest, fault: &WatchFault, version: &str) -> Vec<Rule> {
    let resources = fault.resources(test.life).into_iter();
    resources
        .map(|resource| {
            let action = (fault.action)(test.life, resource, version);
            on(test.namespace(), ("watch", resource), action)
        })
        .collect()
}

/// Ends a watch fault.
async fn recover(test: &FaultTest, fault: &WatchFault) -> Result<()> {
    match fault.recovery {
        Recovery::None => {}
        Recovery::End => test.proxy.clear_rules(),
        Recovery::Reopen => {
            test.proxy.clear_rules();
            test.proxy.cut().await?;
        }
        Recovery::Relist => {
            // Leaves time for wrong reactions to incomplete events.
            tokio::time::sleep(Duration::from_millis(500)).await;
            test.relist().await?;
        }
    }
    Ok(())
}

/// Waits until the rule for a watch has hit again, or until the failed pod is replaced and nothing is left to hit. Returns whether it has
/// hit.
async fn until_struck(test: &FaultTest, rule: &Rule, before: usize) -> Result<bool> {
    eventually("the fault to hit a failure", HANG, async || {
        let hit = rule.hits() > before;
        // Events of the job itself always come: the operator updates its status after the failure.
        let over = rule.name() == "watch pods" && test.is_replaced();
        Ok(if hit || over {
            Seen::Yes(hit)
        } else {
            let job = test.world.jobs.get(JOB).await?;
            Seen::NotYet(format!(
                "{} hit nothing; replaced: {}; {}",
                rule.name(),
                test.is_replaced(),
                job["status"]
            ))
        })
    })
    .await
}

/// A pod fails while the watches are broken, and is replaced. Nothing else happens before the fault has hit the event of the failure.
async fn failure(test: &mut FaultTest, fault: &WatchFault, version: &str) -> Result<()> {
    let rules = broken(test, fault, version);
    let of_pods = rules.iter().find(|rule| rule.name() == "watch pods");
    let matters = of_pods.or(rules.first()).context("no watch is broken")?;
    test.rule(&rules);
    // A list would show what the watch must not show.
    test.reopen(&rules).await?;
    // The lost event must be that of the failure.
    for _ in 0..fault.spared(test.life) {
        test.noise().await;
    }
    let mut struck = false;
    // A stream that ended in between counts from zero again, and may pass all events of one failure.
    for _ in 0..FAILURES {
        // The fault hits a stalled watch when the watch opens.
        let before = if fault.recovery == Recovery::End {
            0
        } else {
            matters.hits()
        };
        test.fail_next().await?;
        struck = until_struck(test, matters, before).await?;
        if struck {
            break;
        }
        test.run_replacement().await?;
    }
    anyhow::ensure!(struck, "{} hit no event of a failure", fault.name);
    test.until_heard(&rules).await?;
    if fault.recovery == Recovery::End {
        anyhow::ensure!(!test.is_replaced(), "{}: it was seen", fault.name);
    }
    recover(test, fault).await?;
    test.run_replacement().await?;
    test.until_active().await
}

/// Runs a phase in which the watches are broken.
async fn phase_of(
    test: &mut FaultTest,
    phase: Phase,
    fault: &WatchFault,
    version: &str,
) -> Result<()> {
    if phase == Phase::Running {
        return failure(test, fault, version).await;
    }
    let rules = broken(test, fault, version);
    test.rule(&rules);
    if phase != Phase::Creating {
        // A list would show the deletions, and then no event may follow.
        test.reopen(&rules).await?;
    }
    test.begin(phase).await?;
    test.until_heard(&rules).await?;
    recover(test, fault).await?;
    test.end(phase).await
}

/// Runs a full life cycle in which the watches are broken in each phase.
pub async fn watches(life: Life, fault: &WatchFault) -> Result<()> {
    let Some(test) = FaultTest::of(life, fault.name).await? else {
        return Ok(());
    };
    let mut test = test.flags(fault.flags());
    let version = test.old_version().await?;
    for phase in Phase::ALL {
        phase_of(&mut test, phase, fault, &version).await?;
    }
    test.assert_life();
    test.assert_clean().await
}

/// Runs full life cycles in which each of these faults breaks the watches once.
pub async fn all_watches(life: Life, faults: &[&WatchFault]) -> Result<()> {
    all_watches_on(ControlPlane::shared().await?, life, faults).await
}

/// Same as [`all_watches`] on a prepared control plane.
pub async fn all_watches_on(
    control: &'static ControlPlane,
    life: Life,
    faults: &[&WatchFault],
) -> Result<()> {
    // An application has only one pod, and each of its replacements waits longer.
    let most = if life.0 == SPARK { 4 } else { faults.len() };
    let lives = faults.chunks(most);
    let lives = lives.map(|share| one_life(control, life, share));
    try_join_all(lives).await.map(drop)
}

/// The first fault hits while the job is created, the last one while it finishes, and each of the others while another pod fails.
async fn one_life(
    control: &'static ControlPlane,
    life: Life,
    faults: &[&WatchFault],
) -> Result<()> {
    anyhow::ensure!(faults.len() >= Phase::ALL.len(), "a phase without a fault");
    let Some(test) = FaultTest::on(control, life, "watches").await? else {
        return Ok(());
    };
    let flags: Vec<_> = faults
        .iter()
        .flat_map(|fault| fault.flags())
        .copied()
        .collect();
    let workers = u32::try_from(faults.len())?;
    let mut test = test.flags(&flags).workers(workers);
    let version = test.old_version().await?;
    for (nth, fault) in faults.iter().enumerate() {
        let phase = match nth {
            0 => Phase::Creating,
            _ if nth + 1 == faults.len() => Phase::Finishing,
            _ => Phase::Running,
        };
        let outcome = phase_of(&mut test, phase, fault, &version).await;
        outcome.with_context(|| format!("{} while {phase:?}", fault.name))?;
    }
    test.assert_life();
    test.assert_clean().await
}
