//! Who is where: the pods of a job laid over the replicas that it should have.

use crate::model::memory::Memory;
use crate::model::observed::Observed;
use crate::model::roles::RoleSet;
use crate::model::view::{PodPhase, PodView};

/// What a replica's place holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing, or nothing any more.
    Empty,
    /// A pod of the present attempt that has not ended, or that is on its way out.
    Live,
    /// The replica ended well, now or earlier.
    Finished,
    /// A pod of the present attempt that ended badly.
    Failed,
    /// A pod of an earlier attempt.
    Outdated,
}

/// One replica's place.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// Place of the role in the job's [`RoleSet`].
    pub role: usize,
    /// The replica's index.
    pub index: u32,
    /// What the place holds.
    pub state: SlotState,
    /// The pod in it.
    pub pod: Option<&'a PodView>,
    /// A service of the replica exists and is not on its way out.
    pub has_service: bool,
    /// A service of the replica is on its way out.
    pub service_leaving: bool,
}

/// Counts of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Pods in phase Running, also those on their way out.
    pub active: u32,
    /// Replicas that ended well.
    pub succeeded: u32,
    /// Pods that ended badly and are not yet being replaced.
    pub failed: u32,
    /// Replicas that are ready or ended well.
    pub ready: u32,
    /// Pods of the present attempt in phase Running that are not on their way out.
    pub running: u32,
}

/// Every replica's place, in global rank order, and what doesn't belong.
#[derive(Clone, Debug, Default)]
pub struct Census<'a> {
    /// The places.
    pub slots: Vec<Slot<'a>>,
    /// Counts by role, in the order of the [`RoleSet`].
    pub counts: Vec<Count>,
    /// Pods of roles or indices that the job no longer has, in the order in which they go: highest index first.
    pub surplus: Vec<&'a PodView>,
}

impl<'a> Census<'a> {
    /// Lays the observed pods over the roles.
    pub fn take(roles: &RoleSet<'_>, seen: &'a Observed, memory: &Memory) -> Self {
        let mut offsets = Vec::new();
        let mut slots = Vec::new();
        for (at, role) in roles.iter().enumerate() {
            offsets.push(slots.len());
            slots.extend((0..role.replicas).map(|index| Slot {
                role: at,
                index,
                state: if memory.has_finished(&role.label, index) {
                    SlotState::Finished
                } else {
                    SlotState::Empty
                },
                pod: None,
                has_service: false,
                service_leaving: false,
            }));
        }
        let place = |label: &str, index: u32| {
            let (at, role) = roles.by_label(label)?;
            (index < role.replicas).then(|| offsets[at] + index as usize)
        };
        let mut counts = vec![Count::default(); roles.iter().len()];
        let mut surplus = Vec::new();
        for pod in &seen.pods {
            if let Some(at) = place(&pod.role, pod.index) {
                let slot = &mut slots[at];
                slot.pod = Some(pod);
                if slot.state != SlotState::Finished {
                    slot.state = state_of(pod, memory);
                }
            } else {
                if let (Some((at, _)), PodPhase::Running) = (roles.by_label(&pod.role), pod.phase) {
                    counts[at].active += 1;
                }
                surplus.push(pod);
            }
        }
        surplus.sort_by(|a, b| (&a.role, b.index).cmp(&(&b.role, a.index)));
        for service in &seen.services {
            if let Some(at) = place(&service.role, service.index) {
                slots[at].has_service |= !service.leaving;
                slots[at].service_leaving |= service.leaving;
            }
        }
        for slot in &slots {
            let count = &mut counts[slot.role];
            let running = slot.pod.is_some_and(|p| p.phase == PodPhase::Running);
            count.active += u32::from(running && slot.state != SlotState::Finished);
            match slot.state {
                SlotState::Finished => {
                    count.succeeded += 1;
                    count.ready += 1;
                }
                SlotState::Failed => count.failed += 1,
                SlotState::Live => {
                    count.ready += u32::from(slot.pod.is_some_and(|p| p.ready && !p.leaving));
                    count.running += u32::from(running && slot.pod.is_some_and(|p| !p.leaving));
                }
                SlotState::Empty | SlotState::Outdated => {}
            }
        }
        Self {
            slots,
            counts,
            surplus,
        }
    }

    /// The place of one replica.
    pub fn slot(&self, role: usize, index: u32) -> Option<&Slot<'a>> {
        let at = self
            .slots
            .binary_search_by_key(&(role, index), |s| (s.role, s.index))
            .ok()?;
        self.slots.get(at)
    }

    /// The places of one role.
    pub fn of_role(&self, role: usize) -> impl Iterator<Item = &Slot<'a>> {
        self.slots.iter().filter(move |s| s.role == role)
    }

    /// Ready or finished replicas of all roles.
    pub fn ready(&self) -> u32 {
        self.counts.iter().map(|c| c.ready).sum()
    }
}

fn state_of(pod: &PodView, memory: &Memory) -> SlotState {
    // A pod that was being disrupted may still end well. What it did needs no second run, unless all pods run anew.
    if pod.phase == PodPhase::Succeeded && pod.attempt.gang >= memory.gang_attempt {
        return SlotState::Finished;
    }
    if pod.attempt < memory.attempt(&pod.role, pod.index) {
        return SlotState::Outdated;
    }
    match pod.phase {
        PodPhase::Succeeded => SlotState::Finished,
        // A pod that somebody deletes is being replaced, whatever its last words are.
        PodPhase::Failed if !pod.leaving => SlotState::Failed,
        PodPhase::Failed | PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => {
            SlotState::Live
        }
    }
}
