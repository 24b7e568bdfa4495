//! Created objects as the operator observes them.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use spark_operator::digest::SpecDigest;
use spark_operator::label;
use spark_operator::lifecycle::observed::{Driver, Executor, Object, Placement};
use spark_operator::lifecycle::step::NewObject;
use training_core::{PodPhase, Uid};

/// An object right after its creation.
pub fn object(make: &NewObject, uid: Uid) -> Object {
    let (kind, name) = make.id();
    let service = matches!(make, NewObject::Service(_));
    let placement = match make {
        NewObject::ConfigMap(map) => placement(map, 1),
        _ => None,
    };
    Object {
        kind,
        name,
        uid,
        submission_id: make.submission_id().to_owned(),
        terminating: false,
        address: service.then(|| ("10.0.0.7".to_owned(), 4040)),
        placement,
    }
}

/// A driver right after its creation.
pub fn driver(pod: &Pod, uid: Uid) -> Driver {
    let labels = pod.labels();
    let annotations = pod.annotations();
    let of = |key: &str| labels.get(key).cloned().unwrap_or_default();
    let digest = annotations.get(label::SPEC_DIGEST);
    let generation = annotations.get(label::GENERATION);
    Driver {
        name: pod.name_any(),
        uid,
        submission_id: of(label::SUBMISSION_ID),
        app_id: of(label::APP_SELECTOR),
        digest: digest.and_then(|d| SpecDigest::parse(d)),
        generation: generation.and_then(|g| g.parse().ok()),
        restart_request: annotations.get("trainyard.dev/restart-request").cloned(),
        phase: PodPhase::Pending,
        terminating: false,
        deletion_deadline: None,
        end: None,
        disruption: None,
        waiting: None,
    }
}

/// An executor, as this driver creates it.
pub fn executor(
    driver: &Driver,
    name: &str,
    uid: Uid,
    phase: PodPhase,
    now: Timestamp,
) -> Executor {
    Executor {
        name: name.to_owned(),
        uid,
        submission_id: driver.submission_id.clone(),
        app_id: driver.app_id.clone(),
        phase,
        terminating: false,
        deletion_deadline: None,
        end: None,
        message: String::new(),
        created: now,
    }
}

/// Where the executors' template of this version places them.
pub fn placement(map: &ConfigMap, version: u32) -> Option<Placement> {
    let digest = map.annotations().get(label::PLACEMENT)?;
    Some(Placement {
        digest: digest.clone(),
        resource_version: version.to_string(),
    })
}
