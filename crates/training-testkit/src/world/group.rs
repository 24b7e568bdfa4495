//! The job's gang in the world: creation, changes, admission and loss of its groups.

use std::collections::BTreeMap;

use kube::{Resource, ResourceExt};
use serde_json::Value;
use training_core::{
    Availabilities, Availability, Group, GroupKind, GroupView, JobCx, Lifecycle, Mark, PodView,
    Provider, Step, TrainingJob, Uid,
};
use training_core::{GangConventions, gang::GangState, provider::Run};

use super::World;
use super::execute::Interruption;

fn is_shown(group: &GroupView) -> bool {
    group.digest.is_some()
}

impl<F: Lifecycle> World<F> {
    fn gang_run(&self) -> Run {
        self.durable_state().gang.unwrap_or_default()
    }

    /// Executes a call about a group. Returns true if the response includes the group.
    pub(super) fn call_group(&mut self, step: Step) -> Result<bool, Interruption> {
        match step {
            Step::CreateGroup { kind, object, .. } if self.job.is_some() => {
                // A name that the job's own group already has is a conflict, and the object is read.
                if !self.groups.contains_key(&kind) {
                    self.law_of_new_group(kind, &object);
                    self.writes.push(format!("create {}", kind.as_str()));
                    let (version, now) = (self.next_version(), self.now);
                    self.store_group(kind, &object, |made| {
                        (made.uid, made.version) = (Uid(u128::from(version)), version);
                        made.since = Some(now);
                    });
                }
                return Ok(true);
            }
            Step::ChangeGroup {
                kind, uid, patch, ..
            } => {
                let names = &patch["metadata"];
                let version = names["resourceVersion"]
                    .as_str()
                    .and_then(|v| v.parse().ok());
                let meant = |g: &&GroupView| {
                    g.uid == uid
                        && names["uid"].as_str().and_then(Uid::parse) == Some(uid)
                        && version == Some(g.version)
                };
                let Some(known) = self.groups.get(&kind).filter(meant).cloned() else {
                    return Err(Interruption::Conflict);
                };
                let version = self.next_version();
                self.writes.push(format!("change {}", kind.as_str()));
                self.store_group(kind, &patch, |now| {
                    let patched = now.clone();
                    *now = known;
                    (now.digest, now.version) = (patched.digest, version);
                    now.min = patched.min.or(now.min);
                });
                return Ok(true);
            }
            Step::DeleteGroup { kind, uid, .. }
                if self.groups.get(&kind).is_some_and(|g| g.uid == uid) =>
            {
                self.law_of_lost_group(kind);
                self.writes.push(format!("delete {}", kind.as_str()));
                self.ask_group_to_go(kind);
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    /// Stores a group from a body, after `finish` has set the rest.
    fn store_group(&mut self, kind: GroupKind, body: &Value, finish: impl FnOnce(&mut GroupView)) {
        let mut body = body.clone();
        body["metadata"]["uid"] = Uid(1).to_string().into();
        let group: Result<Group, _> = serde_json::from_value(body);
        let Some(mut view) = group.ok().and_then(|g| g.view(kind)) else {
            return self.breaches.push(format!("a {kind:?} that can't be read"));
        };
        finish(&mut view);
        self.ledger.grouped.insert(kind);
        self.tell_group(kind, view);
    }

    /// The operator's watch shows only groups with the operator's label.
    fn tell_group(&mut self, kind: GroupKind, now: GroupView) {
        if is_shown(&now) {
            self.view.groups.send(kind, Ok(now.clone()));
        }
        self.groups.insert(kind, now);
    }

    /// Removes the operator's label from a group, so that the watch reports it as deleted.
    pub fn unlabel_group(&mut self, kind: GroupKind) {
        let version = self.next_version();
        if let Some(group) = self.groups.get_mut(&kind) {
            (group.digest, group.version) = (None, version);
            self.view.groups.send(kind, Err(group.uid));
        }
    }

    /// The groups in the operator's list.
    pub(super) fn shown_groups(&self) -> BTreeMap<GroupKind, GroupView> {
        let shown = self.groups.iter().filter(|(_, g)| is_shown(g));
        shown.map(|(kind, g)| (*kind, g.clone())).collect()
    }

    /// Updates the operator's cache of a group from a response.
    pub(super) fn learn_group(&mut self, kind: GroupKind) {
        self.view
            .groups
            .answer(kind, self.groups.get(&kind).cloned());
    }

    /// Sets a group's deletion timestamp if the world is sticky or the group is protected; otherwise removes it.
    fn ask_group_to_go(&mut self, kind: GroupKind) {
        let protected = kind == GroupKind::PodGroup && self.uses_group();
        if !self.sticky && !protected {
            return self.drop_group(kind);
        }
        let version = self.next_version();
        if let Some(mut group) = self.groups.get(&kind).cloned() {
            (group.terminating, group.version) = (true, version);
            self.tell_group(kind, group);
        }
    }

    fn uses_group(&self) -> bool {
        let lives = |p: &PodView| p.mark == Mark::Native && !p.phase.has_ended();
        self.pods().any(|(_, p)| lives(p))
    }

    fn drop_group(&mut self, kind: GroupKind) {
        if let Some(gone) = self.groups.remove(&kind).filter(is_shown) {
            self.view.groups.send(kind, Err(gone.uid));
        }
    }

    pub(super) fn drop_groups(&mut self) {
        for kind in GroupKind::ALL {
            self.drop_group(kind);
        }
    }

    /// Removes terminating groups that nothing protects.
    pub(super) fn groups_go(&mut self) -> bool {
        let used = self.uses_group();
        let going = self.groups.values().filter(|g| g.terminating);
        let going: Vec<GroupKind> = going
            .map(|g| g.kind)
            .filter(|kind| *kind != GroupKind::PodGroup || !used)
            .collect();
        for kind in &going {
            self.drop_group(*kind);
        }
        !going.is_empty()
    }

    /// Admits groups, as their schedulers would.
    pub(super) fn schedulers_move(&mut self) -> bool {
        let waiting = self.groups.get(&GroupKind::Volcano).cloned();
        let waiting = waiting.filter(|g| g.phase.is_none() && !g.terminating);
        let version = self.next_version();
        waiting.is_some_and(|mut group| {
            (group.phase, group.version) = (Some("Inqueue".to_owned()), version);
            self.tell_group(GroupKind::Volcano, group);
            true
        })
    }

    /// Disturbs groups: admits, deletes or edits them, adds or removes the scheduler's API, or restarts the operator with other
    /// settings.
    pub(super) fn happen_to_groups(&mut self, what: u8) {
        let kind = GroupKind::ALL[usize::from(what / 8) % 4];
        match what % 8 {
            0 => self.ask_group_to_go(kind),
            1 => {
                let version = self.next_version();
                if let Some(mut group) = self.groups.get(&kind).cloned() {
                    (group.min, group.version) = (Some(u32::from(what / 32)), version);
                    self.tell_group(kind, group);
                }
            }
            2 if self.gang.offers == Availabilities::all() && !self.providers.is_empty() => {
                self.drop_groups();
                for kind in GroupKind::ALL {
                    self.gang.offers.set(kind, Availability::Missing);
                }
            }
            2 | 3 => self.gang.offers = Availabilities::all(),
            4 => {
                let at = usize::from(what / 8) % self.providers.len().max(1);
                if let Some(provider) = self.providers.get(at).cloned() {
                    self.gang.provider = provider;
                    self.crash();
                }
            }
            _ => {
                self.schedulers_move();
            }
        }
    }

    fn law_of_new_group(&mut self, kind: GroupKind, object: &Value) {
        let Some(job) = self.view.job.clone() else {
            return;
        };
        let meta = &object["metadata"];
        let owner = &meta["ownerReferences"][0];
        let jobs = owner["uid"] == *job.meta().uid.as_deref().unwrap_or_default()
            && owner["controller"] == true
            && meta["name"] == *job.name_any();
        let at_rest = self.durable_state().is_finished() || job.run_policy().suspend == Some(true);
        let recorded = self.gang_run().provider.kinds().contains(&kind);
        if !jobs || at_rest || !recorded {
            self.breaches.push(format!(
                "{kind:?} was made; the job's: {jobs}, at rest: {at_rest}, recorded: {recorded}"
            ));
        }
    }

    /// A group is deleted only after its run.
    fn law_of_lost_group(&mut self, kind: GroupKind) {
        let state = self.durable_state();
        let suspended = state
            .conditions
            .iter()
            .any(|c| c.type_ == "Suspended" && c.status == "True");
        let foreign = !self.gang_run().provider.kinds().contains(&kind);
        if !state.is_finished() && !suspended && !foreign {
            self.breaches
                .push(format!("{kind:?} was deleted while its job runs"));
        }
        self.ledger.grouped.remove(&kind);
    }

    /// Returns true if the job's pods wait for their scheduler's admission.
    fn waits_for_groups(&self) -> bool {
        let conventions = self.job().and_then(|job| {
            let roles = self.framework.roles(job).ok()?;
            Some(self.framework.gang_conventions(&JobCx::new(job, &roles)))
        });
        conventions != Some(GangConventions::Mpi)
    }

    /// A pod needs its group: the run has had one of each kind, and none is terminating as far as the operator knows.
    pub(super) fn law_of_gang(&mut self, name: &str, pod: &PodView) {
        let run = self.gang_run();
        let kinds = run.provider.kinds();
        let behaviour = run.provider.behaviour();
        let waits = self.waits_for_groups();
        let ready = |kind: &GroupKind| {
            let known = self.view.groups.known().get(kind);
            let admitted = |g: &GroupView| !waits || behaviour.read(g) == GangState::Admitted;
            self.ledger.grouped.contains(kind)
                && known.is_some_and(|g| !g.terminating && admitted(g))
        };
        let marked = Provider::of_mark(pod.mark, &run.provider).unwrap_or_default();
        if !kinds.iter().all(ready) || marked.kinds() != kinds {
            let seen = self.view.groups.known();
            self.breaches.push(format!(
                "{name} was made without its group under {run}, marked for {marked}: {seen:?}"
            ));
        }
    }

    /// In a settled world a run has exactly its groups, and an ended or suspended job has none.
    pub(super) fn law_of_groups_at_rest(&self, job: &F::Job) -> Option<String> {
        let quiet = self.durable_state().is_finished() || job.run_policy().suspend == Some(true);
        // A protected group goes with the last pod and is recreated after that.
        let counts = |g: &&GroupView| !quiet || !g.terminating;
        let there = self.groups.values().filter(counts);
        let there: Vec<GroupKind> = there.map(|g| g.kind).collect();
        let roles = self.framework.roles(job).ok()?;
        let run = self.gang_run();
        let wanted = if quiet || roles.total() == 0 {
            &[][..]
        } else {
            run.provider.kinds()
        };
        if there != wanted || !quiet && !run.former.is_empty() {
            return Some(format!(
                "groups {there:?} instead of {wanted:?} under {run}"
            ));
        }
        None
    }
}
