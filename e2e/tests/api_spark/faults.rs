//! Faults specific to applications; `api_faults` has the full life cycles of every kind.

use training_testkit::proxy::{Action, Call, Change, Effect, Gate, Rule};

use super::*;

/// Environment variables often contain secrets, although they shouldn't.
#[tokio::test]
async fn i_51_mt_25_a_variable_is_not_in_the_log_when_the_answer_that_has_it_can_not_be_read()
-> Result<()> {
    // Also with the client's debug log.
    let loud = |options: Options| options.flag("log-filter", "info,kube_client=debug");
    let Some((proxy, stage)) = Stage::proxied("spark-log", loud).await? else {
        return Ok(());
    };
    let namespace = stage.name().to_owned();
    let most = Change::new(|body| Some(body[..body.len() - 9].to_vec()));
    let rule = Rule::new("cut", Action::AlterAnswer(most), move |call: &Call| {
        call.namespace == namespace && call.is("create", "pods")
    });
    let rule = rule.nth(1);
    proxy.add(&rule);
    let mut app = pi();
    app["spec"]["driver"]["envVars"] = json!({ "TOKEN": "hush-hush" });
    stage.apply(&app).await?;
    stage.until(State::Submitted).await?;
    ensure!(rule.hits() == 1, "no answer was cut");
    let driver = serde_json::to_string(&stage.driver().await?)?;
    ensure!(driver.contains("hush-hush"), "{driver}");
    let log = stage.operator.lock().await.log();
    ensure!(log.contains("Error deserializing response"), "{log}");
    let told = log.lines().find(|line| line.contains("hush"));
    ensure!(told.is_none(), "{told:?}");
    stage.assert_clean().await
}

/// The driver is deleted while the operator's cache still holds the application from before the write.
#[tokio::test]
async fn f_04_f_34_a_run_whose_status_write_was_not_answered_is_not_submitted_again() -> Result<()>
{
    let deadline = |options: Options| options.flag("call-deadline", "3s");
    let Some((proxy, stage)) = Stage::proxied("spark-unanswered", deadline).await? else {
        return Ok(());
    };
    let mark = stage.control.audit()?.mark().await?;
    stage.operator.lock().await.kill()?;
    stage.apply(&pi()).await?;
    let gate = Gate::closed();
    let rule = |action: Action, verb: &'static str, resource: &'static str| {
        let namespace = stage.name().to_owned();
        Rule::new(verb, action, move |call: &Call| {
            call.namespace == namespace && call.is(verb, resource)
        })
    };
    let late = Action::HoldEvents(gate.clone());
    let late = rule(late, "watch", "sparkapplications");
    let silent = Action::Silence(Effect::With);
    let silent = rule(silent, "patch", "sparkapplications/status").nth(1);
    proxy.add(&late);
    proxy.add(&silent);
    stage.operator.lock().await.restart().await?;
    stage.until(State::Submitted).await?;
    ensure!(silent.hits() == 1, "{:?}", proxy.counts());
    let at_once = DeleteParams::default().grace_period(0);
    stage.api::<Pod>().delete(DRIVER, &at_once).await?;
    stage.until(State::Failed).await?;
    ensure!(late.hits() > 0, "no event was late: {:?}", proxy.counts());
    let created = stage.wrote(mark).await?;
    let is_driver = |e: &&Entry| e.what() == "create pods" && e.code < 300;
    let drivers = created.iter().filter(is_driver).count();
    ensure!(drivers == 1, "{drivers} drivers");
    gate.open();
    proxy.clear_rules();
    stage.assert_clean().await
}
