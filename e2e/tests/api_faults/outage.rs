//! F-01, F-07 to F-09, F-19, F-23, F-25, F-27, F-28, F-44: long outages of the network or the API server, and the operator's behaviour
//! meanwhile.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use training_testkit::builders::{JAX, Kind, MPI, PADDLE, PYTORCH, SPARK, TENSORFLOW, XGBOOST};
use training_testkit::is_deep;
use training_testkit::job::{condition, is_finished};
use training_testkit::operator::LEASE_NAMESPACE;
use training_testkit::proxy::{Action, Answer, Call, Effect, Rule};
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

use super::campaign::{lasting, on};
use super::driver::{FaultTest, JOB, Phase};
use super::life::{Life, WORKERS};
use super::status::{assert_paced, doubling, rarely, until_refused};
use super::table::F_15;

/// How soon a leader without answers gives up.
pub const LEASE: [(&str, &str); 5] = [
    ("leader-elect", "true"),
    ("leader-election-namespace", LEASE_NAMESPACE),
    ("lease-duration", "3s"),
    ("lease-renew-deadline", "2s"),
    ("lease-retry-period", "500ms"),
];

impl FaultTest {
    /// A test whose operator leads with a lease of its own.
    async fn elected(life: Life, name: &str) -> Result<Option<Self>> {
        let test = Self::of(life, name).await?;
        Ok(test.map(|test| {
            let lease = test.namespace().to_owned();
            test.flags(&LEASE).flag("leader-election-id", &lease)
        }))
    }

    pub async fn until_leads(&self, leads: bool) -> Result<()> {
        self.operator()?.until_leads(leads).await
    }

    /// The operator passes its liveness probe all the time.
    async fn lives_for(&self, time: Duration) -> Result<()> {
        holds_for(time, async || {
            let (code, body) = self.operator()?.probe("/livez").await?;
            anyhow::ensure!(code == 200, "{code} {body}");
            Ok(())
        })
        .await
    }
}

/// A listener that closes every connection at once and counts them.
struct Knocks {
    count: Arc<AtomicU64>,
    since: Instant,
    task: JoinHandle<()>,
}

impl Knocks {
    /// Listens on the port of a proxy that refuses connections.
    async fn at(address: SocketAddr) -> Result<Self> {
        let door = eventually("the proxy's port to be free", HANG, async || {
            Ok(Seen::Yes(TcpListener::bind(address).await?))
        })
        .await?;
        let count = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&count);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = door.accept().await {
                counts.fetch_add(1, Ordering::SeqCst);
                drop(stream);
            }
        });
        let since = Instant::now();
        Ok(Self { count, since, task })
    }

    /// Stops listening. There were connection attempts, but none without a pause.
    async fn end(self) -> Result<()> {
        let time = self.since.elapsed();
        self.task.abort();
        // Its result is an abort; only the free port matters.
        let _ = self.task.await;
        let count = self.count.load(Ordering::SeqCst);
        // Every watch connects once or twice before the lease is lost. After that only the election connects, at most every quarter of a
        // second; twice as often is too often. A loop without a pause connects hundreds of times a second.
        let most = 60 + time.as_millis() / 125;
        anyhow::ensure!(count > 0, "nobody tried to connect");
        anyhow::ensure!(u128::from(count) <= most, "{count} connections in {time:?}");
        Ok(())
    }
}

/// The API server is unreachable for this long while a worker fails. Then connections open and close at once while the pods end.
async fn unreachable_for(kind: Kind, seconds: u64) -> Result<()> {
    let Some(mut test) = FaultTest::elected(Life(kind), "f01").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    test.until_canary().await?;
    for phase in [Phase::Running, Phase::Finishing] {
        test.proxy.refuse();
        let knocks = if phase == Phase::Finishing {
            Some(Knocks::at(test.proxy.address()).await?)
        } else {
            None
        };
        test.begin(phase).await?;
        test.until_leads(false).await?;
        test.lives_for(Duration::from_secs(seconds)).await?;
        if let Some(knocks) = knocks {
            knocks.end().await?;
        }
        test.proxy.accept().await?;
        test.until_leads(true).await?;
        test.end(phase).await?;
    }
    test.assert_life();
    test.assert_clean().await
}

async fn unreachable(kind: Kind) -> Result<()> {
    let times: &[u64] = if is_deep() { &[5, 60, 300] } else { &[5] };
    for seconds in times {
        unreachable_for(kind, *seconds).await?;
    }
    Ok(())
}

#[tokio::test]
async fn f_01_a_server_that_refuses_connections_costs_the_lease_and_nothing_else() -> Result<()> {
    unreachable(PYTORCH).await
}

#[tokio::test]
async fn f_01_a_server_that_refuses_connections_costs_a_tf_job_nothing() -> Result<()> {
    unreachable(TENSORFLOW).await
}

#[tokio::test]
async fn f_01_a_server_that_refuses_connections_costs_an_xgboost_job_nothing() -> Result<()> {
    unreachable(XGBOOST).await
}

#[tokio::test]
async fn f_01_a_server_that_refuses_connections_costs_a_paddle_job_nothing() -> Result<()> {
    unreachable(PADDLE).await
}

#[tokio::test]
async fn f_01_a_server_that_refuses_connections_costs_a_jax_job_nothing() -> Result<()> {
    unreachable(JAX).await
}

#[tokio::test]
async fn f_01_a_server_that_refuses_connections_costs_an_mpi_job_nothing() -> Result<()> {
    unreachable(MPI).await
}

#[tokio::test]
async fn f_01_a_server_that_refuses_connections_costs_a_spark_application_nothing() -> Result<()> {
    unreachable(SPARK).await
}

/// Another token for the operator.
async fn another_token(test: &FaultTest) -> Result<String> {
    let client = test.world.client.clone();
    let accounts: Api<ServiceAccount> = Api::namespaced(client, LEASE_NAMESPACE);
    let request = TokenRequest::default();
    let made = accounts
        .create_token_request(PYTORCH.operator, &PostParams::default(), &request)
        .await?;
    made.status.and_then(|made| made.token).context("no token")
}

/// Makes a kubeconfig name a file with the token instead of the token.
fn by_file(kubeconfig: &Path, token: &Path) -> Result<()> {
    let mut config: Value = serde_json::from_slice(&std::fs::read(kubeconfig)?)?;
    let user = &mut config["users"][0]["user"];
    let value = user["token"].as_str().context("no token")?;
    std::fs::write(token, value)?;
    *user = json!({ "tokenFile": token });
    std::fs::write(kubeconfig, serde_json::to_vec(&config)?)?;
    Ok(())
}

#[tokio::test]
async fn f_07_a_token_that_is_replaced_is_read_again() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("f07").await? else {
        return Ok(());
    };
    let file = test.world.file("token");
    by_file(test.kubeconfig(), &file)?;
    test.run_phase(Phase::Creating).await?;
    test.until_canary().await?;
    // From now on the old token is invalid.
    let new = another_token(&test).await?;
    let good = new.clone();
    let expired = Answer::new(401, "Unauthorized", "Unauthorized");
    let old = Action::Answer(Effect::Without, expired);
    let old = Rule::new("old token", old, move |call: &Call| call.token != good);
    std::fs::write(&file, &new)?;
    test.rule(std::slice::from_ref(&old));
    test.proxy.cut().await?;
    test.begin(Phase::Running).await?;
    test.until_hit(&[old], 1).await?;
    // The rule stays: the new token is accepted.
    test.end(Phase::Running).await?;
    test.run_phase(Phase::Finishing).await?;
    test.assert_life();
    test.assert_clean().await
}

#[tokio::test]
async fn f_08_connections_that_close_again_and_again_lose_no_request() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("f08").await? else {
        return Ok(());
    };
    let namespace = test.namespace().to_owned();
    let of_job = move |call: &Call| call.namespace == namespace && !call.is_watch();
    let closing = Rule::new("close", Action::CloseAfter, of_job).every(10);
    test.rule(std::slice::from_ref(&closing));
    for phase in Phase::ALL {
        test.run_phase(phase).await?;
    }
    test.until_hit(&[closing], 2).await?;
    test.assert_life();
    test.assert_clean().await
}

async fn far_away(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f09").await? else {
        return Ok(());
    };
    let between = [50, 350].map(Duration::from_millis);
    let slow = Rule::new(
        "far away",
        Action::DelayBetween(between[0], between[1]),
        |_| true,
    );
    test.rule(std::slice::from_ref(&slow));
    for phase in Phase::ALL {
        let before = slow.hits();
        test.run_phase(phase).await?;
        anyhow::ensure!(slow.hits() > before, "nothing was slow while {phase:?}");
    }
    test.assert_life();
    test.assert_clean().await
}

#[tokio::test]
async fn f_09_far_away_from_the_server_a_pytorch_job_lives_the_same() -> Result<()> {
    far_away(PYTORCH).await
}

#[tokio::test]
async fn f_09_far_away_from_the_server_a_tf_job_lives_the_same() -> Result<()> {
    far_away(TENSORFLOW).await
}

#[tokio::test]
async fn f_09_far_away_from_the_server_an_xgboost_job_lives_the_same() -> Result<()> {
    far_away(XGBOOST).await
}

#[tokio::test]
async fn f_09_far_away_from_the_server_a_paddle_job_lives_the_same() -> Result<()> {
    far_away(PADDLE).await
}

#[tokio::test]
async fn f_09_far_away_from_the_server_a_jax_job_lives_the_same() -> Result<()> {
    far_away(JAX).await
}

#[tokio::test]
async fn f_09_far_away_from_the_server_an_mpi_job_lives_the_same() -> Result<()> {
    far_away(MPI).await
}

#[tokio::test]
async fn f_09_far_away_from_the_server_a_spark_application_lives_the_same() -> Result<()> {
    far_away(SPARK).await
}

/// A rule that refuses every request for the job's namespace.
fn refused(test: &FaultTest, code: u16, reason: &str, message: &str) -> Rule {
    let namespace = test.namespace().to_owned();
    let refusal = Action::Answer(Effect::Without, Answer::new(code, reason, message));
    Rule::new(reason, refusal, move |call: &Call| {
        call.namespace == namespace
    })
}

/// The status says what the job waits for, and the operator retries rarely.
async fn until_forbidden(test: &FaultTest) -> Result<()> {
    let jobs = &test.world.jobs;
    if test.life.0 == SPARK {
        let told = |job: &Value| test.life.told(job, "Stalled").contains("cannot create");
        let job = jobs.until(JOB, "naming it", told).await?;
        anyhow::ensure!(!Life::has_failed(&job), "{}", job["status"]);
        return Ok(());
    }
    let job = jobs.until_true(JOB, "Stalled").await?;
    let stalled = condition(&job, "Stalled")?;
    assert_eq!(stalled.reason, "Forbidden");
    assert!(stalled.message.contains("cannot create"), "{stalled:?}");
    until_refused(test, 403, 3).await?;
    assert_paced(test, 403, rarely).map(drop)
}

async fn forbidden(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f19").await? else {
        return Ok(());
    };
    let words = format!(
        "pods is forbidden: User \"{}\" cannot create resource \"pods\" in API group \"\" in the namespace \"team\"",
        kind.user()
    );
    let forbidden = || Action::Answer(Effect::Without, Answer::new(403, "Forbidden", &words));
    for phase in [Phase::Creating, Phase::Running] {
        if kind == SPARK && phase == Phase::Running {
            // A refused submission waits for half a minute: once is enough.
            test.run_phase(phase).await?;
            continue;
        }
        let no_pods = on(test.namespace(), ("create", "pods"), forbidden());
        test.proxy.clear_records();
        test.rule(std::slice::from_ref(&no_pods));
        test.begin(phase).await?;
        test.until_hit(&[no_pods], 1).await?;
        until_forbidden(&test).await?;
        test.proxy.clear_rules();
        test.end(phase).await?;
    }
    // Now lists and watches are refused as well.
    let nothing = refused(&test, 403, "Forbidden", &words);
    test.rule(std::slice::from_ref(&nothing));
    test.proxy.cut().await?;
    test.begin(Phase::Finishing).await?;
    test.until_hit(&[nothing], 3).await?;
    test.lives_for(Duration::from_secs(1)).await?;
    test.proxy.clear_rules();
    test.end(Phase::Finishing).await?;
    test.assert_life();
    test.assert_clean().await
}

#[tokio::test]
async fn f_19_a_role_that_is_gone_for_a_while_is_told_and_waited_for() -> Result<()> {
    forbidden(PYTORCH).await
}

#[tokio::test]
async fn f_19_a_role_that_is_gone_for_a_while_is_told_by_a_tf_job() -> Result<()> {
    forbidden(TENSORFLOW).await
}

#[tokio::test]
async fn f_19_a_role_that_is_gone_for_a_while_is_told_by_an_xgboost_job() -> Result<()> {
    forbidden(XGBOOST).await
}

#[tokio::test]
async fn f_19_a_role_that_is_gone_for_a_while_is_told_by_a_paddle_job() -> Result<()> {
    forbidden(PADDLE).await
}

#[tokio::test]
async fn f_19_a_role_that_is_gone_for_a_while_is_told_by_a_jax_job() -> Result<()> {
    forbidden(JAX).await
}

#[tokio::test]
async fn f_19_a_role_that_is_gone_for_a_while_is_told_by_an_mpi_job() -> Result<()> {
    forbidden(MPI).await
}

#[tokio::test]
async fn f_19_a_role_that_is_gone_for_a_while_is_told_by_a_spark_application() -> Result<()> {
    forbidden(SPARK).await
}

#[tokio::test]
async fn f_23_a_token_that_is_refused_for_a_while_ends_no_process() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("f23").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    let time = Duration::from_secs(if is_deep() { 30 } else { 3 });
    for phase in [Phase::Running, Phase::Finishing] {
        let expired = refused(&test, 401, "Unauthorized", "Unauthorized");
        test.rule(std::slice::from_ref(&expired));
        test.proxy.cut().await?;
        test.begin(phase).await?;
        test.until_hit(&[expired], 3).await?;
        test.lives_for(time).await?;
        let job = test.world.jobs.get(JOB).await?;
        anyhow::ensure!(!is_finished(&job), "{}", job["status"]);
        test.proxy.clear_rules();
        test.end(phase).await?;
    }
    test.assert_life();
    test.assert_clean().await
}

async fn too_large(kind: Kind) -> Result<()> {
    let large = || {
        let message = "Request entity too large: limit is 3145728";
        let answer = Answer::new(413, "RequestEntityTooLarge", message);
        Action::Answer(Effect::Without, answer)
    };
    let life = Life(kind);
    let status = |phase| F_15.targets(life, phase);
    lasting(life, "f25", status, large, 3, Duration::ZERO, |test| {
        let most = assert_paced(test, 413, rarely)?;
        anyhow::ensure!(most >= 3, "refused {most} times");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn f_25_a_status_that_is_called_too_large_is_written_slowly_and_whole() -> Result<()> {
    too_large(PYTORCH).await
}

#[tokio::test]
async fn f_25_a_status_of_a_tf_job_that_is_called_too_large_is_written_slowly() -> Result<()> {
    too_large(TENSORFLOW).await
}

#[tokio::test]
async fn f_25_a_status_of_an_xgboost_job_that_is_called_too_large_is_written_slowly() -> Result<()>
{
    too_large(XGBOOST).await
}

#[tokio::test]
async fn f_25_a_status_of_a_paddle_job_that_is_called_too_large_is_written_slowly() -> Result<()> {
    too_large(PADDLE).await
}

#[tokio::test]
async fn f_25_a_status_of_a_jax_job_that_is_called_too_large_is_written_slowly() -> Result<()> {
    too_large(JAX).await
}

#[tokio::test]
async fn f_25_a_status_of_an_mpi_job_that_is_called_too_large_is_written_slowly() -> Result<()> {
    too_large(MPI).await
}

#[tokio::test]
async fn f_25_a_status_of_a_spark_application_that_is_called_too_large_is_written_slowly()
-> Result<()> {
    too_large(SPARK).await
}

/// Registers a webhook for creates of the job's pods.
async fn webhook(test: &FaultTest, url: &str) -> Result<()> {
    let hook = json!({
        "metadata": { "name": test.namespace() },
        "webhooks": [{
            "name": "dead.trainyard.test",
            "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail", "timeoutSeconds": 1,
            "clientConfig": { "url": url },
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": test.namespace() } },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
            }],
        }],
    });
    hooks(test)
        .create(&PostParams::default(), &serde_json::from_value(hook)?)
        .await?;
    // It takes the API server a moment to use the webhook.
    let pods: Api<Pod> = Api::namespaced(test.world.client.clone(), test.namespace());
    let probe: Pod = serde_json::from_value(json!({
        "metadata": { "name": "probe" }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
    }))?;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually("the webhook to be asked", HANG, async || {
        Ok(match pods.create(&dry, &probe).await {
            Err(kube::Error::Api(status)) if status.message.contains("webhook") => Seen::Yes(()),
            other => Seen::NotYet(format!("{:?}", other.map(|_| "it was made"))),
        })
    })
    .await
}

fn hooks(test: &FaultTest) -> Api<ValidatingWebhookConfiguration> {
    Api::all(test.world.client.clone())
}

/// Creates fail because of the webhook, with growing backoff.
async fn until_creates_fail(test: &FaultTest) -> Result<()> {
    if test.life.0 != SPARK {
        until_refused(test, 500, 4).await?;
        return assert_paced(test, 500, doubling).map(drop);
    }
    // An application's submission that a webhook blocks waits for half a minute.
    until_refused(test, 500, 1).await?;
    let told = |job: &Value| test.life.told(job, "Stalled").contains("webhook");
    let jobs = &test.world.jobs;
    jobs.until(JOB, "naming the bad webhook", told)
        .await
        .map(drop)
}

async fn dead_webhook(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f27").await? else {
        return Ok(());
    };
    // One port where nobody listens, and one where nobody answers.
    let nobody = TcpListener::bind("127.0.0.1:0").await?;
    let dead = nobody.local_addr()?;
    drop(nobody);
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let addresses = [dead, silent.local_addr()?];
    for (phase, address) in [Phase::Creating, Phase::Running].into_iter().zip(addresses) {
        webhook(&test, &format!("https://{address}/")).await?;
        test.proxy.clear_records();
        test.begin(phase).await?;
        until_creates_fail(&test).await?;
        let job = test.world.jobs.get(JOB).await?;
        anyhow::ensure!(!Life::has_failed(&job), "{}", job["status"]);
        hooks(&test)
            .delete(test.namespace(), &DeleteParams::default())
            .await?;
        test.end(phase).await?;
    }
    // Only the operator's own creates count from here on.
    test.proxy.clear_records();
    test.run_phase(Phase::Finishing).await?;
    test.assert_life();
    test.assert_clean().await
}

#[tokio::test]
async fn f_27_a_webhook_that_fails_or_never_answers_is_waited_for() -> Result<()> {
    dead_webhook(PYTORCH).await
}

#[tokio::test]
async fn f_27_a_webhook_that_fails_or_never_answers_is_waited_for_by_a_tf_job() -> Result<()> {
    dead_webhook(TENSORFLOW).await
}

#[tokio::test]
async fn f_27_a_webhook_that_fails_or_never_answers_is_waited_for_by_an_xgboost_job() -> Result<()>
{
    dead_webhook(XGBOOST).await
}

#[tokio::test]
async fn f_27_a_webhook_that_fails_or_never_answers_is_waited_for_by_a_paddle_job() -> Result<()> {
    dead_webhook(PADDLE).await
}

#[tokio::test]
async fn f_27_a_webhook_that_fails_or_never_answers_is_waited_for_by_a_jax_job() -> Result<()> {
    dead_webhook(JAX).await
}

#[tokio::test]
async fn f_27_a_webhook_that_fails_or_never_answers_is_waited_for_by_an_mpi_job() -> Result<()> {
    dead_webhook(MPI).await
}

#[tokio::test]
async fn f_27_a_webhook_that_fails_or_never_answers_is_waited_for_by_a_spark_application()
-> Result<()> {
    dead_webhook(SPARK).await
}

#[tokio::test]
async fn f_28_a_store_without_space_costs_the_lease_and_invents_nothing() -> Result<()> {
    let Some(mut test) = FaultTest::elected(Life(PYTORCH), "f28").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    test.until_canary().await?;
    let time = Duration::from_secs(if is_deep() { 60 } else { 1 });
    for phase in [Phase::Running, Phase::Finishing] {
        let words = "etcdserver: mvcc: database space exceeded";
        let full = Answer::new(500, "InternalError", words);
        let full = Action::Answer(Effect::Without, full);
        let writes = Rule::new("writes", full, Call::is_write);
        test.rule(std::slice::from_ref(&writes));
        let before = test.world.jobs.get(JOB).await?["status"].clone();
        test.begin(phase).await?;
        test.until_leads(false).await?;
        test.lives_for(time).await?;
        test.until_hit(&[writes], 2).await?;
        let now = test.world.jobs.get(JOB).await?["status"].clone();
        anyhow::ensure!(now == before, "{now} after {before}");
        test.proxy.clear_rules();
        test.until_leads(true).await?;
        test.end(phase).await?;
    }
    test.assert_life();
    test.assert_clean().await
}

async fn empty_list(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f44").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    let pods: Api<Pod> = Api::namespaced(test.world.client.clone(), test.namespace());
    let there = pods.list(&ListParams::default()).await?;
    let uids = |pods: &[Pod]| -> BTreeSet<_> {
        let uids = pods.iter().map(|pod| pod.metadata.uid.clone());
        uids.collect()
    };
    let version = &there.metadata.resource_version;
    let empty = Action::Reply(json!({
        "kind": "PodList", "apiVersion": "v1", "metadata": { "resourceVersion": version }, "items": [],
    }));
    let gone = Answer::new(410, "Expired", "too old resource version");
    let gone = Action::Answer(Effect::Without, gone);
    let rules = [
        on(test.namespace(), ("list", "pods"), empty).nth(1),
        on(test.namespace(), ("watch", "pods"), gone).nth(1),
    ];
    test.proxy.clear_records();
    test.rule(&rules);
    test.proxy.cut().await?;
    test.until_hit(&rules, 1).await?;
    // It misses them, and their names are taken. It reads a driver that no watch shows before it counts the run as failed.
    let ranks = test.life.ranks(WORKERS);
    eventually("all of them to be found", HANG, async || {
        let taken = |r: &training_testkit::proxy::Record| {
            let (verb, code) = if kind == SPARK {
                ("get", 200)
            } else {
                ("create", 409)
            };
            let own = r.call.namespace == test.namespace();
            own && r.call.is(verb, "pods") && r.code == Some(code)
        };
        let refused: BTreeSet<String> = test
            .proxy
            .records()
            .into_iter()
            .filter(taken)
            .map(|r| r.call.name)
            .collect();
        Ok(if refused.iter().eq(&ranks) {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{refused:?}"))
        })
    })
    .await?;
    let now = pods.list(&ListParams::default()).await?;
    assert_eq!(uids(&now.items), uids(&there.items));
    let job = test.world.jobs.get(JOB).await?;
    anyhow::ensure!(!is_finished(&job), "{}", job["status"]);
    for phase in [Phase::Running, Phase::Finishing] {
        test.run_phase(phase).await?;
    }
    test.assert_life();
    test.assert_clean().await
}

#[tokio::test]
async fn f_44_an_empty_list_of_pods_replaces_none() -> Result<()> {
    empty_list(PYTORCH).await
}

#[tokio::test]
async fn f_44_an_empty_list_replaces_no_pod_of_a_tf_job() -> Result<()> {
    empty_list(TENSORFLOW).await
}

#[tokio::test]
async fn f_44_an_empty_list_replaces_no_pod_of_an_xgboost_job() -> Result<()> {
    empty_list(XGBOOST).await
}

#[tokio::test]
async fn f_44_an_empty_list_replaces_no_pod_of_a_paddle_job() -> Result<()> {
    empty_list(PADDLE).await
}

#[tokio::test]
async fn f_44_an_empty_list_replaces_no_pod_of_a_jax_job() -> Result<()> {
    empty_list(JAX).await
}

#[tokio::test]
async fn f_44_an_empty_list_replaces_no_pod_of_an_mpi_job() -> Result<()> {
    empty_list(MPI).await
}

#[tokio::test]
async fn f_44_an_empty_list_replaces_no_pod_of_a_spark_application() -> Result<()> {
    empty_list(SPARK).await
}
