//! Licences, sources and banned crates, read from `cargo metadata`. No tool needs to be installed for it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::process;

/// Licences that the project can be shipped with.
const LICENCES: [&str; 11] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
/// Crates that must not be there, and why.
const BANNED: [(&str, &str); 5] = [
    ("openssl", "TLS is rustls with ring"),
    (
        "aws-lc-rs",
        "a second crypto provider; TLS is rustls with ring",
    ),
    ("native-tls", "TLS is rustls with ring"),
    ("serde_yaml", "unmaintained; YAML is serde-saphyr"),
    (
        "reqwest",
        "the operators talk to the API server through kube alone",
    ),
];
/// Crates of which there is exactly one version: their types cross crate borders.
const SINGLE: [&str; 8] = [
    "kube-core",
    "kube-client",
    "k8s-openapi",
    "schemars",
    "serde",
    "serde_json",
    "tokio",
    "rustls",
];

/// Checks the whole graph.
pub fn check() -> Result<(), String> {
    let text = process::output(&mut process::command(
        "cargo",
        [
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            &crate::paths::triple(),
        ],
    ))?;
    let metadata: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let problems = problems(&packages);
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    eprintln!(
        "deps: {} packages: licences, sources and bans are fine",
        packages.len()
    );
    Ok(())
}

fn problems(packages: &[Value]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let (name, version) = (text(package, "name"), text(package, "version"));
        versions.entry(name).or_default().push(version);
        // Ours have no source; all others come from the public index, by whatever mirror.
        let source = package["source"].as_str();
        if source.is_some_and(|s| !s.starts_with("registry+") && !s.starts_with("sparse+")) {
            problems.push(format!(
                "{name} {version}: from {}, not from the public index",
                source.unwrap_or_default()
            ));
        }
        if !allowed(text(package, "license")) {
            problems.push(format!(
                "{name} {version}: licence \"{}\" is not on the list",
                text(package, "license")
            ));
        }
        if let Some((_, why)) = BANNED.iter().find(|(banned, _)| *banned == name) {
            problems.push(format!("{name} {version} is banned: {why}"));
        }
    }
    for name in SINGLE {
        if let Some(several) = versions.get(name).filter(|v| v.len() > 1) {
            problems.push(format!(
                "{name} is there in several versions: {}",
                several.join(", ")
            ));
        }
    }
    problems
}

fn text<'a>(package: &'a Value, key: &str) -> &'a str {
    package[key].as_str().unwrap_or_default()
}

/// An expression is fine if one alternative is fine in all its parts.
fn allowed(expression: &str) -> bool {
    let fine = |one: &str| LICENCES.contains(&one.trim_matches(['(', ')', ' ']));
    let all = |parts: &str| parts.split(" AND ").all(fine);
    expression
        .replace('/', " OR ")
        .split(" OR ")
        .any(|p| fine(p) || all(p))
        || expression
            .split(" AND ")
            .all(|p| p.replace('/', " OR ").split(" OR ").any(fine))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn licence_expressions_are_read() {
        for fine in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(allowed(fine), "{fine}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "AGPL-3.0 OR GPL-2.0"] {
            assert!(!allowed(bad), "{bad}");
        }
    }

    #[test]
    fn a_foreign_source_a_bad_licence_a_ban_and_a_second_version_are_found() {
        let package = |name: &str, source: &str, license: &str| json!({"name": name, "version": "1", "source": source, "license": license});
        let found = problems(&[
            package("a", "git+ssh://somewhere", "MIT"),
            package("b", "registry+index", "GPL-3.0"),
            package("openssl", "registry+index", "MIT"),
            package("tokio", "registry+index", "MIT"),
            package("tokio", "registry+index", "MIT"),
        ]);
        assert_eq!(found.len(), 4, "{found:?}");
    }
}
