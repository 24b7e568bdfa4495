//! CS-5: what came and passed while a stream was held. The operator learns of what is left by a list, as if the time between had
//! never been.

use anyhow::{Result, ensure};
use e2e::World;
use e2e::lives::StepRunner;
use kube::api::DeleteParams;
use training_testkit::builders::pytorch_job;
use training_testkit::kubelet::{State, lockstep};
use training_testkit::operator::OperatorProcess;
use training_testkit::proxy::{Action, Answer, Effect, Gate, Proxy, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

const JOB: &str = "pt";
const WORKER: &str = "pt-worker-1";

/// A job that runs, and its operator behind a proxy.
struct Scene {
    world: World,
    proxy: Proxy,
    operator: OperatorProcess,
}

impl Scene {
    async fn set(prefix: &str) -> Result<Option<Self>> {
        let Some(world) = World::start(prefix, lockstep()).await? else {
            return Ok(None);
        };
        let (proxy, operator) = world.proxied_operator().await?;
        let scene = Self {
            world,
            proxy,
            operator,
        };
        scene.create().await?;
        scene.actor().run(1, 2).await?;
        Ok(Some(scene))
    }

    async fn create(&self) -> Result<()> {
        let job = pytorch_job(JOB).master().workers(2);
        let job = job.restart_policy("Worker", "ExitCode");
        self.actor().create(job).await
    }

    fn actor(&self) -> StepRunner<'_> {
        self.world.actor(JOB)
    }

    /// From now on the operator hears nothing of this resource.
    async fn hold(&self, resource: &'static str) -> Result<Rule> {
        let held = Action::HoldEvents(Gate::closed());
        let rule = Rule::new("held", held, move |call| call.is("watch", resource));
        self.proxy.add(&rule);
        self.proxy.cut().await?;
        // An answer that is not held yet would tell what is to be held.
        let opened = || {
            let records = self.proxy.records();
            let mut held = records.iter().filter(|r| r.rule.as_deref() == Some("held"));
            held.any(|record| record.code == Some(200))
        };
        eventually("the watch to be held", HANG, async || {
            Ok(if opened() {
                Seen::Yes(())
            } else {
                Seen::NotYet("no watch".into())
            })
        })
        .await?;
        Ok(rule)
    }

    /// The operator has to list the resource; what was held is lost.
    async fn release(&self, held: &Rule, resource: &'static str) -> Result<()> {
        eventually("an event to be held", HANG, async || {
            Ok(if held.hits() > 0 {
                Seen::Yes(())
            } else {
                Seen::NotYet("none".into())
            })
        })
        .await?;
        self.proxy.clear_rules();
        self.proxy.clear_records();
        let gone = Answer::new(410, "Expired", "too old resource version");
        let expired = Action::Answer(Effect::Without, gone);
        let expired = Rule::new("expired", expired, move |call| call.is("watch", resource)).nth(1);
        self.proxy.add(&expired);
        self.proxy.cut().await?;
        eventually("the resource to be listed", HANG, async || {
            let records = self.proxy.records();
            let listed = |call: &training_testkit::proxy::Call| call.is("list", resource);
            Ok(if records.iter().any(|record| listed(&record.call)) {
                Seen::Yes(())
            } else {
                Seen::NotYet("it is not".into())
            })
        })
        .await
    }

    /// The job succeeds, and its objects came and went as often as told: the worker's pod, and all others.
    async fn end(self, worker: (u32, u32), others: (u32, u32)) -> Result<()> {
        self.end_if(|object, churn| match object {
            "Pod/pt-worker-1" => churn == worker,
            _ => churn == others,
        })
        .await
    }

    /// The job succeeds, and how often each of its objects was created and deleted fits.
    async fn end_if(self, fits: impl Fn(&str, (u32, u32)) -> bool) -> Result<()> {
        let kubelet = &self.world.kubelet;
        kubelet.all_succeeded(self.world.namespace(), JOB).await?;
        self.world.jobs.until_true(JOB, "Succeeded").await?;
        self.world.auditor.settled().await?;
        let summary = self.world.auditor.summary();
        for (object, churn) in &summary {
            let fits = fits(object, (churn.creates, churn.deletes));
            ensure!(fits, "{object}: {summary:?}");
        }
        self.proxy.assert_guarded()?;
        self.world.assert_clean(&self.operator).await
    }
}

#[tokio::test]
async fn cs5_a_failure_that_was_never_seen_leads_to_one_new_pod() -> Result<()> {
    let Some(scene) = Scene::set("unseenfail").await? else {
        return Ok(());
    };
    let held = scene.hold("pods").await?;
    let (kubelet, namespace) = (&scene.world.kubelet, scene.world.namespace());
    kubelet.fail(namespace, WORKER, 137).await?;
    kubelet.disappear(namespace, WORKER).await?;
    scene.release(&held, "pods").await?;
    scene.until_replaced().await?;
    scene.end((2, 1), (1, 0)).await
}

#[tokio::test]
async fn cs5_a_deletion_that_was_never_seen_leads_to_one_new_pod() -> Result<()> {
    let Some(scene) = Scene::set("unseendelete").await? else {
        return Ok(());
    };
    let held = scene.hold("pods").await?;
    let (kubelet, namespace) = (&scene.world.kubelet, scene.world.namespace());
    kubelet
        .disrupt(namespace, WORKER, "EvictionByEvictionAPI")
        .await?;
    scene.until_gone().await?;
    scene.release(&held, "pods").await?;
    scene.until_replaced().await?;
    scene.end((2, 1), (1, 0)).await
}

#[tokio::test]
async fn cs5_a_suspension_that_was_never_seen_stops_nothing() -> Result<()> {
    let Some(scene) = Scene::set("unseensuspend").await? else {
        return Ok(());
    };
    let held = scene.hold("pytorchjobs").await?;
    scene.actor().suspend(true).await?;
    scene.actor().suspend(false).await?;
    scene.release(&held, "pytorchjobs").await?;
    scene.end((1, 0), (1, 0)).await
}

#[tokio::test]
async fn cs5_a_job_whose_former_one_was_never_seen_to_go_gets_its_own_pods() -> Result<()> {
    let Some(scene) = Scene::set("unseenjob").await? else {
        return Ok(());
    };
    let held = scene.hold("pytorchjobs").await?;
    let actor = scene.actor();
    actor.delete(&DeleteParams::background()).await?;
    actor.until_gone().await?;
    actor.until_left(&[], &[]).await?;
    scene.create().await?;
    scene.release(&held, "pytorchjobs").await?;
    actor.run(1, 2).await?;
    // Until it hears of the deletion, the operator may replace what the garbage collector takes; that is collected as well.
    scene
        .end_if(|_, (creates, deletes)| creates == deletes + 1 && deletes >= 1)
        .await
}

impl Scene {
    /// The worker's new pod runs.
    async fn until_replaced(&self) -> Result<()> {
        let (kubelet, namespace) = (&self.world.kubelet, self.world.namespace());
        eventually("the worker's new pod", HANG, async || {
            let pods = kubelet.pods(namespace, JOB);
            let mut workers = pods.iter().filter(|pod| pod.name == WORKER);
            let new = workers.any(|pod| pod.replica.incarnation == 1 && pod.bound);
            Ok(if new {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await?;
        kubelet.set(namespace, WORKER, &State::Running).await
    }

    async fn until_gone(&self) -> Result<()> {
        let (kubelet, namespace) = (&self.world.kubelet, self.world.namespace());
        eventually("the worker to be gone", HANG, async || {
            let pods = kubelet.pods(namespace, JOB);
            Ok(if pods.iter().any(|pod| pod.name == WORKER) {
                Seen::NotYet(format!("{pods:?}"))
            } else {
                Seen::Yes(())
            })
        })
        .await
    }
}
