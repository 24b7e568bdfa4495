//! The real `spark-submit`, its input, and the normal form for comparing objects.

pub mod arguments;
#[path = "../../operators/spark-operator/tests/spark/submit/recording.rs"]
pub mod recording;
pub mod sandbox;
