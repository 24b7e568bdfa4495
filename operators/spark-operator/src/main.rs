//! `spark-operator`.

use spark_operator::args;
use training_runtime::entry;

fn main() -> anyhow::Result<()> {
    let cli = args::parse(std::env::args_os());
    entry::serve(cli.operator()?, cli.runtime())
}
