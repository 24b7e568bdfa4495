//! With a gang-aware operator, the real Kubernetes scheduler starts the pods of a job together or not at all.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use e2e::pods::{
    OPERATORS, Site, UNTIL_GO, Weight, container, eventually, example, operator_pods, pair_of,
    shell_of,
};
use e2e::read;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use training_testkit::builders::{Job, Kind, MPI, PYTORCH, TENSORFLOW, XGBOOST};
use training_testkit::control_plane::workspace;
use training_testkit::job::{counters, is_true};
use training_testkit::wait::{Seen, holds_for};

/// What one pod requests. Units: hundredths of the node's free CPU. Two fit, three don't.
const SHARE: i64 = 35;
/// Long enough to see that nothing changes any more.
const STAYS: Duration = Duration::from_secs(5);

/// A namespace with two priority classes, both below that of everything else.
struct Yard {
    site: Site,
    /// One pod's request. Units: millicores.
    cpu: i64,
}

impl Yard {
    /// Measures the node's free CPU while nothing else starts.
    async fn open(kind: Kind, prefix: &str) -> Result<Option<Self>> {
        let prefix = format!("{prefix}-{}", kind.plural);
        let site = Site::of(kind, &prefix, Weight::Heavy).await?;
        if !site.cluster.is_open() {
            e2e::skip("it needs a node for itself and another setting of the operator");
            return Ok(None);
        }
        let classes: Api<PriorityClass> = Api::all(site.client.clone());
        for (class, value) in [("high", -10), ("low", -20)] {
            let object = json!({
                "metadata": { "name": format!("{}-{class}", site.namespace) }, "value": value,
            });
            let object = serde_json::from_value(object)?;
            classes.create(&PostParams::default(), &object).await?;
        }
        let mut yard = Self { site, cpu: 0 };
        yard.cpu = yard.left().await? * SHARE / 100;
        Ok(Some(yard))
    }

    /// The node's free CPU. Units: millicores.
    async fn left(&self) -> Result<i64> {
        let client = &self.site.client;
        let nodes = Api::<Node>::all(client.clone());
        let nodes = nodes.list(&ListParams::default()).await?.items;
        let [node] = nodes.as_slice() else {
            bail!("{} nodes", nodes.len());
        };
        let node = serde_json::to_value(node)?;
        let mut left = millis(&node["status"]["allocatable"]["cpu"])?;
        let pods = Api::<Pod>::all(client.clone());
        for pod in pods.list(&ListParams::default()).await? {
            let pod = serde_json::to_value(pod)?;
            if pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed" {
                continue;
            }
            for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
                let asks = &container["resources"]["requests"]["cpu"];
                left -= if asks.is_null() { 0 } else { millis(asks)? };
            }
        }
        Ok(left)
    }

    fn class(&self, class: &str) -> String {
        format!("{}-{class}", self.site.namespace)
    }

    /// A job whose pods run until all of them have been seen running, with these classes in its templates.
    fn job(&self, name: &str, classes: Option<(&str, &str)>) -> Job {
        let pod = |class: Option<&str>| {
            let sign = all_run(name);
            let script = format!("until getent hosts {sign}; do sleep 0.2; done");
            let mut pod = shell_of(&self.site.kind, &script);
            pod["containers"][0]["resources"]["requests"]["cpu"] = format!("{}m", self.cpu).into();
            if let Some(class) = class {
                pod["priorityClassName"] = self.class(class).into();
            }
            pod
        };
        let (main, worker) = classes.unzip();
        let kind = &self.site.kind;
        if *kind != MPI {
            return pair_of(kind, name, pod(main), pod(worker));
        }
        kind.job(name)
            .role("Launcher", 1)
            .workers(1)
            .set("/spec/mpiReplicaSpecs/Launcher/template/spec", pod(main))
            .set("/spec/mpiReplicaSpecs/Worker/template/spec", pod(worker))
            .annotation("trainyard.dev/launcher-gate", "false")
    }

    async fn pods(&self) -> Result<Vec<Value>> {
        let mut pods = Vec::new();
        for pod in self.site.pods().list(&ListParams::default()).await? {
            pods.push(serde_json::to_value(pod)?);
        }
        Ok(pods)
    }

    /// The masters run, and the workers don't fit. It doesn't matter which worker came first, because a master's class would have
    /// preempted it.
    async fn block_each_other(&self) -> Result<()> {
        for name in ["one", "two"] {
            let job = self.job(name, Some(("high", "low")));
            self.site.jobs.create(&job.build()).await?;
        }
        let blocked = async || {
            let pods = self.pods().await?;
            let main = if self.site.kind == MPI {
                "launcher"
            } else {
                "master"
            };
            let running = |name: &str| {
                let name = format!("{name}-{main}");
                let runs = |p: &Value| {
                    read::name(p).starts_with(&name) && p["status"]["phase"] == "Running"
                };
                pods.iter().any(runs)
            };
            let homeless = |name: &str| {
                let waits = |p: &Value| read::name(p) == name && unschedulable(p);
                pods.iter().any(waits)
            };
            let masters = running("one") && running("two");
            let workers = homeless("one-worker-0") && homeless("two-worker-0");
            Ok(if masters && workers {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        };
        eventually("the jobs to block each other", blocked).await?;
        holds_for(STAYS, async || match blocked().await? {
            Seen::Yes(()) => Ok(()),
            Seen::NotYet(pods) => bail!("no longer blocked: {pods}"),
        })
        .await?;
        for name in ["one", "two"] {
            self.site.jobs.delete(name).await?;
        }
        eventually("no pods", async || {
            let pods = self.pods().await?;
            Ok(if pods.is_empty() {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{:?}", read::names(&pods)))
            })
        })
        .await
    }

    /// Runs the same two jobs as gangs. One has its class in the policy, the other has two classes in its templates.
    async fn run_one_after_the_other(&self) -> Result<String> {
        let names = ["three", "four"];
        let mixed = self.job("three", Some(("high", "low")));
        let policy = json!({ "priorityClass": self.class("high") });
        let told = self
            .job("four", None)
            .run_policy("schedulingPolicy", policy);
        self.site.jobs.create(&mixed.build()).await?;
        self.site.jobs.create(&told.build()).await?;
        let mut announced = BTreeSet::new();
        eventually("both to succeed", async || {
            let pods = self.pods().await?;
            for name in names {
                if count_running(&pods, name) == 2 && announced.insert(name) {
                    self.site.announce(&all_run(name)).await?;
                }
            }
            let placed = |name: &&&str| {
                let prefix = format!("{name}-");
                let runs = |p: &Value| {
                    read::name(p).starts_with(&prefix)
                        && p["spec"]["nodeName"].is_string()
                        && p["status"]["phase"] != "Succeeded"
                };
                pods.iter().any(runs)
            };
            ensure!(
                names.iter().filter(placed).count() < 2,
                "side by side: {pods:?}"
            );
            let mut done = pods.iter().all(|p| p["status"]["phase"] == "Succeeded");
            for name in names {
                done &= is_true(&self.site.jobs.get(name).await?, "Succeeded");
            }
            Ok(if done {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await?;
        let pods = self.pods().await?;
        let class = self.class("high");
        for pod in &pods {
            // A panic rather than an error, because the operator must be restored.
            let of = &pod["spec"]["priorityClassName"];
            ensure!(*of == *class, "{}: {of}", read::name(pod));
        }
        for kind in ["PodGroup", "Workload"] {
            self.until_no(kind).await?;
        }
        let mut spans = names.map(|name| span(&pods, name));
        spans.sort_by_key(|span| span.as_ref().map(|s| s.0).ok());
        let [first, second] = spans;
        let (first, second) = (first?, second?);
        ensure!(first.1 <= second.0, "{first:?} and {second:?}");
        Ok(format!(
            "{}s and {}s, one after the other",
            seconds(first),
            seconds(second)
        ))
    }

    /// The scheduler counts only live pods: a replacement must not wait for a pod that has finished.
    async fn replace_a_pod_beside_one_that_is_done(&self) -> Result<()> {
        let (site, kind) = (&self.site, &self.site.kind);
        let worker = format!("case $(hostname) in *-worker-1) exit 0;; esac; {UNTIL_GO}");
        let (master, worker) = (shell_of(kind, UNTIL_GO), shell_of(kind, &worker));
        let job = pair_of(kind, "five", master, worker)
            .set(&format!("/spec/{}/Worker/replicas", kind.replica_map), 2)
            .restart_policy("Worker", "ExitCode");
        site.jobs.create(&job.build()).await?;
        site.until("five", "running with one worker done", |job| {
            let workers = counters(job, "Worker");
            (workers.get("succeeded"), workers.get("active")) == (Some(&1), Some(&1))
                && job["status"]["ready"] == "3/3"
        })
        .await?;
        let before = site.pod("five-worker-0").await?;
        site.cluster.kill(container(&before)?)?;
        site.until_replaced(&before).await?;
        site.until("five", "whole again", |job| {
            job["status"]["ready"] == "3/3" && job["status"]["restarts"] == 1
        })
        .await?;
        site.go().await?;
        site.until_true("five", "Succeeded").await?;
        self.until_no("PodGroup").await
    }

    /// The example trains as a gang.
    async fn run_the_example(&self) -> Result<()> {
        let site = &self.site;
        site.jobs.create(&example("pytorch/gang.yaml")?).await?;
        let pods = site.until_running("gang", 2).await?;
        let group = |pod: &Value| pod["spec"]["schedulingGroup"].is_object();
        ensure!(pods.iter().all(group), "{pods:?}");
        site.until_true("gang", "Succeeded").await.map(drop)
    }

    async fn until_no(&self, kind: &str) -> Result<()> {
        let group = GroupVersionKind::gvk("scheduling.k8s.io", "v1beta1", kind);
        let groups: Api<DynamicObject> = Api::namespaced_with(
            self.site.client.clone(),
            &self.site.namespace,
            &ApiResource::from_gvk(&group),
        );
        eventually(&format!("no {kind}"), async || {
            let left = groups.list(&ListParams::default()).await?.items;
            Ok(if left.is_empty() {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{left:?}"))
            })
        })
        .await
    }

    /// Switches the operator to Kubernetes' own gangs as documented.
    async fn set_native(&self) -> Result<()> {
        let rights = workspace().join(format!(
            "manifests/{}/gang/native.yaml",
            self.site.kind.operator
        ));
        let rights = rights.to_str().context("a path that is no text")?;
        self.kubectl(&["apply", "-f", rights])?;
        let change = json!([{
            "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--gang=native",
        }]);
        let (deployment, change) = (self.deployment(), change.to_string());
        self.kubectl(&["patch", &deployment, "--type=json", "-p", &change])?;
        self.until_rolled_out().await
    }

    /// Restores the operator for later tests.
    async fn restore(&self) -> Result<()> {
        self.kubectl(&["rollout", "undo", &self.deployment()])?;
        self.until_rolled_out().await?;
        let classes: Api<PriorityClass> = Api::all(self.site.client.clone());
        for class in ["high", "low"] {
            classes
                .delete(&self.class(class), &DeleteParams::default())
                .await?;
        }
        Ok(())
    }

    fn deployment(&self) -> String {
        format!("deployment/{}", self.site.kind.operator)
    }

    /// The former operator leads until it has ended, and no longer counts then.
    async fn until_rolled_out(&self) -> Result<()> {
        self.kubectl(&["rollout", "status", &self.deployment(), "--timeout=3m"])?;
        eventually("one operator", async || {
            let pods = operator_pods(&self.site.client, &self.site.kind).await?;
            Ok(if pods.len() == 1 {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{} pods", pods.len()))
            })
        })
        .await
    }

    fn kubectl(&self, args: &[&str]) -> Result<()> {
        let namespaced = [&["--namespace", OPERATORS], args].concat();
        self.site.cluster.kubectl(&namespaced).map(drop)
    }
}

/// Units: millicores.
fn millis(quantity: &Value) -> Result<i64> {
    let text = quantity.as_str().context("no quantity")?;
    let whole = |text: &str| text.parse::<i64>();
    Ok(match text.strip_suffix('m') {
        Some(millis) => whole(millis)?,
        None => whole(text)? * 1_000,
    })
}

fn unschedulable(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c["type"] == "PodScheduled" && c["reason"] == "Unschedulable")
}

/// The name that resolves once all pods of a job run.
fn all_run(job: &str) -> String {
    format!("all-of-{job}-run")
}

fn count_running(pods: &[Value], job: &str) -> usize {
    let prefix = format!("{job}-");
    let of = |p: &&Value| read::name(p).starts_with(&prefix);
    let runs = |p: &&Value| p["status"]["phase"] == "Running";
    pods.iter().filter(of).filter(runs).count()
}

/// From the scheduling of a job's first pod to the end of its last container.
fn span(pods: &[Value], job: &str) -> Result<(Timestamp, Timestamp)> {
    let prefix = format!("{job}-");
    let time = |text: &Value| -> Result<Timestamp> {
        Ok(text.as_str().context("no time")?.parse::<Timestamp>()?)
    };
    let (mut begins, mut ends) = (Vec::new(), Vec::new());
    for pod in pods.iter().filter(|p| read::name(p).starts_with(&prefix)) {
        let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        begins.push(time(&pod["status"]["startTime"])?);
        ends.push(time(&state["finishedAt"])?);
    }
    let (begin, end) = (begins.into_iter().min(), ends.into_iter().max());
    begin.zip(end).with_context(|| format!("{job} has no pods"))
}

fn seconds(span: (Timestamp, Timestamp)) -> i64 {
    span.1.as_second() - span.0.as_second()
}

async fn two_jobs_that_need_more_than_half_of_the_node_block_each_other_unless_they_are_gangs(
    kind: Kind,
) -> Result<()> {
    let Some(yard) = Yard::open(kind, "gang-native").await? else {
        return Ok(());
    };
    yard.block_each_other().await?;
    yard.set_native().await?;
    let gangs = async {
        let saw = yard.run_one_after_the_other().await?;
        if kind != MPI {
            // Its workers are hosts, which don't end.
            yard.replace_a_pod_beside_one_that_is_done().await?;
        }
        if kind == PYTORCH {
            yard.run_the_example().await?;
        }
        Ok::<_, anyhow::Error>(saw)
    };
    let saw = gangs.await;
    yard.restore().await?;
    yard.site.finish(&saw?).await
}

#[tokio::test]
async fn two_big_pytorch_jobs_block_each_other_unless_they_are_gangs() -> Result<()> {
    two_jobs_that_need_more_than_half_of_the_node_block_each_other_unless_they_are_gangs(PYTORCH)
        .await
}

#[tokio::test]
async fn two_big_tf_jobs_block_each_other_unless_they_are_gangs() -> Result<()> {
    two_jobs_that_need_more_than_half_of_the_node_block_each_other_unless_they_are_gangs(TENSORFLOW)
        .await
}

#[tokio::test]
async fn two_big_xgboost_jobs_block_each_other_unless_they_are_gangs() -> Result<()> {
    two_jobs_that_need_more_than_half_of_the_node_block_each_other_unless_they_are_gangs(XGBOOST)
        .await
}

#[tokio::test]
async fn two_big_mpi_jobs_block_each_other_unless_they_are_gangs() -> Result<()> {
    two_jobs_that_need_more_than_half_of_the_node_block_each_other_unless_they_are_gangs(MPI).await
}
