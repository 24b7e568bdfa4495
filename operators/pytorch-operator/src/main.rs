//! pytorch-operator.
fn main() {}
