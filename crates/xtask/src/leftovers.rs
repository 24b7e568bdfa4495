//! Nothing of ours stays behind: no process, mount, network device, control group.

use crate::stages::Stage;
use crate::table::{Count, End};
use crate::{paths, process};

/// Fails if anything of the tests' clusters, or of any light mode, is still there.
pub fn check(stage: &Stage, name: &str) -> Result<End, String> {
    let node = process::built("e2e/cluster/build")?;
    let cache = paths::cache().display().to_string();
    let args = ["cluster", "leftovers", "--name", name, "--cache", &cache];
    stage
        .run(&mut process::command(node, args))
        .map(|()| End::Passed(Count::default()))
}
