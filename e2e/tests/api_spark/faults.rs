//! Whole lives of applications through faults between operator and API server: nobody can tell afterwards.

use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use training_testkit::proxy::{Action, Answer, Call, Change, Effect, Rule};

use super::crash::Life;
use super::*;

/// Lives that go on at the same time.
const LANES: usize = 3;
/// Short enough to wait for, long against an answer of a busy machine.
const DEADLINE: &str = "3s";
/// Requests of a life with a second driver, and which of each is struck.
const READS: [(&str, &str); 2] = [
    ("list", "sparkapplications"),
    ("watch", "sparkapplications"),
];
const WRITES: [(&str, &str); 5] = [
    ("create", "configmaps"),
    ("create", "services"),
    ("create", "pods"),
    ("delete", "pods"),
    ("patch", "sparkapplications/status"),
];
const WATCHES: [(&str, &str); 2] = [("watch", "pods"), ("watch", "sparkapplications")];

type Target = (&'static str, &'static str);

/// What is done to which requests.
struct Fault {
    name: &'static str,
    targets: Vec<Target>,
    which: Range<usize>,
    action: Action,
}

impl Fault {
    /// The first two requests of each target are struck.
    fn of(name: &'static str, targets: &[&[Target]], action: Action) -> Self {
        Self {
            name,
            targets: targets.concat(),
            which: 1..3,
            action,
        }
    }

    /// All are struck.
    fn on(name: &'static str, targets: &[Target], action: Action) -> Self {
        Self {
            name,
            targets: targets.to_vec(),
            which: 1..usize::MAX,
            action,
        }
    }
}

fn answer(effect: Effect, code: u16, reason: &str) -> Action {
    Action::Answer(effect, Answer::new(code, reason, "a test says so"))
}

/// A life with a fault, or with none; answers how it ended.
async fn ending(fault: Option<&Fault>) -> Result<Option<String>> {
    let Some((proxy, stage)) = Stage::slow_proxy("spark-fault", DEADLINE).await? else {
        return Ok(None);
    };
    let since = stage.control.audit()?.mark()?;
    let namespace = stage.name().to_owned();
    let targets = fault.map(|f| f.targets.as_slice()).unwrap_or_default();
    let rules = targets.iter().zip(std::iter::repeat(fault));
    let rules: Vec<Rule> = rules
        .filter_map(|(&(verb, resource), fault)| {
            let (fault, namespace) = (fault?, namespace.clone());
            let matches = move |call: &Call| call.namespace == namespace && call.is(verb, resource);
            let name = format!("{verb} {resource}");
            let rule = Rule::new(&name, fault.action.clone(), matches);
            Some(rule.only(fault.which.clone()))
        })
        .collect();
    for rule in &rules {
        proxy.add(rule);
    }
    // What is watched and listed already is asked for again.
    proxy.cut().await?;
    Life::Retried.conduct(&stage).await?;
    for rule in &rules {
        // After the start a list is one that looks for a single object, and whether that is needed depends on which watch is faster.
        let may_miss = rule.name().starts_with("list ");
        ensure!(
            may_miss || rule.hits() > 0,
            "{} was never asked for",
            rule.name()
        );
    }
    proxy.clear_rules();
    let last = eventually("the end", HANG, async || {
        let before = stage.ending(since).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = stage.ending(since).await?;
        Ok(if now == before {
            Seen::Yes(now)
        } else {
            Seen::NotYet(format!("{before}, then {now}"))
        })
    })
    .await?;
    proxy.assert_guarded()?;
    stage.operator.lock().await.assert_no_panic()?;
    Ok(Some(last))
}

async fn endure(faults: &[Fault]) -> Result<()> {
    let Some(undisturbed) = ending(None).await? else {
        return Ok(());
    };
    ensure!(undisturbed.contains(" 2 drivers "), "{undisturbed}");
    let lives = stream::iter(faults).map(|fault| async { (fault.name, ending(Some(fault)).await) });
    let mut lives = lives.buffer_unordered(LANES);
    let mut wrong = Vec::new();
    while let Some((name, outcome)) = lives.next().await {
        match outcome {
            Ok(Some(ending)) if ending == undisturbed => {}
            Ok(ending) => wrong.push(format!("{name}: {ending:?}, not {undisturbed}")),
            Err(error) => wrong.push(format!("{name}: {error:#}")),
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test]
async fn f_02_f_03_f_04_f_06_a_request_that_gets_lost_is_made_again_and_nothing_twice() -> Result<()>
{
    let half = Change::new(|body| Some(body[..body.len() / 2].to_vec()));
    let listed = &READS[..1];
    endure(&[
        Fault::of("never sent", &[&READS, &WRITES], Action::ResetBefore),
        Fault::of("answer lost", &[listed, &WRITES], Action::ResetAfter),
        Fault::of(
            "never answered",
            &[&READS, &WRITES],
            Action::Silence(Effect::Without),
        ),
        Fault::of(
            "done, never answered",
            &[&WRITES],
            Action::Silence(Effect::With),
        ),
        Fault::of("answer cut", &[listed, &WRITES], Action::CutAnswer),
        Fault::of(
            "answer no JSON",
            &[listed, &WRITES],
            Action::AlterAnswer(half),
        ),
    ])
    .await
}

#[tokio::test]
async fn f_10_f_11_f_12_f_13_f_14_f_15_f_16_whatever_the_server_answers_there_is_one_driver_for_each_run()
-> Result<()> {
    let mut busy = Answer::new(429, "TooManyRequests", "a test says so");
    busy.retry_after = Some("1".to_owned());
    let busy = Action::Answer(Effect::Without, busy);
    let conflict = answer(Effect::Without, 409, "Conflict");
    let taken = answer(Effect::With, 409, "AlreadyExists");
    endure(&[
        Fault::of("F-10 overload", &[&READS, &WRITES], busy),
        Fault::of(
            "F-11 without effect",
            &[&READS, &WRITES],
            answer(Effect::Without, 500, "InternalError"),
        ),
        Fault::of(
            "F-12 with effect",
            &[&WRITES],
            answer(Effect::With, 500, "InternalError"),
        ),
        Fault::of(
            "F-13 away",
            &[&READS, &WRITES],
            answer(Effect::Without, 503, "ServiceUnavailable"),
        ),
        Fault::of(
            "F-14 timeout with effect",
            &[&WRITES],
            answer(Effect::With, 504, "Timeout"),
        ),
        Fault::of("F-15 conflict", &[&WRITES[4..]], conflict),
        Fault::of("F-16 taken by ourselves", &[&WRITES[..3]], taken),
    ])
    .await
}

#[tokio::test]
async fn f_32_f_33_f_34_f_35_f_37_f_39_whatever_becomes_of_the_watches_an_application_ends_as_without_it()
-> Result<()> {
    let gone = Bytes::from_static(
        b"{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\
          \"status\":\"Failure\",\"code\":410,\"reason\":\"Expired\",\"message\":\"too old\"}}\n",
    );
    endure(&[
        Fault::on("F-32 twice", &WATCHES, Action::RepeatEvents(2)),
        Fault::on(
            "F-33 pods first",
            &WATCHES[1..],
            Action::DelayEvents(Duration::from_millis(300)),
        ),
        Fault::on(
            "F-34 late",
            &WATCHES,
            Action::DelayEvents(Duration::from_millis(300)),
        ),
        Fault::on("F-35 cut after each", &WATCHES, Action::CloseWatchAfter(1)),
        Fault::of("F-37 expired", &[&WATCHES], Action::InjectEvent(1, gone)),
        Fault::of(
            "F-39 garbage",
            &[&WATCHES],
            Action::InjectEvent(1, Bytes::from_static(b"{ no JSON\n")),
        ),
    ])
    .await
}

/// Variables often have what nobody else is to read, whatever they should have.
#[tokio::test]
async fn a_variable_is_not_in_the_log_when_the_answer_that_has_it_can_not_be_read() -> Result<()> {
    // Also where somebody wants to know more of the client.
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
    Ok(())
}
