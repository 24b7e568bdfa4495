//! The laws. Each is checked where it could be broken.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use training_core::{
    DurableState, JobState, Lifecycle, Object, ObjectKind, Observed, Plan, PodPhase, PodView,
    StatusWrite, TrainingJob, Uid, names,
};

use super::{StatusOf, World};
use crate::{JOB_NAME, OPERATOR_NAME};

/// The largest status in bytes, whatever the number of replicas.
const STATUS_BYTES: usize = 32 * 1024;

/// Status key: the uid of the Job that a restart replaces.
const FORMER: &str = "formerLauncher";

/// The history that the laws need.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// Slots whose failed pod was deleted to be replaced.
    failed: BTreeSet<String>,
    /// Slots whose pod had succeeded, as far as the operator knew, when it wrote a status of the present run.
    done: BTreeSet<String>,
    /// Pods created in slots whose failed pod was deleted.
    replaced: i64,
    /// The highest backoff limit so far.
    limit: i64,
    /// At some time there was no backoff limit.
    unlimited: bool,
    /// The status shows that the program of a Job has ended.
    over: bool,
    /// Kinds of groups that the present run has had.
    pub(super) grouped: BTreeSet<training_core::GroupKind>,
}

fn holds(state: &DurableState, type_: &str) -> bool {
    state
        .conditions
        .iter()
        .any(|c| c.type_ == type_ && c.status == "True")
}

fn ended(state: &DurableState) -> bool {
    holds(state, "Succeeded") || holds(state, "Failed")
}

impl<F: Lifecycle> World<F> {
    fn breach(&mut self, what: String) {
        self.breaches.push(what);
    }

    fn law(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.breach(what());
        }
    }

    /// The same input gives the same plan, and an idle operator doesn't request an immediate requeue.
    pub(super) fn law_of_waking(&mut self, plan: &Plan<StatusOf<F>>) {
        // A sample of all plans is enough and halves the time.
        if self.version.is_multiple_of(4) {
            let again = self.plan();
            self.law(*plan == again, || {
                "two plans from one input differ".to_owned()
            });
        }
        let (now, wake) = (self.now, plan.requeue_at);
        self.law(
            !plan.is_idle() || !plan.requeue && wake.is_none_or(|at| at > now),
            || format!("an idle plan asks for {wake:?} at {now}"),
        );
    }

    pub(super) fn law_of_status(&mut self, before: &StatusOf<F>, write: &StatusWrite<StatusOf<F>>) {
        let (old, new) = (before.durable_state(), write.next.durable_state());
        let patched = training_core::patch::apply(
            &serde_json::to_value(before).unwrap_or_default(),
            &write.patch,
        );
        let next = serde_json::to_value(&write.next).unwrap_or_default();
        self.law(patched == next, || {
            format!("the patch {} gives {patched}, not {next}", write.patch)
        });
        let size = next.to_string().len();
        self.law(size <= STATUS_BYTES, || format!("a status of {size} bytes"));
        self.law_of_conditions(&old, &new);
        self.law_of_times(&old, &new);
        self.law_of_counts(&old, &new);
        if new.gang_attempt != old.gang_attempt {
            self.ledger.done.clear();
        }
        // A restart replaces a Job that has gone, too.
        self.ledger.over &= !new.made_once.contains_key(FORMER);
        let gang = new.gang_attempt;
        let view = &self.view;
        let roles = view.job.as_ref().and_then(|j| self.framework.roles(j).ok());
        let done = view.pods.known().iter().filter(|(_, p)| {
            let role = roles.as_ref().and_then(|r| r.by_label(&p.role));
            p.phase == PodPhase::Succeeded
                && p.attempt.gang >= gang
                && role.is_some_and(|(_, r)| p.index < r.replicas)
        });
        let done: Vec<String> = done.map(|(name, _)| name.clone()).collect();
        self.ledger.done.extend(done);
        if let Some(roles) = &roles {
            // A replica that was removed from the spec is a new one when it comes back.
            let job = self.view.job.as_ref().map(ResourceExt::name_any);
            let job = job.unwrap_or_default();
            self.ledger.done.retain(|name| {
                names::index(name).is_some_and(|index| {
                    let mut wanted = roles.iter().filter(|r| index < r.replicas);
                    wanted.any(|r| names::is_replica(name, &job, &r.label, index))
                })
            });
        }
        if holds(&new, "Suspended") != holds(&old, "Suspended") {
            self.ledger.failed.clear();
        }
    }

    fn law_of_conditions(&mut self, old: &DurableState, new: &DurableState) {
        for end in ["Succeeded", "Failed"] {
            self.law(!holds(old, end) || holds(new, end), || {
                format!("{end} did not last")
            });
        }
        let pairs = [
            ("Succeeded", "Failed"),
            ("Running", "Restarting"),
            ("Running", "Suspended"),
            ("Running", "Succeeded"),
            ("Running", "Failed"),
        ];
        for (one, other) in pairs {
            self.law(!(holds(new, one) && holds(new, other)), || {
                format!("{one} and {other}")
            });
        }
        for condition in &new.conditions {
            let reason = condition.reason.as_deref().unwrap_or_default();
            let message = condition.message.as_deref().unwrap_or_default();
            self.law(
                reason.starts_with(|c: char| c.is_ascii_uppercase())
                    && reason
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || c == '/')
                    && (1..=1024).contains(&message.len()),
                || {
                    format!(
                        "condition {} with reason {reason:?}, message {message:?}",
                        condition.type_
                    )
                },
            );
            let was = old.conditions.iter().find(|c| c.type_ == condition.type_);
            let moved =
                was.is_none_or(|w| w.last_transition_time != condition.last_transition_time);
            let flipped = was.is_none_or(|w| w.status != condition.status);
            // Within one second a flip is invisible.
            let now = condition
                .last_transition_time
                .as_ref()
                .is_some_and(|t| t.0 == self.now);
            self.law(moved == flipped || flipped && now, || {
                format!(
                    "transition time of {} moved: {moved}, status flipped: {flipped}",
                    condition.type_
                )
            });
        }
    }

    fn law_of_times(&mut self, old: &DurableState, new: &DurableState) {
        let activated = holds(old, "Suspended") && !holds(new, "Suspended");
        self.law(
            old.started.is_none() || old.started == new.started || activated,
            || "startTime changed within an activation".to_owned(),
        );
        self.law(
            old.completed.is_none() || old.completed == new.completed,
            || "completionTime changed".to_owned(),
        );
        self.law(new.completed.is_some() == ended(new), || {
            "an end without its time".to_owned()
        });
        self.law(
            new.completed
                .zip(new.started)
                .is_none_or(|(end, start)| end >= start),
            || "completionTime before startTime".to_owned(),
        );
    }

    fn law_of_counts(&mut self, old: &DurableState, new: &DurableState) {
        let policy = self
            .job
            .as_ref()
            .map(|j| j.run_policy().clone())
            .unwrap_or_default();
        match policy.backoff_limit {
            Some(limit) => self.ledger.limit = self.ledger.limit.max(i64::from(limit)),
            None => self.ledger.unlimited = true,
        }
        self.law(
            new.counted_failures == old.counted_failures
                || policy
                    .backoff_limit
                    .is_none_or(|l| i64::from(new.counted_failures) <= i64::from(l)),
            || {
                format!(
                    "{} failures counted, limit {:?}",
                    new.counted_failures, policy.backoff_limit
                )
            },
        );
        self.law(
            new.counted_failures >= old.counted_failures
                && new.recreated >= old.recreated
                && new.container_restarts >= old.container_restarts
                && new.gang_attempt >= old.gang_attempt,
            || format!("a count went down: {old:?} -> {new:?}"),
        );
        if new.gang_attempt == old.gang_attempt {
            let kept = |(place, was): (&(String, u32), &training_core::ReplicaRestarts)| {
                new.replicas
                    .get(place)
                    .is_some_and(|is| is.attempt >= was.attempt)
            };
            self.law(old.replicas.iter().all(kept), || {
                "an attempt was forgotten".to_owned()
            });
        }
    }

    /// Only pods that the deciding reconcile saw are deleted, even if the request arrives late.
    pub(super) fn law_of_victims(&mut self, name: &str, victim: Uid, observed: &Observed) {
        self.law(observed.pods.iter().any(|p| p.uid == victim), || {
            format!("{name} was not seen")
        });
    }

    /// A forced deletion requires an earlier graceful one, and the operator's setting.
    pub(super) fn law_of_force(&mut self, name: &str) {
        let made = self.batch_pods.get(name).map(|made| &made.pod);
        let asked = self.pod(name).or(made).is_some_and(|p| p.terminating);
        let may = self.rules.force_lost_after.is_some();
        self.law(asked && may, || format!("{name} was forced"));
    }

    /// Every deletion of a pod has a reason in the status stored before it.
    pub(super) fn law_of_reasons(&mut self, name: &str, uid: Uid) {
        let Some(pod) = self.pod(name).filter(|p| p.uid == uid).cloned() else {
            return;
        };
        let state = self.durable_state();
        let surplus = self.view.job.as_ref().is_none_or(|job| {
            let roles = self.framework.roles(job).unwrap_or_default();
            roles
                .by_label(&pod.role)
                .is_none_or(|(_, r)| pod.index >= r.replicas)
        });
        let outdated = pod.attempt < state.attempt(&pod.role, pod.index);
        self.law(
            pod.terminating || surplus || outdated || ended(&state) || holds(&state, "Suspended"),
            || format!("{name} was deleted before a reason was stored: {pod:?}"),
        );
        let failed = pod.phase == PodPhase::Failed && !pod.disrupted && !pod.terminating;
        let counts = outdated && pod.attempt.gang == state.gang_attempt;
        // The Job controller counts the pods of Jobs.
        if F::OBJECTS.is_empty() && failed && counts && !surplus && !ended(&state) {
            self.ledger.failed.insert(name.to_owned());
        }
    }

    pub(super) fn law_of_ttl(&mut self) {
        let state = self.durable_state();
        let ttl = self
            .job
            .as_ref()
            .and_then(|j| j.run_policy().ttl_seconds_after_finished);
        let (now, end) = (self.now, state.completed);
        let over = end
            .zip(ttl)
            .is_some_and(|(end, ttl)| (now - end).get_seconds() > i64::from(ttl));
        self.law(ended(&state) && over, || {
            format!("deleted at {now}, ended {end:?}, ttl {ttl:?}")
        });
    }

    pub(super) fn law_of_new_pod(&mut self, name: &str, pod: &Pod, view: &PodView) {
        self.law_of_new_object(name, &pod.metadata);
        self.law_of_secrets(name, pod.spec.as_ref());
        self.law_of_gang(name, view);
        let state = self.durable_state();
        let suspends = |j: &F::Job| j.run_policy().suspend == Some(true);
        let suspended = self.view.job.as_ref().is_some_and(suspends);
        self.law(!suspended && !ended(&state), || {
            format!("{name} was made for a job at rest")
        });
        // If a Job runs the program, other pods are hosts, which are needed again.
        let done = F::OBJECTS.is_empty() && self.ledger.done.contains(name);
        self.law(!done && !state.has_finished(&view.role, view.index), || {
            format!("{name} runs again")
        });
        self.law(
            view.attempt >= state.attempt(&view.role, view.index),
            || format!("{name} was made for the past attempt {}", view.attempt),
        );
        if self.ledger.failed.remove(name) {
            self.ledger.replaced += 1;
            let (replaced, limit) = (self.ledger.replaced, self.ledger.limit);
            self.law(self.ledger.unlimited || replaced <= limit, || {
                format!("replacement {replaced} under a limit of {limit}")
            });
        }
    }

    pub(super) fn law_of_new_object(&mut self, name: &str, meta: &ObjectMeta) {
        let Some(job) = self.view.job.as_ref() else {
            return;
        };
        let (job_name, uid) = (job.name_any(), job.meta().uid.clone().unwrap_or_default());
        let owners = meta.owner_references.as_deref().unwrap_or_default();
        let owned = matches!(owners, [o] if o.uid == uid
            && o.controller == Some(true)
            && o.name == job_name
            && o.kind == F::Job::kind(&()));
        let empty = std::collections::BTreeMap::new();
        let labels = meta.labels.as_ref().unwrap_or(&empty);
        let label = |key: &str| labels.get(key).map_or("", String::as_str);
        let operator = label(OPERATOR_NAME);
        let (role, index) = super::view::place(meta);
        let named = (operator == F::CONTROLLER || F::ALSO_WATCHED.contains(&operator))
            && label(JOB_NAME) == job_name
            && names::is_replica(name, &job_name, &role, index);
        let alive = job.meta().deletion_timestamp.is_none();
        self.law(owned && named && alive, || {
            format!("{name} is not the job's: {meta:?}")
        });
    }

    /// Our pods mount only the job's own Secrets.
    fn law_of_secrets(&mut self, name: &str, spec: Option<&PodSpec>) {
        let volumes = spec.and_then(|s| s.volumes.as_ref()).into_iter().flatten();
        let secrets = volumes.filter_map(|v| v.secret.as_ref()?.secret_name.clone());
        for secret in secrets.collect::<Vec<_>>() {
            self.law(self.secrets.get(&secret) == Some(&true), || {
                format!("{name} mounts somebody else's Secret {secret}")
            });
        }
    }

    /// Other objects belong to the job and are not created after its end. A Job runs nothing while the job is suspended or a pod of
    /// the previous Job runs.
    pub(super) fn law_of_new_further_object(&mut self, object: &Object) {
        self.law_of_owner(object);
        let (name, state) = (object.name(), self.durable_state());
        self.law(!ended(&state), || {
            format!("{name} was made for a job that has ended")
        });
        let Object::Job(batch) = object else {
            return;
        };
        let spec = batch.spec.as_ref();
        self.law_of_secrets(&name, spec.and_then(|s| s.template.spec.as_ref()));
        let runs = spec.is_some_and(|s| s.suspend != Some(true));
        let asked = |j: &F::Job| j.run_policy().suspend == Some(true);
        let suspended = self.view.job.as_ref().is_some_and(asked);
        self.law(!(runs && suspended), || {
            format!("{name} runs although the job is suspended")
        });
        let former = self.view.batch_pods.known().values();
        let former = former.filter(|p| !p.pod.phase.has_ended()).count();
        self.law(!runs || former == 0, || {
            format!("{name} was made beside {former} pods of the Job before it")
        });
        let over = self.ledger.over;
        self.law(!over, || format!("{name} runs the program again"));
    }

    /// Removes an ended Job. If the status knows that it ran, it must not run again.
    pub(super) fn law_of_lapsed(&mut self, uid: Uid) {
        let mut known = self.durable_state().made_once;
        // A restart has replaced it.
        known.remove(FORMER);
        self.ledger.over |= known.values().any(|text| Uid::parse(text) == Some(uid));
    }

    /// Other objects are deleted after the end of the job, or as a Job that runs nothing or that a restart replaces.
    pub(super) fn law_of_lost_object(
        &mut self,
        kind: ObjectKind,
        name: &str,
        uid: Uid,
        suspended: bool,
    ) {
        let state = self.durable_state();
        let former = state.made_once.get(FORMER);
        let former = former.is_some_and(|text| Uid::parse(text) == Some(uid));
        let idle = kind == ObjectKind::Job && (suspended || former);
        self.law(ended(&state) || idle, || {
            format!("{name} was deleted although its job goes on")
        });
    }

    /// Checks the laws of a settled world. The operator's caches must be up to date.
    pub fn law_at_rest(&mut self) {
        let (pods, services): (Vec<PodView>, usize) =
            (self.pods.values().cloned().collect(), self.services.len());
        let objects = self.objects.len();
        let Some(job) = self.job.clone() else {
            return self.law(pods.is_empty() && services + objects == 0, || {
                "orphans".to_owned()
            });
        };
        let plan = self.plan();
        self.law(plan.is_idle() && !plan.requeue, || {
            format!("not at rest: {plan:?}")
        });
        let state = self.durable_state();
        let autoscaler = self.law_of_autoscaler_at_rest(&job);
        self.breaches.extend(autoscaler);
        let groups = self.law_of_groups_at_rest(&job);
        self.breaches.extend(groups);
        if ended(&state) {
            return;
        }
        if job.run_policy().suspend == Some(true) {
            return self.law(pods.is_empty() && services == 0, || {
                "pods while suspended".to_owned()
            });
        }
        let framework = &self.framework;
        let Ok(roles) = framework.roles(&job) else {
            let says = state.conditions.iter().any(|c| {
                c.type_ == "Stalled"
                    && c.status == "True"
                    && c.reason.as_deref() == Some("InvalidSpec")
            });
            return self.law(says, || {
                "an invalid job has neither ended nor says so".to_owned()
            });
        };
        let mut found = Vec::new();
        // The operator waits for a terminating group, and a group that protects pods goes with the last of them.
        let held = self.groups().any(|g| g.terminating);
        let alone = F::OBJECTS.is_empty();
        let mut wanted = 0;
        for rank in roles.ranks() {
            // The program of this kind runs in a Job.
            if !alone && rank.role.is_master {
                continue;
            }
            wanted += 1;
            let name = names::replica(&job.name_any(), &rank.role.label, rank.index);
            let finished = state.has_finished(&rank.role.label, rank.index);
            if !finished && !held && !self.pods.contains_key(&name) {
                found.push(format!("{name} is missing"));
            }
            if F::REPLICA_SERVICES && !held && !self.services.contains_key(&name) {
                found.push(format!("service {name} is missing"));
            }
        }
        if !held && F::REPLICA_SERVICES && services != wanted || pods.len() > wanted {
            found.push("something is left over".to_owned());
        }
        for kind in F::OBJECTS {
            // A launcher may wait for hosts that ended.
            let waits = *kind == ObjectKind::Job;
            if !waits && !self.objects.keys().any(|(k, _)| k == kind) {
                found.push(format!("there is no {}", kind.as_str()));
            }
        }
        for role in &roles {
            let mine = pods.iter().filter(|p| *p.role == *role.label);
            let running = mine.filter(|p| p.phase == PodPhase::Running).count();
            let counts = state
                .counts
                .as_ref()
                .and_then(|c| c.get(&role.key))
                .cloned()
                .unwrap_or_default();
            let sum = [counts.active, counts.succeeded, counts.failed].map(i64::from);
            if !alone && role.is_master {
                let launching = self.batch_pods.values();
                let launching = launching.filter(|p| p.pod.phase == PodPhase::Running);
                if sum[0] != i64::try_from(launching.count()).unwrap_or(i64::MAX) {
                    found.push(format!("{counts:?} of {}", role.key));
                }
                continue;
            }
            if sum[0] != i64::try_from(running).unwrap_or(i64::MAX)
                || sum.iter().any(|n| *n < 0)
                || sum.iter().sum::<i64>() > i64::from(role.replicas)
            {
                found.push(format!(
                    "{counts:?} with {running} running {} pods",
                    role.label
                ));
            }
        }
        self.breaches.extend(found);
    }
}
