//! Licences, sources and banned crates, checked by cargo-deny as `deny.toml` says.

use std::path::Path;

use crate::{paths, process};

/// Pinned, so that upgrades are deliberate.
const VERSION: &str = "0.20.2";

/// Checks the whole graph.
pub fn check() -> Result<(), String> {
    check_package(&paths::root()).map(drop)
}

/// Checks the package in a directory and what it depends on.
fn check_package(directory: &Path) -> Result<String, String> {
    let program = process::cargo_tool("cargo-deny", VERSION, &[])?;
    let mut deny = process::command(program, ["--manifest-path"]);
    deny.arg(directory.join("Cargo.toml")).arg("--config");
    deny.arg(paths::root().join("deny.toml"));
    process::quiet(deny.args(["check", "licenses", "bans", "sources"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate `ours` with this licence and this dependency `theirs`, of which there is a git repository and a registry.
    fn checked(licence: &str, theirs: &str) -> Result<String, String> {
        const SCRIPT: &str = r#"
            set -e
            package() {
                mkdir -p "$1/src" && touch "$1/src/lib.rs"
                printf '[package]\nname = "%s"\nversion = "1.0.0"\nedition = "2024"\nlicense = "%s"\n' "$1" "$2" > "$1/Cargo.toml"
            }
            commit() {
                git -C "$1" init --quiet && git -C "$1" add .
                git -C "$1" -c user.name=test -c user.email=test@invalid commit --quiet --message test
            }
            package theirs MIT
            tar -czf theirs.crate --transform 's,^theirs,theirs-1.0.0,' theirs
            mkdir -p index/th/ei
            printf '{"dl": "file://%s/{crate}.crate"}' "$PWD" > index/config.json
            printf '{"name": "theirs", "vers": "1.0.0", "deps": [], "features": {}, "yanked": false, "cksum": "%s"}\n' \
                "$(sha256sum theirs.crate | cut -d' ' -f1)" > index/th/ei/theirs
            commit theirs && commit index
            package ours "$1"
            printf '[workspace]\n[dependencies]\n%s\n' "$2" >> ours/Cargo.toml
        "#;
        let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
        let place = scratch.path().to_string_lossy();
        let theirs = theirs.replace("PLACE", &place);
        let mut script = process::command("sh", ["-c", SCRIPT, "sh", licence, &theirs]);
        process::quiet(script.current_dir(scratch.path()))?;
        check_package(&scratch.path().join("ours"))
    }

    #[test]
    fn a_licence_that_is_only_partly_allowed_and_sources_other_than_the_public_index_are_refused() {
        assert!(checked("MIT", "").is_ok());
        let refused = [
            ("(MIT OR Apache-2.0) AND GPL-3.0", "", "licenses FAILED"),
            (
                "MIT",
                r#"theirs = { version = "1", git = "file://PLACE/theirs" }"#,
                "sources FAILED",
            ),
            (
                "MIT",
                r#"theirs = { version = "1", registry-index = "file://PLACE/index" }"#,
                "sources FAILED",
            ),
        ];
        for (licence, theirs, expected) in refused {
            let said = checked(licence, theirs).unwrap_err();
            assert!(said.contains(expected), "{licence} {theirs}: {said}");
        }
    }
}
