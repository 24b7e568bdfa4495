//! A job's objects other than workers: Services, the ConfigMap that lists the hosts, the Secret, and the launcher's Job.

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

/// Returns the metadata of an object with this name.
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

/// Returns the Service for all hosts of the job. It publishes hosts that are not ready only if ranks run in the launcher, which is
/// not ready before they run.
pub fn service(cx: &Common<'_>) -> Service {
    let unready = cx.setup.launcher_works;
    headless(cx, cx.setup.name.to_owned(), selector(cx.setup), unready)
}

/// Returns the Service by which workers find the launcher, ready or not: Hydra's proxies call it back before any rank runs. `None`
/// for implementations that don't call back.
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
    Some(headless(cx, hosts::launcher_name(cx.setup.name), to, true))
}

/// Returns the files that list the hosts, given the indices of the running workers.
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

/// Returns the Secret for the keys, which are generated when it is sent.
pub fn secret(cx: &Common<'_>) -> Secret {
    Secret {
        metadata: metadata(cx, cx.secret.to_owned()),
        type_: Some("kubernetes.io/ssh-auth".to_owned()),
        ..Secret::default()
    }
}

/// Exit codes for which a retry is pointless.
const PERMANENT: std::ops::RangeInclusive<i32> = 1..=127;

/// Builds the Job that runs the launcher.
///
/// # Errors
/// The field of the spec that makes its pod invalid.
pub fn launcher_job(
    cx: &Common<'_>,
    policy: &RunPolicy,
    suspended: bool,
) -> Result<Rendered<Job>, SpecError> {
    let Rendered { made, replaced } = pods::launcher_template(cx)?;
    let setup = cx.setup;
    let restart = setup.launcher.restart;
    // A Job allows only two restart policies; the pod failure policy implements the others of v1.
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
        metadata: metadata(cx, hosts::launcher_name(setup.name)),
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

/// Returns the pod failure policy for exits that are not to be retried. A Job of `v2beta1` has none, as published. The policy can't
/// distinguish an eviction by the kubelet, which is the pod's own fault, from a drain, so it ignores both.
fn failure_policy(
    origin: Origin,
    restart: RestartPolicy,
    main: Option<String>,
) -> Option<PodFailurePolicy> {
    let never = match restart {
        RestartPolicy::Never | RestartPolicy::ExitCode => true,
        // A Job rejects the policy for pods that the kubelet restarts.
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
