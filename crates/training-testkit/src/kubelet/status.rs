//! The pod statuses that a kubelet writes.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::SeenPod;

/// A state in which to put a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// All containers run.
    Running,
    /// All containers ended with 0.
    Succeeded,
    /// The first container ended with this code.
    Failed {
        /// The exit code; above 128 it means a signal.
        exit_code: i32,
        /// The termination message; empty for none.
        message: String,
    },
    /// The kubelet evicted it for lack of memory on the node.
    Evicted,
    /// The first container waits with a reason of the kubelet: `ErrImagePull`, `CreateContainerConfigError`, …
    Waiting {
        /// The reason.
        reason: String,
        /// The message.
        message: String,
    },
    /// The first container failed and waits for its restart.
    CrashLoop {
        /// The exit code.
        exit_code: i32,
        /// The kubelet's reason: `Error`, `OOMKilled`.
        reason: String,
        /// The termination message.
        message: String,
    },
    /// The first init container exited with this code, and the pod failed.
    InitFailed {
        /// The exit code.
        exit_code: i32,
        /// The termination message.
        message: String,
    },
    /// The first init container waits with a reason of the kubelet.
    InitWaiting {
        /// The reason.
        reason: String,
        /// The message.
        message: String,
    },
    /// The scheduler found no node.
    Unschedulable {
        /// The message.
        message: String,
    },
    /// All containers still run, and the pod is being disrupted.
    Disrupted {
        /// The reason: `PreemptionByScheduler`, `EvictionByEvictionAPI`, `DeletionByTaintManager`.
        reason: String,
    },
    /// Its node is unresponsive, and the node controller has marked the pod as not ready, without a reason. The kubelet's last
    /// container statuses remain.
    NodeLost,
}

impl State {
    /// The pod phase of the state.
    pub fn phase(&self) -> &'static str {
        match self {
            Self::Running | Self::Disrupted { .. } | Self::NodeLost | Self::CrashLoop { .. } => {
                "Running"
            }
            Self::Succeeded => "Succeeded",
            Self::Failed { .. } | Self::InitFailed { .. } | Self::Evicted => "Failed",
            Self::Waiting { .. } | Self::InitWaiting { .. } | Self::Unschedulable { .. } => {
                "Pending"
            }
        }
    }

    /// Returns true if its containers are reported as running.
    fn runs(&self) -> bool {
        matches!(
            self,
            Self::Running | Self::Disrupted { .. } | Self::NodeLost
        )
    }
}

/// The current time in the API's format, in whole seconds.
pub fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The merge patch that puts a pod into a state. It names the uid, so that it can't reach a successor of the same name.
pub(super) fn patch(pod: &SeenPod, state: &State, restarts: i32) -> Value {
    let phase = state.phase();
    let reason = (*state == State::Evicted).then_some("Evicted");
    if let State::Unschedulable { message } = state {
        // The scheduler writes only its condition.
        let mut scheduled = condition("PodScheduled", "False", Some("Unschedulable"));
        scheduled["message"] = json!(message);
        return json!({ "metadata": { "uid": pod.uid }, "status": { "phase": phase, "conditions": [scheduled] } });
    }
    let mut status = json!({
        "phase": phase,
        "reason": reason,
        "startTime": now(),
        "conditions": conditions(state),
        "podIP": pod.address,
        "podIPs": [{ "ip": pod.address }],
        "initContainerStatuses": pod.init_containers.iter().enumerate().map(|(index, (name, image))| {
            let state = match state {
                State::InitFailed { exit_code, message } if index == 0 => ended(*exit_code, "Error", message),
                State::InitWaiting { reason, message } if index == 0 => {
                    json!({ "waiting": { "reason": reason, "message": message } })
                }
                State::InitFailed { .. } | State::InitWaiting { .. } => {
                    json!({ "waiting": { "reason": "PodInitializing" } })
                }
                _ => ended(0, "Completed", ""),
            };
            container(name, image, &state, true, 0, &json!({}))
        }).collect::<Vec<_>>(),
        "containerStatuses": pod.containers.iter().enumerate().map(|(index, (name, image))| {
            // Only the first container fails; a sidecar exits normally.
            let restarts = if index == 0 { restarts } else { 0 };
            let last = match state {
                State::CrashLoop { exit_code, reason, message } if index == 0 => ended(*exit_code, reason, message),
                _ if restarts > 0 => ended(1, "Error", ""),
                _ => json!({}),
            };
            container(name, image, &container_state(state, index), state.runs(), restarts, &last)
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
        State::Waiting { reason, message } if index == 0 => {
            json!({ "waiting": { "reason": reason, "message": message } })
        }
        State::CrashLoop { .. } if index == 0 => json!({ "waiting": {
            "reason": "CrashLoopBackOff",
            "message": "back-off 10s restarting failed container=pytorch pod=p_ns(uid)",
        }}),
        State::CrashLoop { .. } => json!({ "running": { "startedAt": now() } }),
        State::Waiting { .. } => json!({ "waiting": { "reason": "ContainerCreating" } }),
        State::InitFailed { .. } | State::InitWaiting { .. } | State::Unschedulable { .. } => {
            json!({ "waiting": { "reason": "PodInitializing" } })
        }
        State::Succeeded | State::Failed { .. } | State::Evicted => ended(0, "Completed", ""),
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

fn container(
    name: &str,
    image: &str,
    state: &Value,
    ready: bool,
    restarts: i32,
    last: &Value,
) -> Value {
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
        State::Failed { .. } | State::InitFailed { .. } | State::Evicted => {
            ("False", Some("PodFailed"))
        }
        State::Waiting { .. }
        | State::InitWaiting { .. }
        | State::CrashLoop { .. }
        | State::Unschedulable { .. } => ("False", Some("ContainersNotReady")),
    };
    // The node controller changes only `Ready`.
    let containers_ready = if *state == State::NodeLost {
        "True"
    } else {
        ready
    };
    let initialized = if matches!(state, State::InitFailed { .. } | State::InitWaiting { .. }) {
        "False"
    } else {
        "True"
    };
    let sandbox = state.runs()
        || matches!(
            state,
            State::Waiting { .. } | State::InitWaiting { .. } | State::CrashLoop { .. }
        );
    let mut list = vec![
        condition(
            "PodReadyToStartContainers",
            if sandbox { "True" } else { "False" },
            None,
        ),
        condition("Initialized", initialized, None),
        condition("Ready", ready, reason),
        condition("ContainersReady", containers_ready, reason),
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
