//! Every decision of the operators, without I/O.

pub mod grants;
pub mod notes;
