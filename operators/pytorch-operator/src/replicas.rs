//! The replica specs of the kind.

use training_api::RestartPolicy;
use training_core::{OtherTypes, Replicas};

use crate::api::{CONTAINER, MASTER, REPLICA_MAP, WORKER};

/// The replica specs of the kind.
pub const REPLICAS: Replicas = Replicas {
    field: REPLICA_MAP,
    types: &[MASTER, WORKER],
    others: OtherTypes::Refused,
    master_types: &[MASTER],
    fallback_master_type: Some(WORKER),
    container: CONTAINER,
    port: ("pytorchjob-port", 23456),
    restart: RestartPolicy::OnFailure,
};
