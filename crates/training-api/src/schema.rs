//! Schema helpers: what a derive can't say.
