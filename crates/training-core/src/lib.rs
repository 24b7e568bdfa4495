//! Every decision of the operators, as pure functions: no I/O, no clock, no randomness.
//!
//! One reconcile:
//!
//! 1. The runtime observes: [`Observed`] holds the [`PodView`]s and [`ServiceView`]s of one job, and its last error.
//! 2. [`plan()`] asks the [`Framework`] for its [`RoleSet`] and its [`Verdict`], and returns a [`Plan`]: a status, [`Step`]s,
//!    [`Note`]s, and when to requeue.
//! 3. The runtime executes the plan. Nothing else talks to the API server.
//!
//! A framework answers three questions ([`Framework::roles`], [`Framework::env`], [`Framework::judge`]). Everything else is shared.
//! [`DurableState`] holds the state that must survive a restart of the operator. It is stored in the job's status.

mod kind;
mod model;
pub mod plan;
mod render;

pub use kind::{check, framework, replicas};
pub use model::{
    conditions, grants, health, names, notes, object, patch, provider, quantity, reasons, restart,
    rules, slim, verdict,
};
pub use render::{gang, pod, service};

pub use kind::env::{EnvOn, EnvSet};
pub use kind::framework::{Framework, GangConventions, JobCx, Stored, TrainingJob};
pub use kind::replicas::{OtherTypes, Replicas};
pub use model::autoscaler::{AutoscalerView, Autoscaling};
pub use model::census::{Census, Slot, SlotState};
pub use model::digest::Digest;
pub use model::durable_state::{DurableState, JobState, ReplicaRestarts};
pub use model::error::SpecError;
pub use model::group::{
    Availabilities, Availability, Group, GroupKind, GroupView, Mark, scheduler_of_pod,
};
pub use model::indices::IndexSet;
pub use model::notes::{ForgedPod, Note, Severity};
pub use model::object::{
    BatchEnd, BatchPod, BatchView, Object, ObjectKind, ObjectView, SecretView,
};
pub use model::observed::{Blocked, Observed, Stall};
pub use model::phase::{Phase, Progress};
pub use model::provider::Provider;
pub use model::roles::{Rank, RoleSet, RoleSpec};
pub use model::rules::Rules;
pub use model::size::Size;
pub use model::step::{Action, Deletion, Plan, StatusWrite, Step, Transition, Urgency};
pub use model::trouble::{Cause, Trouble};
pub use model::uid::Uid;
pub use model::verdict::{FailureCause, RankFailure, Verdict};
pub use model::view::{Attempt, PodPhase, PodView, ServiceView};
pub use plan::draft::Draft;
pub use plan::{Lifecycle, is_managed_elsewhere, plan};
