//! The replica specs of the kind.

use training_api::RestartPolicy;
use training_core::{OtherTypes, Replicas};

use crate::api::{CHIEF, CONTAINER, MASTER, REPLICA_MAP, TYPES, WORKER};

/// The replica specs of the kind.
pub const REPLICAS: Replicas = Replicas {
    field: REPLICA_MAP,
    types: TYPES,
    others: OtherTypes::Served,
    master_types: &[CHIEF, MASTER],
    fallback_master_type: Some(WORKER),
    container: CONTAINER,
    port: ("tfjob-port", 2222),
    restart: RestartPolicy::Never,
};
