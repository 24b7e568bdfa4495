//! Executes plans as calls, in the order of the real executor: it writes the status first, and deletes before it creates.

use kube::Resource;
use training_core::{
    Action as _, Blocked, Deletion, Lifecycle, Observed, Plan, StatusWrite, Step, Stored as _, Uid,
    Urgency,
};

use super::object::Place;
use super::{Call, ReconcileEnd, StatusOf, World, view};

/// A call without a response.
pub(super) enum Interruption {
    Crash,
    Lost,
    Conflict,
    Refused,
    /// Another owner has the name, and this waits for it.
    Taken(Blocked),
}

impl<F: Lifecycle> World<F> {
    pub(super) fn execute(
        &mut self,
        plan: Plan<StatusOf<F>>,
        observed: &Observed,
        calls: &mut Calls,
        status_before: bool,
    ) -> Result<(), Interruption> {
        let Plan {
            status,
            steps,
            notes,
            transitions,
            ..
        } = plan;
        let stored_later = match status {
            Some(write) if write.urgency == Urgency::First || status_before => {
                self.write_status(&write, calls)?;
                None
            }
            other => other,
        };
        let tell = stored_later.is_none();
        if tell {
            self.notes.extend(notes.iter().cloned());
            self.transitions.extend(transitions.iter().copied());
        }
        let mut refused = false;
        let (creates, deletes): (Vec<Step>, Vec<Step>) =
            steps.into_iter().partition(Step::is_create);
        let mut left = deletes.into_iter();
        while let Some(step) = left.next() {
            if let Err(end) = self.delete(step.clone(), observed, calls) {
                if matches!(end, Interruption::Crash) {
                    // Deletes run concurrently: any of them may be in flight when the operator crashes.
                    let on_their_way = std::iter::once(step).chain(left);
                    self.in_flight
                        .extend(on_their_way.map(|s| (s, observed.clone())));
                }
                return Err(end);
            }
        }
        let mut taken: Option<Blocked> = None;
        for step in creates {
            refused = refused || self.refusing;
            if !refused {
                match self.create(step, calls) {
                    // A conflict that blocks pods matters more than one that blocks an autoscaler.
                    Err(Interruption::Taken(blocks)) => {
                        taken = taken.filter(|known| known.blocks_pods()).or(Some(blocks));
                    }
                    other => other?,
                }
            }
        }
        if let Some(write) = stored_later {
            self.write_status(&write, calls)?;
            self.notes.extend(notes);
            self.transitions.extend(transitions);
        }
        if refused {
            Err(Interruption::Refused)
        } else {
            taken.map_or(Ok(()), |blocks| Err(Interruption::Taken(blocks)))
        }
    }

    fn write_status(
        &mut self,
        write: &StatusWrite<StatusOf<F>>,
        calls: &mut Calls,
    ) -> Result<(), Interruption> {
        let answer = calls.next()?;
        let known = self
            .view
            .job
            .as_ref()
            .map(|j| j.meta().resource_version.clone());
        let Some(mut job) = self
            .job
            .clone()
            .filter(|j| Some(&j.meta().resource_version) == known.as_ref())
        else {
            return Err(Interruption::Conflict);
        };
        let before = job.status().cloned().unwrap_or_default();
        self.law_of_status(&before, write);
        job.set_status(write.next.clone());
        self.writes.push("status".to_owned());
        self.store_job(job);
        answer.map(|()| self.view.job.clone_from(&self.job))
    }

    fn delete(
        &mut self,
        step: Step,
        observed: &Observed,
        calls: &mut Calls,
    ) -> Result<(), Interruption> {
        let answer = calls.next()?;
        match step {
            Step::DeletePod { name, uid, how } => {
                self.law_of_reasons(&name, uid);
                if how != Deletion::Graceful {
                    self.law_of_force(&name);
                }
                if self.delete_pod(&name, uid, observed) {
                    if how != Deletion::Graceful {
                        self.vanish(&name);
                    }
                    return answer.map(|()| self.learn_pod(name));
                }
                if self.delete_batch_pod(&name, uid, how) {
                    return answer;
                }
                return answer.map(|()| self.view.pods.went(&name, uid));
            }
            Step::DeleteService { name, uid } => {
                if self.services.get(&name).is_some_and(|s| s.uid == uid) {
                    self.writes.push(format!("delete service {name}"));
                    self.ask_service_to_go(&name);
                    return answer.map(|()| self.learn_service(name));
                }
                return answer.map(|()| self.view.services.went(&name, uid));
            }
            Step::DeleteJob => {
                // It is already gone if the response to the previous delete was lost.
                if self.job.is_some() {
                    self.delete_job();
                }
                return answer.map(|()| self.view.deliver_job());
            }
            step @ (Step::ChangeAutoscaler { .. } | Step::DeleteAutoscaler { .. }) => {
                if self.call_autoscaler(step)? {
                    return answer.map(|()| self.learn_autoscaler());
                }
            }
            Step::LookUpGroup { kind, .. } => {
                return answer.map(|()| {
                    self.learn_group(kind);
                    self.sought.push(kind);
                });
            }
            step @ (Step::ChangeGroup { kind, .. } | Step::DeleteGroup { kind, .. }) => {
                if self.call_group(step)? {
                    return answer.map(|()| self.learn_group(kind));
                }
            }
            step @ (Step::ChangeObject { .. } | Step::DeleteObject { .. }) => {
                if let Some(place) = self.call_object(step)? {
                    return answer.map(|()| self.learn_object(place));
                }
            }
            Step::CreatePod(_)
            | Step::CreateService(_)
            | Step::CreateAutoscaler(_)
            | Step::CreateObject(_)
            | Step::RecreateSecret(_)
            | Step::CreateGroup { .. } => {}
        }
        answer
    }

    /// Deletes the job and everything that it owns.
    fn delete_job(&mut self) {
        self.law_of_ttl();
        self.writes.push("delete job".to_owned());
        self.job = None;
        self.view.news_of_job(None);
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in &names {
            self.vanish(name);
        }
        let names: Vec<String> = self.services.keys().cloned().collect();
        for name in &names {
            self.drop_service(name);
        }
        self.drop_autoscaler();
        self.drop_groups();
        self.drop_objects();
    }

    /// Deletes a pod with its uid as precondition.
    pub(super) fn delete_pod(&mut self, name: &str, uid: Uid, observed: &Observed) -> bool {
        let found = self.pod(name).map(|p| p.uid);
        let Some(victim) = found.filter(|found| *found == uid) else {
            return false;
        };
        self.law_of_victims(name, victim, observed);
        self.writes.push(format!("delete pod {name}"));
        self.ask_to_go(name);
        true
    }

    fn create(&mut self, step: Step, calls: &mut Calls) -> Result<(), Interruption> {
        let answer = calls.next()?;
        match step {
            Step::CreatePod(pod) => {
                let name = pod.metadata.name.clone().unwrap_or_default();
                self.free("Pod", &name)?;
                // A name that the job's own object already has is a conflict: the object is read, and nothing changes.
                if !self.pods.contains_key(&name) && self.job.is_some() {
                    let version = self.next_version();
                    let view = view::of_new_pod(&pod, version);
                    self.law_of_new_pod(&name, &pod, &view);
                    self.writes.push(format!("create pod {name}"));
                    self.view.pods.send(name.clone(), Ok(view.clone()));
                    self.pods.insert(name.clone(), view);
                }
                return answer.map(|()| self.learn_pod(name));
            }
            Step::CreateService(service) => {
                let name = service.metadata.name.clone().unwrap_or_default();
                self.free("Service", &name)?;
                if !self.services.contains_key(&name) && self.job.is_some() {
                    let version = self.next_version();
                    let view = view::of_new_service(&service, version);
                    self.law_of_new_object(&name, &service.metadata);
                    self.writes.push(format!("create service {name}"));
                    self.view.services.send(name.clone(), Ok(view.clone()));
                    self.services.insert(name.clone(), view);
                }
                return answer.map(|()| self.learn_service(name));
            }
            step @ Step::CreateAutoscaler(_) => {
                if self.call_autoscaler(step)? {
                    return answer.map(|()| self.learn_autoscaler());
                }
            }
            step @ Step::CreateGroup { kind, .. } => {
                if self.call_group(step)? {
                    return answer.map(|()| self.learn_group(kind));
                }
            }
            Step::RecreateSecret(object) => {
                let name = object.name();
                self.make_secret(&object, name);
            }
            Step::CreateObject(object) => {
                let name = object.name();
                let Some(kind) = object.watched() else {
                    let made = self.make_secret(&object, name.clone());
                    return answer.map(|()| {
                        if made {
                            self.secret.made = Some(name.into());
                        } else {
                            self.secret.taken += 1;
                        }
                    });
                };
                self.free(kind.as_str(), &name)?;
                let place = (kind, name);
                self.make_object(&place, *object);
                return answer.map(|()| self.learn_object(place));
            }
            Step::DeletePod { .. }
            | Step::DeleteService { .. }
            | Step::ChangeObject { .. }
            | Step::DeleteObject { .. }
            | Step::DeleteJob
            | Step::ChangeAutoscaler { .. }
            | Step::LookUpGroup { .. }
            | Step::ChangeGroup { .. }
            | Step::DeleteGroup { .. }
            | Step::DeleteAutoscaler { .. } => {}
        }
        answer
    }

    /// Fails if another owner has the name of a new object.
    fn free(&self, kind: &str, name: &str) -> Result<(), Interruption> {
        if self.foreign.contains(&format!("{kind} {name}")) {
            Err(Interruption::Taken(Blocked::All))
        } else {
            Ok(())
        }
    }

    /// Updates the operator's cache of a pod from a response.
    fn learn_pod(&mut self, name: String) {
        let now = self.pods.get(&name).cloned();
        self.view.pods.answer(name, now);
    }

    fn learn_service(&mut self, name: String) {
        let now = self.services.get(&name).cloned();
        self.view.services.answer(name, now);
    }

    fn learn_autoscaler(&mut self) {
        self.view.autoscaler.answer((), self.autoscaler.clone());
    }

    fn learn_object(&mut self, place: Place) {
        let now = self.objects.get(&place).map(|(view, _)| view.clone());
        self.view.objects.answer(place, now);
    }
}

/// The calls of one reconcile.
pub(super) struct Calls {
    pub(super) end: ReconcileEnd,
    pub(super) made: u32,
}

impl Calls {
    /// Starts the next call unless the operator has crashed; the inner result says whether its response arrives.
    fn next(&mut self) -> Result<Result<(), Interruption>, Interruption> {
        let at = self.made;
        self.made += 1;
        match self.end.call(at) {
            Call::Unsent => Err(Interruption::Crash),
            Call::Lost => Ok(Err(Interruption::Lost)),
            Call::Answered => Ok(Ok(())),
        }
    }
}
