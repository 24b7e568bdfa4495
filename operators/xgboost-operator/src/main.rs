//! The binary `xgboost-operator`.

use training_runtime::entry::{self, NoArgs};
use xgboost_operator::{ABOUT, XGBoost};

fn main() -> anyhow::Result<()> {
    entry::main(ABOUT, |_: NoArgs, _| Ok(XGBoost))
}
