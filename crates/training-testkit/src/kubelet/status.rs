//! What a kubelet writes into a pod's status.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::SeenPod;

/// A state that a pod can be told to be in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// All containers run.
    Running,
    /// All containers ended with 0.
    Succeeded,
    /// The first container ended with this code.
    Failed {
        /// The exit code; above 128 it stands for a signal.
        exit_code: i32,
        /// The termination message; empty for none.
        message: String,
    },
    /// The kubelet evicted it for lack of memory on the node.
    Evicted,
    /// It waits for its image.
    ImagePullBackOff,
    /// All containers still run, and it has been told to make room.
    Disrupted {
        /// Who told it: `PreemptionByScheduler`, `EvictionByEvictionAPI`, `DeletionByTaintManager`.
        reason: String,
    },
    /// Its node no longer answers: not ready, and its containers are still reported to run.
    NodeLost,
}

impl State {
    /// Whether its containers are reported to run.
    fn runs(&self) -> bool {
        matches!(
            self,
            Self::Running | Self::Disrupted { .. } | Self::NodeLost
        )
    }
}

/// The time in the API's form, in whole seconds.
pub fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The merge patch that puts a pod into a state; it names the uid, so that it can't reach a
/// successor of the same name.
pub(super) fn patch(pod: &SeenPod, state: &State, restarts: i32) -> Value {
    let (phase, reason) = match state {
        State::Running | State::Disrupted { .. } | State::NodeLost => ("Running", Value::Null),
        State::Succeeded => ("Succeeded", Value::Null),
        State::Failed { .. } => ("Failed", Value::Null),
        State::Evicted => ("Failed", json!("Evicted")),
        State::ImagePullBackOff => ("Pending", Value::Null),
    };
    let mut status = json!({
        "phase": phase,
        "reason": reason,
        "startTime": now(),
        "conditions": conditions(state),
        "podIP": pod.address,
        "podIPs": [{ "ip": pod.address }],
        "initContainerStatuses": pod.init_containers.iter().map(|(name, image)| {
            container(name, image, &ended(0, "Completed", ""), true, 0)
        }).collect::<Vec<_>>(),
        "containerStatuses": pod.containers.iter().enumerate().map(|(index, (name, image))| {
            // Only the first container fails; a sidecar beside it goes in good order.
            let restarts = if index == 0 { restarts } else { 0 };
            container(name, image, &container_state(state, index), state.runs(), restarts)
        }).collect::<Vec<_>>(),
    });
    if *state == State::Evicted {
        status["message"] = json!("The node was low on resource: memory.");
        status["containerStatuses"] = json!([]);
        status["initContainerStatuses"] = json!([]);
    }
    json!({ "metadata": { "uid": pod.uid }, "status": status })
}

fn container_state(state: &State, index: usize) -> Value {
    match state {
        State::Running | State::Disrupted { .. } | State::NodeLost => {
            json!({ "running": { "startedAt": now() } })
        }
        State::Failed { exit_code, message } if index == 0 => ended(*exit_code, "Error", message),
        State::Succeeded | State::Failed { .. } | State::Evicted => ended(0, "Completed", ""),
        State::ImagePullBackOff => json!({ "waiting": {
            "reason": "ImagePullBackOff", "message": "Back-off pulling image",
        }}),
    }
}

fn ended(exit_code: i32, reason: &str, message: &str) -> Value {
    let mut terminated = json!({
        "exitCode": exit_code, "reason": reason, "startedAt": now(), "finishedAt": now(),
    });
    if !message.is_empty() {
        terminated["message"] = json!(message);
    }
    json!({ "terminated": terminated })
}

fn container(name: &str, image: &str, state: &Value, ready: bool, restarts: i32) -> Value {
    let last = if restarts > 0 {
        ended(1, "Error", "")
    } else {
        json!({})
    };
    json!({
        "name": name, "image": image, "imageID": "", "ready": ready,
        "started": state.get("running").is_some(),
        "restartCount": restarts, "state": state, "lastState": last,
    })
}

fn conditions(state: &State) -> Vec<Value> {
    let (ready, reason) = match state {
        State::Running | State::Disrupted { .. } => ("True", None),
        State::NodeLost => ("False", None),
        State::Succeeded => ("False", Some("PodCompleted")),
        State::Failed { .. } | State::Evicted => ("False", Some("PodFailed")),
        State::ImagePullBackOff => ("False", Some("ContainersNotReady")),
    };
    let initialized = if *state == State::ImagePullBackOff {
        "False"
    } else {
        "True"
    };
    let mut list = vec![
        condition(
            "PodReadyToStartContainers",
            if state.runs() { "True" } else { "False" },
            None,
        ),
        condition("Initialized", initialized, None),
        condition("Ready", ready, reason),
        condition("ContainersReady", ready, reason),
        condition("PodScheduled", "True", None),
    ];
    if *state == State::Evicted {
        list.push(condition(
            "DisruptionTarget",
            "True",
            Some("TerminationByKubelet"),
        ));
    }
    if let State::Disrupted { reason } = state {
        list.push(condition("DisruptionTarget", "True", Some(reason)));
    }
    list
}

pub(super) fn condition(kind: &str, status: &str, reason: Option<&str>) -> Value {
    let mut condition = json!({ "type": kind, "status": status, "lastTransitionTime": now() });
    if let Some(reason) = reason {
        condition["reason"] = json!(reason);
    }
    condition
}
