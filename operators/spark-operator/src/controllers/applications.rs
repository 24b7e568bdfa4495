//! The planner of applications: observes, plans and executes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;
use training_core::{StatusWrite, Uid};
use training_runtime::caller::Caller;
use training_runtime::fault::Fault;
use training_runtime::frame::now;
use training_runtime::key::JobKey;
use training_runtime::worker::{LastReconcile, Outcome, Planner, Subject};

use super::cache::Cache;
use super::execute::{self, StepRunner};
use super::metrics::SparkMetrics;
use super::stored::CachedApplication;
use crate::api::SparkApplicationStatus;
use crate::digest::{self, SpecDigest};
use crate::lifecycle::mask::Mask;
use crate::lifecycle::observed::{Kind, MissingObject, Observed, Refusal, Refused};
use crate::lifecycle::step::{Plan, Step};
use crate::lifecycle::{PlanInput, Rules, plan};
use crate::submission::Settings;

/// How long to wait before retrying a driver name that another pod holds: a little less than the plan waits.
const TAKEN: Duration = Duration::from_secs(28);

/// The planner of applications.
pub struct Applications {
    /// The cache of pods and other objects.
    pub cache: Arc<Cache>,
    /// Sends requests.
    pub caller: Arc<Caller>,
    /// Settings of submissions.
    pub settings: Settings,
    /// How applications are reconciled.
    pub rules: Rules,
    /// Where counts of applications go.
    pub counts: SparkMetrics,
    /// State of this process. It is lost at a restart and rebuilt by later reconciles.
    pub state: ProcessState,
}

/// What only this process knows.
#[derive(Default)]
pub struct ProcessState {
    refused: Mutex<HashMap<JobKey, (Uid, Refused)>>,
    taken: Mutex<HashMap<JobKey, Taken>>,
    missing_objects: Mutex<HashMap<JobKey, (Uid, Vec<MissingObject>)>>,
    freed: Mutex<HashMap<JobKey, Instant>>,
    first: Mutex<HashMap<JobKey, (Uid, SpecDigest)>>,
}

/// A driver's name that another pod has.
#[derive(Clone, Debug)]
struct Taken {
    of: Uid,
    /// An edit may choose another name.
    generation: Option<i64>,
    name: String,
    until: Instant,
}

/// Returns the entry if it has this uid.
fn known_of<T: Clone>(all: &Mutex<HashMap<JobKey, (Uid, T)>>, key: &JobKey, uid: Uid) -> Option<T> {
    let all = all.lock();
    let known = all.get(key).filter(|(of, _)| *of == uid);
    known.map(|(_, known)| known.clone())
}

impl ProcessState {
    /// The spec of an ended application whose record can't be compared, as this process first observed it.
    fn first(&self, key: &JobKey, uid: Uid, app: &CachedApplication) -> Option<SpecDigest> {
        let mut all = self.first.lock();
        let status = app.object.status.as_ref();
        let lasts = status.filter(|status| {
            let ended = status.application_state.state.is_terminal();
            ended && digest::is_foreign(status.spec_digest.as_deref())
        });
        if lasts.is_none() {
            all.remove(key);
            return None;
        }
        let known = all.get(key).filter(|(of, _)| *of == uid);
        let first = known.map_or_else(|| app.digest.clone(), |(_, first)| first.clone());
        all.insert(key.clone(), (uid, first.clone()));
        Some(first)
    }
}

impl Applications {
    fn step_runner<'a>(&'a self, app: &'a CachedApplication, uid: Uid) -> StepRunner<'a> {
        StepRunner {
            caller: &self.caller,
            cache: &self.cache,
            app,
            uid,
        }
    }

    /// Remembers the optional objects that could not be created, and forgets those created since.
    fn remember_missing(
        &self,
        key: &JobKey,
        uid: Uid,
        steps: &[Step],
        missing_objects: &[(Kind, String, String)],
    ) {
        let tried = steps.iter().filter_map(|step| match step {
            Step::CreateOptional(new) => Some((new.id(), new.submission_id())),
            _ => None,
        });
        let tried: Vec<_> = tried.collect();
        if tried.is_empty() {
            return;
        }
        let mut all = self.state.missing_objects.lock();
        let former = all.remove(key).filter(|(of, _)| *of == uid);
        let mut now_missing: Vec<MissingObject> = former.map_or_else(Vec::new, |(_, list)| list);
        now_missing.retain(|w| {
            let again =
                |((kind, name), _): &((Kind, String), &str)| (*kind, name) == (w.kind, &w.name);
            !tried.iter().any(again)
        });
        for ((kind, name), id) in tried {
            let refusal = missing_objects
                .iter()
                .find(|(k, n, _)| (*k, n) == (kind, &name));
            if let Some((_, _, message)) = refusal {
                tracing::warn!(
                    kind = kind.plural(),
                    name,
                    message,
                    "refused an object that the driver does not depend on"
                );
                now_missing.push(MissingObject {
                    kind,
                    submission_id: id.to_owned(),
                    message: message.clone(),
                    at: now(),
                    name,
                });
            }
        }
        if !now_missing.is_empty() {
            all.insert(key.clone(), (uid, now_missing));
        }
    }
}

impl Planner for Applications {
    type Object = CachedApplication;
    type Observed = Observed;
    type Step = Step;

    const CACHES: [&'static str; 3] = [
        "applications",
        "applications_not_cached",
        "applications_waiting",
    ];
    const ROUNDS: usize = 12;
    const NOTES_WAIT: bool = true;

    fn observe(&self, subject: Subject<'_, CachedApplication>, _: LastReconcile) -> Observed {
        let Subject { key, uid, object } = subject;
        self.counts.observe(key, &object.object);
        let mut observed = self.cache.of(uid, || {
            Mask::of(&object.object.spec, &self.settings.defaults)
        });
        observed.refused = known_of(&self.state.refused, key, uid);
        observed.first = self.state.first(key, uid, object);
        observed.missing_objects =
            known_of(&self.state.missing_objects, key, uid).unwrap_or_default();
        let taken = self.state.taken.lock().get(key).cloned();
        let taken = taken.filter(|taken| {
            let same = (taken.of, taken.generation) == (uid, object.object.metadata.generation);
            same && taken.until > Instant::now()
        });
        observed.taken_name = taken.map(|taken| taken.name);
        observed
    }

    fn plan(&self, app: &CachedApplication, observed: &Observed, now: Timestamp) -> Plan {
        plan(PlanInput {
            app: &app.object,
            digest: &app.digest,
            observed,
            settings: &self.settings,
            rules: &self.rules,
            now,
        })
    }

    async fn execute(
        &self,
        subject: Subject<'_, CachedApplication>,
        steps: &[Step],
        _: bool,
    ) -> Outcome {
        let Subject { key, uid, object } = subject;
        let begun = Instant::now();
        let outcome = self.step_runner(object, uid).execute(steps).await;
        if outcome.submitted {
            self.state.refused.lock().remove(key);
            self.state.taken.lock().remove(key);
        }
        let outdated = outcome.outdated
            || outcome.refused.is_some()
            || outcome.taken.is_some()
            || !outcome.missing_objects.is_empty();
        self.remember_missing(key, uid, steps, &outcome.missing_objects);
        // A child deleted after the attempt began may have caused the refusal, so neither a transient refusal nor a taken name counts
        // any longer.
        let freed = self.state.freed.lock().get(key).copied();
        let stands = freed.is_none_or(|at| at < begun);
        if let Some(refusal) = outcome.refused {
            tracing::warn!(why = refusal.0.as_str(), message = refusal.1, "refused");
            let refused = execute::refused(object, steps, refusal, now());
            if let Some(refused) = refused.filter(|r| stands || r.why != Refusal::Transient) {
                let mut all = self.state.refused.lock();
                all.insert(key.clone(), (uid, refused));
            }
        }
        if let Some(name) = outcome.taken.filter(|_| stands) {
            let taken = Taken {
                of: uid,
                generation: object.object.metadata.generation,
                name,
                until: Instant::now() + TAKEN,
            };
            self.state.taken.lock().insert(key.clone(), taken);
        }
        Outcome {
            fault: outcome.fault,
            outdated,
            ..Outcome::default()
        }
    }

    async fn find(
        &self,
        subject: Subject<'_, CachedApplication>,
        name: &str,
    ) -> Result<bool, Fault> {
        self.step_runner(subject.object, subject.uid)
            .find_driver(name)
            .await
    }

    fn take_unexpected_deletion(&self, app: Uid) -> bool {
        self.cache.take_unexpected_deletion(app)
    }

    fn stored(
        &self,
        subject: Subject<'_, CachedApplication>,
        write: &StatusWrite<SparkApplicationStatus>,
        stored: impl FnOnce() -> Option<Arc<CachedApplication>>,
    ) {
        let now = now().as_second();
        self.counts
            .written(&subject.object.object, &write.next, now);
        if let Some(app) = stored() {
            self.counts.observe(subject.key, &app.object);
        }
    }

    fn forget(&self, key: &JobKey, _: bool) {
        self.counts.forget(key);
        self.state.refused.lock().remove(key);
        self.state.taken.lock().remove(key);
        self.state.missing_objects.lock().remove(key);
        self.state.freed.lock().remove(key);
        self.state.first.lock().remove(key);
    }

    fn child_deleted(&self, key: &JobKey, known: bool) {
        if !known {
            return;
        }
        self.state.freed.lock().insert(key.clone(), Instant::now());
        self.state.taken.lock().remove(key);
        let mut refused = self.state.refused.lock();
        let is_transient = |(_, refused): &(Uid, Refused)| refused.why == Refusal::Transient;
        if refused.get(key).is_some_and(is_transient) {
            refused.remove(key);
        }
    }

    fn held(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("pods", self.cache.pods.len()),
            ("objects", self.cache.object_count()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::State;

    const NOW: i64 = 1_780_000_000;

    /// An application with these arguments that another operator finished, at this generation.
    fn ended(arguments: &str, generation: i64, status: &Value) -> CachedApplication {
        let stored = json!({
            "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
            "metadata": { "name": "pi", "namespace": "default", "uid": "u", "generation": generation },
            "spec": {
                "sparkVersion": "4.0.1", "image": "spark", "mainApplicationFile": "local:///pi.py",
                "arguments": [arguments], "driver": {}, "executor": {},
            },
            "status": status,
        });
        serde_json::from_value(stored).unwrap()
    }

    /// True if a reconcile by a process with this state begins a new run.
    fn reruns(state: &ProcessState, app: &CachedApplication) -> bool {
        let observed = Observed {
            first: state.first(&JobKey::new("default", "pi"), Uid(1), app),
            ..Observed::default()
        };
        let plan = plan(PlanInput {
            app: &app.object,
            digest: &app.digest,
            observed: &observed,
            settings: &Settings::default(),
            rules: &Rules::default(),
            now: Timestamp::from_second(NOW).unwrap(),
        });
        let next = plan.status.map(|write| write.next.application_state.state);
        next == Some(State::Invalidating)
    }

    #[test]
    fn an_edit_begins_anew_if_the_operator_saw_it_and_not_if_it_was_away() {
        let published =
            json!({ "applicationState": { "state": "COMPLETED" }, "submissionID": "a" });
        let mut other_version = published.clone();
        other_version["specDigest"] = json!("1-0123");
        other_version["observedGeneration"] = json!(1);
        for status in [&published, &other_version] {
            let [before, after] = [ended("1", 1, status), ended("2", 2, status)];
            let running = ProcessState::default();
            assert!(!reruns(&running, &before), "{status}");
            assert!(!reruns(&running, &before), "nothing was edited: {status}");
            assert!(reruns(&running, &after), "{status}");
            // The first spec that a new process sees counts as the one that ran.
            let started = ProcessState::default();
            assert!(!reruns(&started, &after), "{status}");
            assert!(reruns(&started, &before), "the next edit: {status}");
        }
    }

    #[test]
    fn a_namesake_with_another_spec_is_no_edit() {
        let status = json!({ "applicationState": { "state": "FAILED" } });
        let state = ProcessState::default();
        let key = JobKey::new("default", "pi");
        let [former, namesake] = [ended("1", 1, &status), ended("2", 1, &status)];
        assert_eq!(state.first(&key, Uid(1), &former), Some(former.digest));
        let first = state.first(&key, Uid(2), &namesake);
        assert_eq!(first, Some(namesake.digest));
        let running = ended(
            "1",
            1,
            &json!({ "applicationState": { "state": "RUNNING" } }),
        );
        assert_eq!(state.first(&key, Uid(2), &running), None);
        assert!(
            state.first.lock().is_empty(),
            "it is compared by its record"
        );
    }
}
