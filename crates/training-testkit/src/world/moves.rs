//! Moves: actions of kubelets, users and accidents in a world.

use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;
use serde_json::{Value, json};
use training_core::{Lifecycle, PodPhase, Step, Trouble};

use super::{ReconcileEnd, World};
use crate::RESTART_REQUEST;

/// Exit codes at the bounds of their meanings.
const CODES: [u8; 7] = [1, 2, 127, 128, 137, 137, 143];

/// One move. A number picks a pod, modulo the number of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// A pending pod becomes running and ready.
    Run(u8),
    /// A running pod succeeds.
    Finish(u8),
    /// A running pod fails: its main container exits with this code.
    Fail(u8, u8),
    /// Does the same, and the kubelet reports the time.
    FailNow(u8, u8),
    /// The kubelet evicts a pod: it fails without a container's exit code.
    Evict(u8),
    /// A pod is drained, preempted or evicted by a taint.
    Drain(u8),
    /// A container restarts in place.
    Restart(u8),
    /// A user deletes a pod.
    Delete(u8),
    /// A terminating pod is gone.
    Gone(u8),
    /// A pod's object vanishes without notice.
    Vanish(u8),
    /// A user deletes a service.
    DropService(u8),
    /// The job is suspended or resumed.
    Suspend(bool),
    /// The scaled role gets this number of replicas.
    Scale(u8),
    /// The backoff limit changes.
    Limit(u8),
    /// A user requests a restart with one of a few values.
    RequestRestart(u8),
    /// A user makes one of the world's edits.
    Edit(u8),
    /// The job's autoscaler is disturbed.
    Autoscaler(u8),
    /// The job's gang or the operator's settings change.
    Group(u8),
    /// The job changes in an irrelevant field.
    Touch,
    /// Events of the job, of pods and of services arrive, at most this number of each.
    Deliver(u8, u8, u8),
    /// The operator reconciles from its caches.
    Pass(ReconcileEnd, bool),
    /// The operator reconciles after all events have arrived.
    FullPass,
    /// The operator crashes and restarts.
    Crash,
    /// A delete that a crashed operator had sent arrives.
    Late(u8),
    /// Time passes, in seconds.
    Tick(u16),
    /// The API server starts or stops refusing creations.
    Refuse(bool),
    /// A Job of the job, or one of its pods, is disturbed.
    Batch(u8),
    /// A user deletes another object of the job.
    Lose(u8),
    /// Another owner takes a name that the operator is about to use, or frees all such names.
    Take(u8),
    /// A watch repeats an event, loses one, or restarts with a list.
    Watch(u8),
    /// Ended pods start or stop waiting for a move to remove them.
    Sticky(bool),
}

impl Move {
    /// Decodes a move from three numbers. Likely moves have more numbers; zeros are a harmless one, for shrinking.
    pub fn drawn(kind: u8, pick: u8, more: u8) -> Self {
        match kind % 80 {
            0..=11 => Self::FullPass,
            12..=17 => Self::Pass(ReconcileEnd::Whole, more.is_multiple_of(2)),
            18..=20 => Self::Pass(
                ReconcileEnd::CrashAfter(u32::from(pick % 5)),
                more.is_multiple_of(2),
            ),
            21..=22 => Self::Pass(
                ReconcileEnd::LostAfter(u32::from(pick % 5)),
                more.is_multiple_of(2),
            ),
            23..=26 => Self::Deliver(pick % 3, more % 4, more / 4 % 4),
            28..=35 => Self::Run(pick),
            36..=37 => Self::Finish(pick),
            38..=40 => Self::Fail(pick, CODES[usize::from(more % 7)]),
            41..=42 => Self::FailNow(pick, CODES[usize::from(more % 7)]),
            43 => Self::Evict(pick),
            44..=45 => Self::Drain(pick),
            46 => Self::Restart(pick),
            47..=48 => Self::Delete(pick),
            49..=51 => Self::Gone(pick),
            52 => Self::Vanish(pick),
            53 => Self::DropService(pick),
            54 => Self::Suspend(more.is_multiple_of(2)),
            55 => Self::Suspend(false),
            56 => Self::Scale(pick % 5),
            57 => Self::Limit(pick % 6),
            58 => Self::Touch,
            59 => Self::Crash,
            27 => Self::Late(pick),
            60 => Self::Refuse(more.is_multiple_of(3)),
            64..=66 => Self::Edit(pick),
            67..=68 => Self::Autoscaler(pick),
            62..=63 => Self::Group(pick),
            61 => Self::Sticky(more.is_multiple_of(2)),
            71 => Self::RequestRestart(pick % 3),
            72..=75 => Self::Batch(pick),
            76 => Self::Lose(pick),
            77 => Self::Take(pick),
            78..=79 => Self::Watch(pick),
            _ => Self::Tick(u16::from(pick % 4) * u16::from(more)),
        }
    }
}

impl<F: Lifecycle> World<F> {
    /// Makes a move. A move without a target changes nothing.
    pub fn happen(&mut self, what: Move) {
        match what {
            Move::Run(pick) => self.run(pick),
            Move::Finish(pick) => self.change_running(pick, PodPhase::Succeeded, Some(0)),
            Move::Fail(pick, code) => {
                self.change_running(pick, PodPhase::Failed, Some(i32::from(code)));
            }
            Move::FailNow(pick, code) => self.fail_now(pick, code),
            Move::Evict(pick) => self.change_running(pick, PodPhase::Failed, None),
            Move::Drain(pick) => {
                if let Some(name) = self.pick(pick, |_| true) {
                    self.change(&name, |p| p.disrupted = true);
                    self.ask_to_go(&name);
                }
            }
            Move::Restart(pick) => {
                if let Some(name) = self.pick(pick, |p| p == PodPhase::Running) {
                    self.change(&name, |p| p.restarts += 1);
                }
            }
            Move::Delete(pick) => {
                if let Some(name) = self.pick(pick, |_| true) {
                    self.ask_to_go(&name);
                }
            }
            Move::Gone(pick) => {
                let terminating: Vec<String> = self.terminating();
                if let Some(name) = terminating.get(usize::from(pick) % terminating.len().max(1)) {
                    self.vanish(name);
                }
                if terminating.is_empty() {
                    self.services_go();
                    self.groups_go();
                }
            }
            Move::Vanish(pick) => {
                if let Some(name) = self.pick(pick, |_| true) {
                    self.vanish(&name);
                }
            }
            Move::DropService(pick) => {
                let names: Vec<String> = self.services.keys().cloned().collect();
                if let Some(name) = names.get(usize::from(pick) % names.len().max(1)) {
                    self.ask_service_to_go(name);
                }
            }
            Move::Suspend(suspend) => self.set("/spec/runPolicy/suspend", json!(suspend)),
            Move::Scale(replicas) => self.set(self.scale, json!(replicas)),
            Move::Limit(limit) => self.set("/spec/runPolicy/backoffLimit", json!(limit)),
            Move::RequestRestart(value) => self.edit(|job| {
                job["metadata"]["annotations"][RESTART_REQUEST] = value.to_string().into();
            }),
            Move::Edit(pick) => {
                let at = usize::from(pick) % self.edits.len().max(1);
                if let Some((pointer, value)) = self.edits.get(at).cloned() {
                    self.set(pointer, value);
                }
            }
            Move::Autoscaler(what) => self.happen_to_autoscaler(what),
            Move::Group(what) => self.happen_to_groups(what),
            Move::Touch => self.edit(|_| {}),
            Move::Deliver(jobs, pods, services) => {
                self.view.deliver_jobs(usize::from(jobs));
                self.view.pods.deliver(usize::from(pods));
                self.view.services.deliver(usize::from(services));
                self.view.autoscaler.deliver(usize::from(services));
                self.view.groups.deliver(usize::from(services));
                self.view.deliver_objects(usize::from(services));
                self.view.batch_pods.deliver(usize::from(pods));
            }
            Move::Pass(end, status_before) => self.reconcile_from_cache(end, status_before),
            Move::FullPass => self.reconcile(),
            Move::Crash => self.crash(),
            Move::Late(pick) => self.arrive(pick),
            Move::Tick(seconds) => self.tick(i64::from(seconds)),
            Move::Batch(what) => self.happen_to_batch(what),
            Move::Lose(pick) => self.lose(pick),
            Move::Take(pick) => self.take_name(pick),
            Move::Watch(what) => {
                let listed = self.listed();
                self.view.trouble(what, listed);
            }
            Move::Refuse(refuse) => self.refusing = refuse,
            Move::Sticky(sticky) => self.sticky = sticky,
        }
    }

    /// Gives the name of an object that the operator is about to create to another owner; every fourth time removes all such
    /// objects.
    fn take_name(&mut self, pick: u8) {
        if pick.is_multiple_of(4) {
            return self.foreign.clear();
        }
        let made_by = |step: &Step| match step {
            Step::CreatePod(pod) => Some(("Pod", pod.name_any())),
            Step::CreateService(service) => Some(("Service", service.name_any())),
            Step::CreateObject(object) => Some((object.kind(), object.name())),
            _ => None,
        };
        let names: Vec<_> = self.plan().steps.iter().filter_map(made_by).collect();
        let Some((kind, name)) = names.get(usize::from(pick) % names.len().max(1)) else {
            return;
        };
        let there = match *kind {
            "Pod" => self.pods.contains_key(name),
            "Secret" => return self.take_secret_name(name),
            _ => self.services.contains_key(name) || self.has_object(kind, name),
        };
        if !there {
            self.foreign.insert(format!("{kind} {name}"));
        }
    }

    /// Sets a field of the stored job. Its parent must exist.
    pub fn set(&mut self, pointer: &str, to: Value) {
        self.edit(|job| {
            if let Some((parent, key)) = pointer.rsplit_once('/')
                && let Some(fields) = job.pointer_mut(parent).and_then(Value::as_object_mut)
            {
                fields.insert(key.to_owned(), to);
            }
        });
    }

    fn pick(&self, pick: u8, phase: impl Fn(PodPhase) -> bool) -> Option<String> {
        let names: Vec<&str> = self
            .pods()
            .filter(|(_, p)| phase(p.phase))
            .map(|(n, _)| n)
            .collect();
        names
            .get(usize::from(pick) % names.len().max(1))
            .map(|n| (*n).to_owned())
    }

    fn terminating(&self) -> Vec<String> {
        self.pods()
            .filter(|(_, p)| p.terminating)
            .map(|(n, _)| n.to_owned())
            .collect()
    }

    fn arrive(&mut self, pick: u8) {
        if self.in_flight.is_empty() {
            return;
        }
        let at = usize::from(pick) % self.in_flight.len();
        let (step, observed) = self.in_flight.swap_remove(at);
        if let Step::DeletePod { name, uid, .. } = step {
            self.delete_pod(&name, uid, &observed);
        }
    }

    fn run(&mut self, pick: u8) {
        if let Some(name) = self.pick(pick, |p| p == PodPhase::Pending) {
            self.change(&name, |p| {
                p.phase = PodPhase::Running;
                p.ready = true;
            });
        }
    }

    fn change_running(&mut self, pick: u8, phase: PodPhase, code: Option<i32>) {
        if let Some(name) = self.pick(pick, |p| p == PodPhase::Running) {
            self.end(&name, phase, code);
        }
    }

    fn fail_now(&mut self, pick: u8, code: u8) {
        if let Some(name) = self.pick(pick, |p| p == PodPhase::Running) {
            let trouble = Trouble {
                reason: "Error".to_owned(),
                exit_code: Some(i32::from(code)),
                since: Some(self.now),
                ..Trouble::default()
            };
            self.fail_as(&name, Some(i32::from(code)), trouble);
        }
    }

    /// Fails a pod with the exit code of its main container, as its kubelet reports it.
    pub fn fail_as(&mut self, name: &str, code: Option<i32>, trouble: Trouble) {
        self.end(name, PodPhase::Failed, code);
        self.change(name, |p| p.trouble = Some(Box::new(trouble)));
    }

    /// Ends a pod's containers.
    pub fn end(&mut self, name: &str, phase: PodPhase, code: Option<i32>) {
        let now = u32::try_from(self.now.as_second()).ok();
        self.change(name, |p| {
            p.phase = phase;
            p.ready = false;
            p.exit_code = code;
            p.since = now.filter(|_| phase == PodPhase::Succeeded);
        });
    }

    /// Moves kubelets on: terminating pods go, pending pods run, running pods may finish.
    fn kubelets_move(&mut self, finish: bool) -> bool {
        let pods: Vec<(String, PodPhase, bool)> = self
            .pods()
            .map(|(n, p)| (n.to_owned(), p.phase, p.terminating))
            .collect();
        let mut moved = self.services_go() | self.groups_go() | self.schedulers_move();
        moved |= self.batches_move(finish);
        for (name, phase, terminating) in pods {
            match phase {
                _ if terminating => self.vanish(&name),
                PodPhase::Pending => self.change(&name, |p| {
                    p.phase = PodPhase::Running;
                    p.ready = true;
                }),
                // If a Job runs the program, other pods are hosts, which run until they are deleted.
                PodPhase::Running if finish && F::OBJECTS.is_empty() => {
                    self.end(&name, PodPhase::Succeeded, Some(0));
                }
                PodPhase::Running | PodPhase::Succeeded | PodPhase::Failed | PodPhase::Unknown => {
                    continue;
                }
            }
            moved = true;
        }
        moved
    }

    /// Removes terminating services.
    fn services_go(&mut self) -> bool {
        let terminating = self.services.iter().filter(|(_, s)| s.terminating);
        let terminating: Vec<String> = terminating.map(|(n, _)| n.clone()).collect();
        for name in &terminating {
            self.drop_service(name);
        }
        !terminating.is_empty()
    }

    /// Lets the world settle and checks the laws of a settled world.
    ///
    /// Pods run, and succeed if they may `finish`. The clock advances only to the operator's requeue times.
    pub fn run_until_settled(&mut self, finish: bool) {
        // Far more than any history needs; a world that has not settled by then never will.
        const ROUNDS: usize = 300;
        self.calm();
        for _ in 0..ROUNDS {
            if !self.settle(finish) {
                return;
            }
        }
        self.breaches.push(format!("no rest: {:?}", self.plan()));
    }

    /// Removes all obstacles and restarts the operator's watches with lists.
    pub(super) fn calm(&mut self) {
        (self.sticky, self.refusing, self.taken) = (false, false, false);
        self.foreign.clear();
        self.gang.offers = training_core::Availabilities::all();
        self.list();
    }

    /// Takes the next step towards settling. Returns false once settled, after checking the laws of a settled world.
    pub(super) fn settle(&mut self, finish: bool) -> bool {
        /// A longer wait than any backoff is a deadline or a TTL.
        const PATIENCE: SignedDuration = SignedDuration::from_secs(600);
        self.view.deliver_all();
        let plan = self.plan();
        if !plan.is_idle() || self.stall.is_some() {
            self.reconcile();
        } else if self.kubelets_move(finish) {
            // Their changes are new events.
        } else if let Some(at) = plan
            .requeue_at
            .filter(|at| self.now.duration_until(*at) <= PATIENCE)
        {
            self.now = self.now.max(at);
        } else {
            self.law_at_rest();
            return false;
        }
        true
    }
}
