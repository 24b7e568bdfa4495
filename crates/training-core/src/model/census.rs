//! Matches the pods of a job with the replicas that it should have.

use crate::model::durable_state::DurableState;
use crate::model::observed::Observed;
use crate::model::roles::RoleSet;
use crate::model::view::{PodPhase, PodView};

/// The state of a replica's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// No pod.
    Empty,
    /// A pod of the current attempt that has not ended or is terminating.
    Live,
    /// The replica succeeded, now or earlier.
    Finished,
    /// A failed pod of the current attempt, or a host's that succeeded.
    Failed,
    /// A pod of an earlier attempt.
    Outdated,
}

/// One replica's slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// The index of the role in the job's [`RoleSet`].
    pub role: usize,
    /// The replica's index.
    pub index: u32,
    /// The state of the slot.
    pub state: SlotState,
    /// The pod in it.
    pub pod: Option<&'a PodView>,
    /// A service of the replica exists and is not terminating.
    pub has_service: bool,
    /// A service of the replica is terminating.
    pub service_leaving: bool,
}

/// The counts of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Pods in phase Running, including terminating ones.
    pub active: u32,
    /// Replicas that succeeded.
    pub succeeded: u32,
    /// Failed pods that are not yet being replaced. A host's that succeeded counts above.
    pub failed: u32,
    /// Replicas that are ready or succeeded.
    pub ready: u32,
    /// Pods of the current attempt in phase Running that are not terminating.
    pub running: u32,
}

/// Every replica's slot in global rank order, and surplus pods.
#[derive(Clone, Debug, Default)]
pub struct Census<'a> {
    /// The slots.
    pub slots: Vec<Slot<'a>>,
    /// Counts by role, in the order of the [`RoleSet`].
    pub counts: Vec<Count>,
    /// Pods of roles or indices that the job no longer has, in the order of their deletion: highest index first.
    pub surplus: Vec<&'a PodView>,
}

impl<'a> Census<'a> {
    /// Assigns the observed pods to the roles' slots.
    pub fn take(roles: &RoleSet<'_>, observed: &'a Observed, durable: &DurableState) -> Self {
        let mut offsets = Vec::new();
        let mut slots = Vec::new();
        for (at, role) in roles.iter().enumerate() {
            offsets.push(slots.len());
            slots.extend((0..role.replicas).map(|index| Slot {
                role: at,
                index,
                state: if !role.is_host && durable.has_finished(&role.label, index) {
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
            (index < role.replicas).then(|| (offsets[at] + index as usize, role.is_host))
        };
        let mut counts = vec![Count::default(); roles.iter().len()];
        let mut surplus = Vec::new();
        for pod in &observed.pods {
            if let Some((at, is_host)) = place(&pod.role, pod.index) {
                let slot = &mut slots[at];
                slot.pod = Some(pod);
                if slot.state != SlotState::Finished {
                    slot.state = state_of(pod, is_host, durable);
                }
            } else {
                if let (Some((at, _)), PodPhase::Running) = (roles.by_label(&pod.role), pod.phase) {
                    counts[at].active += 1;
                }
                surplus.push(pod);
            }
        }
        surplus.sort_by(|a, b| (&a.role, b.index).cmp(&(&b.role, a.index)));
        for service in &observed.services {
            if let Some((at, _)) = place(&service.role, service.index) {
                slots[at].has_service |= !service.terminating;
                slots[at].service_leaving |= service.terminating;
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
                SlotState::Failed if slot.pod.is_some_and(|p| p.phase == PodPhase::Succeeded) => {
                    count.succeeded += 1;
                }
                SlotState::Failed => count.failed += 1,
                SlotState::Live => {
                    count.ready += u32::from(slot.pod.is_some_and(|p| p.ready && !p.terminating));
                    count.running += u32::from(running && slot.pod.is_some_and(|p| !p.terminating));
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

    /// Returns the slot of one replica.
    pub fn slot(&self, role: usize, index: u32) -> Option<&Slot<'a>> {
        let at = self
            .slots
            .binary_search_by_key(&(role, index), |s| (s.role, s.index))
            .ok()?;
        self.slots.get(at)
    }

    /// Returns the slots of one role.
    pub fn of_role(&self, role: usize) -> impl Iterator<Item = &Slot<'a>> {
        self.slots.iter().filter(move |s| s.role == role)
    }

    /// Returns the number of ready or succeeded replicas of all roles.
    pub fn ready(&self) -> u32 {
        self.counts.iter().map(|c| c.ready).sum()
    }
}

fn state_of(pod: &PodView, is_host: bool, durable: &DurableState) -> SlotState {
    // A disrupted pod may still succeed. Its replica needs no second run, unless the whole gang restarts.
    let finished = pod.phase == PodPhase::Succeeded && !is_host;
    if finished && pod.attempt.gang >= durable.gang_attempt {
        return SlotState::Finished;
    }
    if pod.attempt < durable.attempt(&pod.role, pod.index) {
        return SlotState::Outdated;
    }
    // A deleted pod is being replaced, however it ends.
    if pod.phase.has_ended() && !pod.terminating {
        SlotState::Failed
    } else {
        SlotState::Live
    }
}
