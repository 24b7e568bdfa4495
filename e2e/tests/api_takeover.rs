//! Jobs that the Kubeflow training operator left: ours goes on where it stopped.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::read::{self, by_rank};
use e2e::{World, loose, takeover};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use training_testkit::auditor::Auditor;
use training_testkit::builders::{pytorch_job, pytorch_jobs};
use training_testkit::control_plane::{ADMIN, ControlPlane, Options, PYTORCH_OPERATOR, workspace};
use training_testkit::job::{conditions, counters, is_finished, is_true};
use training_testkit::kubelet::{State, lockstep};
use training_testkit::manifest;
use training_testkit::operator::OperatorProcess;
use training_testkit::wait::{HANG, Seen, eventually};

#[path = "api_takeover/mpi.rs"]
mod mpi;

/// The operator is done when it has sent no request for this long.
const QUIET: Duration = Duration::from_secs(2);

/// Each test begins with the other operator's CRD, and there can be only one at a time.
static TURN: Mutex<()> = Mutex::const_new(());
static CONTROL: OnceCell<ControlPlane> = OnceCell::const_new();

async fn control() -> Result<&'static ControlPlane> {
    let options = || Options {
        controller_manager: true,
        audit: true,
        ..Options::default()
    };
    let control = CONTROL.get_or_try_init(|| ControlPlane::start(options()));
    control.await
}

/// A namespace with jobs of another operator.
struct Left {
    world: World,
    _turn: MutexGuard<'static, ()>,
}

impl Left {
    /// Stores the jobs under the other CRD, then applies ours over it.
    async fn with(names: &[&str]) -> Result<Option<Self>> {
        let turn = TURN.lock().await;
        let control = control().await?;
        if !control.can().play_kubelet {
            e2e::skip("the definition of this cluster is in use");
            return Ok(None);
        }
        control.install("pytorch-operator").await?;
        let admin = control.client(ADMIN).await?;
        manifest::apply(&admin, vec![loose::definition()?]).await?;
        let Some(mut world) = World::on(control, "takeover", lockstep()).await? else {
            return Ok(None);
        };
        until_default(&world, &Value::Null).await?;
        for name in names {
            takeover::leave(&world, name)
                .await
                .with_context(|| format!("{name}.yaml"))?;
        }
        let crd = workspace().join("manifests/pytorch-operator/crd.yaml");
        manifest::apply(&admin, manifest::documents(&crd)?).await?;
        until_default(&world, &json!({ "suspend": false })).await?;
        // The change of the CRD ended all watches of jobs.
        world.auditor =
            Auditor::start(world.client.clone(), world.namespace(), &pytorch_jobs()).await?;
        Ok(Some(Self { world, _turn: turn }))
    }

    /// Starts our operator, and waits until it is idle.
    async fn take_over(&self) -> Result<OperatorProcess> {
        let operator = self.world.operator().await?;
        self.until_quiet().await?;
        Ok(operator)
    }

    async fn until_quiet(&self) -> Result<()> {
        let counts = |entry: &training_testkit::audit::Entry| !entry.is_watch();
        let audit = self.world.control.audit()?;
        audit
            .until_quiet(PYTORCH_OPERATOR, counts, QUIET, HANG)
            .await
    }

    /// Every object of every job, by kind and name.
    async fn everything(&self) -> Result<BTreeMap<String, Value>> {
        let (client, namespace) = (&self.world.client, self.world.namespace());
        let mut all = BTreeMap::new();
        for name in takeover::all()? {
            for (kind, list) in [
                ("Pod", read::pods(client, namespace, &name).await?),
                ("Service", read::services(client, namespace, &name).await?),
            ] {
                all.extend(
                    list.into_iter()
                        .map(|o| (format!("{kind}/{}", read::name(&o)), o)),
                );
            }
        }
        let scalers: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), namespace);
        for scaler in scalers.list(&ListParams::default()).await? {
            let scaler = serde_json::to_value(scaler)?;
            all.insert(
                format!("HorizontalPodAutoscaler/{}", read::name(&scaler)),
                scaler,
            );
        }
        let jobs: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), namespace, &pytorch_jobs());
        for job in jobs.list(&ListParams::default()).await? {
            let job = serde_json::to_value(job)?;
            all.insert(format!("PyTorchJob/{}", read::name(&job)), job);
        }
        Ok(all)
    }

    /// No violations, except for those from before.
    async fn assert_clean(&self, operator: &OperatorProcess, rolled_back: bool) -> Result<()> {
        operator.assert_no_panic()?;
        self.world.kubelet.assert_no_errors()?;
        self.world.auditor.settled().await?;
        let mut wrong = self.world.auditor.violations();
        // The other operator stores no completion time at a permanent exit code, and no restarts.
        wrong.retain(|wrong| {
            let incomplete = wrong.starts_with("I-17") && wrong.ends_with("(failed-exit)");
            let forgotten = wrong.starts_with("I-15") && wrong.contains("to null");
            !(incomplete || rolled_back && forgotten)
        });
        ensure!(wrong.is_empty(), "{wrong:#?}");
        Ok(())
    }
}

/// Waits until the API server answers with this default `runPolicy`.
async fn until_default(world: &World, expected: &Value) -> Result<()> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(world.client.clone(), world.namespace(), &pytorch_jobs());
    let job = serde_json::from_value(pytorch_job("trial").workers(1).build())?;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually("the definition to be in force", HANG, async || {
        let stored = api.create(&dry, &job).await?;
        let policy = &stored.data["spec"]["runPolicy"];
        Ok(if policy == expected {
            Seen::Yes(())
        } else {
            Seen::NotYet(policy.to_string())
        })
    })
    .await
}

fn version(object: &Value) -> (&Value, &Value) {
    let metadata = &object["metadata"];
    (&metadata["uid"], &metadata["resourceVersion"])
}

#[tokio::test]
async fn i_42_nothing_is_made_deleted_or_changed_when_ours_begins() -> Result<()> {
    let names = takeover::all()?;
    // One job lacks a pod, which is created; a later test covers it.
    let names: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| *name != "replacing")
        .collect();
    let Some(left) = Left::with(&names).await? else {
        return Ok(());
    };
    let before = left.everything().await?;
    let audit = left.world.control.audit()?;
    let mark = audit.mark().await?;
    let operator = left.take_over().await?;
    eventually("every unfinished job to be reconciled", HANG, async || {
        let now = left.everything().await?;
        let mut jobs = now
            .iter()
            .filter(|(name, _)| name.starts_with("PyTorchJob/"));
        let open = jobs.find(|(_, job)| !is_finished(job) && !job["status"]["ready"].is_string());
        Ok(match open {
            None => Seen::Yes(()),
            Some((name, job)) => Seen::NotYet(format!("{name}: {}", job["status"])),
        })
    })
    .await?;
    left.until_quiet().await?;
    let after = left.everything().await?;

    assert!(before.keys().eq(after.keys()), "{:?}", after.keys());
    let mut finished = 0;
    for (name, was) in &before {
        let is = &after[name];
        if name.starts_with("HorizontalPodAutoscaler/") {
            // It gets our labels, so that we recognize it later.
            let what = |object: &Value| {
                let metadata = &object["metadata"];
                json!([metadata["uid"], metadata["generation"], object["spec"]])
            };
            assert_eq!(what(was), what(is), "{name}");
            continue;
        }
        if !name.starts_with("PyTorchJob/") || is_finished(was) {
            finished += usize::from(name.starts_with("PyTorchJob/"));
            assert_eq!(
                version(was),
                version(is),
                "{name} was written to:\n{was}\n{is}"
            );
            continue;
        }
        assert_eq!(was["spec"], is["spec"], "{name}");
        assert_eq!(
            was["metadata"]["generation"], is["metadata"]["generation"],
            "{name}"
        );
        // Including their times.
        let list = |job: &Value| job["status"]["conditions"].clone();
        assert_eq!(list(was), list(is), "{name}");
        for field in ["startTime", "completionTime"] {
            assert_eq!(was["status"][field], is["status"][field], "{name}");
        }
        // The job was reconciled, and the heartbeat is gone.
        assert!(
            is["status"]["ready"].is_string(),
            "{name}: {}",
            is["status"]
        );
        assert_eq!(is["status"]["lastReconcileTime"], Value::Null, "{name}");
    }
    assert_eq!(finished, 7, "{:?}", before.keys());
    let old = &after["PyTorchJob/running-old"]["status"]["replicaStatuses"]["Worker"];
    assert_eq!(old["labelSelector"], Value::Null, "{old}");
    assert!(old["selector"].is_string(), "{old}");

    // The audit log agrees.
    for entry in audit.by_user(mark, PYTORCH_OPERATOR).await? {
        let reads = matches!(entry.verb.as_str(), "get" | "list" | "watch");
        let tells = entry.resource == "events";
        let status = entry.what() == "patch pytorchjobs/status"
            && !is_finished(&before[&format!("PyTorchJob/{}", entry.name)]);
        // The operator finds it because its name is taken.
        let found = entry.what() == "create horizontalpodautoscalers" && entry.code == 409;
        let marks = found || entry.what() == "patch horizontalpodautoscalers";
        let allowed = reads || tells || status || marks;
        assert!(allowed, "{} {}", entry.what(), entry.name);
    }
    left.assert_clean(&operator, false).await
}

#[tokio::test]
async fn what_was_left_running_restarting_or_suspended_goes_on() -> Result<()> {
    let names = [
        "running",
        "running-old",
        "restarting",
        "replacing",
        "suspended",
        "born-suspended",
    ];
    let Some(left) = Left::with(&names).await? else {
        return Ok(());
    };
    let (jobs, kubelet) = (&left.world.jobs, &left.world.kubelet);
    let namespace = left.world.namespace();
    let before = left.everything().await?;
    let operator = left.take_over().await?;

    // The pods succeed.
    kubelet.all_succeeded(namespace, "running").await?;
    let job = jobs
        .until("running", "with all succeeded", |job| {
            is_true(job, "Succeeded") && counters(job, "Worker").get("succeeded") == Some(&2)
        })
        .await?;
    let states: Vec<(String, String)> = conditions(&job)
        .into_iter()
        .map(|c| (c.kind, c.status))
        .collect();
    let expected = [
        ("Created", "True"),
        ("Running", "False"),
        ("Succeeded", "True"),
    ]
    .map(|(kind, status)| (kind.to_owned(), status.to_owned()));
    assert_eq!(states, expected);
    assert!(job["status"]["completionTime"].is_string());

    // A failed pod is recreated with the number of its attempt; the others stay.
    kubelet
        .set(namespace, "running-old-worker-1", &State::Evicted)
        .await?;
    let old = &before["Pod/running-old-worker-1"];
    let worker = runs_again(&left, "running-old", old).await?;
    assert_eq!(
        worker["metadata"]["annotations"]["trainyard.dev/attempt"],
        "0.1"
    );
    // A restart in progress is completed.
    let worker = runs_again(&left, "restarting", &Value::Null).await?;
    assert_eq!(
        worker["metadata"]["uid"],
        before["Pod/restarting-worker-1"]["metadata"]["uid"]
    );
    // The missing pod is created.
    runs_again(&left, "replacing", &Value::Null).await?;

    for name in ["suspended", "born-suspended"] {
        let resume = json!({ "spec": { "runPolicy": { "suspend": false } } });
        jobs.merge(name, &resume).await?;
        runs_again(&left, name, &Value::Null).await?;
        let job = jobs.get(name).await?;
        let was = &before[&format!("PyTorchJob/{name}")];
        assert!(!is_true(&job, "Suspended"), "{}", job["status"]);
        assert_ne!(
            job["status"]["startTime"], was["status"]["startTime"],
            "{name}"
        );
    }

    let churn = left.world.auditor.summary();
    let odd: Vec<_> = churn
        .iter()
        .filter(|(_, churn)| (churn.creates, churn.deletes) != (1, 0))
        .map(|(name, churn)| (name.as_str(), churn.creates, churn.deletes))
        .collect();
    assert_eq!(odd, [("Pod/running-old-worker-1", 2, 1)]);
    left.assert_clean(&operator, false).await
}

/// Runs all pods of a job of three, and returns the last worker's, which is not the old one.
async fn runs_again(left: &Left, job: &str, old: &Value) -> Result<Value> {
    let (world, namespace) = (&left.world, left.world.namespace());
    eventually(&format!("{job} to run"), HANG, async || {
        // Pods that are created later run in the next round.
        if world
            .kubelet
            .pods(namespace, job)
            .iter()
            .any(|p| p.bound && p.phase == "Pending")
        {
            world.kubelet.all_running(namespace, job).await?;
        }
        let status = world.jobs.get(job).await?;
        let runs = is_true(&status, "Running")
            && !is_true(&status, "Restarting")
            && counters(&status, "Master").get("active") == Some(&1)
            && counters(&status, "Worker").get("active") == Some(&2);
        let pods = read::pods(&world.client, namespace, job).await?;
        let worker = by_rank(&pods, job, "worker-1")?;
        Ok(
            if runs && worker["metadata"]["uid"] != old["metadata"]["uid"] {
                Seen::Yes(worker.clone())
            } else {
                Seen::NotYet(status["status"].to_string())
            },
        )
    })
    .await
}

#[tokio::test]
async fn i_42_the_other_operator_can_take_it_back_and_ours_again() -> Result<()> {
    let names = ["running", "restarting", "suspended"];
    let Some(left) = Left::with(&names).await? else {
        return Ok(());
    };
    let (world, namespace) = (&left.world, left.world.namespace());
    let before = left.everything().await?;
    let mut operator = left.take_over().await?;
    world
        .kubelet
        .set(namespace, "running-worker-1", &State::Evicted)
        .await?;
    runs_again(&left, "running", &before["Pod/running-worker-1"]).await?;
    runs_again(&left, "restarting", &Value::Null).await?;
    let ended = operator.terminate(Duration::from_secs(10)).await?;
    assert!(ended.success(), "{ended}");

    let ours = left.everything().await?;
    for (name, object) in &ours {
        readable(name, object)?;
    }
    // The other operator writes whole objects, and drops fields that its types lack.
    for name in names {
        takeover::roll_back(world, name).await?;
    }
    let back = left.everything().await?;
    operator.restart().await?;
    left.until_quiet().await?;
    let again = left.everything().await?;
    for (name, was) in &back {
        let is = again.get(name).with_context(|| format!("{name} is gone"))?;
        if name.starts_with("PyTorchJob/") {
            let (was, is) = (&was["status"]["conditions"], &is["status"]["conditions"]);
            assert_eq!(was, is, "{name}");
        } else {
            assert_eq!(version(was), version(is), "{name}");
        }
    }
    assert_eq!(back.len(), again.len(), "{:?}", again.keys());
    world.kubelet.all_succeeded(namespace, "running").await?;
    world.jobs.until_true("running", "Succeeded").await?;
    left.assert_clean(&operator, true).await
}

/// The fields that the other operator reads exist in the form that it knows.
fn readable(name: &str, object: &Value) -> Result<()> {
    if !name.starts_with("PyTorchJob/") {
        let labels = &object["metadata"]["labels"];
        for label in ["operator-name", "job-name", "replica-type", "replica-index"] {
            let value = &labels[format!("training.kubeflow.org/{label}")];
            ensure!(value.is_string(), "{name} has the labels {labels}");
        }
        let owner = &object["metadata"]["ownerReferences"][0];
        ensure!(owner["apiVersion"] == "kubeflow.org/v1", "{name}: {owner}");
        ensure!(owner["controller"] == true, "{name}: {owner}");
        return Ok(());
    }
    let status = &object["status"];
    for condition in status["conditions"].as_array().context("no conditions")? {
        for field in [
            "type",
            "status",
            "reason",
            "message",
            "lastUpdateTime",
            "lastTransitionTime",
        ] {
            ensure!(condition[field].is_string(), "{name}: {condition}");
        }
    }
    for role in ["Master", "Worker"] {
        let counts = &status["replicaStatuses"][role];
        ensure!(counts.is_object(), "{name}: {status}");
        let numbers = ["active", "succeeded", "failed"].map(|c| &counts[c]);
        let whole = numbers.iter().all(|n| n.is_null() || n.is_u64());
        ensure!(whole && counts["selector"].is_string(), "{name}: {counts}");
    }
    ensure!(status["startTime"].is_string(), "{name}: {status}");
    Ok(())
}
