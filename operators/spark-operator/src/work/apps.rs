//! One look at one application: what is there, what is to be done, and doing it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use tokio::task::JoinError;
use tokio::time::Instant;
use training_core::{Note, Uid, Urgency};
use training_runtime::caller::Caller;
use training_runtime::controller::{Reconciler, panicked};
use training_runtime::events::{EventSink, Regarding};
use training_runtime::fault::Fault;
use training_runtime::feed::jobs::Jobs;
use training_runtime::key::JobKey;
use training_runtime::look::{Counts, Ended, Frame, Rhythm, now};
use training_runtime::metrics::Metrics;
use training_runtime::retry::{Backoff, Jitter};
use training_runtime::told::Told;

use super::act::{self, Actor};
use super::known::Known;
use super::metrics::SparkMetrics;
use super::stored::App;
use crate::course::mask::Mask;
use crate::course::seen::{Kind, Refusal, Refused, Seen, Withheld};
use crate::course::step::{Impostor, Plan, Step};
use crate::course::{Inquiry, Rules, plan};
use crate::digest::{self, SpecDigest};
use crate::submission::Settings;

/// A decision, its write and the look at what follows from it are one pass; more rounds than this never make sense.
const ROUNDS: usize = 12;
/// How long a name that somebody else has is left alone: a little less than the plan waits.
const TAKEN: Duration = Duration::from_secs(28);

/// The times that looks keep to.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Longest look.
    pub deadline: Duration,
    /// Longest wait of a status that holds nothing but executors.
    pub status_delay: Duration,
    /// An application that nothing happens to is looked at again after about this time.
    pub safety_period: Duration,
}

/// Everything that looks at applications need.
pub struct Apps {
    /// The applications.
    pub jobs: Arc<Jobs<App>>,
    /// What is there beside them.
    pub known: Arc<Known>,
    /// What sends requests.
    pub caller: Arc<Caller>,
    /// How submissions are made.
    pub settings: Settings,
    /// How applications are looked after.
    pub rules: Rules,
    /// Earliest next attempts of those whose look failed.
    pub backoff: Backoff<JobKey>,
    /// Where events go.
    pub events: EventSink,
    /// Where counts of the process go.
    pub metrics: Arc<Metrics>,
    /// Where counts of applications go.
    pub counts: SparkMetrics,
    /// The times to keep to.
    pub times: Times,
    /// What nobody needs to survive a restart: it would come about again.
    pub passing: Passing,
}

/// Memory of the process alone.
pub struct Passing {
    refused: Mutex<HashMap<JobKey, (Uid, Refused)>>,
    taken: Mutex<HashMap<JobKey, Taken>>,
    withheld: Mutex<HashMap<JobKey, (Uid, Vec<Withheld>)>>,
    freed: Mutex<HashMap<JobKey, Instant>>,
    first: Mutex<HashMap<JobKey, (Uid, SpecDigest)>>,
    impostors: Mutex<HashMap<JobKey, BTreeSet<Uid>>>,
    counts: Counts,
    jitter: Mutex<Jitter>,
}

/// A driver's name that somebody else has.
#[derive(Clone, Debug)]
struct Taken {
    of: Uid,
    /// An edit may name another one.
    generation: Option<i64>,
    name: String,
    until: Instant,
}

impl Passing {
    /// Empty, with a seed for the spread of looks.
    pub fn new(seed: u64) -> Self {
        Self {
            refused: Mutex::default(),
            taken: Mutex::default(),
            withheld: Mutex::default(),
            freed: Mutex::default(),
            first: Mutex::default(),
            impostors: Mutex::default(),
            counts: Counts::default(),
            jitter: Mutex::new(Jitter::new(seed)),
        }
    }
}

/// What the process knows of an application, and not of a former one of its name.
fn known_of<T: Clone>(all: &Mutex<HashMap<JobKey, (Uid, T)>>, key: &JobKey, uid: Uid) -> Option<T> {
    let all = all.lock();
    let known = all.get(key).filter(|(of, _)| *of == uid);
    known.map(|(_, known)| known.clone())
}

impl Apps {
    async fn pass(self: Arc<Self>, key: JobKey) -> Option<Instant> {
        let frame = Frame {
            deadline: self.times.deadline,
            backoff: &self.backoff,
            metrics: &self.metrics,
        };
        let forget = || self.forget(&key);
        let open = match frame.open(&self.jobs, &self.caller, &key, forget).await {
            Ok(open) => open,
            Err(next) => return next,
        };
        let looking = self.look(&key, Instant::now());
        frame.run(&key, &open.job.object.metadata, looking).await
    }

    fn rhythm(&self) -> Rhythm<'_> {
        Rhythm {
            period: self.times.safety_period,
            jitter: &self.passing.jitter,
        }
    }

    async fn look(&self, key: &JobKey, begun: Instant) -> Ended {
        if let Some(at) = self.backoff.not_before(key).filter(|at| *at > begun) {
            return Ended::Held(at);
        }
        let mut told = Told::new(&self.events);
        let mut sought = false;
        for _ in 0..ROUNDS {
            let Some(app) = self.jobs.get(key) else {
                return Ended::Quiet(self.rhythm().safety());
            };
            let uid = app.object.metadata.uid.as_deref().and_then(Uid::parse);
            let Some(uid) = uid else {
                return Ended::Failed(Fault::Bug("the application has no uid".to_owned()));
            };
            let seen = self.observe(key, uid, &app);
            self.counts.observe(key, &app.object);
            let mut plan = plan(Inquiry {
                app: &app.object,
                digest: &app.digest,
                seen: &seen,
                settings: &self.settings,
                rules: &self.rules,
                now: now(),
            });
            if let Some(name) = plan.lost.as_deref().filter(|_| !sought) {
                sought = true;
                match self.actor(&app, uid).find_driver(name).await {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(fault) => return Ended::Failed(fault),
                }
            }
            told.note(&*app, self.unmasked(key, &plan.impostors));
            let mut wake = self.rhythm().wake(plan.wake);
            if let Some(at) = self.may_wait(key, &plan, begun) {
                wake = wake.min(at);
                if plan.steps.is_empty() {
                    return Ended::Quiet(wake);
                }
                plan.status = None;
                plan.notes.clear();
            }
            let submits = plan.steps.iter().any(|s| matches!(s, Step::MakeDriver(_)));
            if submits && self.known.take_bereft(uid) {
                match self.caller.is_there(&*app).await {
                    Ok(true) => {}
                    // Its end is about to be told, and what would be made now would be collected with the rest.
                    Ok(false) => return Ended::Quiet(wake),
                    Err(fault) => return Ended::Failed(fault),
                }
            }
            let (idle, again) = (plan.status.is_none() && plan.steps.is_empty(), plan.again);
            match self.carry_out(key, uid, &app, plan, &mut told).await {
                Ok(found) => {
                    self.backoff.forget(key);
                    if idle || !(again || found) {
                        return Ended::Quiet(wake);
                    }
                }
                Err(fault) => return Ended::Failed(fault),
            }
        }
        // Something keeps changing under us; it will wake us if it matters, and this bounds what it costs.
        Ended::Quiet(Instant::now() + Duration::from_secs(1))
    }

    fn actor<'a>(&'a self, app: &'a App, uid: Uid) -> Actor<'a> {
        Actor {
            caller: &self.caller,
            known: &self.known,
            app,
            uid,
        }
    }

    fn observe(&self, key: &JobKey, uid: Uid, app: &App) -> Seen {
        let mut seen = self
            .known
            .of(uid, || Mask::of(&app.object.spec, &self.settings.defaults));
        seen.refused = known_of(&self.passing.refused, key, uid);
        seen.first = self.first(key, uid, app);
        seen.withheld = known_of(&self.passing.withheld, key, uid).unwrap_or_default();
        let taken = self.passing.taken.lock().get(key).cloned();
        let taken = taken.filter(|taken| {
            let same = (taken.of, taken.generation) == (uid, app.object.metadata.generation);
            same && taken.until > Instant::now()
        });
        seen.taken = taken.map(|taken| taken.name);
        seen
    }

    /// The spec of an ended application whose record can't be compared, as it was when it was first looked at.
    fn first(&self, key: &JobKey, uid: Uid, app: &App) -> Option<SpecDigest> {
        let mut all = self.passing.first.lock();
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

    /// What is to be told of pods that claim to be drivers: of each of them once, as long as this process runs.
    fn unmasked(&self, key: &JobKey, impostors: &[Impostor]) -> Vec<Note> {
        let mut all = self.passing.impostors.lock();
        let now: BTreeSet<Uid> = impostors.iter().map(|one| one.uid).collect();
        let before = if now.is_empty() {
            all.remove(key)
        } else {
            all.insert(key.clone(), now)
        };
        let before = before.unwrap_or_default();
        let new = impostors.iter().filter(|one| !before.contains(&one.uid));
        new.map(|one| one.note.clone()).collect()
    }

    fn may_wait(&self, key: &JobKey, plan: &Plan, begun: Instant) -> Option<Instant> {
        let status = plan.status.as_ref();
        let can_wait = status.is_some_and(|s| s.urgency == Urgency::CanWait);
        let longest = self.times.status_delay;
        self.passing.counts.wait(key, can_wait, begun, longest)
    }

    /// Executes a plan in its order: a decision is stored before anything acts on it; what is no decision goes beside. True if
    /// there is more to be done at once.
    async fn carry_out(
        &self,
        key: &JobKey,
        uid: Uid,
        app: &Arc<App>,
        plan: Plan,
        told: &mut Told<'_>,
    ) -> Result<bool, Fault> {
        let status = plan.status.as_ref();
        let first = status.is_some_and(|s| s.urgency == Urgency::First);
        let actor = self.actor(app, uid);
        let begun = Instant::now();
        let act = actor.carry_out(&plan.steps);
        let (stored, outcome) = if first {
            self.store(app, &plan, told).await?;
            (Ok(()), act.await)
        } else {
            futures::join!(self.store(app, &plan, told), act)
        };
        stored?;
        if outcome.submitted {
            self.passing.refused.lock().remove(key);
            self.passing.taken.lock().remove(key);
        }
        let more = outcome.news
            || outcome.refused.is_some()
            || outcome.taken.is_some()
            || !outcome.withheld.is_empty();
        self.keep_withheld(key, uid, &plan.steps, &outcome.withheld);
        // What was freed since was in the way then, and is not any more.
        let freed = self.passing.freed.lock().get(key).copied();
        let stands = freed.is_none_or(|at| at < begun);
        if let Some(refusal) = outcome.refused {
            tracing::warn!(why = refusal.0.as_str(), message = refusal.1, "refused");
            let refused = act::refused(app, &plan.steps, refusal, now());
            if let Some(refused) = refused.filter(|r| stands || r.why != Refusal::Passing) {
                let mut all = self.passing.refused.lock();
                all.insert(key.clone(), (uid, refused));
            }
        }
        if let Some(name) = outcome.taken.filter(|_| stands) {
            let taken = Taken {
                of: uid,
                generation: app.object.metadata.generation,
                name,
                until: Instant::now() + TAKEN,
            };
            self.passing.taken.lock().insert(key.clone(), taken);
        }
        outcome.fault.map_or(Ok(more), Err)
    }

    /// Keeps what could not be made beside the driver, and forgets what was made since.
    fn keep_withheld(
        &self,
        key: &JobKey,
        uid: Uid,
        steps: &[Step],
        withheld: &[(Kind, String, String)],
    ) {
        let tried = steps.iter().filter_map(|step| match step {
            Step::MakeBeside(make) => Some((make.id(), make.submission_id())),
            _ => None,
        });
        let tried: Vec<_> = tried.collect();
        if tried.is_empty() {
            return;
        }
        let mut all = self.passing.withheld.lock();
        let former = all.remove(key).filter(|(of, _)| *of == uid);
        let mut now_withheld: Vec<Withheld> = former.map_or_else(Vec::new, |(_, list)| list);
        now_withheld.retain(|w| {
            let again =
                |((kind, name), _): &((Kind, String), &str)| (*kind, name) == (w.kind, &w.name);
            !tried.iter().any(again)
        });
        for ((kind, name), id) in tried {
            let told = withheld.iter().find(|(k, n, _)| (*k, n) == (kind, &name));
            if let Some((_, _, message)) = told {
                tracing::warn!(
                    kind = kind.plural(),
                    name,
                    message,
                    "refused beside the driver"
                );
                now_withheld.push(Withheld {
                    kind,
                    submission_id: id.to_owned(),
                    message: message.clone(),
                    at: now(),
                    name,
                });
            }
        }
        if !now_withheld.is_empty() {
            all.insert(key.clone(), (uid, now_withheld));
        }
    }

    async fn store(&self, app: &Arc<App>, plan: &Plan, told: &mut Told<'_>) -> Result<(), Fault> {
        if let Some(write) = &plan.status {
            let version = self.caller.write_status(&**app, &write.patch).await?;
            let now = now().as_second();
            self.counts.written(&app.object, &write.next, now);
            self.jobs.written(app, write.next.clone(), version);
            let key = Jobs::<App>::key(app);
            if let Some(app) = self.jobs.get(&key) {
                self.counts.observe(&key, &app.object);
            }
        }
        for note in &plan.notes {
            tracing::info!(reason = note.reason, message = note.message, "told");
        }
        told.note(&**app, plan.notes.clone());
        Ok(())
    }
}

impl Reconciler for Apps {
    fn pass(self: Arc<Self>, key: JobKey) -> BoxFuture<'static, Option<Instant>> {
        Box::pin(Self::pass(self, key))
    }

    fn panicked(&self, key: &JobKey, error: &JoinError) -> Instant {
        panicked(
            key,
            error,
            &self.jobs,
            &self.backoff,
            &self.metrics,
            &self.events,
        )
    }

    fn knows(&self, key: &JobKey) -> bool {
        self.jobs.contains(key)
    }

    fn forget(&self, key: &JobKey) {
        self.backoff.forget(key);
        self.counts.forget(key);
        self.passing.refused.lock().remove(key);
        self.passing.taken.lock().remove(key);
        self.passing.withheld.lock().remove(key);
        self.passing.freed.lock().remove(key);
        self.passing.first.lock().remove(key);
        self.passing.impostors.lock().remove(key);
        self.passing.counts.forget(key);
    }

    fn freed(&self, key: &JobKey) {
        if !self.jobs.contains(key) {
            return;
        }
        self.passing
            .freed
            .lock()
            .insert(key.clone(), Instant::now());
        self.passing.taken.lock().remove(key);
        let mut refused = self.passing.refused.lock();
        if refused
            .get(key)
            .is_some_and(|(_, r)| r.why == Refusal::Passing)
        {
            refused.remove(key);
        }
    }

    fn unreadable(&self, metadata: &ObjectMeta, error: &str) {
        tell_unreadable::<App>(&self.events, metadata, error);
    }

    fn held(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("applications", self.jobs.len()),
            ("applications_not_cached", self.jobs.away()),
            ("applications_waiting", self.jobs.waiting()),
            ("pods", self.known.pods.len()),
            ("objects", self.known.len_of_things()),
        ]
    }
}

/// Says that an object can't be read and is set aside.
pub fn tell_unreadable<K: kube::Resource<DynamicType = ()>>(
    events: &EventSink,
    metadata: &ObjectMeta,
    error: &str,
) {
    let about = Regarding::of::<K>(metadata);
    let text = format!("it can't be read and is set aside: {error}");
    tracing::warn!(
        kind = about.kind,
        namespace = about.namespace,
        name = about.name,
        error,
        "set aside"
    );
    events.post(&Arc::new(about), Note::warning("InvalidSpec", text));
}
