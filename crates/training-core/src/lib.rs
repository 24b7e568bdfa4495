//! Every decision of the operators, as pure functions: no I/O, no clock, no randomness.
//!
//! The flow of one pass:
//!
//! 1. the runtime observes: [`Observed`] holds [`PodView`]s and [`ServiceView`]s of one job, and what went wrong last;
//! 2. [`plan()`] asks the [`Framework`] for its [`RoleSet`] and its [`Verdict`], and returns a [`Plan`]:
//!    a status, [`Step`]s, [`Note`]s, and when to look again;
//! 3. the runtime executes the plan. Nothing else talks to the API server.
//!
//! A framework answers three questions ([`Framework::roles`], [`Framework::env`], [`Framework::judge`]); everything else is
//! shared. What must survive a restart of the operator is [`Memory`], and lives in the job's status.

pub mod autoscaler;
pub mod census;
pub mod check;
pub mod conditions;
pub mod digest;
pub mod env;
pub mod error;
pub mod framework;
pub mod gang;
pub mod grants;
pub mod indices;
pub mod memory;
pub mod mould;
pub mod names;
pub mod notes;
pub mod object;
pub mod observed;
pub mod patch;
pub mod plan;
pub mod pod;
pub mod quantity;
pub mod replicas;
pub mod restart;
pub mod roles;
pub mod rules;
pub mod service;
pub mod slim;
pub mod step;
pub mod trouble;
pub mod uid;
pub mod verdict;
pub mod view;

pub use autoscaler::{AutoscalerView, Autoscaling};
pub use census::{Census, Slot, SlotState};
pub use digest::Digest;
pub use env::{EnvOn, EnvSet};
pub use error::SpecError;
pub use framework::{Framework, JobCx, JobState, Stored, TrainingJob};
pub use gang::{Group, GroupKind, GroupView, Mark, Offer, Offers, Provider};
pub use indices::IndexSet;
pub use memory::Memory;
pub use notes::{Note, Severity};
pub use object::{BatchEnd, BatchPod, BatchView, Object, ObjectKind, ObjectView, SecretView};
pub use observed::{Blocked, Observed, Stall};
pub use plan::{Draft, is_managed_elsewhere, plan};
pub use replicas::{Others, Replicas};
pub use roles::{Rank, RoleSet, RoleSpec};
pub use rules::Rules;
pub use step::{Deletion, Plan, StatusWrite, Step, Transition, Urgency};
pub use trouble::{Cause, Trouble};
pub use uid::Uid;
pub use verdict::{FailureCause, RankFailure, Verdict};
pub use view::{Attempt, PodPhase, PodView, ServiceView};
