//! An API server with one application, and an operator that knows what its watches have reported.

mod state;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use spark_operator::api::State;
use spark_operator::digest::spec_digest;
use spark_operator::lifecycle::observed::{
    Driver, End, Executor, Kind, MissingObject, Object, Observed, Refusal, Refused,
};
use spark_operator::lifecycle::step::{Plan, Step};
use spark_operator::lifecycle::{PlanInput, Rules, plan};
use spark_operator::submission::Settings;
use training_core::{PodPhase, Uid, Urgency};
use training_testkit::world::feed::{Feed, Watched};
use training_testkit::world::{Call, ReconcileEnd};

pub use state::Action;

use crate::made;
use crate::scene::{set, typed, with};

/// How often a failed run and a failed submission are retried.
const RETRIES: usize = 2;
/// How long the operator avoids a name that a foreign object has. Units: seconds.
const TAKEN: i64 = 28;

/// An object with its version.
#[derive(Clone, Debug)]
struct Held<T> {
    uid: Uid,
    version: u64,
    it: T,
}

impl<T: Clone> Watched for Held<T> {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn version(&self) -> u64 {
        self.version
    }
}

#[derive(Clone, Debug)]
enum RunPod {
    Driver(Driver),
    Executor(Executor),
}

impl RunPod {
    fn phase(&self) -> PodPhase {
        match self {
            Self::Driver(driver) => driver.phase,
            Self::Executor(executor) => executor.phase,
        }
    }
    fn is_leaving(&self) -> bool {
        match self {
            Self::Driver(driver) => driver.terminating,
            Self::Executor(executor) => executor.terminating,
        }
    }
    fn leave(&mut self) {
        match self {
            Self::Driver(driver) => driver.terminating = true,
            Self::Executor(executor) => executor.terminating = true,
        }
    }
}

type Place = (Kind, String);

/// Why a reconcile ended early.
enum StepError {
    Crash,
    /// A fault, such as a lost response: the next reconcile uses what is known then.
    Fault,
    Refused(Refusal),
    Taken(String),
    /// An object already existed, and was read.
    Found,
}

/// One application and its operator.
#[derive(Clone)]
pub struct World {
    app: (Value, u64),
    pods: BTreeMap<String, Held<RunPod>>,
    objects: BTreeMap<Place, Held<Object>>,
    known_app: (Value, u64),
    app_news: VecDeque<(Value, u64)>,
    known_pods: Feed<String, Held<RunPod>>,
    known_objects: Feed<Place, Held<Object>>,
    /// True if a foreign pod has the driver's name.
    driver_taken: bool,
    /// Names of foreign objects.
    foreign: BTreeSet<Place>,
    /// The refusal of drivers.
    pub refuses: Option<Refusal>,
    refused: Option<Refused>,
    missing_objects: Vec<MissingObject>,
    taken: Option<(String, Timestamp)>,
    /// The version that the last status write was based on, if it conflicted or its response was lost: a reconcile of this version reads
    /// the application first.
    outdated: Option<u64>,
    now: Timestamp,
    version: u64,
    deleted: bool,
    policy: &'static str,
    /// Submissions of all drivers ever created.
    drivers: Vec<String>,
    /// Drivers created since the last change by a user.
    since_edit: usize,
    /// A description of each request that the API server executed.
    pub writes: Vec<String>,
    /// The violated invariants so far.
    pub breaches: Vec<String>,
}

impl World {
    /// Creates an application with this restart policy, which the operator has observed.
    pub fn new(policy: &'static str) -> Self {
        Self::of(policy, 10, None)
    }

    /// Creates an application with this retry interval and time to live.
    pub fn of(policy: &'static str, interval: i64, ttl: Option<i64>) -> Self {
        let restart = json!({
            "type": policy, "onFailureRetries": RETRIES, "onFailureRetryInterval": interval,
            "onSubmissionFailureRetries": RETRIES, "onSubmissionFailureRetryInterval": interval,
        });
        let fields = [
            ("restartPolicy", restart),
            ("timeToLiveSeconds", json!(ttl)),
        ];
        let app = (with(&fields), 1);
        Self {
            known_app: app.clone(),
            app,
            pods: BTreeMap::new(),
            objects: BTreeMap::new(),
            app_news: VecDeque::new(),
            known_pods: Feed::default(),
            known_objects: Feed::default(),
            driver_taken: false,
            foreign: BTreeSet::new(),
            refuses: None,
            refused: None,
            missing_objects: Vec::new(),
            taken: None,
            outdated: None,
            now: Timestamp::from_second(1_780_000_000).unwrap(),
            version: 1,
            deleted: false,
            policy,
            drivers: Vec::new(),
            since_edit: 0,
            writes: Vec::new(),
            breaches: Vec::new(),
        }
    }

    fn law(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.breaches.push(what());
        }
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn observed(&self) -> Observed {
        let mut observed = Observed::default();
        for held in self.known_pods.known().values() {
            match &held.it {
                RunPod::Driver(driver) => observed.drivers.push(driver.clone()),
                RunPod::Executor(executor) => observed.executors.push(executor.clone()),
            }
        }
        let objects = self.known_objects.known().values();
        observed.objects = objects.map(|held| held.it.clone()).collect();
        observed.refused.clone_from(&self.refused);
        observed.missing_objects.clone_from(&self.missing_objects);
        let taken = self.taken.as_ref().filter(|(_, until)| *until > self.now);
        observed.taken_name = taken.map(|(name, _)| name.clone());
        observed
    }

    fn plan(&self) -> Plan {
        let app = &self.known_app.0;
        plan(PlanInput {
            app: &typed(app),
            digest: &spec_digest(&app["spec"]),
            observed: &self.observed(),
            settings: &Settings::default(),
            rules: &Rules::default(),
            now: self.now,
        })
    }

    fn state_of(app: &Value) -> State {
        let status = typed(app).status.unwrap_or_default();
        status.application_state.state
    }

    fn recorded(&self) -> Option<&str> {
        self.app.0["status"]["submissionID"].as_str()
    }

    /// Runs one reconcile with up-to-date caches.
    pub fn full_pass(&mut self) {
        self.deliver(u8::MAX, u8::MAX, u8::MAX);
        self.reconcile(ReconcileEnd::Whole, true);
    }

    /// Reconciles with complete caches until nothing changes.
    pub fn reconciles(&mut self, most: usize) {
        // A reconcile may only read, and the next one act on that.
        let mut quiet = 0;
        for _ in 0..most {
            let before = self.version;
            self.full_pass();
            quiet = if self.version == before { quiet + 1 } else { 0 };
            if quiet == 2 {
                break;
            }
        }
    }

    /// Returns the submission ids of existing drivers.
    pub fn drivers(&self) -> Vec<&str> {
        let drivers = self.pods.values().filter_map(|held| match &held.it {
            RunPod::Driver(driver) => Some(driver.submission_id.as_str()),
            RunPod::Executor(_) => None,
        });
        drivers.collect()
    }

    /// Returns the state of the application without uids and versions.
    pub fn standing(&self) -> String {
        let pods = self.pods.iter();
        let pods: Vec<_> = pods
            .map(|(name, held)| (name, held.it.phase(), held.it.is_leaving()))
            .collect();
        let objects = self.objects.values();
        let objects: Vec<_> = objects
            .map(|held| (&held.it.kind, &held.it.name, &held.it.submission_id))
            .collect();
        let drivers = self.drivers();
        format!("{} {drivers:?} {pods:?} {objects:?}", self.app.0["status"])
    }

    /// Runs one reconcile with the present caches. A status that may be written concurrently with the steps is written before or
    /// after them.
    pub fn reconcile(&mut self, end: ReconcileEnd, status_before: bool) {
        if self.deleted {
            return;
        }
        if self.outdated.take() == Some(self.known_app.1) {
            self.known_app = self.app.clone();
        }
        let plan = self.plan();
        let idle = plan.status.is_none() && plan.steps.is_empty();
        let (wake, now) = (plan.requeue_at, self.now);
        self.law(
            !idle || !plan.requeue && wake.is_none_or(|at| at > now),
            || format!("an idle plan asks for {wake:?} at {now}"),
        );
        let mut calls = (end, 0);
        match self.execute(plan, &mut calls, status_before) {
            Err(StepError::Crash) => self.crash(),
            Err(StepError::Taken(name)) => {
                let until = now
                    .saturating_add(SignedDuration::from_secs(TAKEN))
                    .unwrap();
                self.taken = Some((name, until));
            }
            Err(StepError::Fault | StepError::Found | StepError::Refused(_)) | Ok(()) => {}
        }
    }

    fn execute(
        &mut self,
        plan: Plan,
        calls: &mut (ReconcileEnd, u32),
        status_before: bool,
    ) -> Result<(), StepError> {
        let mut later = plan.status;
        if let Some(write) = later.take_if(|s| s.urgency == Urgency::First || status_before) {
            self.write_status(&json!(write.next), calls)?;
        }
        let submission = plan.steps.iter().find_map(|step| match step {
            Step::CreateDriver(pod) => Some(made::driver(pod, Uid(0)).submission_id),
            _ => None,
        });
        let turn = |step: &Step| match step {
            Step::CreateDriver(_) | Step::CreateOptional(_) => 1,
            Step::DeleteApplication => 2,
            _ => 0,
        };
        let mut end = Ok(());
        'turns: for now in 0..3 {
            let mut found = false;
            for step in plan.steps.iter().filter(|s| turn(s) == now) {
                match self.step(step, calls) {
                    Ok(()) => {}
                    Err(StepError::Found) => found = true,
                    Err(stopped) => {
                        end = Err(stopped);
                        break 'turns;
                    }
                }
            }
            if found {
                end = Err(StepError::Found);
                break;
            }
        }
        if let (Err(StepError::Refused(why)), Some(submission_id)) = (&end, submission) {
            let attempts = self.known_app.0["status"]["submissionAttempts"].as_i64();
            self.refused = Some(Refused {
                submission_id,
                attempts: attempts.map_or(0, |n| i32::try_from(n).unwrap()),
                message: "refused".to_owned(),
                at: self.now,
                why: *why,
            });
        }
        // A concurrent write happens even if the steps fail.
        if let Some(write) = later.filter(|_| !matches!(end, Err(StepError::Crash))) {
            self.write_status(&json!(write.next), calls)?;
        }
        end
    }

    /// Sends one call. The inner result says whether the response arrives.
    fn call(calls: &mut (ReconcileEnd, u32)) -> Result<Result<(), StepError>, StepError> {
        let (end, at) = *calls;
        calls.1 += 1;
        match end.call(at) {
            Call::Answered => Ok(Ok(())),
            Call::Lost => Ok(Err(StepError::Fault)),
            Call::Unsent => Err(StepError::Crash),
        }
    }

    fn write_status(
        &mut self,
        next: &Value,
        calls: &mut (ReconcileEnd, u32),
    ) -> Result<(), StepError> {
        let answer = Self::call(calls)?;
        let conflict = self.known_app.1 != self.app.1;
        self.outdated = (conflict || answer.is_err()).then_some(self.known_app.1);
        if conflict {
            return Err(StepError::Fault);
        }
        let before = Self::state_of(&self.app.0);
        let mut app = self.app.0.clone();
        app["status"] = next.clone();
        let after = Self::state_of(&app);
        self.law_of_status(&before, &after, &app);
        self.writes.push(format!("status {}", after.as_str()));
        self.store_app(app);
        answer.map(|()| self.known_app = self.app.clone())
    }

    fn store_app(&mut self, app: Value) {
        self.app = (app, self.next_version());
        self.app_news.push_back(self.app.clone());
    }

    fn store_pod(&mut self, name: &str, uid: Uid, it: RunPod) {
        let version = self.next_version();
        let held = Held { uid, version, it };
        self.known_pods.send(name.to_owned(), Ok(held.clone()));
        self.pods.insert(name.to_owned(), held);
    }

    fn remove_pod(&mut self, name: &str) {
        if let Some(held) = self.pods.remove(name) {
            self.known_pods.send(name.to_owned(), Err(held.uid));
        }
    }

    fn remove_object(&mut self, place: &Place) {
        if let Some(held) = self.objects.remove(place) {
            self.known_objects.send(place.clone(), Err(held.uid));
        }
    }

    fn step(&mut self, step: &Step, calls: &mut (ReconcileEnd, u32)) -> Result<(), StepError> {
        let answer = Self::call(calls)?;
        match step {
            Step::CreateOptional(make) if self.foreign.contains(&make.id()) => {
                answer?;
                let (kind, name) = make.id();
                self.missing_objects.retain(|w| w.name != name);
                self.missing_objects.push(MissingObject {
                    kind,
                    name,
                    submission_id: make.submission_id().to_owned(),
                    message: "refused".to_owned(),
                    at: self.now,
                });
                Ok(())
            }
            Step::Create(make) | Step::CreateOptional(make) => {
                let place = make.id();
                if self.foreign.contains(&place) {
                    return Err(StepError::Refused(Refusal::Transient));
                }
                let there = self.objects.get(&place).cloned();
                if there.is_none() {
                    self.law_of_creation(&place.1);
                    let version = self.next_version();
                    let uid = Uid(u128::from(version));
                    let it = made::object(make, uid);
                    let held = Held { uid, version, it };
                    self.known_objects.send(place.clone(), Ok(held.clone()));
                    self.objects.insert(place.clone(), held);
                }
                answer?;
                let now = self.objects.get(&place).cloned();
                self.known_objects.answer(place, now);
                there.map_or(Ok(()), |_| Err(StepError::Found))
            }
            Step::CreateDriver(pod) => {
                let name = pod.name_any();
                if self.driver_taken && !self.pods.contains_key(&name) {
                    return Err(StepError::Taken(name));
                }
                if let Some(why) = self.refuses {
                    return Err(StepError::Refused(why));
                }
                let there = self.pods.get(&name).cloned();
                if there.is_none() {
                    let uid = Uid(u128::from(self.version + 1));
                    let driver = made::driver(pod, uid);
                    self.law_of_new_driver(&driver);
                    self.writes.push(format!("driver {}", driver.submission_id));
                    self.drivers.push(driver.submission_id.clone());
                    self.store_pod(&name, uid, RunPod::Driver(driver));
                }
                answer?;
                (self.refused, self.taken) = (None, None);
                let now = self.pods.get(&name).cloned();
                self.known_pods.answer(name, now);
                there.map_or(Ok(()), |_| Err(StepError::Found))
            }
            Step::DeletePod { name, uid } => {
                if let Some(mut held) = self.pods.get(name).cloned().filter(|p| p.uid == *uid) {
                    self.law_of_lost_pod(name, &held.it);
                    self.writes.push(format!("delete {name}"));
                    held.it.leave();
                    self.store_pod(name, *uid, held.it);
                    answer?;
                    let now = self.pods.get(name).cloned();
                    self.known_pods.answer(name.clone(), now);
                } else {
                    answer?;
                    self.known_pods.went(name, *uid);
                }
                Ok(())
            }
            Step::Delete { kind, name, uid } => {
                let place = (*kind, name.clone());
                let there = self.objects.get(&place).filter(|o| o.uid == *uid);
                if let Some(id) = there.map(|o| o.it.submission_id.clone()) {
                    self.law_of_what_is_driven(name, &id);
                    self.writes.push(format!("delete {kind:?} {name}"));
                    self.remove_object(&place);
                }
                answer.map(|()| self.known_objects.went(&place, *uid))
            }
            Step::DeleteApplication => {
                let state = Self::state_of(&self.app.0);
                self.law(state.is_terminal(), || format!("deleted in {state:?}"));
                self.deleted = true;
                answer
            }
            Step::Change { .. } => panic!("the gate for changes is closed"),
        }
    }

    /// An end is final, even in writes from stale caches, and only submitted runs are recorded.
    fn law_of_status(&mut self, before: &State, after: &State, app: &Value) {
        let edited = matches!(after, State::Invalidating);
        self.law(!before.is_terminal() || before == after || edited, || {
            format!("{before:?} did not last: {after:?}")
        });
        // A user's change starts further runs once the operator records that it observed it.
        if matches!(after, State::Invalidating | State::Suspending) {
            self.since_edit = 0;
        }
        let id = app["status"]["submissionID"].as_str().unwrap_or_default();
        self.law(
            id.is_empty() || self.drivers.iter().any(|d| d == id),
            || format!("{id} is recorded, and was never submitted"),
        );
        let failed = app["status"]["failedRuns"].as_u64().unwrap_or(0);
        let limit = RETRIES as u64 + 1;
        self.law(self.policy == "Always" || failed <= limit, || {
            format!("{failed} failed runs")
        });
    }

    /// Nothing is created for an ended or suspended application.
    fn law_of_creation(&mut self, name: &str) {
        let stored = Self::state_of(&self.app.0);
        let ended = stored.is_terminal() && self.known_app.1 == self.app.1;
        let known = &self.known_app.0;
        let suspended = known["spec"]["suspend"] == true;
        self.law(!ended && !suspended, || {
            format!("{name} was made in {stored:?}, suspended: {suspended}")
        });
    }

    fn law_of_new_driver(&mut self, driver: &Driver) {
        self.law_of_creation(&driver.name);
        let id = &driver.submission_id;
        let again = self.drivers.contains(id) && self.recorded() == Some(id);
        self.law(!again, || format!("{id} is submitted again"));
        let lives = |held: &&Held<RunPod>| match &held.it {
            RunPod::Driver(d) => d.submission_id != *id,
            RunPod::Executor(e) => e.submission_id != *id,
        };
        let former = self.known_pods.known().values().filter(lives).count();
        self.law(former == 0, || {
            format!("{id} is submitted beside {former} pods of former runs")
        });
        // A driver created before an edit is observed belongs to the previous spec.
        let generation = |app: &Value| app["metadata"]["generation"].as_i64();
        if generation(&self.known_app.0) == generation(&self.app.0) {
            self.since_edit += 1;
        }
        let (made, most) = match self.policy {
            "Never" => (self.since_edit, 1),
            "OnFailure" => (self.since_edit, 1 + RETRIES),
            _ => (0, 0),
        };
        self.law(made <= most, || {
            format!("run {made} where {most} are allowed")
        });
    }

    /// The driver of the recorded run is not deleted while the stored state is running.
    fn law_of_lost_pod(&mut self, name: &str, pod: &RunPod) {
        let state = Self::state_of(&self.app.0);
        let driver = match pod {
            RunPod::Driver(driver) => driver,
            RunPod::Executor(executor) => {
                return self.law_of_what_is_driven(name, &executor.submission_id.clone());
            }
        };
        let present = self.recorded() == Some(&driver.submission_id);
        let follows = matches!(state, State::Running | State::Unknown);
        let alive = driver.phase == PodPhase::Running;
        self.law(!(present && follows && alive), || {
            format!("{name} was deleted in {state:?}")
        });
    }

    /// Objects of a run are not deleted while its driver may need them, as far as the operator knows.
    fn law_of_what_is_driven(&mut self, name: &str, submission_id: &str) {
        let drives = |held: &Held<RunPod>| match &held.it {
            RunPod::Driver(d) => d.submission_id == submission_id && d.end.is_none(),
            RunPod::Executor(_) => false,
        };
        let early = self.known_pods.known().values().any(drives);
        self.law(!early, || {
            format!("{name} was deleted before its driver ended")
        });
    }

    /// Delivers watch events, up to a number of each kind.
    pub fn deliver(&mut self, apps: u8, pods: u8, objects: u8) {
        let most = |n: u8| {
            if n == u8::MAX {
                usize::MAX
            } else {
                usize::from(n)
            }
        };
        let count = most(apps).min(self.app_news.len());
        for news in self.app_news.drain(..count) {
            if news.1 > self.known_app.1 {
                self.known_app = news;
            }
        }
        self.known_pods.deliver(most(pods));
        self.known_objects.deliver(most(objects));
    }

    /// Makes a watch repeat an event, or makes all of them start over with lists.
    pub fn trouble_watches(&mut self, what: u8) {
        match what % 4 {
            0 => drop(self.known_pods.repeat()),
            1 => drop(self.known_objects.repeat()),
            2 => self.known_objects.lose(),
            _ => self.list(),
        }
    }

    /// Watches begin anew with lists.
    pub fn list(&mut self) {
        self.known_app = self.app.clone();
        self.app_news.clear();
        self.known_pods.list(self.pods.clone());
        self.known_objects.list(self.objects.clone());
    }

    /// Restarts the operator with full lists and and no other state.
    pub fn crash(&mut self) {
        (self.refused, self.taken, self.outdated) = (None, None, None);
        self.missing_objects.clear();
        (self.known_pods, self.known_objects) = (Feed::default(), Feed::default());
        self.list();
    }

    fn change_driver(&mut self, change: impl FnOnce(&mut Driver)) {
        let living = self.pods.iter().find_map(|(name, held)| match &held.it {
            RunPod::Driver(d) if d.end.is_none() => Some((name.clone(), held.uid, d.clone())),
            _ => None,
        });
        if let Some((name, uid, mut driver)) = living {
            change(&mut driver);
            self.store_pod(&name, uid, RunPod::Driver(driver));
        }
    }

    /// Makes the driver run.
    pub fn driver_runs(&mut self) {
        self.change_driver(|d| d.phase = PodPhase::Running);
    }

    /// Ends the driver with this code.
    pub fn driver_ends(&mut self, code: i32) {
        self.change_driver(|driver| {
            driver.phase = if code == 0 {
                PodPhase::Succeeded
            } else {
                PodPhase::Failed
            };
            driver.end = Some(End {
                code,
                ..End::default()
            });
        });
    }

    /// Makes a running driver create an executor, or ends one of them.
    pub fn executor_moves(&mut self, pick: u8) {
        let driver = self.pods.values().find_map(|held| match &held.it {
            RunPod::Driver(d) if d.phase == PodPhase::Running => Some(d.clone()),
            _ => None,
        });
        let Some(driver) = driver else { return };
        let name = format!("exec-{}", pick % 2);
        let phase = [PodPhase::Running, PodPhase::Failed][usize::from(pick / 2 % 2)];
        if let Some(held) = self.pods.get(&name).cloned() {
            if let RunPod::Executor(mut executor) = held.it
                && !executor.phase.has_ended()
            {
                executor.phase = phase;
                self.store_pod(&name, held.uid, RunPod::Executor(executor));
            }
            return;
        }
        let uid = Uid(u128::from(self.version + 1));
        let executor = made::executor(&driver, &name, uid, phase, self.now);
        self.store_pod(&name, uid, RunPod::Executor(executor));
    }

    /// Removes a terminating pod. Executors go with their driver.
    pub fn gone(&mut self, pick: u8) -> bool {
        let driven: BTreeSet<String> = self
            .pods
            .values()
            .filter_map(|held| match &held.it {
                RunPod::Driver(d) => Some(d.submission_id.clone()),
                RunPod::Executor(_) => None,
            })
            .collect();
        let goes = |held: &Held<RunPod>| match &held.it {
            RunPod::Executor(e) if !driven.contains(&e.submission_id) => true,
            pod => pod.is_leaving(),
        };
        let going = self.pods.iter().filter(|(_, held)| goes(held));
        let going: Vec<String> = going.map(|(name, _)| name.clone()).collect();
        let name = going.get(usize::from(pick) % going.len().max(1));
        if let Some(name) = name {
            self.remove_pod(name);
        }
        name.is_some()
    }

    /// Someone removes the driver. A driver removed before it was recorded was never submitted.
    pub fn driver_vanishes(&mut self) {
        let recorded = self.recorded().unwrap_or_default().to_owned();
        let driver = self.pods.iter().find_map(|(name, held)| match &held.it {
            RunPod::Driver(d) if d.submission_id == recorded => Some(name.clone()),
            _ => None,
        });
        if let Some(name) = driver {
            self.remove_pod(&name);
        }
    }

    /// Someone deletes one of the other objects.
    pub fn lose_object(&mut self, pick: u8) {
        let places: Vec<Place> = self.objects.keys().cloned().collect();
        if let Some(place) = places.get(usize::from(pick) % places.len().max(1)) {
            self.remove_object(place);
        }
    }

    /// Gives the driver's name to a foreign pod if it is free, or releases it.
    pub fn take_driver(&mut self, taken: bool) {
        let free = !self
            .pods
            .values()
            .any(|held| matches!(held.it, RunPod::Driver(_)));
        self.driver_taken = taken && free;
    }

    /// Gives the name of the next object to a foreign one, or releases all names.
    pub fn take_object(&mut self, pick: u8) {
        if pick.is_multiple_of(4) {
            return self.foreign.clear();
        }
        let plan = self.plan();
        let makes = plan.steps.iter().filter_map(|step| match step {
            Step::Create(make) | Step::CreateOptional(make) => Some(make.id()),
            _ => None,
        });
        let makes: Vec<Place> = makes.collect();
        if let Some(place) = makes.get(usize::from(pick) % makes.len().max(1))
            && !self.objects.contains_key(place)
        {
            self.foreign.insert(place.clone());
        }
    }

    /// Changes a field of the spec, as a user.
    pub fn edit(&mut self, path: &str, value: Value) {
        let mut app = self.app.0.clone();
        set(&mut app["spec"], path, value);
        if app["spec"] != self.app.0["spec"] {
            let generation = app["metadata"]["generation"].as_i64().unwrap_or(1);
            app["metadata"]["generation"] = json!(generation + 1);
            self.since_edit = 0;
            self.store_app(app);
        }
    }

    /// Advances the clock.
    pub fn later(&mut self, seconds: i64) {
        let wait = SignedDuration::from_secs(seconds);
        self.now = self.now.saturating_add(wait).unwrap();
    }

    /// Sets the operator's clock. Units: seconds since the epoch.
    pub fn set_clock(&mut self, seconds: i64) {
        self.now = Timestamp::from_second(seconds).unwrap();
    }

    /// Runs until nothing changes any more. Drivers run, and succeed if they may `finish`.
    pub fn run_until_settled(&mut self, finish: bool) {
        const ROUNDS: usize = 200;
        self.calm();
        for _ in 0..ROUNDS {
            if !self.settle(finish) {
                return;
            }
        }
        let state = Self::state_of(&self.app.0);
        self.breaches.push(format!("no rest in {state:?}"));
    }

    /// Removes all obstacles; the watches start over with lists.
    fn calm(&mut self) {
        self.edit("suspend", json!(false));
        (self.driver_taken, self.refuses) = (false, None);
        self.foreign.clear();
        self.list();
    }

    /// Takes the next step towards rest. At rest, checks the invariants of rest and returns false.
    fn settle(&mut self, finish: bool) -> bool {
        self.deliver(u8::MAX, u8::MAX, u8::MAX);
        let plan = self.plan();
        if plan.status.is_some() || !plan.steps.is_empty() {
            self.reconcile(ReconcileEnd::Whole, true);
        } else if self.gone(0) || self.kubelets_move(finish) {
            // Their actions cause watch events.
        } else if let Some(at) = plan.requeue_at {
            let now = self.now;
            self.law(at > now, || format!("an idle plan asks for {at} at {now}"));
            self.now = now.max(at);
        } else {
            self.law_at_rest(finish);
            return false;
        }
        true
    }

    fn kubelets_move(&mut self, finish: bool) -> bool {
        let phase = self.pods.values().find_map(|held| match &held.it {
            RunPod::Driver(d) if d.end.is_none() => Some(d.phase),
            _ => None,
        });
        match phase {
            Some(PodPhase::Pending) => self.driver_runs(),
            Some(_) if finish => self.driver_ends(0),
            Some(_) | None => return false,
        }
        true
    }

    fn law_at_rest(&mut self, finish: bool) {
        let state = Self::state_of(&self.app.0);
        let resting = state.is_terminal() || !finish && state == State::Running;
        self.law(resting, || format!("it rests in {state:?}"));
        let executors = self.pods.values().filter(|held| {
            let runs = !held.it.phase().has_ended() && !held.it.is_leaving();
            runs && matches!(held.it, RunPod::Executor(_))
        });
        let executors = executors.count();
        self.law(!state.is_terminal() || executors == 0, || {
            format!("{executors} executors outlive {state:?}")
        });
    }
}
