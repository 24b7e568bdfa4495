//! The operator is killed around every write of whole lives, and nobody can tell.

use std::cell::Cell;
use std::env;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use training_testkit::proxy::{Action, Call, Gate, Rule};

use super::*;

/// Runs that go on at the same time.
const LANES: usize = 4;

/// What happens to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The driver ends well.
    Succeeds,
    /// The driver fails, and the next one ends well.
    Retried,
    /// Suspended while it runs, resumed, ends well.
    Suspended,
    /// Edited while it runs, ends well.
    Edited,
}

/// What is done to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// The operator dies before it is executed.
    Before,
    /// The operator dies after it was executed, without an answer.
    After,
}

impl Life {
    fn app(self) -> Value {
        let mut app = pi();
        if self == Self::Retried {
            app["spec"]["restartPolicy"] = json!({
                "type": "OnFailure", "onFailureRetries": 1, "onFailureRetryInterval": 1,
            });
        }
        app
    }

    /// How many drivers it has.
    fn drivers(self) -> usize {
        if self == Self::Succeeds { 1 } else { 2 }
    }

    pub async fn conduct(self, stage: &Stage) -> Result<()> {
        stage.apply(&self.app()).await?;
        let first = stage.recorded(None).await?;
        stage.runs(DRIVER).await?;
        stage.until(State::Running).await?;
        match self {
            Self::Succeeds => {}
            Self::Retried => stage.ends(DRIVER, "driver", 3, "").await?,
            Self::Suspended => {
                stage.edit(json!({ "suspend": true })).await?;
                stage.until(State::Suspended).await?;
                stage.edit(json!({ "suspend": false })).await?;
            }
            Self::Edited => stage.edit(json!({ "arguments": ["10"] })).await?,
        }
        if self != Self::Succeeds {
            stage.recorded(Some(first)).await?;
            stage.runs(DRIVER).await?;
            stage.until(State::Running).await?;
        }
        stage.ends(DRIVER, "driver", 0, "").await?;
        stage.until(State::Completed).await?;
        Ok(())
    }
}

impl Stage {
    /// The id of the submission whose driver is there and recorded, other than a former one.
    async fn recorded(&self, former: Option<String>) -> Result<String> {
        let id = |app: &SparkApplication| {
            let status = app.status.as_ref()?;
            let submitted = status.application_state.state == State::Submitted;
            status.submission_id.clone().filter(|_| submitted)
        };
        let app = self
            .until_app("a submission", |app| {
                let id = id(app);
                id.is_some() && id != former
            })
            .await?;
        self.driver().await?;
        id(&app).context("no id")
    }

    /// How it ended: what is there, what was counted, and how many drivers were made.
    pub async fn ending(&self, since: Mark) -> Result<String> {
        let status = self.app().await?.status.context("no status")?;
        let counts = (
            status.execution_attempts,
            status.submission_attempts,
            status.failed_runs,
            status.termination_time.is_some(),
        );
        let wrote = self.wrote(since)?;
        let made = |e: &&Entry| e.resource == "pods" && e.verb == "create" && e.code == 201;
        let drivers = wrote.iter().filter(made).count();
        let objects = (
            self.names::<Pod>().await?.len(),
            self.names::<ConfigMap>().await?.len(),
            self.names::<Service>().await?.len(),
            self.names::<PersistentVolumeClaim>().await?.len(),
        );
        Ok(format!("{counts:?} {drivers} drivers {objects:?}"))
    }
}

/// Runs a life with a cut at its nth write, counted from one; answers how it ended and how many writes it had.
async fn run(life: Life, cut: Option<(usize, Cut)>) -> Result<Option<(String, usize)>> {
    let prefix = format!("spark-{life:?}").to_lowercase();
    let Some((proxy, stage)) = Stage::behind_proxy(&prefix).await? else {
        return Ok(None);
    };
    let since = stage.control.audit()?.mark()?;
    let before = cut.filter(|(_, cut)| *cut == Cut::Before);
    let before = before.map(|(nth, _)| {
        let closed = Action::Hold(Gate::closed());
        Rule::new("before", closed, Call::is_job_write).nth(nth)
    });
    if let Some(rule) = &before {
        proxy.add(rule);
    }
    let after = cut
        .filter(|(_, cut)| *cut == Cut::After)
        .map(|(nth, _)| nth);
    let mut applied = proxy.announce_in_turn("writes", Call::is_job_write);
    let seen = Cell::new(0);
    let cutting = async {
        let mut waits = before.as_ref();
        loop {
            let write = tokio::select! {
                write = applied.recv() => write.context("no writes any more")?,
                () = hit(waits) => {
                    waits = None;
                    stage.dies(&proxy).await?;
                    continue;
                }
            };
            seen.set(seen.get() + 1);
            if after == Some(seen.get()) {
                stage.operator.lock().await.kill9()?;
                proxy.refuse();
                proxy.accept().await?;
                drop(write);
                stage.operator.lock().await.restart().await?;
            } else {
                write.release();
            }
        }
    };
    let ending: Result<String> = tokio::select! {
        outcome = life.conduct(&stage) => match outcome {
            // What was begun together with the last status is done as well.
            Ok(()) => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                stage.ending(since).await
            }
            Err(error) => Err(error),
        },
        outcome = cutting => outcome,
    };
    let ending = ending.with_context(|| format!("{life:?} with {cut:?}"))?;
    proxy.assert_guarded()?;
    stage.operator.lock().await.assert_no_panic()?;
    Ok(Some((ending, seen.get())))
}

/// Waits until a rule has hit; without one for ever.
async fn hit(rule: Option<&Rule>) {
    let Some(rule) = rule else {
        return std::future::pending().await;
    };
    while rule.hits() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Stage {
    async fn dies(&self, proxy: &Proxy) -> Result<()> {
        let mut operator = self.operator.lock().await;
        operator.kill9()?;
        // What the dead process still had on its connections must not reach the API server.
        proxy.refuse();
        proxy.accept().await?;
        operator.restart().await
    }
}

async fn sweep(life: Life, cuts: &[Cut]) -> Result<()> {
    let Some((undisturbed, writes)) = run(life, None).await? else {
        return Ok(());
    };
    ensure!(
        undisturbed.contains(&format!(" {} drivers ", life.drivers())),
        "{undisturbed}"
    );
    let all = (1..=writes).flat_map(|nth| cuts.iter().map(move |cut| (nth, *cut)));
    let runs = stream::iter(all).map(|cut| async move { (cut, run(life, Some(cut)).await) });
    let mut runs = runs.buffer_unordered(LANES);
    let (mut number, mut wrong) = (0, Vec::new());
    while let Some((cut, outcome)) = runs.next().await {
        number += 1;
        match outcome {
            Ok(Some((ending, _))) if ending == undisturbed => {}
            Ok(ending) => wrong.push(format!("{life:?} {cut:?}: {ending:?}, not {undisturbed}")),
            Err(error) => wrong.push(format!("{life:?} {cut:?}: {error:#}")),
        }
    }
    eprintln!(
        "{life:?}: {writes} writes, {number} runs, {} alarms",
        wrong.len()
    );
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn is_deep() -> bool {
    env::var_os("TRAINYARD_DEEP").is_some()
}

/// The deep tests cut before a write as well.
fn cuts() -> &'static [Cut] {
    if is_deep() {
        &[Cut::Before, Cut::After]
    } else {
        &[Cut::After]
    }
}

#[tokio::test]
async fn s_13_killed_around_any_write_a_retry_ends_as_if_nothing_had_happened() -> Result<()> {
    sweep(Life::Retried, cuts()).await?;
    // The other lives begin as this one.
    if is_deep() {
        sweep(Life::Succeeds, cuts()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn s_13_killed_around_any_write_a_suspension_ends_as_if_nothing_had_happened() -> Result<()> {
    sweep(Life::Suspended, cuts()).await
}

#[tokio::test]
async fn s_13_killed_around_any_write_an_edit_ends_as_if_nothing_had_happened() -> Result<()> {
    sweep(Life::Edited, cuts()).await
}
