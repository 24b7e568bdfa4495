//! Limits the size of frameworks: code for every kind belongs in the core.

// A panic here fails a test.
#![allow(clippy::unwrap_used)]

use std::path::Path;

/// Counts the lines of an operator's sources, without its tests.
fn lines(operator: &str) -> usize {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap();
    let files = std::fs::read_dir(root.join("operators").join(operator).join("src")).unwrap();
    let count = |file: std::fs::DirEntry| {
        let text = std::fs::read_to_string(file.path()).unwrap();
        let ours = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        ours.lines().count()
    };
    files.map(|f| count(f.unwrap())).sum()
}

#[test]
fn a_framework_stays_small() {
    for (operator, most) in [
        ("xgboost-operator", 250),
        ("jax-operator", 250),
        ("paddle-operator", 300),
        ("tf-operator", 450),
    ] {
        let lines = lines(operator);
        assert!(lines > 100, "{operator}: {lines} lines were found");
        assert!(
            lines <= most,
            "{operator}: {lines} lines, at most {most}: what every kind needs belongs into the core"
        );
    }
}
