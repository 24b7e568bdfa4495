//! The one way in which a test says that it can't run on this cluster.

/// Says why the test that calls it returns without having tested anything. The runner counts such a test as skipped, not as
/// passed.
pub fn skip(why: &str) {
    eprintln!("test skipped: {why}");
}
