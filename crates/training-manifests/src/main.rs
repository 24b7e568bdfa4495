//! `training-manifests generate` writes manifests and reference documents; with `--check` it only reports differences.
//! `training-manifests charts DIR` writes the Helm charts, `training-manifests schemas DIR` JSON schemas of the kinds.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use training_manifests::operator;

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["generate"] => false,
        ["generate", "--check"] => true,
        ["charts", directory] => {
            training_manifests::chart::write(Path::new(directory), &operator::all()?)?;
            return Ok(ExitCode::SUCCESS);
        }
        ["schemas", directory] => {
            training_manifests::schema::write(Path::new(directory), &operator::all()?)?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {
            eprintln!("usage: training-manifests generate [--check] | charts DIR | schemas DIR");
            return Ok(ExitCode::from(2));
        }
    };
    // The workspace is two levels above this package, independent of the working directory.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("the package does not lie in crates/")?;
    if !check {
        training_manifests::write(root)?;
        return Ok(ExitCode::SUCCESS);
    }
    let differing = training_manifests::differing(root)?;
    for path in &differing {
        eprintln!("differs from what the types say: {}", path.display());
    }
    if differing.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("run `cargo run -p training-manifests -- generate` and commit the result");
    Ok(ExitCode::FAILURE)
}
