//! Generates random histories.

use proptest::collection::vec;
use proptest::prelude::*;
use training_testkit::world::Move;

/// Any moves, few enough that a failure stays readable.
pub fn history() -> impl Strategy<Value = Vec<Move>> {
    let draw = any::<(u8, u8, u8)>().prop_map(|(kind, pick, more)| Move::drawn(kind, pick, more));
    vec(draw, 1..60)
}

/// At least this many histories, or as many as `PROPTEST_CASES` sets.
pub fn cases(least: u32) -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig {
        cases: usual.cases.max(least),
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..usual
    }
}
