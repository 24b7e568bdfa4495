//! The real `spark-submit`, what it is run with, and the form in which objects are compared.

pub mod arguments;
#[path = "../../operators/spark-operator/tests/spark/submit/recording.rs"]
pub mod recording;
pub mod sandbox;
