//! How histories are drawn.

use proptest::collection::vec;
use proptest::prelude::*;
use training_testkit::world::Move;

/// Any moves, up to so many that a failure can still be read.
pub fn history() -> impl Strategy<Value = Vec<Move>> {
    let draw = any::<(u8, u8, u8)>().prop_map(|(kind, pick, more)| Move::drawn(kind, pick, more));
    vec(draw, 1..60)
}

/// So many histories, or as many more as `PROPTEST_CASES` asks for.
pub fn cases(least: u32) -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig {
        cases: usual.cases.max(least),
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..usual
    }
}
