//! A tenant who overloads the operator, fills its memory or its ports, or makes it write without end. `TRAINYARD_DEEP` uses an attacker's
//! numbers.

use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use training_testkit::builders::PYTORCH;
use training_testkit::proxy::{Action, Gate, Rule};
use training_testkit::wait::holds_for;

use super::*;

/// Concurrent requests of the test.
const WIDTH: usize = 16;
const MIB: u64 = 1 << 20;

/// Runs this many operations, several at a time.
pub async fn each(count: usize, work: impl AsyncFn(usize) -> Result<()>) -> Result<()> {
    let work = &work;
    stream::iter(0..count)
        .map(|n| async move { work(n).await })
        .buffer_unordered(WIDTH)
        .try_collect()
        .await
}

/// Foreign objects of the largest size: for the two operators that watch `ConfigMap`s, or in a deep run for all. The objects of each
/// resource alone exceed the bound, so that the test detects a cache of any of them.
#[tokio::test]
async fn mt_33_objects_that_are_no_jobs_of_ours_take_no_memory() -> Result<()> {
    let count = if is_deep() { 100 } else { 32 };
    let some = kinds().filter(|kind| is_deep() || [MPI, SPARK].contains(kind));
    try_join_all(some.map(|kind| async move {
        let Some(tenant) = Tenant::of(kind, "others").await? else {
            return Ok(());
        };
        let audit = tenant.control.audit()?;
        let begin = audit.mark().await?;
        let operator = tenant.operator().await?;
        tenant.create("before").await?;
        tenant.until_pods(pods_of(&kind)).await?;
        tenant.until_quiet().await?;
        let (before, _) = operator.memory()?;
        let large = "x".repeat(900 * 1024);
        each(count, async |n| {
            let metadata = json!({ "name": format!("large-{n}") });
            let config = json!({ "metadata": metadata, "data": { "a": large } });
            let secret = json!({ "metadata": metadata, "stringData": { "a": large } });
            let pod = json!({ "metadata": metadata, "spec": { "containers": [
                { "name": "a", "image": "i", "args": [large] }] } });
            tenant.store::<ConfigMap>(config).await?;
            tenant.store::<Secret>(secret).await?;
            tenant.store::<Pod>(pod).await
        })
        .await?;
        // The operator's watches deliver this job after all of these objects.
        tenant.create("behind").await?;
        tenant.until_pods(2 * pods_of(&kind) + count).await?;
        tenant.until_quiet().await?;
        let (after, _) = operator.memory()?;
        let grown = after.saturating_sub(before) / MIB;
        ensure!(
            grown <= 16,
            "{}: {grown} MiB for {count} objects of each kind",
            kind.name
        );
        // No cache for small ones either: the operator reads by label or name, and never reads a Secret.
        let reads = |e: &&Entry| ["get", "list", "watch"].contains(&e.verb.as_str());
        let asked = audit.by_user(begin, &kind.user()).await?;
        let own = asked.iter().filter(|e| e.namespace == tenant.name());
        let own: Vec<&Entry> = own.filter(reads).collect();
        let secrets: Vec<_> = own.iter().filter(|e| e.resource == "secrets").collect();
        ensure!(secrets.is_empty(), "{}: {secrets:#?}", kind.name);
        let of_all = |e: &&&Entry| e.name.is_empty() && !e.uri.contains("Selector=");
        let others = own
            .iter()
            .filter(|e| ["pods", "configmaps"].contains(&e.resource.as_str()));
        let others: Vec<_> = others.filter(of_all).collect();
        ensure!(others.is_empty(), "{}: {others:#?}", kind.name);
        tenant.assert_well(&operator).await
    }))
    .await
    .map(drop)
}

/// Pods that the operator watches, with the most annotations that a pod may have.
#[tokio::test]
async fn mt_34_annotations_of_pods_with_our_labels_are_not_kept() -> Result<()> {
    let count = if is_deep() { 1_000 } else { 100 };
    let Some(tenant) = Tenant::of(PYTORCH, "annotated").await? else {
        return Ok(());
    };
    let operator = tenant.operator().await?;
    tenant.create("pt").await?;
    let pods = tenant.until_pods(2).await?;
    tenant.until_quiet().await?;
    let (before, _) = operator.memory()?;
    let large = "x".repeat(250 * 1024);
    each(count, async |n| {
        let mut forged: Pod = serde_json::from_value(json!({
            "spec": { "containers": [{ "name": "a", "image": "i" }] },
        }))?;
        forged.metadata = ObjectMeta {
            name: Some(format!("forged-{n}")),
            labels: pods[0].metadata.labels.clone(),
            owner_references: pods[0].metadata.owner_references.clone(),
            annotations: Some([("a".to_owned(), large.clone())].into()),
            ..ObjectMeta::default()
        };
        let api = tenant.api::<Pod>();
        api.create(&PostParams::default(), &forged).await?;
        Ok(())
    })
    .await?;
    // The operator has seen all their events when it reacts to a later change.
    tenant
        .api::<Pod>()
        .delete(
            "pt-worker-0",
            &kube::api::DeleteParams::default().grace_period(0),
        )
        .await?;
    eventually("the worker to be made again", HANG, async || {
        let again = tenant.api::<Pod>().get_opt("pt-worker-0").await?;
        let new = again.filter(|p| pods.iter().all(|old| old.uid() != p.uid()));
        Ok(new.map_or(Seen::NotYet("none".to_owned()), |_| Seen::Yes(())))
    })
    .await?;
    tenant.until_quiet().await?;
    let (after, _) = operator.memory()?;
    let (grown, sent) = (after.saturating_sub(before) / MIB, count as u64 / 4);
    ensure!(
        grown <= 16 + sent / 16,
        "{grown} MiB for {sent} MiB of annotations"
    );
    // No auditor, because the forged pods violate its invariants.
    tenant.assert_serves(&operator).await
}

/// Ten thousand jobs in one namespace, suspended so that each costs one status write; jobs of another namespace get their turn.
#[tokio::test]
async fn mt_32_i_34_a_flood_of_jobs_of_one_namespace_lets_another_one_pass() -> Result<()> {
    let count = if is_deep() { 10_000 } else { 500 };
    let Some(flood) = Tenant::of(PYTORCH, "flood").await? else {
        return Ok(());
    };
    let Some(calm) = Tenant::of(PYTORCH, "calm").await? else {
        return Ok(());
    };
    // The jobs exist before the operator starts: all of them are due at once.
    each(count, async |n| {
        let job = PYTORCH.job(&format!("job-{n}")).master().workers(1);
        let job = job.run_policy("suspend", true).build();
        flood.jobs.create(&job).await.map(drop)
    })
    .await?;
    let audit = flood.control.audit()?;
    let begin = audit.mark().await?;
    // No status of the flood is written before the calm job exists, however fast the operator is.
    let (proxy, options) = flood.proxied(flood.options_with(&calm).await?).await?;
    let gate = Gate::closed();
    let theirs = flood.name().to_owned();
    let held = Rule::new("the flood", Action::Hold(gate.clone()), move |call| {
        call.is("patch", "pytorchjobs/status") && call.namespace == theirs
    });
    proxy.add(&held);
    let user = PYTORCH.user();
    let operator = OperatorProcess::start(options).await?;
    eventually("the flood to have begun", HANG, async || {
        Ok(if held.hits() > 0 {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{:?}", proxy.counts()))
        })
    })
    .await?;
    calm.create("pt").await?;
    gate.open();
    calm.until_pods(2).await?;
    let told = |e: &Entry| e.verb == "patch" && e.namespace == flood.name() && e.code < 300;
    eventually("the whole flood's statuses", HANG, async || {
        let entries = audit.by_user(begin, &user).await?;
        let done = entries.iter().filter(|e| told(e)).count();
        Ok(if done >= count {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{done} of {count}"))
        })
    })
    .await?;
    // The flood's reconciles between the calm job's creation and that of its pods.
    let all = audit.since(begin).await?;
    let position = |resource: &str| {
        let made =
            |e: &Entry| e.verb == "create" && e.resource == resource && e.namespace == calm.name();
        let at = all.iter().position(made);
        at.with_context(|| format!("no create of {resource} in the log"))
    };
    let (born, served) = (position("pytorchjobs")?, position("pods")?);
    ensure!(born < served, "pods of a job that is not there");
    let turns = |entries: &[Entry]| entries.iter().filter(|e| e.user == user && told(e)).count();
    let (waited, before) = (turns(&all[born..]), turns(&all[born..served]));
    eprintln!("{before} turns of {waited} others before the calm job's");
    ensure!(
        waited > 200,
        "{waited} of {count} jobs of the flood were left when the calm job was born"
    );
    ensure!(
        before <= 200,
        "{before} of {waited} jobs of the flood had their turn first"
    );
    flood.assert_well(&operator).await?;
    calm.assert_well(&operator).await
}

/// A finished job takes little memory.
#[tokio::test]
async fn mt_43_i_35_jobs_that_have_ended_take_little_memory_and_no_request() -> Result<()> {
    let count = if is_deep() { 5_000 } else { 300 };
    let Some(tenant) = Tenant::of(PYTORCH, "ended").await? else {
        return Ok(());
    };
    // Created one by one: a list arrives in whole pages, which would hide the memory that stays in use.
    let make = async |n: usize| {
        let name = format!("job-{n}");
        // The operator fails it at once, because of too many workers.
        let job = PYTORCH.job(&name).master().workers(1_000_000);
        // A unique text, which jobs can't share in memory.
        let note = format!("{n:08}").repeat(100 * 1024 / 8);
        tenant
            .jobs
            .create(&job.annotation("note", &note).build())
            .await?;
        tenant.jobs.until_true(&name, "Failed").await.map(drop)
    };
    let audit = tenant.control.audit()?;
    let mut operator = tenant.operator().await?;
    make(count).await?;
    tenant.until_quiet().await?;
    let (one, _) = operator.memory()?;
    each(count, make).await?;
    tenant.until_quiet().await?;
    let (all, _) = operator.memory()?;
    let each = all.saturating_sub(one) / count as u64;
    eprintln!(
        "{} MiB with one, {} MiB with {count}: {each} bytes each",
        one / MIB,
        all / MIB
    );
    // With few jobs, the process's own fluctuations hide their memory.
    let most = if is_deep() { 4 * 1024 } else { 32 * 1024 };
    ensure!(each <= most, "{each} bytes for each job");
    operator.kill()?;
    let begin = audit.mark().await?;
    operator.restart().await?;
    tenant.until_quiet().await?;
    // Only pages of the list, and nothing for the jobs.
    let asked = tenant.asked(begin).await?;
    let lists = asked
        .iter()
        .filter(|e| e.verb == "list" && e.resource == "pytorchjobs");
    let lists: Vec<&str> = lists.map(|e| e.uri.as_str()).collect();
    ensure!(lists.iter().all(|uri| uri.contains("limit=")), "{lists:?}");
    let further = lists.iter().filter(|uri| uri.contains("continue="));
    ensure!(further.count() > 0, "no second page: {lists:?}");
    let writes = asked
        .iter()
        .filter(|e| !["list", "get"].contains(&e.verb.as_str()));
    assert_eq!(writes.collect::<Vec<_>>(), Vec::<&Entry>::new());
    // The process may keep the memory of a page. With two pages this hides what the jobs take, with many it doesn't.
    if is_deep() {
        let (again, _) = operator.memory()?;
        let grown = again.saturating_sub(one) / MIB;
        ensure!(grown <= 128, "{grown} MiB after a start with {count} jobs");
    }
    tenant.assert_well(&operator).await
}

/// Every pod fails with a different message, and so does every replacement.
#[tokio::test]
async fn mt_40_mt_42_i_40_a_job_whose_pods_all_fail_says_little() -> Result<()> {
    const WORKERS: u32 = 30;
    // The backoff doubles with every further round.
    let rounds = if is_deep() { 6 } else { 2 };
    let Some(tenant) = Tenant::of(PYTORCH, "noise").await? else {
        return Ok(());
    };
    let operator = tenant.operator().await?;
    let job = PYTORCH.job("pt").master().workers(WORKERS);
    let job = job
        .restart_policy("Worker", "ExitCode")
        .run_policy("backoffLimit", 10_000);
    let begin = tenant.control.audit()?.mark().await?;
    let clock = tokio::time::Instant::now();
    tenant.jobs.create(&job.build()).await?;
    let mut failed = BTreeSet::new();
    for _ in 0..rounds {
        let pods = tenant.until_fresh(WORKERS, &failed).await?;
        each(pods.len(), async |n| {
            let name = pods[n].name_any();
            let container = pods[n].spec.as_ref().map(|s| s.containers[0].name.clone());
            // The messages of all pods together are three times the limit of a status.
            let words = format!("words {n:02}").repeat(500);
            let ended = json!({ "exitCode": 137, "reason": "Error", "message": words });
            let status = json!({ "phase": "Failed", "containerStatuses": [{
                "name": container, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": { "terminated": ended } }] });
            tenant.says(&name, status).await
        })
        .await?;
        failed.extend(pods.iter().filter_map(Pod::uid));
    }
    tenant.until_fresh(WORKERS, &failed).await?;
    tenant.jobs.until_true("pt", "Restarting").await?;
    tenant.until_quiet().await?;
    // Ten a minute are allowed, so a slow machine may see more of them.
    let most = 10 * (1 + usize::try_from(clock.elapsed().as_secs() / 60)?);
    let asked = tenant.asked(begin).await?;
    let told = asked.iter().filter(|e| e.resource == "events");
    let told = told.count();
    ensure!(
        told > 0 && told <= most,
        "{told} writes of events for {} failures",
        failed.len()
    );
    let metrics = operator.metrics().await?;
    let series = "trainyard_events_total{outcome=\"folded\"} ";
    let folded = metrics.lines().find_map(|line| line.strip_prefix(series));
    let folded: usize = folded.unwrap_or("0").parse()?;
    ensure!(told + folded > 10, "{told} and {folded} are no flood");
    let events = tenant.events().await?;
    let about = |e: &&Event| e.involved_object.kind.as_deref() == Some("PyTorchJob");
    let about: Vec<&Event> = events.iter().filter(about).collect();
    ensure!(
        !about.is_empty() && about.len() <= most,
        "{} events",
        about.len()
    );
    ensure!(
        about
            .iter()
            .all(|e| e.message.as_ref().is_none_or(|m| m.len() <= 1024)),
        "long words"
    );
    let status = tenant.jobs.get("pt").await?["status"].to_string().len();
    ensure!(status <= 32 * 1024, "a status of {status} bytes");
    tenant.assert_well(&operator).await
}

impl Tenant {
    /// Waits for this many workers that have not failed, and returns them.
    async fn until_fresh(&self, count: u32, failed: &BTreeSet<String>) -> Result<Vec<Pod>> {
        eventually("workers that have not failed", HANG, async || {
            let mut pods = self.pods().await?;
            pods.retain(|pod| pod.name_any().contains("worker"));
            let old = pods.iter().filter_map(Pod::uid);
            let old = old.filter(|uid| failed.contains(uid)).count();
            Ok(if old == 0 && u32::try_from(pods.len())? == count {
                Seen::Yes(pods)
            } else {
                Seen::NotYet(format!("{} workers, {old} of them failed", pods.len()))
            })
        })
        .await
    }
}

/// The most concurrent connections of a port's server.
const SEATS: usize = 64;
/// Descriptors that a process opens or closes meanwhile for other reasons.
const OWN: usize = 16;

/// The number of a process's open files and connections.
fn descriptors(operator: &OperatorProcess) -> Result<usize> {
    let files = std::fs::read_dir(format!("/proc/{}/fd", operator.pid()))?;
    Ok(files.count())
}

/// Clients that send nothing, send slowly, or send too much.
#[tokio::test]
async fn mt_41_clients_of_probes_and_metrics_take_neither_memory_nor_turns() -> Result<()> {
    // The clients of one operator at a time, because their descriptors are the test's.
    static TURN: Mutex<()> = Mutex::const_new(());
    // All operators have the same server.
    let kinds = kinds().skip(if is_deep() { 0 } else { 3 });
    try_join_all(kinds.map(|kind| async move {
        let Some(tenant) = Tenant::of(kind, "ports").await? else {
            return Ok(());
        };
        let operator = tenant.operator().await?;
        let (before, _) = operator.memory()?;
        let idle = descriptors(&operator)?;
        for address in [operator.health_address(), operator.metrics_address()] {
            let turn = TURN.lock().await;
            eventually(
                "the clients of the other port to be gone",
                HANG,
                async || {
                    let open = descriptors(&operator)?;
                    Ok(if open <= idle + OWN {
                        Seen::Yes(())
                    } else {
                        Seen::NotYet(format!("{open} descriptors, {idle} before"))
                    })
                },
            )
            .await?;
            // Far more than the server's limit, all of them silent.
            let mut silent = Vec::new();
            for _ in 0..3 * SEATS {
                silent.push(TcpStream::connect(address).await?);
            }
            eventually("all seats to be taken", HANG, async || {
                let open = descriptors(&operator)?;
                Ok(if open + OWN >= idle + SEATS {
                    Seen::Yes(())
                } else {
                    Seen::NotYet(format!("{open} descriptors, {idle} before"))
                })
            })
            .await?;
            holds_for(QUIET, async || {
                let open = descriptors(&operator)?;
                ensure!(
                    open <= idle + SEATS + OWN,
                    "{}: {open} descriptors, {idle} before the clients",
                    kind.name
                );
                Ok(())
            })
            .await?;
            silent.truncate(100);
            drop(turn);
            for client in silent.iter_mut().take(20) {
                // The server may have closed it already.
                let _ = client.write_all(b"GET /metrics HT").await;
            }
            let mut large = TcpStream::connect(address).await?;
            let path = vec![b'x'; 4 << 20];
            let _ = large.write_all(b"GET /").await;
            let _ = large.write_all(&path).await;
            drop(silent);
            let mut answer = String::new();
            let _ = large.read_to_string(&mut answer).await;
            ensure!(!answer.contains(" 200 "), "{}: {answer}", kind.name);
        }
        eventually("both ports to answer", HANG, async || {
            let (code, _) = operator.probe("/livez").await?;
            let metrics = operator.metrics().await?;
            Ok(if code == 200 && metrics.contains("# TYPE") {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{code}"))
            })
        })
        .await?;
        let (after, _) = operator.memory()?;
        let grown = after.saturating_sub(before) / MIB;
        ensure!(grown <= 16, "{}: {grown} MiB more", kind.name);
        // The job still works.
        tenant.create("pt").await?;
        tenant.until_pods(pods_of(&kind)).await?;
        tenant.assert_well(&operator).await
    }))
    .await
    .map(drop)
}
