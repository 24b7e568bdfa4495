//! The replica specs of the kind.

use training_api::RestartPolicy;
use training_core::{Others, Replicas};

use crate::api::{CONTAINER, MASTER, REPLICA_MAP, WORKER};

/// The replica specs of the kind.
pub const REPLICAS: Replicas = Replicas {
    field: REPLICA_MAP,
    types: &[MASTER, WORKER],
    others: Others::Refused,
    speakers: &[MASTER],
    stand_in: Some(WORKER),
    container: CONTAINER,
    port: ("pytorchjob-port", 23456),
    restart: RestartPolicy::OnFailure,
};
