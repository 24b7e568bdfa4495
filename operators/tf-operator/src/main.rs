//! `tf-operator`.

use tf_operator::args::TfArgs;
use tf_operator::{ABOUT, TensorFlow};
use training_runtime::entry;

fn main() -> anyhow::Result<()> {
    entry::main(ABOUT, |args: TfArgs| {
        Ok(TensorFlow {
            cluster_domain: args.cluster_domain.filter(|d| !d.is_empty()),
        })
    })
}
