//! The binary `tf-operator`.

use tf_operator::{ABOUT, TensorFlow};
use training_runtime::entry::{self, NoArgs};

fn main() -> anyhow::Result<()> {
    entry::main(ABOUT, |_: NoArgs, args| {
        Ok(TensorFlow {
            cluster_domain: args.cluster_domain().map(str::to_owned),
        })
    })
}
