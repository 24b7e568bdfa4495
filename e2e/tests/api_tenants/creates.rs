//! Creates that hang or fail for one tenant: the effect on others, and the time for a large job.

use kube::api::DeleteParams;
use training_testkit::builders::PYTORCH;
use training_testkit::proxy::{Action, Answer, Call, Effect, Gate, Rule};

use super::load::each;
use super::*;

/// Starts an operator whose requests go through a proxy and may take as long as a test.
async fn through(tenant: &Tenant, options: Options) -> Result<(Proxy, OperatorProcess)> {
    let options = options
        .flag("call-deadline", "10m")
        .flag("pass-deadline", "10m");
    let (proxy, options) = tenant.proxied(options).await?;
    Ok((proxy, OperatorProcess::start(options).await?))
}

/// Runs a small job, the `n`th of its namespace, and returns the time to its end.
async fn run(tenant: &Tenant, name: &str, n: usize) -> Result<Duration> {
    let clock = tokio::time::Instant::now();
    tenant.create(name).await?;
    let mut pods = tenant.until_pods(2 * n).await?;
    pods.retain(|pod| pod.name_any().starts_with(name));
    for phase in ["Running", "Succeeded"] {
        for pod in &pods {
            let status = json!({ "phase": phase });
            tenant.says(&pod.name_any(), status).await?;
        }
        tenant.jobs.until_true(name, phase).await?;
    }
    Ok(clock.elapsed())
}

/// Creates in one namespace hang, as behind a webhook that doesn't answer; a job elsewhere completes its life cycle meanwhile.
#[tokio::test]
async fn creates_that_hang_in_one_namespace_leave_the_others_alone() -> Result<()> {
    let count = 100;
    let Some(stuck) = Tenant::of(PYTORCH, "stuck").await? else {
        return Ok(());
    };
    let Some(calm) = Tenant::of(PYTORCH, "calm").await? else {
        return Ok(());
    };
    let (proxy, operator) = through(&stuck, stuck.options_with(&calm).await?).await?;
    run(&calm, "warm", 1).await?;
    let before = run(&calm, "before", 2).await?;
    let (gate, theirs) = (Gate::closed(), stuck.name().to_owned());
    let held = Rule::new("the webhook", Action::Hold(gate.clone()), move |call| {
        call.is("create", "pods") && call.namespace == theirs
    });
    proxy.add(&held);
    each(count, async |n| {
        stuck.create(&format!("job-{n}")).await.map(drop)
    })
    .await?;
    // Waits for the most creates that hang at the same time.
    let mut hang = 0;
    loop {
        tokio::time::sleep(QUIET).await;
        let now = held.hits();
        if now > 0 && now == hang {
            break;
        }
        hang = now;
    }
    let beside = run(&calm, "beside", 3).await?;
    let times = beside.as_secs_f64() / before.as_secs_f64();
    eprintln!("a small job took {beside:.1?} instead of {before:.1?}: {times:.1} times");
    ensure!(stuck.pods().await?.is_empty(), "nothing hung");
    // A connection without an answer ends after half a minute, and the create is retried.
    let now = held.hits();
    ensure!(
        now == hang,
        "the others waited until creates were given up: {now} of {hang}"
    );
    eprintln!("{hang} creates hung");
    gate.open();
    stuck.until_pods(2 * count).await?;
    stuck.assert_well(&operator).await?;
    calm.assert_well(&operator).await
}

/// Creates in two namespaces hang, and no further create is sent. A job elsewhere ends all the same: its status is written, and its pods
/// and services are deleted.
#[tokio::test]
async fn a_job_ends_while_every_place_for_creates_is_taken() -> Result<()> {
    let (Some(first), Some(second), Some(calm)) = (
        Tenant::of(PYTORCH, "stuck").await?,
        Tenant::of(PYTORCH, "stuck").await?,
        Tenant::of(PYTORCH, "calm").await?,
    ) else {
        return Ok(());
    };
    let mut options = first.options().await?;
    options.namespace = [&first, &second, &calm].map(Tenant::name).join(",");
    let (proxy, operator) = through(&first, options).await?;
    let job = PYTORCH.small_job("pt", 1);
    let job = job.run_policy("cleanPodPolicy", "All").build();
    calm.jobs.create(&job).await?;
    let pods = calm.until_pods(2).await?;
    for pod in &pods {
        let running = json!({ "phase": "Running" });
        calm.says(&pod.name_any(), running).await?;
    }
    calm.jobs.until_true("pt", "Running").await?;
    let (gate, theirs) = (
        Gate::closed(),
        [first.name().to_owned(), second.name().to_owned()],
    );
    let held = Rule::new("the webhook", Action::Hold(gate.clone()), move |call| {
        call.verb == "create"
            && ["pods", "services"].contains(&call.resource.as_str())
            && theirs.contains(&call.namespace)
    });
    proxy.add(&held);
    let count = 6;
    // A job of one namespace has as many creates at a time as the other one leaves.
    each(2 * count, async |n| {
        let tenant = if n < count { &first } else { &second };
        let job = PYTORCH.small_job(&format!("job-{n}"), 7).build();
        tenant.jobs.create(&job).await.map(drop)
    })
    .await?;
    // The most creates of all namespaces at a time.
    eventually("every place to be taken", HANG, async || {
        Ok(match held.hits() {
            80.. => Seen::Yes(()),
            hits => Seen::NotYet(format!("{hits} creates")),
        })
    })
    .await?;
    for pod in &pods {
        let succeeded = json!({ "phase": "Succeeded" });
        calm.says(&pod.name_any(), succeeded).await?;
    }
    calm.jobs.until_true("pt", "Succeeded").await?;
    calm.until_pods(0).await?;
    assert_eq!(held.hits(), 80, "none was given up meanwhile");
    gate.open();
    first.until_pods(8 * count).await?;
    second.until_pods(8 * count).await?;
    for tenant in [&first, &second, &calm] {
        tenant.assert_well(&operator).await?;
    }
    Ok(())
}

/// Every second create of a pod fails.
#[tokio::test]
async fn a_reconcile_that_fails_after_progress_is_retried_after_the_shortest_backoff() -> Result<()>
{
    let Some(tenant) = Tenant::of(PYTORCH, "progress").await? else {
        return Ok(());
    };
    let (proxy, operator) = through(&tenant, tenant.options().await?).await?;
    let failed = Answer::new(500, "InternalError", "etcdserver: leader changed");
    let fails = Action::Answer(Effect::Without, failed);
    let rule = Rule::new("every second pod", fails, |call| call.is("create", "pods"));
    proxy.add(&rule.every(2));
    let workers = 100;
    tenant
        .jobs
        .create(&PYTORCH.small_job("pt", workers).build())
        .await?;
    tenant.until_pods(101).await?;
    tenant.until_quiet().await?;
    let waits = operator.log();
    let waits = waits
        .lines()
        .filter(|line| line.contains("the reconcile failed"));
    let waits: Vec<u64> = waits
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|line| line["wait_ms"].as_u64())
        .collect();
    ensure!(waits.len() >= 3, "{waits:?}");
    // The last reconciles have few steps left, and may make no progress.
    let early = &waits[..3];
    ensure!(early.iter().all(|wait| *wait <= 50), "{waits:?}");
    tenant.assert_well(&operator).await
}

/// Only prints how long both take, because machines differ.
#[tokio::test]
async fn one_failed_create_in_a_hundred_repeats_nothing_but_itself() -> Result<()> {
    let workers = if is_deep() { 1_000 } else { 200 };
    let pods = usize::try_from(workers)? + 1;
    let Some(tenant) = Tenant::of(PYTORCH, "chance").await? else {
        return Ok(());
    };
    let (proxy, operator) = through(&tenant, tenant.options().await?).await?;
    let failed = Answer::new(500, "InternalError", "etcdserver: leader changed");
    let fails = Action::Answer(Effect::Without, failed);
    let rule = Rule::new("one in a hundred", fails, |call: &Call| {
        call.verb == "create" && ["pods", "services"].contains(&call.resource.as_str())
    });
    let rule = rule.every(100);
    let mut took = Vec::new();
    // The first one is a warm-up.
    for name in ["warm", "calm", "failing"] {
        if name == "failing" {
            proxy.add(&rule);
        }
        let before = proxy.counts();
        let clock = tokio::time::Instant::now();
        let job = PYTORCH.small_job(name, workers).build();
        tenant.jobs.create(&job).await?;
        tenant.until_pods(pods).await?;
        took.push(clock.elapsed());
        tenant.until_quiet().await?;
        let asked = || -> usize {
            let all = proxy.counts();
            let creates = ["create pods", "create services"].iter();
            let count = |counts: &BTreeMap<String, usize>, what| counts.get(what).copied();
            creates
                .map(|what| count(&all, *what).unwrap_or(0) - count(&before, *what).unwrap_or(0))
                .sum()
        };
        eventually("each object to be made once", HANG, async || {
            let (asked, wanted) = (asked(), 2 * pods + rule.hits());
            ensure!(asked <= wanted, "{name}: {asked} creates, not {wanted}");
            Ok(if asked == wanted {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{asked} creates of {wanted}"))
            })
        })
        .await?;
        tenant
            .jobs
            .delete_with(name, &DeleteParams::foreground())
            .await?;
        tenant.until_pods(0).await?;
        tenant.until_quiet().await?;
    }
    ensure!(rule.hits() >= 2 * pods / 100, "{} hits", rule.hits());
    let times = took[2].as_secs_f64() / took[1].as_secs_f64();
    eprintln!(
        "{pods} pods with {} faults took {times:.2} times as long",
        rule.hits()
    );
    tenant.assert_well(&operator).await
}
