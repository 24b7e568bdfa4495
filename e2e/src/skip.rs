//! Reports that a test can't run on this cluster.

/// Reports why the calling test returns without testing anything. The runner counts such a test as skipped, not as passed.
pub fn skip(why: &str) {
    eprintln!("test skipped: {why}");
}
