//! CS-5: changes that happen while a watch is held. The operator lists afterwards and never sees the states in between.

use anyhow::{Result, bail};
use e2e::lives::{Life, MpiLife, SparkLife, StepRunner, has_succeeded};
use e2e::{World, for_each_kind};
use kube::api::DeleteParams;
use training_testkit::builders::{EVERY_KIND, Kind, MPI, SPARK};
use training_testkit::kubelet::{State, lockstep};
use training_testkit::operator::OperatorProcess;
use training_testkit::proxy::{Action, Answer, Call, Effect, Gate, Proxy, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

const JOB: &str = "pt";

/// The job's life cycle: the job survives the loss of a pod, and keeps its pods when it finishes.
fn life(kind: Kind) -> Life {
    match kind {
        MPI => Life::Mpi(MpiLife::Retried),
        SPARK => Life::Spark(SparkLife::Retried),
        _ => Life::RetryableExit,
    }
}

/// Selects the watches of this resource.
fn watches(resource: &'static str) -> impl Fn(&Call) -> bool {
    move |call| call.is_for_jobs("watch", resource)
}

/// A running job and its operator behind a proxy.
struct Scene {
    world: World,
    proxy: Proxy,
    operator: OperatorProcess,
}

impl Scene {
    async fn set(kind: Kind, prefix: &str) -> Result<Option<Self>> {
        let Some(world) = World::of(kind, prefix, lockstep()).await? else {
            return Ok(None);
        };
        let (proxy, operator) = world.proxied_operator().await?;
        let scene = Self {
            world,
            proxy,
            operator,
        };
        scene.create().await?;
        scene.actor().run_all().await?;
        // An interrupted write is repeated from a new read, which would show what must stay unseen.
        scene.world.auditor.until_settled().await?;
        Ok(Some(scene))
    }

    async fn create(&self) -> Result<()> {
        let kind = self.world.kind;
        self.actor().create(life(kind).job(kind, JOB)).await
    }

    fn actor(&self) -> StepRunner<'_> {
        self.world.actor(JOB)
    }

    /// The pod that fails or is deleted.
    fn victim(&self) -> &'static str {
        if self.world.kind == SPARK {
            "pt-driver"
        } else {
            "pt-worker-1"
        }
    }

    /// Holds all further events of this resource.
    async fn hold(&self, resource: &'static str) -> Result<Rule> {
        let held = Action::HoldEvents(Gate::closed());
        let rule = Rule::new("held", held, watches(resource));
        self.proxy.add(&rule);
        self.proxy.cut().await?;
        // An open watch that isn't held yet would still deliver the events.
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

    /// Forces the operator to list the resource; the held events are lost.
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
        let expired = Rule::new("expired", expired, watches(resource)).nth(1);
        self.proxy.add(&expired);
        self.proxy.cut().await?;
        eventually("the resource to be listed", HANG, async || {
            let records = self.proxy.records();
            // A list of a single object doesn't come from a watch.
            let listed = |call: &Call| call.is("list", resource) && call.name.is_empty();
            Ok(if records.iter().any(|record| listed(&record.call)) {
                Seen::Yes(())
            } else {
                Seen::NotYet("it is not".into())
            })
        })
        .await
    }

    /// The job succeeds; the failed pod and all other objects have these numbers of creates and deletes.
    async fn end(self, victim: (u32, u32), others: (u32, u32)) -> Result<()> {
        // Of an application, only the driver outlives a run.
        let others = if self.world.kind == SPARK {
            (victim.0, victim.0)
        } else {
            others
        };
        let pod = format!("Pod/{}", self.victim());
        self.end_if(|object, churn| churn == if object == pod { victim } else { others })
            .await
    }

    /// The job succeeds, and the creates and deletes of each object pass the check.
    async fn end_if(self, fits: impl Fn(&str, (u32, u32)) -> bool) -> Result<()> {
        self.actor().all_end_well().await?;
        let jobs = &self.world.jobs;
        jobs.until(JOB, "at its end", has_succeeded).await?;
        let odd = || {
            let all = self.world.auditor.summary();
            let mut rows = all
                .iter()
                .map(|(o, churn)| (o, (churn.creates, churn.deletes)));
            let odd = rows.find(|(object, churn)| !fits(object, *churn));
            odd.map(|(object, _)| format!("{object}: {all:?}"))
        };
        // An application's other objects go after its end.
        eventually("the expected creates and deletes", HANG, async || {
            Ok(odd().map_or(Seen::Yes(()), Seen::NotYet))
        })
        .await?;
        self.proxy.assert_guarded()?;
        self.world.assert_clean(&self.operator).await?;
        // Nor more often.
        match odd() {
            None => Ok(()),
            Some(odd) => bail!(odd),
        }
    }
}

async fn failure(kind: Kind) -> Result<()> {
    let Some(scene) = Scene::set(kind, "unseenfail").await? else {
        return Ok(());
    };
    let held = scene.hold("pods").await?;
    let (kubelet, namespace) = (&scene.world.kubelet, scene.world.namespace());
    kubelet.fail(namespace, scene.victim(), 137).await?;
    kubelet.disappear(namespace, scene.victim()).await?;
    scene.release(&held, "pods").await?;
    scene.until_replaced().await?;
    scene.end((2, 1), (1, 0)).await
}

#[tokio::test]
async fn cs5_a_failure_that_was_never_seen_leads_to_one_new_pod() -> Result<()> {
    for_each_kind(EVERY_KIND, failure).await
}

async fn deletion(kind: Kind) -> Result<()> {
    let Some(scene) = Scene::set(kind, "unseendelete").await? else {
        return Ok(());
    };
    let held = scene.hold("pods").await?;
    let (kubelet, namespace) = (&scene.world.kubelet, scene.world.namespace());
    kubelet
        .disrupt(namespace, scene.victim(), "EvictionByEvictionAPI")
        .await?;
    scene.until_gone().await?;
    scene.release(&held, "pods").await?;
    scene.until_replaced().await?;
    scene.end((2, 1), (1, 0)).await
}

#[tokio::test]
async fn cs5_a_deletion_that_was_never_seen_leads_to_one_new_pod() -> Result<()> {
    for_each_kind(EVERY_KIND, deletion).await
}

async fn suspension(kind: Kind) -> Result<()> {
    let Some(scene) = Scene::set(kind, "unseensuspend").await? else {
        return Ok(());
    };
    let held = scene.hold(kind.plural).await?;
    scene.actor().suspend(true).await?;
    scene.actor().suspend(false).await?;
    scene.release(&held, kind.plural).await?;
    scene.end((1, 0), (1, 0)).await
}

#[tokio::test]
async fn cs5_a_suspension_that_was_never_seen_stops_nothing() -> Result<()> {
    for_each_kind(EVERY_KIND, suspension).await
}

async fn successor(kind: Kind) -> Result<()> {
    let Some(scene) = Scene::set(kind, "unseenjob").await? else {
        return Ok(());
    };
    let held = scene.hold(kind.plural).await?;
    let actor = scene.actor();
    actor.delete(&DeleteParams::background()).await?;
    actor.until_gone().await?;
    actor.until_all_is_gone().await?;
    scene.create().await?;
    scene.release(&held, kind.plural).await?;
    actor.run_all().await?;
    // Until it sees the deletion, the operator may replace what the garbage collector deletes; that is collected as well.
    scene
        .end_if(|object, (creates, deletes)| {
            let goes_with_its_run = kind == SPARK && !object.starts_with("Pod/");
            creates == deletes + u32::from(!goes_with_its_run) && deletes >= 1
        })
        .await
}

#[tokio::test]
async fn cs5_a_job_whose_former_one_was_never_seen_to_go_gets_its_own_pods() -> Result<()> {
    for_each_kind(EVERY_KIND, successor).await
}

impl Scene {
    /// Waits until the replacement pod runs.
    async fn until_replaced(&self) -> Result<()> {
        let (kubelet, namespace) = (&self.world.kubelet, self.world.namespace());
        eventually("the new pod", HANG, async || {
            let pods = kubelet.pods(namespace, JOB);
            let mut all = pods.iter().filter(|pod| pod.name == self.victim());
            let new = all.any(|pod| pod.replica.incarnation == 1 && pod.bound);
            Ok(if new {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await?;
        kubelet.set(namespace, self.victim(), &State::Running).await
    }

    async fn until_gone(&self) -> Result<()> {
        let (kubelet, namespace) = (&self.world.kubelet, self.world.namespace());
        eventually("the pod to be gone", HANG, async || {
            let pods = kubelet.pods(namespace, JOB);
            Ok(if pods.iter().any(|pod| pod.name == self.victim()) {
                Seen::NotYet(format!("{pods:?}"))
            } else {
                Seen::Yes(())
            })
        })
        .await
    }
}
