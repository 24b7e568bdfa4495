//! Whole lives of a job through one fault after another.

use std::time::Duration;

use anyhow::Result;
use training_testkit::proxy::{Action, Call, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

use super::driver::{Phase, Trial, WORKER, deep};

/// Requests that a fault strikes in a phase.
pub fn targets(phase: Phase) -> &'static [(&'static str, &'static str)] {
    match phase {
        Phase::Creating => &[
            ("list", "pods"),
            ("watch", "pytorchjobs"),
            ("create", "pods"),
            ("create", "services"),
            ("patch", "pytorchjobs/status"),
        ],
        Phase::Running => &[
            ("patch", "pytorchjobs/status"),
            ("delete", "pods"),
            ("create", "pods"),
        ],
        Phase::Finishing => &[
            ("patch", "pytorchjobs/status"),
            ("delete", "pods"),
            ("delete", "services"),
        ],
    }
}

/// Requests of a phase that change something.
pub fn writes(phase: Phase) -> Vec<(&'static str, &'static str)> {
    let all = targets(phase).iter().copied();
    all.filter(|(verb, _)| !matches!(*verb, "list" | "watch"))
        .collect()
}

/// A rule for the requests of a namespace that have this verb and resource.
pub fn on(namespace: &str, (verb, resource): (&'static str, &'static str), action: Action) -> Rule {
    let namespace = namespace.to_owned();
    Rule::new(&format!("{verb} {resource}"), action, move |call: &Call| {
        call.namespace == namespace && call.is(verb, resource)
    })
}

/// A whole life in which each phase's rules hit; they are for requests and end by themselves.
///
/// Deep, each phase's rules also hit the second and third request of their kind, in lives of their own.
pub async fn requests(
    name: &str,
    flags: &[(&'static str, &str)],
    targets: impl Fn(Phase) -> Vec<(&'static str, &'static str)>,
    action: impl Fn() -> Action,
) -> Result<()> {
    let rounds = if deep() { 3 } else { 1 };
    for nth in 1..=rounds {
        let Some(mut trial) = Trial::set_up(name).await? else {
            return Ok(());
        };
        for (flag, value) in flags {
            trial = trial.flag(flag, value);
        }
        for phase in Phase::ALL {
            let rules: Vec<Rule> = targets(phase)
                .into_iter()
                .map(|target| {
                    let one = matches!(target.0, "list" | "watch") || phase == Phase::Running;
                    on(trial.namespace(), target, action()).nth(if one { 1 } else { nth })
                })
                .collect();
            trial.rule(&rules);
            trial.begin(phase).await?;
            trial.end(phase).await?;
            // A status may be complete before its last write of this phase was due.
            if nth == 1 {
                trial.until_hit(&rules, 1).await?;
            }
            let hits: usize = rules.iter().map(Rule::hits).sum();
            anyhow::ensure!(hits > 0, "{name}: nothing was hit while {phase:?}");
        }
        trial.assert_made(&[("pt-master-0", 1), ("pt-worker-0", 1), (WORKER, 2)]);
        trial.assert_clean().await?;
    }
    Ok(())
}

/// A whole life in which a fault lasts until it has hit often enough, and then ends.
pub async fn lasting(
    name: &str,
    targets: impl Fn(Phase) -> Vec<(&'static str, &'static str)>,
    action: impl Fn() -> Action,
    times: usize,
    at_least: Duration,
) -> Result<()> {
    let Some(mut trial) = Trial::set_up(name).await? else {
        return Ok(());
    };
    for phase in Phase::ALL {
        let aims = targets(phase).into_iter();
        let rules: Vec<Rule> = aims
            .map(|target| on(trial.namespace(), target, action()))
            .collect();
        trial.rule(&rules);
        trial.begin(phase).await?;
        if let Some(first) = rules.first() {
            trial.until_hit(std::slice::from_ref(first), times).await?;
        }
        tokio::time::sleep(at_least).await;
        trial.proxy.clear_rules();
        trial.end(phase).await?;
    }
    trial.assert_made(&[("pt-master-0", 1), ("pt-worker-0", 1), (WORKER, 2)]);
    trial.assert_clean().await
}

/// What is done when the fault of a watch is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    /// Nothing: the operator finds its way by itself, while the fault goes on.
    None,
    /// The streams are opened again, without the fault.
    Reopen,
    /// The watches start from a list.
    Relist,
}

/// A whole life in which the watches of these resources are broken in each phase.
pub async fn watches(
    name: &str,
    flags: &[(&'static str, &str)],
    resources: &'static [&'static str],
    action: impl Fn() -> Action,
    cure: Cure,
) -> Result<()> {
    let Some(mut trial) = Trial::set_up(name).await? else {
        return Ok(());
    };
    for (flag, value) in flags {
        trial = trial.flag(flag, value);
    }
    for phase in Phase::ALL {
        let rules: Vec<Rule> = resources
            .iter()
            .map(|resource| on(trial.namespace(), ("watch", resource), action()))
            .collect();
        trial.rule(&rules);
        if phase != Phase::Creating {
            trial.proxy.cut().await?;
        }
        trial.begin(phase).await?;
        eventually("a rule to hit", HANG, async || {
            let hits: usize = rules.iter().map(Rule::hits).sum();
            if hits > 0 {
                return Ok(Seen::Yes(()));
            }
            trial.noise().await;
            Ok(Seen::NotYet("no hit".into()))
        })
        .await?;
        match cure {
            Cure::None => {}
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
        trial.end(phase).await?;
    }
    trial.assert_made(&[("pt-master-0", 1), ("pt-worker-0", 1), (WORKER, 2)]);
    trial.assert_clean().await
}
