//! The binary `paddle-operator`.

use paddle_operator::{ABOUT, Paddle};
use training_runtime::entry::{self, NoArgs};

fn main() -> anyhow::Result<()> {
    entry::main(ABOUT, |_: NoArgs, _| Ok(Paddle))
}
