//! The same jobs, taken through the same lives by the published Go operators and by ours. What differs is listed with its reason in
//! `docs/data/differences.yaml`.
//!
//! The Go operators' part is recorded. `make peer-recordings` records it again, and `make test-deep` checks it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use e2e::peers::compare::{differences, is_expected, judge};
use e2e::peers::history::{History, Stage, read};
use e2e::peers::{EXECUTORS, SERVED, Stages, lives, options, ours, recorded, recording, title};
use futures::future::try_join_all;
use training_manifests::differences::Rule;
use training_testkit::builders::Kind;
use training_testkit::control_plane::{ControlPlane, workspace};
use training_testkit::operator::OperatorProcess;

/// A directory for what our operators do. What is there is read instead, to work on the reasons.
const KEEP: &str = "TRAINYARD_KEEP_HISTORIES";

/// Takes the jobs of a kind through their lives with our operator.
async fn played(control: &ControlPlane, kind: &Kind, rules: &[Rule]) -> Result<History> {
    let (title, go) = (title(kind), recorded(&recording(kind))?);
    let keeps = std::env::var_os(KEEP).is_some();
    let expected =
        |job: &str, ours: &[Stage]| keeps || is_expected(rules, &title, &go, (job, ours), |_| true);
    let stages = Stages::on(control, *kind).await?;
    let options = ours(control, kind, stages.namespace()).await?;
    let operator = OperatorProcess::start(options.flag("events", "full")).await?;
    let history = stages
        .play(&lives::all(kind)?, async |_| Ok(()), expected)
        .await;
    operator.assert_no_panic()?;
    history.with_context(|| operator.log_tail())
}

async fn played_or_kept(control: &ControlPlane, kind: &Kind, rules: &[Rule]) -> Result<History> {
    let Some(directory) = std::env::var_os(KEEP) else {
        return played(control, kind, rules).await;
    };
    let file = PathBuf::from(directory).join(title(kind));
    if file.exists() {
        return read(&std::fs::read_to_string(&file)?);
    }
    let history = played(control, kind, rules).await?;
    std::fs::write(&file, history.to_text()?)?;
    Ok(history)
}

#[tokio::test]
async fn whatever_ours_does_differently_has_a_reason() -> Result<()> {
    let mut rules = training_manifests::differences::read(&workspace())?;
    rules.retain(|rule| !rule.taken_over && rule.kinds != [EXECUTORS]);
    let control = ControlPlane::start(options()).await?;
    for (kind, _) in &SERVED {
        control.install(kind.operator).await?;
    }
    let played = SERVED.iter().map(async |(kind, _)| {
        let ours = played_or_kept(&control, kind, &rules).await;
        let ours = ours.with_context(|| title(kind))?;
        let go = recorded(&recording(kind))?;
        anyhow::Ok((title(kind), differences(&go, &ours)))
    });
    let found: BTreeMap<_, _> = try_join_all(played).await?.into_iter().collect();
    judge(&rules, &found)
}
