//! The crash sweep: every life is run undisturbed to learn which writes it has, and then once more
//! for each of them, with a cut around that write. The end and everything made and deleted on the
//! way must be as if nothing had happened. Other sweeps kill twice, show a restarted operator an old state, or break reads.
//!
//! ```text
//!   point    which request, and what is done to it
//!   crew     the operator, and who takes its place
//!   change   what happens while it is dead
//!   cutter   watches the operator's writes go by, and cuts at the right one
//!   ending   what is compared
//!   stage    a namespace, a proxy, an operator: where runs take place, one after the other
//!   tour     all runs of a sweep on several stages, and the figures
//! ```

mod change;
mod crew;
mod cutter;
mod ending;
mod point;
mod stage;
mod tour;

pub use change::Change;
pub use crew::{Setting, Successor};
pub use ending::Ending;
pub use point::{Choice, Cut, Key, Plan, Restart};
pub use stage::Stage;
pub use tour::{Figures, Tour};
