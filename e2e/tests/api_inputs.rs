//! Jobs that pass the CRD's schema and whose pods the API server then refuses, or that are edited at odd moments: each fails with the API
//! server's message, or waits and goes on.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::World;
use e2e::read;
use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, Pod, Service, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use serde_json::{Value, json};
use training_testkit::builders::{Job, KINDS, Kind, MPI, TRAINING, XGBOOST};
use training_testkit::is_deep;
use training_testkit::job::{condition, conditions, is_true};
use training_testkit::kubelet::{State, lockstep};
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

#[path = "api_inputs/unreadable.rs"]
mod unreadable;

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);

/// The smallest job of a kind: one replica, or one host with its launcher.
#[derive(Clone, Copy)]
struct Smallest(Kind);

impl Smallest {
    /// An XGBoostJob needs a master.
    fn role(self) -> &'static str {
        if self.0 == XGBOOST {
            "Master"
        } else {
            "Worker"
        }
    }

    /// Has one pod at first. A launcher follows when its host is ready.
    fn job(self, name: &str) -> Job {
        let job = self.0.job(name).role(self.role(), 1);
        if self.0 == MPI {
            job.role("Launcher", 1)
                .set("/spec/launcherCreationPolicy", "WaitForWorkersReady")
        } else {
            job
        }
    }

    /// The number of pods of a running job.
    fn pods(self) -> usize {
        if self.0 == MPI { 2 } else { 1 }
    }

    /// Waits until all pods of a job run, and its status says so.
    async fn runs(self, world: &World, name: &str) -> Result<()> {
        for pods in 1..=self.pods() {
            let kubelet = &world.kubelet;
            kubelet.until_pods(world.namespace(), name, pods).await?;
            kubelet.all_running(world.namespace(), name).await?;
        }
        world.jobs.until_true(name, "Running").await?;
        Ok(())
    }

    /// The pod that decides succeeds: of an MPIJob the launcher's.
    async fn succeeds(self, world: &World, name: &str) -> Result<()> {
        let namespace = world.namespace();
        let pods = world.kubelet.pods(namespace, name);
        let mut counts = pods
            .iter()
            .filter(|pod| self.0 != MPI || pod.replica.role == "launcher");
        let pod = counts.next().context("no pod that counts")?;
        world
            .kubelet
            .set(namespace, &pod.name, &State::Succeeded)
            .await
    }

    fn pod(self, job: &str) -> String {
        format!("{job}-{}-0", self.role().to_lowercase())
    }

    /// A path inside the template of its pod.
    fn template(self, path: &str) -> String {
        let (map, role) = (self.0.replica_map, self.role());
        format!("/spec/{map}/{role}/template/{path}")
    }

    /// A path inside the pod's spec.
    fn spec(self, path: &str) -> String {
        self.template(&format!("spec/{path}"))
    }

    /// A path inside its main container.
    fn main(self, path: &str) -> String {
        self.spec(&format!("containers/0/{path}"))
    }
}

/// Runs a test for every kind whose jobs are replicas.
async fn every<R: Future<Output = Result<()>>>(test: impl Fn(Smallest) -> R) -> Result<()> {
    e2e::for_each_kind(TRAINING, |kind| test(Smallest(kind))).await
}

/// Jobs that the API server refuses for good, each with a part of the message that its user reads.
fn impossible(of: Smallest) -> Vec<(&'static str, Job, &'static str)> {
    let containers = |second: Value| json!([{"name": of.0.any_container(), "image": "a"}, second]);
    vec![
        (
            "B-021 a negative quantity",
            of.job("b021").set(&of.main("resources/limits"), json!({"memory": "-1Gi"})),
            "must be greater than or equal to 0",
        ),
        (
            "B-046 an annotation of 300 KiB",
            of.job("b046").set(&of.template("metadata/annotations"), json!({"a": "x".repeat(300 * 1024)})),
            "annotations",
        ),
        (
            "B-120 a mount without a volume",
            of.job("b120").set(&of.main("volumeMounts"), json!([{"name": "none", "mountPath": "/a"}])),
            "volumeMounts[0].name",
        ),
        (
            "B-122 a limit below its request",
            of.job("b122").set(
                &of.main("resources"),
                json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
            ),
            "must be less than or equal to cpu limit",
        ),
        (
            "B-123 an image with a space before it",
            of.job("b123").set(&of.main("image"), " train:1"),
            "image",
        ),
        (
            "B-128 no DNS configuration where it is needed",
            of.job("b128").set(&of.spec("dnsPolicy"), "None"),
            "dnsConfig",
        ),
        (
            "B-128 a negative grace period of a container's probe",
            of.job("b128b").set(
                &of.template("spec"),
                json!({"containers": containers(json!({"name": "x", "image": "b",
                    "livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": -1}}))}),
            ),
            "periodSeconds",
        ),
        (
            "B-128 an affinity without an operator",
            of.job("b128c").set(
                &of.spec("affinity"),
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "Sometimes"}]}]}}}),
            ),
            "operator",
        ),
    ]
}

async fn what_the_server_refuses_for_good_ends_the_job_with_its_words(of: Smallest) -> Result<()> {
    let Some(world) = World::of(of.0, "impossible", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    for (id, job, _) in impossible(of) {
        world.jobs.create(&job.build()).await.context(id)?;
    }
    for (id, job, text) in impossible(of) {
        let name = job.build()["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let failed = world.jobs.until_true(&name, "Failed").await.context(id)?;
        let failed = condition(&failed, "Failed")?;
        ensure!(failed.reason == "InvalidSpec", "{id}: {failed:?}");
        ensure!(failed.message.contains(text), "{id}: {}", failed.message);
        ensure!(
            failed.message.len() <= 1024,
            "{id}: {} bytes",
            failed.message.len()
        );
        let pods = read::pods(&world.client, world.namespace(), &name).await?;
        ensure!(pods.is_empty(), "{id}: {:?}", read::names(&pods));
    }
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_021_b_046_b_120_b_122_b_123_b_128_what_the_server_refuses_for_good_ends_the_job_with_its_words()
-> Result<()> {
    every(what_the_server_refuses_for_good_ends_the_job_with_its_words).await
}

/// The job is stalled with this reason and text, without pods.
async fn waits(world: &World, name: &str, reason: &str, text: &str) -> Result<()> {
    let stalled = condition(&world.jobs.until_true(name, "Stalled").await?, "Stalled")?;
    ensure!(stalled.reason == reason, "{name}: {stalled:?}");
    ensure!(
        stalled.message.contains(text),
        "{name}: {}",
        stalled.message
    );
    let pods = read::pods(&world.client, world.namespace(), name).await?;
    ensure!(pods.is_empty(), "{name}: {:?}", read::names(&pods));
    Ok(())
}

/// The job goes on, and is not stalled any more.
async fn goes_on(world: &World, name: &str) -> Result<()> {
    world.kubelet.until_pods(world.namespace(), name, 1).await?;
    let freed = |job: &Value| !is_true(job, "Stalled");
    world.jobs.until(name, "free", freed).await?;
    Ok(())
}

async fn what_is_missing_in_the_cluster_is_waited_for(of: Smallest) -> Result<()> {
    let Some(world) = World::of(of.0, "missing", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let class = format!("class-{}", world.namespace());
    let prioritised = of
        .job("priority")
        .set(&of.spec("priorityClassName"), class.clone());
    let account = of
        .job("account")
        .set(&of.spec("serviceAccountName"), "nobody");
    world.jobs.create(&prioritised.build()).await?;
    world.jobs.create(&account.build()).await?;
    waits(
        &world,
        "priority",
        "AdmissionDenied",
        "no PriorityClass with name",
    )
    .await?;
    waits(
        &world,
        "account",
        "AdmissionDenied",
        "serviceaccount \"nobody\" not found",
    )
    .await?;
    let classes: Api<PriorityClass> = Api::all(world.client.clone());
    let object = serde_json::from_value(json!({"metadata": {"name": class}, "value": 1}))?;
    classes.create(&PostParams::default(), &object).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(world.client.clone(), world.namespace());
    let object = serde_json::from_value(json!({"metadata": {"name": "nobody"}}))?;
    accounts.create(&PostParams::default(), &object).await?;
    goes_on(&world, "priority").await?;
    goes_on(&world, "account").await?;
    classes.delete(&class, &DeleteParams::default()).await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_097_b_121_what_is_missing_in_the_cluster_is_waited_for() -> Result<()> {
    every(what_is_missing_in_the_cluster_is_waited_for).await
}

async fn pods_that_reach_for_the_host_are_refused_where_that_is_restricted(
    of: Smallest,
) -> Result<()> {
    let Some(world) = World::of(of.0, "restricted", lockstep()).await? else {
        return Ok(());
    };
    let namespaces: Api<NamespaceObject> = Api::all(world.client.clone());
    let level = |level: Value| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
    let enforced = Patch::Merge(level(json!("baseline")));
    namespaces
        .patch(world.namespace(), &PatchParams::default(), &enforced)
        .await?;
    let operator = world.operator().await?;
    let rows = [
        (
            "network",
            of.job("network").set(&of.spec("hostNetwork"), true),
            "host",
        ),
        (
            "processes",
            of.job("processes").set(&of.spec("hostPID"), true),
            "hostPID",
        ),
        (
            "privileged",
            of.job("privileged")
                .set(&of.main("securityContext"), json!({"privileged": true})),
            "privileged",
        ),
        (
            "path",
            of.job("path").set(
                &of.spec("volumes"),
                json!([{"name": "a", "hostPath": {"path": "/"}}]),
            ),
            "hostPath",
        ),
    ];
    for (_, job, _) in &rows {
        world.jobs.create(&job.clone().build()).await?;
    }
    for (name, _, text) in &rows {
        waits(&world, name, "PodSecurityDenied", text).await?;
    }
    let lifted = Patch::Merge(level(Value::Null));
    namespaces
        .patch(world.namespace(), &PatchParams::default(), &lifted)
        .await?;
    goes_on(&world, "network").await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_110_b_125_pods_that_reach_for_the_host_are_refused_where_that_is_restricted()
-> Result<()> {
    every(pods_that_reach_for_the_host_are_refused_where_that_is_restricted).await
}

async fn large_jobs_run_like_small_ones(of: Smallest) -> Result<()> {
    let Some(world) = World::of(of.0, "large", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let variables: Vec<Value> = (0..5_000)
        .map(|n| json!({"name": format!("V{n}"), "value": n.to_string()}))
        .collect();
    let containers: Vec<Value> = std::iter::once(of.0.any_container().to_owned())
        .chain((1..500).map(|n| format!("c{n}")))
        .map(|name| json!({"name": name, "image": "a"}))
        .collect();
    // Close to etcd's limit; as an argument it is in the pod as well.
    let heavy = "x".repeat(900 * 1024);
    let jobs = [
        of.job("variables").set(&of.main("env"), variables),
        of.job("containers").set(&of.spec("containers"), containers),
        of.job("heavy").set(&of.main("args"), json!([heavy])),
    ];
    for job in jobs {
        world.jobs.create(&job.build()).await?;
    }
    for name in ["variables", "containers", "heavy"] {
        of.runs(&world, name).await?;
    }
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_022_b_023_large_jobs_run_like_small_ones() -> Result<()> {
    every(large_jobs_run_like_small_ones).await
}

async fn a_foreign_service_in_the_way_is_left_alone_and_waited_for(of: Smallest) -> Result<()> {
    let Some(world) = World::of(of.0, "service", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let services: Api<Service> = Api::namespaced(world.client.clone(), world.namespace());
    let foreign = serde_json::from_value(json!({
        "metadata": {"name": of.pod("pt")}, "spec": {"ports": [{"port": 80}]},
    }))?;
    let before = services.create(&PostParams::default(), &foreign).await?;
    world.jobs.create(&of.job("pt").build()).await?;
    let stalled = condition(&world.jobs.until_true("pt", "Stalled").await?, "Stalled")?;
    assert_eq!(stalled.reason, "NameConflict");
    holds_for(STAYS, async || {
        let now = services.get(&of.pod("pt")).await?;
        ensure!(
            now.metadata.uid == before.metadata.uid && now.spec == before.spec,
            "{now:?}"
        );
        ensure!(now.owner_references().is_empty(), "it was adopted");
        Ok(())
    })
    .await?;
    services
        .delete(&of.pod("pt"), &DeleteParams::default())
        .await?;
    goes_on(&world, "pt").await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_041_a_foreign_service_in_the_way_is_left_alone_and_waited_for() -> Result<()> {
    // The hosts of an MPIJob share one Service.
    let test = a_foreign_service_in_the_way_is_left_alone_and_waited_for;
    e2e::for_each_kind(KINDS, |kind| test(Smallest(kind))).await
}

async fn a_job_applied_twice_is_one_job(of: Smallest) -> Result<()> {
    let Some(world) = World::of(of.0, "twice", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let resource = of.0.resource();
    let jobs: Api<kube::api::DynamicObject> =
        Api::namespaced_with(world.client.clone(), world.namespace(), &resource);
    let object = Patch::Apply(of.job("pt").build());
    let mine = PatchParams::apply("mine");
    let first = jobs.patch("pt", &mine, &object).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 1).await?;
    let second = jobs.patch("pt", &mine, &object).await?;
    assert_eq!(first.metadata.generation, second.metadata.generation);
    let other = Patch::Apply(
        of.job("pt")
            .set(
                &format!("/spec/{}/{}/replicas", of.0.replica_map, of.role()),
                2,
            )
            .build(),
    );
    let refused = jobs.patch("pt", &PatchParams::apply("other"), &other).await;
    let code = match refused {
        Err(kube::Error::Api(status)) => status.code,
        other => anyhow::bail!("{other:?}"),
    };
    assert_eq!(code, 409);
    let pods = read::pods(&world.client, world.namespace(), "pt").await?;
    assert_eq!(read::names(&pods), [of.pod("pt")]);
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_026_a_job_applied_twice_is_one_job() -> Result<()> {
    every(a_job_applied_twice_is_one_job).await
}

/// How often a job is created again.
fn rounds() -> usize {
    if is_deep() { 50 } else { 2 }
}

async fn a_job_deleted_and_made_again_and_again_waits_for_its_slow_pods(
    of: Smallest,
) -> Result<()> {
    let Some(world) = World::of(of.0, "again", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    let mut former = None;
    for round in 0..rounds() {
        let created = world.jobs.create(&of.job("pt").build()).await?;
        let uid = created["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let mine = eventually("the pod of this job", HANG, async || {
            let pod = pods.get_opt(&of.pod("pt")).await?;
            let owner = pod
                .as_ref()
                .and_then(|p| p.owner_references().first())
                .map(|o| o.uid.clone());
            Ok(if owner.as_deref() == Some(&uid) {
                Seen::Yes(pod.and_then(|p| p.metadata.uid))
            } else {
                Seen::NotYet(format!("round {round}: {owner:?}"))
            })
        })
        .await?;
        ensure!(mine != former, "round {round}: a pod of the former job");
        eventually("the kubelet to see the pod", HANG, async || {
            let pods = world.kubelet.pods(world.namespace(), "pt");
            Ok(if pods.iter().any(|pod| Some(&pod.uid) == mine.as_ref()) {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await?;
        former = mine;
        world.kubelet.all_running(world.namespace(), "pt").await?;
        // The next job is created while this one's pod is terminating.
        world.jobs.delete("pt").await?;
        eventually("the job to be gone", HANG, async || {
            Ok(match world.jobs.get("pt").await {
                Ok(_) => Seen::NotYet("it is there".to_owned()),
                Err(_) => Seen::Yes(()),
            })
        })
        .await?;
    }
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_150_mt_35_a_job_deleted_and_made_again_and_again_waits_for_its_slow_pods() -> Result<()>
{
    every(a_job_deleted_and_made_again_and_again_waits_for_its_slow_pods).await
}

async fn pods_that_were_orphaned_are_not_adopted_by_a_successor(of: Smallest) -> Result<()> {
    let Some(world) = World::of(of.0, "orphan", lockstep()).await? else {
        return Ok(());
    };
    if !world.control.can().controllers {
        e2e::skip("nobody collects garbage here");
        return Ok(());
    }
    let operator = world.operator().await?;
    world.jobs.create(&of.job("pt").build()).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 1).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    let resource = of.0.resource();
    let jobs: Api<kube::api::DynamicObject> =
        Api::namespaced_with(world.client.clone(), world.namespace(), &resource);
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    jobs.delete("pt", &orphan).await?;
    eventually("the pod to be an orphan", HANG, async || {
        let pod = pods.get(&of.pod("pt")).await?;
        let gone = jobs.get_opt("pt").await?.is_none();
        Ok(if gone && pod.owner_references().is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{:?}", pod.owner_references()))
        })
    })
    .await?;
    let before = pods.get(&of.pod("pt")).await?;
    world.jobs.create(&of.job("pt").build()).await?;
    let stalled = condition(&world.jobs.until_true("pt", "Stalled").await?, "Stalled")?;
    assert_eq!(stalled.reason, "NameConflict");
    holds_for(STAYS, async || {
        let now = pods.get(&of.pod("pt")).await?;
        ensure!(now.metadata.uid == before.metadata.uid, "it was replaced");
        ensure!(now.owner_references().is_empty(), "it was adopted");
        ensure!(now.metadata.deletion_timestamp.is_none(), "it was deleted");
        Ok(())
    })
    .await?;
    operator.assert_no_panic()
}

#[tokio::test]
async fn b_151_pods_that_were_orphaned_are_not_adopted_by_a_successor() -> Result<()> {
    every(pods_that_were_orphaned_are_not_adopted_by_a_successor).await
}

async fn a_pod_whose_labels_or_owner_are_changed_gets_no_twin(of: Smallest) -> Result<()> {
    let Some(world) = World::of(of.0, "stripped", lockstep()).await? else {
        return Ok(());
    };
    let mut operator = world.operator().await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    let labels = |change: Value| json!({"metadata": {"labels": change}});
    let changes = [
        (
            "rank",
            labels(json!({"training.kubeflow.org/replica-index": "7"})),
        ),
        (
            "label",
            labels(json!({"training.kubeflow.org/job-name": null})),
        ),
        ("owner", json!({"metadata": {"ownerReferences": null}})),
    ];
    let mut before = Vec::new();
    for (name, change) in &changes {
        world.jobs.create(&of.job(name).build()).await?;
        of.runs(&world, name).await?;
        let change = Patch::Merge(change);
        let pod = of.pod(name);
        let pod = pods.patch(&pod, &PatchParams::default(), &change).await?;
        before.push(pod.metadata.uid);
    }
    let untouched = async || {
        let mut now: Vec<_> = Vec::new();
        for (name, _) in &changes {
            now.push(pods.get(&of.pod(name)).await?.metadata.uid);
        }
        ensure!(now == before, "other pods: {now:?}");
        let all = pods.list(&ListParams::default()).await?.items.len();
        ensure!(all == changes.len() * of.pods(), "{all} pods");
        Ok(())
    };
    // Orphans have taken the names; a restarted operator comes to the same result.
    for again in [false, true] {
        if again {
            operator.kill()?;
            operator.restart().await?;
        }
        for (name, _) in &changes {
            // The name of an MPIJob's host contains its rank.
            if of.0 == MPI && *name == "rank" {
                continue;
            }
            let job = world.jobs.until_true(name, "Stalled").await?;
            assert_eq!(condition(&job, "Stalled")?.reason, "NameConflict", "{name}");
        }
        holds_for(STAYS, untouched).await?;
    }
    operator.assert_no_panic()
}

#[tokio::test]
async fn b_154_b_155_a_pod_whose_labels_or_owner_are_changed_gets_no_twin() -> Result<()> {
    every(a_pod_whose_labels_or_owner_are_changed_gets_no_twin).await
}

async fn a_job_that_waits_for_a_users_finalizer_makes_nothing_and_asks_for_nothing(
    of: Smallest,
) -> Result<()> {
    let Some(world) = World::of(of.0, "finalizer", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let held = of
        .job("pt")
        .set("/metadata/finalizers", json!(["example.com/mine"]));
    world.jobs.create(&held.build()).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 1).await?;
    world.jobs.delete("pt").await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    pods.delete(&of.pod("pt"), &DeleteParams::default().grace_period(0))
        .await?;
    let before = world.jobs.get("pt").await?;
    holds_for(STAYS, async || {
        let now = world.jobs.get("pt").await?;
        ensure!(
            now["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"],
            "{now:#}"
        );
        ensure!(
            pods.get_opt(&of.pod("pt")).await?.is_none(),
            "a pod was made"
        );
        Ok(())
    })
    .await?;
    world
        .jobs
        .merge("pt", &json!({"metadata": {"finalizers": null}}))
        .await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_156_a_job_that_waits_for_a_users_finalizer_makes_nothing_and_asks_for_nothing()
-> Result<()> {
    every(a_job_that_waits_for_a_users_finalizer_makes_nothing_and_asks_for_nothing).await
}

async fn the_longest_names_run(of: Smallest) -> Result<()> {
    let Some(world) = World::of(of.0, &"n".repeat(40), lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let name = "j".repeat(54);
    world.jobs.create(&of.job(&name).build()).await?;
    of.runs(&world, &name).await?;
    of.succeeds(&world, &name).await?;
    let job = world.jobs.until_true(&name, "Succeeded").await?;
    assert_eq!(conditions(&job).len(), 3);
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_031_b_037_the_longest_names_run() -> Result<()> {
    every(the_longest_names_run).await
}
