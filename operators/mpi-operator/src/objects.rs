//! What a job has beside its workers: Services, the ConfigMap that lists the hosts, the Secret, and the launcher's Job.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
    PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use training_api::{RestartPolicy, RunPolicy};
use training_core::SpecError;

use crate::api::Origin;
use crate::common::Common;
use crate::hosts::{self, Hosts};
use crate::names::config_map;
use crate::pods::{self, Rendered, selector};
use crate::setup::{Implementation, Setup, main_in};

/// Metadata of an object of this name.
fn metadata(cx: &Common<'_>, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(cx.setup.namespace.to_owned()),
        labels: Some([("app".to_owned(), cx.setup.name.to_owned())].into()),
        owner_references: Some(vec![cx.owner.clone()]),
        ..ObjectMeta::default()
    }
}

fn headless(
    cx: &Common<'_>,
    name: String,
    selector: BTreeMap<String, String>,
    unready: bool,
) -> Service {
    Service {
        metadata: metadata(cx, name),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(selector),
            publish_not_ready_addresses: Some(unready),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// The Service by which all hosts of the job are found. Hosts that are not ready are in it only where ranks run in the launcher,
/// which is not ready before they do.
pub fn service(cx: &Common<'_>) -> Service {
    let unready = cx.setup.launcher_works;
    headless(cx, cx.setup.name.to_owned(), selector(cx.setup), unready)
}

/// The Service by which workers find the launcher, ready or not: Hydra's proxies call it back before any rank runs. `None` for an
/// implementation that doesn't.
pub fn launcher_service(cx: &Common<'_>) -> Option<Service> {
    if cx.setup.implementation == Implementation::OpenMpi {
        return None;
    }
    let mut to = selector(cx.setup);
    let key = match cx.setup.origin {
        Origin::V2beta1 => training_api::labels::JOB_ROLE,
        Origin::V1 => training_api::labels::REPLICA_TYPE,
    };
    to.insert(key.to_owned(), pods::LAUNCHER_LABEL.to_owned());
    Some(headless(cx, hosts::launcher(cx.setup.name), to, true))
}

/// The files that list the hosts, given the indices of the workers that run.
pub fn config_data(
    setup: &Setup<'_>,
    domain: &str,
    running: impl IntoIterator<Item = u32>,
) -> BTreeMap<String, String> {
    let hosts = Hosts::of(setup, domain);
    let slots = (setup.origin == Origin::V1).then_some(setup.slots);
    [
        (
            "hostfile".to_owned(),
            hosts.hostfile(setup.implementation, setup.slots),
        ),
        (
            "discover_hosts.sh".to_owned(),
            hosts.discovery(running, slots),
        ),
    ]
    .into()
}

/// The ConfigMap that lists the hosts.
pub fn config(cx: &Common<'_>, running: impl IntoIterator<Item = u32>) -> ConfigMap {
    ConfigMap {
        metadata: metadata(cx, config_map(cx.setup.name)),
        data: Some(config_data(cx.setup, cx.domain, running)),
        ..ConfigMap::default()
    }
}

/// The Secret that is to hold the keys, without them: they are made when it is sent.
pub fn secret(cx: &Common<'_>) -> Secret {
    Secret {
        metadata: metadata(cx, cx.secret.to_owned()),
        type_: Some("kubernetes.io/ssh-auth".to_owned()),
        ..Secret::default()
    }
}

/// Exit codes that a new try would only repeat.
const PERMANENT: std::ops::RangeInclusive<i32> = 1..=127;

/// The Job that runs the launcher.
///
/// # Errors
/// The field of the spec that makes its pod impossible.
pub fn launcher(
    cx: &Common<'_>,
    policy: &RunPolicy,
    suspended: bool,
) -> Result<Rendered<Job>, SpecError> {
    let Rendered { made, replaced } = pods::launcher(cx)?;
    let setup = cx.setup;
    let restart = setup.launcher.restart;
    // A Job knows two restart policies; what v1 means by the others is said in its own terms.
    let mut template = made;
    if let Some(spec) = template.spec.as_mut() {
        spec.restart_policy = Some(
            match restart {
                RestartPolicy::Always | RestartPolicy::OnFailure => "OnFailure",
                RestartPolicy::Never | RestartPolicy::ExitCode => "Never",
            }
            .to_owned(),
        );
    }
    let main = template.spec.as_ref().and_then(|s| main_in(s, setup.main));
    let main = main.map(|c| c.name.clone());
    let once = setup.origin == Origin::V1 && restart == RestartPolicy::Never;
    let made = Job {
        metadata: metadata(cx, hosts::launcher(setup.name)),
        spec: Some(JobSpec {
            active_deadline_seconds: policy.active_deadline_seconds,
            backoff_limit: policy.backoff_limit.or(once.then_some(0)),
            pod_failure_policy: failure_policy(setup.origin, restart, main),
            pod_replacement_policy: Some("Failed".to_owned()),
            suspend: suspended.then_some(true),
            template,
            ttl_seconds_after_finished: policy.ttl_seconds_after_finished,
            ..JobSpec::default()
        }),
        status: None,
    };
    Ok(Rendered { made, replaced })
}

/// What the Job makes of a pod that failed, where that is not to try again. A Job of `v2beta1` has no such policy, as published.
/// A policy can't tell an eviction by the kubelet, which is the pod's own doing, from a drain: both are ignored.
fn failure_policy(
    origin: Origin,
    restart: RestartPolicy,
    main: Option<String>,
) -> Option<PodFailurePolicy> {
    let never = match restart {
        RestartPolicy::Never | RestartPolicy::ExitCode => true,
        // A Job takes no policy for pods whose kubelet restarts them.
        RestartPolicy::Always | RestartPolicy::OnFailure => false,
    };
    let ignored = PodFailurePolicyRule {
        action: "Ignore".to_owned(),
        on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
            type_: "DisruptionTarget".to_owned(),
            status: Some("True".to_owned()),
        }]),
        ..PodFailurePolicyRule::default()
    };
    let permanent = PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: main,
            operator: "In".to_owned(),
            values: PERMANENT.collect(),
        }),
        ..PodFailurePolicyRule::default()
    };
    let ignored = (origin == Origin::V1 && never).then_some(ignored);
    let permanent = (restart == RestartPolicy::ExitCode).then_some(permanent);
    let rules: Vec<PodFailurePolicyRule> = ignored.into_iter().chain(permanent).collect();
    (!rules.is_empty()).then_some(PodFailurePolicy { rules })
}
