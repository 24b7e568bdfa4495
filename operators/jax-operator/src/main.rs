//! The binary `jax-operator`.

use jax_operator::{ABOUT, JAX};
use training_runtime::entry::{self, NoArgs};

fn main() -> anyhow::Result<()> {
    entry::main(ABOUT, |_: NoArgs, _| Ok(JAX))
}
