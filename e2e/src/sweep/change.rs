//! Changes to a job while no operator runs, and how the job is driven to an end afterwards.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use training_testkit::builders::SPARK;
use training_testkit::job::is_true;
use training_testkit::kubelet::SeenPod;
use training_testkit::wait::{HANG, Seen, eventually};

use crate::lives::{Life, StepRunner, has_ended};

/// The polling interval of a job on its way to its end.
const PAUSE: Duration = Duration::from_millis(80);
/// Longer than the TTL that is set.
const TIME_TO_LIVE: Duration = Duration::from_millis(1_100);

/// R3: a change while the operator is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// All existing pods succeed.
    AllFinished,
    /// One pod fails.
    PodFailed,
    /// The object of one pod disappears.
    PodDeleted,
    /// The job is deleted.
    JobDeleted,
    /// The job is deleted, and recreated under its name.
    JobRecreated,
    /// The template of a role is edited.
    SpecEdited,
    /// The job is suspended.
    Suspended,
    /// The job gets a TTL, which expires before an operator runs.
    TimeToLiveElapsed,
}

impl Change {
    /// All changes.
    pub const ALL: [Self; 8] = [
        Self::AllFinished,
        Self::PodFailed,
        Self::PodDeleted,
        Self::JobDeleted,
        Self::JobRecreated,
        Self::SpecEdited,
        Self::Suspended,
        Self::TimeToLiveElapsed,
    ];

    /// Makes this change, or the next possible one: without pods, none can fail.
    pub(super) async fn happen_or_next(self, life: Life, actor: &StepRunner<'_>) -> Result<()> {
        let others = Self::ALL.into_iter().cycle();
        let others = others.skip_while(|change| *change != self);
        for change in others.take(Self::ALL.len()) {
            if change.happen(life, actor).await? {
                return Ok(());
            }
        }
        bail!("nothing could happen instead of {self}")
    }

    /// Makes this change; returns false if it is impossible.
    async fn happen(self, life: Life, actor: &StepRunner<'_>) -> Result<bool> {
        let (kubelet, namespace) = (&actor.world.kubelet, actor.world.namespace());
        let there = actor.world.jobs.exists(actor.name).await?;
        match self {
            Self::AllFinished => {
                if a_pod(actor).is_none() {
                    return Ok(false);
                }
                eventually("all pods to end well", HANG, async || {
                    let ended = kubelet.all_succeeded(namespace, actor.name).await;
                    Ok(match ended {
                        Ok(_) => Seen::Yes(()),
                        Err(error) => Seen::NotYet(format!("{error:#}")),
                    })
                })
                .await?;
            }
            Self::PodFailed => {
                let fail = async |pod: &str| kubelet.fail(namespace, pod, 137).await;
                return to_a_pod(actor, fail).await;
            }
            Self::PodDeleted => {
                let disappear = async |pod: &str| kubelet.disappear(namespace, pod).await;
                return to_a_pod(actor, disappear).await;
            }
            Self::JobDeleted | Self::JobRecreated => {
                kubelet.finish_deletes(true);
                if there {
                    actor.delete(&DeleteParams::background()).await?;
                    actor.until_gone().await?;
                }
                if self == Self::JobRecreated {
                    actor.create(life.job(actor.world.kind, actor.name)).await?;
                }
            }
            Self::SpecEdited if there && actor.world.kind == SPARK => {
                let edit = json!({ "spec": { "arguments": edited() } });
                actor.merge(&edit).await?;
            }
            Self::SpecEdited if there => {
                let edited = json!({ "metadata": { "annotations": { "edited": "yes" } } });
                let roles = json!({ "Worker": { "template": edited } });
                let edit = json!({ "spec": { actor.world.kind.replica_map: roles } });
                actor.merge(&edit).await?;
            }
            Self::Suspended if there => actor.suspend(true).await?,
            Self::TimeToLiveElapsed if there => {
                let field = if actor.world.kind == SPARK {
                    "timeToLiveSeconds"
                } else {
                    "ttlSecondsAfterFinished"
                };
                actor.change_policy(json!({ field: 1 })).await?;
                tokio::time::sleep(TIME_TO_LIVE).await;
            }
            Self::SpecEdited | Self::Suspended | Self::TimeToLiveElapsed => return Ok(false),
        }
        Ok(true)
    }
}

/// Applies an action to a pod, by its name; returns false if there is none. If a delete was in flight when the operator died and
/// the pod disappears, tries another pod.
async fn to_a_pod(actor: &StepRunner<'_>, act: impl AsyncFn(&str) -> Result<()>) -> Result<bool> {
    while let Some(pod) = a_pod(actor) {
        let Err(error) = act(&pod.name).await else {
            return Ok(true);
        };
        eventually("a pod that can't be changed to be gone", HANG, async || {
            let next = a_pod(actor);
            Ok(if next.is_some_and(|next| next.name == pod.name) {
                Seen::NotYet(format!("{}: {error:#}", pod.name))
            } else {
                Seen::Yes(())
            })
        })
        .await?;
    }
    Ok(false)
}

/// Returns a pod that can change.
fn a_pod(actor: &StepRunner<'_>) -> Option<SeenPod> {
    let pods = actor
        .world
        .kubelet
        .pods(actor.world.namespace(), actor.name);
    pods.into_iter()
        .filter(|pod| pod.bound && !pod.is_finished() && !pod.deleting)
        .max_by(|a, b| a.name.cmp(&b.name))
}

/// Drives a job in any state to an end: makes all its pods succeed until it has ended, or is gone with its children.
pub(super) async fn lead_to_end(actor: &StepRunner<'_>) -> Result<()> {
    let world = actor.world;
    world.kubelet.finish_deletes(true);
    let end = eventually("an end of the job", HANG, async || {
        tokio::time::sleep(PAUSE).await;
        if !world.jobs.exists(actor.name).await? {
            return Ok(Seen::Yes(None));
        }
        let Ok(job) = world.jobs.get(actor.name).await else {
            return Ok(Seen::NotYet("it has just gone".into()));
        };
        let ended = has_ended(&job) && !is_edited(&job);
        if ended && !goes_by_itself(&job) {
            return Ok(Seen::Yes(Some(job)));
        }
        if policy(&job)["suspend"] == true && !ended {
            actor.suspend(false).await?;
        }
        // A pod that disappears at this moment is no failure.
        let ended = actor.all_end_well().await;
        let ended = ended.err().map(|error| format!("{error:#}"));
        Ok(Seen::NotYet(format!("{} {ended:?}", job["status"])))
    })
    .await?;
    match end {
        None => actor.until_all_is_gone().await,
        Some(job) => {
            let both = is_true(&job, "Succeeded") && is_true(&job, "Failed");
            ensure!(!both, "succeeded and failed: {}", job["status"]);
            let status = &job["status"];
            let times = [&status["completionTime"], &status["terminationTime"]];
            let completed = times.iter().any(|time| time.is_string());
            ensure!(completed, "ended at no time: {}", job["status"]);
            if job["kind"] == "MPIJob" && is_timed(&job) {
                actor.until_nothing_is_left().await?;
            }
            until_collected(actor, &job).await
        }
    }
}

/// Whether the operator has not noticed yet that an application was edited: an ended one runs again.
fn is_edited(job: &Value) -> bool {
    let observed = &job["status"]["observedGeneration"];
    job["spec"]["arguments"] == edited() && *observed != job["metadata"]["generation"]
}

/// The arguments of an edited application.
fn edited() -> Value {
    json!(["edited"])
}

/// Waits until no object of a former job with that name is left. That depends on the garbage collector: the new job may end
/// before, with a succeeded master while a worker still waits for its name.
async fn until_collected(actor: &StepRunner<'_>, job: &Value) -> Result<()> {
    let (client, namespace) = (&actor.world.client, actor.world.namespace());
    let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
    let former = |owner: &OwnerReference| {
        let named = owner.kind == actor.world.kind.name && owner.name == actor.name;
        named && owner.uid != uid
    };
    eventually("the former job's objects to be gone", HANG, async || {
        let mut all = Vec::new();
        for (kind, plural) in [
            ("Pod", "pods"),
            ("Service", "services"),
            ("ConfigMap", "configmaps"),
        ] {
            let kind = GroupVersionKind::gvk("", "v1", kind);
            let kind = ApiResource::from_gvk_with_plural(&kind, plural);
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
            all.extend(api.list(&ListParams::default()).await?.items);
        }
        all.retain(|object| object.owner_references().iter().any(former));
        Ok(if all.is_empty() {
            Seen::Yes(())
        } else {
            let names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
            Seen::NotYet(names.join(", "))
        })
    })
    .await?;
    actor.world.auditor.settled().await
}

/// Returns a job's run policy.
fn policy(job: &Value) -> &Value {
    if job["kind"] == SPARK.name {
        &job["spec"]
    } else {
        &job["spec"]["runPolicy"]
    }
}

fn is_timed(job: &Value) -> bool {
    let policy = policy(job);
    policy["ttlSecondsAfterFinished"].is_number() || policy["timeToLiveSeconds"].is_number()
}

fn goes_by_itself(job: &Value) -> bool {
    // The TTL of an MPIJob of v2beta1 deletes only its children.
    let stays = job["kind"] == "MPIJob" && job["spec"]["submittedAs"] != "v1";
    is_timed(job) && !stays || job["metadata"]["deletionTimestamp"].is_string()
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl FromStr for Change {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|c| c.to_string() == text) {
            Some(change) => Ok(change),
            None => bail!("there is no change {text}"),
        }
    }
}
