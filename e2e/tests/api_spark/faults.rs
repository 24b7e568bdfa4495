//! Secrets that faults must not reveal; `api_faults` has the full life cycles of every kind.

use training_testkit::proxy::{Action, Call, Change, Rule};

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
