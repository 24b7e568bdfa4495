//! The crash sweep: runs every life cycle undisturbed to learn its writes, and then again for each of them, with a cut around
//! that write. The final state, and all creations and deletions, must equal the undisturbed run's. Other sweeps kill twice,
//! show a restarted operator a stale state, or break reads.
//!
//! ```text
//!   point      the request and the cut
//!   operators  the operator and its successor
//!   change     changes while it is dead
//!   cutter     watches the operator's writes, and cuts at the right one
//!   ending     the compared final state
//!   stage      a namespace, a proxy and an operator for sequential runs
//!   runs       all runs of a sweep on several stages, and the figures
//! ```

mod change;
mod cutter;
mod ending;
mod operators;
mod point;
mod runs;
mod stage;

pub use change::Change;
pub use ending::Ending;
pub use operators::{Setting, Successor};
pub use point::{Choice, Cut, Key, Plan, Restart};
pub use runs::{Figures, Missed, Sweep, Writes};
pub use stage::Stage;
