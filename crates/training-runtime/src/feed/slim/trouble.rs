//! Finds trouble in a pod's status. Every field has a default, since a status may be odd.

use k8s_openapi::jiff::Timestamp;
use training_core::plan::draft::{clean, shorten, shorten_front};
use training_core::{Cause, PodPhase, Trouble};

use super::seen::{SlimCondition, SlimContainer, SlimPod, SlimTerminated};

/// Maximum length of a stored container message. Units: bytes.
const MAX_MESSAGE: usize = 512;

/// Returns what is wrong with a pod, if anything. The container `main` takes precedence.
pub(super) fn of(pod: &SlimPod, phase: PodPhase, main: &str) -> Option<Box<Trouble>> {
    let found = match phase {
        PodPhase::Failed => Some(of_failed(pod, main)),
        PodPhase::Succeeded => None,
        PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => waiting(pod, main)
            .or_else(|| lost(pod, phase))
            .or_else(|| unscheduled(pod))
            .or_else(|| restarted(pod, main)),
    };
    let gone_by = pod.metadata.deletion_timestamp.as_ref().map(|t| t.0);
    if found.is_none() && gone_by.is_none() {
        return None;
    }
    let mut found = found.unwrap_or_default();
    if !phase.has_ended() {
        found.ran_since = running_since(pod, main);
    }
    Some(Box::new(Trouble {
        node: clean(pod.spec.node_name.as_deref().unwrap_or_default(), 253),
        gone_by,
        forced: pod.metadata.deletion_grace_period_seconds == Some(0),
        ..found
    }))
}

/// Returns when the main container started, if it runs. If the pod is deleted, its run time sets the pace of replacements.
fn running_since(pod: &SlimPod, main: &str) -> Option<Timestamp> {
    let mut own = containers(pod, main).filter(|(init, _)| !init);
    let running = own.find_map(|(_, c)| c.state.as_ref()?.running.as_ref())?;
    running.started_at.as_ref().map(|t| t.0)
}

/// The name prefix of our own containers.
const OURS: &str = "trainyard-";

/// Returns the termination message of an init container of ours that succeeded.
pub(super) fn termination_message(pod: &SlimPod) -> Option<Box<str>> {
    let init = pod.status.init_container_statuses.iter().flatten();
    let ours = init.filter(|c| c.name.as_deref().is_some_and(|name| name.starts_with(OURS)));
    let mut ended = ours.filter_map(SlimContainer::terminated);
    let said = ended.find_map(|t| t.message.as_deref().filter(|_| t.exit_code == Some(0)))?;
    let said = shorten(said.trim(), MAX_MESSAGE);
    (!said.is_empty()).then(|| said.into())
}

/// Returns true if the cluster removed the pod for reasons outside it: preemption, an API eviction, a taint, a node shutdown, room
/// for a critical pod. A kubelet's eviction of a pod that used up the node is the pod's own fault, but the kubelet sets the same
/// condition whenever it terminates a pod.
pub(super) fn is_disrupted(pod: &SlimPod) -> bool {
    let Some(target) = condition(pod, "DisruptionTarget").filter(|c| c.holds()) else {
        return false;
    };
    target.reason.as_deref() != Some("TerminationByKubelet")
        || matches!(
            pod.status.reason.as_deref(),
            Some("Terminated" | "Preempting")
        )
}

/// Returns the second since which a pending pod has had a node but neither volumes nor network, if its kubelet reports it, or at which
/// a succeeded pod ended.
pub(super) fn since(pod: &SlimPod, phase: PodPhase) -> Option<u32> {
    let changed = match phase {
        PodPhase::Pending => {
            let placed = condition(pod, "PodScheduled").is_some_and(SlimCondition::holds);
            let starts = condition(pod, "PodReadyToStartContainers");
            starts.filter(|starts| placed && !starts.holds())
        }
        PodPhase::Succeeded => condition(pod, "Ready").filter(|ready| !ready.holds()),
        PodPhase::Running | PodPhase::Failed | PodPhase::Unknown => None,
    };
    u32::try_from(changed?.since()?.as_second()).ok()
}

pub(super) fn condition<'a>(pod: &'a SlimPod, type_: &str) -> Option<&'a SlimCondition> {
    let mut conditions = pod.status.conditions.iter().flatten();
    conditions.find(|c| c.type_.as_deref() == Some(type_))
}

impl SlimCondition {
    pub(super) fn holds(&self) -> bool {
        self.status.as_deref() == Some("True")
    }

    fn is_false(&self) -> bool {
        self.status.as_deref() == Some("False")
    }

    fn since(&self) -> Option<Timestamp> {
        self.last_transition_time.as_ref().map(|t| t.0)
    }
}

impl SlimContainer {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn terminated(&self) -> Option<&SlimTerminated> {
        self.state.as_ref()?.terminated.as_ref()
    }

    fn last_terminated(&self) -> Option<&SlimTerminated> {
        self.last_state.as_ref()?.terminated.as_ref()
    }
}

/// Returns the containers by precedence: init containers, which run first, then the main one.
fn containers<'a>(pod: &'a SlimPod, main: &str) -> impl Iterator<Item = (bool, &'a SlimContainer)> {
    let status = &pod.status;
    let init = status.init_container_statuses.iter().flatten();
    let own = || status.container_statuses.iter().flatten();
    let is_main = |c: &&SlimContainer| c.name.as_deref() == Some(main);
    let first = own().find(is_main).into_iter();
    let rest = own().filter(move |c| !first_is(c, pod, main));
    init.map(|c| (true, c))
        .chain(first.chain(rest).map(|c| (false, c)))
}

/// Returns whether this is the container that [`containers`] puts first.
fn first_is(container: &SlimContainer, pod: &SlimPod, main: &str) -> bool {
    let mut own = pod.status.container_statuses.iter().flatten();
    own.find(|c| c.name.as_deref() == Some(main))
        .is_some_and(|c| std::ptr::eq(c, container))
}

/// Returns a container that doesn't start, with the kubelet's reason.
fn waiting(pod: &SlimPod, main: &str) -> Option<Trouble> {
    containers(pod, main).find_map(|(init, container)| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let word = waiting.reason.as_deref().unwrap_or_default();
        let cause = Cause::of_waiting(word)?;
        let ended = container.last_terminated();
        // A failed start is retried like a crash, but its reason stays in the last state.
        let cause = match ended.and_then(|t| Cause::of_waiting(t.reason.as_deref()?)) {
            Some(Cause::RunContainerError) if cause == Cause::CrashLoopBackOff => {
                Cause::RunContainerError
            }
            Some(_) | None => cause,
        };
        let crash =
            ended.filter(|_| matches!(cause, Cause::CrashLoopBackOff | Cause::RunContainerError));
        let mut trouble = match crash {
            Some(ended) => of_ended(container, init, ended),
            None => Trouble {
                reason: clean(word, 64),
                message: clean(
                    stable_message(cause, waiting.message.as_deref()),
                    MAX_MESSAGE,
                ),
                container: clean(container.name(), 64),
                init,
                ..Trouble::default()
            },
        };
        trouble.cause = Some(cause);
        Some(trouble)
    })
}

/// Returns the part of a kubelet's message that stays the same for each attempt.
fn stable_message(cause: Cause, message: Option<&str>) -> &str {
    let message = message.unwrap_or_default().trim();
    match cause {
        // `Back-off pulling image "x": ErrImagePull: why`: keep the error, which is also the message of the attempt itself.
        Cause::ImagePullBackOff => match message.strip_prefix("Back-off pulling image ") {
            Some(rest) => rest.split_once("\": ").map_or("", |(_, why)| {
                why.strip_prefix("ErrImagePull: ").unwrap_or(why)
            }),
            None => message,
        },
        // `back-off 40s restarting …` changes each time.
        Cause::CrashLoopBackOff => "",
        _ => message,
    }
}

/// Recognizes the node controller: it sets `Ready` to false without a reason, and keeps the kubelet's last container states. A
/// kubelet that finds a pod not ready always gives a reason.
fn lost(pod: &SlimPod, phase: PodPhase) -> Option<Trouble> {
    let ready = condition(pod, "Ready")?;
    let said = ready.reason.as_deref().unwrap_or_default();
    let containers = pod.status.container_statuses.as_deref().unwrap_or_default();
    let run = |c: &SlimContainer| c.state.as_ref().is_some_and(|s| s.running.is_some());
    let is_lost = phase == PodPhase::Running
        && ready.is_false()
        && said.is_empty()
        && !containers.is_empty()
        && containers.iter().all(run);
    is_lost.then(|| Trouble {
        reason: "NodeLost".to_owned(),
        cause: Some(Cause::NodeLost),
        since: ready.since(),
        ..Trouble::default()
    })
}

/// Returns a pod without a node, with the scheduler's reason.
fn unscheduled(pod: &SlimPod) -> Option<Trouble> {
    let scheduled = condition(pod, "PodScheduled").filter(|c| c.is_false())?;
    let word = scheduled.reason.as_deref().unwrap_or_default();
    let cause = match word {
        "Unschedulable" => Cause::Unschedulable,
        "SchedulingGated" => Cause::SchedulingGated,
        _ => return None,
    };
    let created = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
    Some(Trouble {
        reason: word.to_owned(),
        message: clean(
            scheduled.message.as_deref().unwrap_or_default(),
            MAX_MESSAGE,
        ),
        cause: Some(cause),
        since: scheduled.since().or(created),
        ..Trouble::default()
    })
}

/// Returns a container that failed and was restarted in its pod, or will be.
fn restarted(pod: &SlimPod, main: &str) -> Option<Trouble> {
    containers(pod, main).find_map(|(init, container)| {
        let bad = |t: &&SlimTerminated| t.exit_code.is_some_and(|c| c != 0);
        let again = container.restart_count.is_some_and(|n| n > 0);
        let state = container.state.as_ref();
        let running = state.and_then(|s| s.running.as_ref());
        let now = container.terminated().filter(bad).filter(|_| again);
        let ended = now.or_else(|| container.last_terminated().filter(bad))?;
        // An init container that succeeded in the end is no trouble.
        if init && running.is_none() && now.is_none() {
            return None;
        }
        let mut trouble = of_ended(container, init, ended);
        let began = running.and_then(|r| r.started_at.as_ref());
        trouble.since = began.map(|t| t.0).or(trouble.since);
        Some(trouble)
    })
}

/// Returns why a pod failed: its main container's termination, else that of any failed container, else the pod's own reason.
fn of_failed(pod: &SlimPod, main: &str) -> Trouble {
    let bad = |t: &&SlimTerminated| t.exit_code != Some(0);
    let status = &pod.status;
    let own = status
        .container_statuses
        .iter()
        .flatten()
        .map(|c| (false, c));
    let init = status
        .init_container_statuses
        .iter()
        .flatten()
        .map(|c| (true, c));
    let first = own.clone().filter(|(_, c)| c.name() == main);
    let found = first
        .chain(own)
        .chain(init)
        .find_map(|(init, c)| Some((init, c, c.terminated().filter(bad)?)));
    let mut trouble = match found {
        Some((init, container, ended)) => {
            // A Job deletes a pod whose container restarted as often as the Job allows. Then the former failure is the cause, and the
            // kubelet may be unable to read the last log.
            let former = container.last_terminated().filter(bad);
            let former = former.filter(|_| deleted_after_restart(pod, ended));
            let mut trouble = of_ended(container, init, former.unwrap_or(ended));
            trouble.since = ended.finished_at.as_ref().map(|t| t.0);
            trouble
        }
        None => Trouble::default(),
    };
    // Evictions and node shutdowns set the pod's reason, which says more than the signal that ended the container.
    if let Some(reason) = &status.reason {
        trouble.reason = clean(reason, 64);
    }
    if let Some(message) = &status.message {
        trouble.message = tail(message);
    }
    trouble
}

/// Returns true if somebody deleted the pod shortly after this container had started.
fn deleted_after_restart(pod: &SlimPod, ended: &SlimTerminated) -> bool {
    /// The time in which the controller of Jobs sees a restart. Unit: seconds.
    const SEEN: i64 = 60;
    let Some(by) = &pod.metadata.deletion_timestamp else {
        return false;
    };
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    let started = ended.started_at.as_ref();
    let lived = started.map(|at| at.0.duration_until(by.0).as_secs() - grace);
    !is_disrupted(pod) && lived.is_none_or(|lived| lived < SEEN)
}

fn of_ended(container: &SlimContainer, init: bool, ended: &SlimTerminated) -> Trouble {
    Trouble {
        reason: clean(ended.reason.as_deref().unwrap_or_default(), 64),
        message: tail(ended.message.as_deref().unwrap_or_default()),
        container: clean(container.name(), 64),
        init,
        exit_code: ended.exit_code.and_then(|c| i32::try_from(c).ok()),
        since: ended.finished_at.as_ref().map(|t| t.0),
        ran_since: ended.started_at.as_ref().map(|t| t.0),
        ..Trouble::default()
    }
}

/// Returns the end of a text, where a program says why it died.
fn tail(text: &str) -> String {
    clean(&shorten_front(text.trim_end(), MAX_MESSAGE), MAX_MESSAGE)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use training_core::health::{Finding, find};
    use training_core::{PodView, Uid};

    use super::super::{OwnerKind, Roles, pod_view};
    use super::*;

    const OWNER_KIND: OwnerKind = OwnerKind {
        group: "kubeflow.org",
        kind: "PyTorchJob",
        container: "pytorch",
        controller: "pytorchjob-controller",
        also: &[],
    };

    /// Returns the view of a job's pod with this status.
    fn seen(status: impl Into<Value>) -> PodView {
        changed(&status.into(), |_| ())
    }

    fn changed(status: &Value, change: impl FnOnce(&mut Value)) -> PodView {
        let mut pod = json!({
            "metadata": {
                "name": "pt-worker-1", "namespace": "ns", "uid": Uid(5).to_string(), "resourceVersion": "42",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {
                    "training.kubeflow.org/job-name": "pt", "training.kubeflow.org/replica-type": "worker",
                    "training.kubeflow.org/replica-index": "1"
                },
                "ownerReferences": [{
                    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "pt", "controller": true,
                    "uid": Uid(7).to_string()
                }]
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "pytorch", "image": "i"}]},
            "status": status
        });
        change(&mut pod);
        let slim: SlimPod = serde_json::from_value(pod).unwrap();
        pod_view(&slim, OWNER_KIND, &mut Roles::default())
            .unwrap()
            .view
    }

    fn is(type_: &str, status: &str, reason: impl Into<Value>) -> Value {
        json!({"type": type_, "status": status, "reason": reason.into(), "lastTransitionTime": "2026-01-01T00:00:05Z"})
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Far later than everything in these tests.
    fn later() -> Timestamp {
        at("2026-01-01T01:00:00Z")
    }

    fn cause(pod: &PodView) -> Option<Cause> {
        match find(pod, later()) {
            Finding::Is(cause) => Some(cause),
            Finding::Nothing | Finding::Until(_) | Finding::Recovering(_) => None,
        }
    }

    fn waits(reason: &str, message: &str) -> Value {
        json!({"phase": "Pending", "conditions": [is("PodScheduled", "True", Value::Null)], "containerStatuses": [
            {"name": "pytorch", "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}
        ]})
    }

    #[test]
    fn mt_34_a_healthy_pod_has_no_memory_of_its_own_in_any_step_of_its_life() {
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:09Z"}});
        for status in [
            json!({}),
            json!({"phase": "Pending", "conditions": [is("PodScheduled", "True", Value::Null)]}),
            waits("ContainerCreating", ""),
            waits("PodInitializing", ""),
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "init-pytorch", "restartCount": 0, "state": running}],
                "containerStatuses": [{"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}]}),
            json!({"phase": "Running", "conditions": [is("Ready", "True", Value::Null)],
                "containerStatuses": [{"name": "pytorch", "ready": true, "restartCount": 0, "state": running}]}),
            json!({"phase": "Running", "conditions": [is("Ready", "False", json!("ContainersNotReady"))],
                "containerStatuses": [{"name": "pytorch", "ready": false, "restartCount": 0, "state": running}]}),
            json!({"phase": "Running", "conditions": [is("Ready", "True", Value::Null)],
                "initContainerStatuses": [{"name": "init-pytorch", "restartCount": 2, "lastState": {"terminated": {"exitCode": 1}},
                    "state": {"terminated": {"exitCode": 0}}}],
                "containerStatuses": [{"name": "pytorch", "ready": true, "restartCount": 0, "state": running}]}),
            json!({"phase": "Succeeded", "conditions": [is("Ready", "False", json!("PodCompleted"))],
                "containerStatuses": [{"name": "pytorch", "state": {"terminated": {"exitCode": 0}}}]}),
        ] {
            assert_eq!(seen(status.clone()).trouble, None, "{status}");
        }
    }

    #[test]
    fn f_65_the_kubelets_words_for_waiting_containers_have_one_meaning_each() {
        for (word, meaning) in [
            ("ErrImagePull", Cause::ImagePullBackOff),
            ("ImagePullBackOff", Cause::ImagePullBackOff),
            ("ImageInspectError", Cause::ImagePullBackOff),
            ("InvalidImageName", Cause::InvalidImageName),
            ("ErrImageNeverPull", Cause::ErrImageNeverPull),
            (
                "CreateContainerConfigError",
                Cause::CreateContainerConfigError,
            ),
            ("CreateContainerError", Cause::CreateContainerError),
            ("RunContainerError", Cause::RunContainerError),
            ("CrashLoopBackOff", Cause::CrashLoopBackOff),
            ("SomethingNew", Cause::ContainerWaiting),
        ] {
            let pod = seen(waits(word, "why\u{1b}[0m"));
            assert_eq!(cause(&pod), Some(meaning), "{word}");
            let trouble = pod.trouble.unwrap();
            assert_eq!(
                (trouble.container.as_str(), trouble.node.as_str()),
                ("pytorch", "n1")
            );
            assert!(!trouble.message.contains('\u{1b}'), "{word}");
        }
    }

    #[test]
    fn a_pull_that_is_tried_again_and_again_says_the_same_each_time() {
        let error = "rpc error: code = NotFound desc = failed to pull \"x/y:1\": not found";
        let tried = seen(waits("ErrImagePull", error));
        let waiting = seen(waits(
            "ImagePullBackOff",
            &format!("Back-off pulling image \"x/y:1\": ErrImagePull: {error}"),
        ));
        assert_eq!(
            tried.trouble.unwrap().message,
            waiting.trouble.unwrap().message
        );
        let bare = seen(waits(
            "ImagePullBackOff",
            "Back-off pulling image \"x/y:1\"",
        ));
        assert_eq!(
            bare.trouble.unwrap().message,
            "",
            "an older kubelet gives no cause"
        );
    }

    #[test]
    fn an_init_container_that_fails_is_named_as_one() {
        let pod = seen(json!({"phase": "Pending",
            "initContainerStatuses": [{"name": "init-pytorch", "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no such host",
                    "finishedAt": "2026-01-01T00:00:30Z"}}}],
            "containerStatuses": [{"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}]}));
        let trouble = pod.trouble.clone().unwrap();
        assert_eq!(cause(&pod), Some(Cause::CrashLoopBackOff));
        assert_eq!(
            (
                trouble.init,
                trouble.container.as_str(),
                trouble.exit_code,
                trouble.message.as_str()
            ),
            (true, "init-pytorch", Some(1), "no such host")
        );
    }

    #[test]
    fn a_command_that_the_image_lacks_is_no_crash() {
        let ended = json!({"terminated": {"exitCode": 128, "reason": "StartError",
            "message": "exec: \"nope\": executable file not found in $PATH", "finishedAt": "2026-01-01T00:00:30Z"}});
        let mut causes = Vec::new();
        for (state, last) in [
            (
                json!({"waiting": {"reason": "RunContainerError", "message": "exec: nope"}}),
                json!({}),
            ),
            (
                json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}),
                ended.clone(),
            ),
        ] {
            let pod = seen(json!({"phase": "Running", "containerStatuses": [
                {"name": "pytorch", "restartCount": 1, "state": state, "lastState": last}]}));
            causes.push(cause(&pod));
        }
        assert_eq!(
            causes,
            [
                Some(Cause::RunContainerError),
                Some(Cause::RunContainerError)
            ]
        );
    }

    #[test]
    fn a_restarted_container_is_remembered_with_how_it_ended_and_is_no_trouble_after_a_minute() {
        let pod = seen(
            json!({"phase": "Running", "conditions": [is("Ready", "True", Value::Null)], "containerStatuses": [
            {"name": "pytorch", "ready": true, "restartCount": 1,
             "state": {"running": {"startedAt": "2026-01-01T00:00:31Z"}},
             "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:30Z"}}}]}),
        );
        assert_eq!(
            find(&pod, at("2026-01-01T00:01:00Z")),
            Finding::Recovering(at("2026-01-01T00:01:31Z"))
        );
        assert_eq!(cause(&pod), None);
        let trouble = pod.trouble.unwrap();
        assert_eq!(
            (trouble.exit_code, trouble.reason.as_str()),
            (Some(137), "OOMKilled")
        );
    }

    #[test]
    fn a_pod_without_a_node_is_told_of_after_ten_seconds() {
        for (word, meaning) in [
            ("Unschedulable", Cause::Unschedulable),
            ("SchedulingGated", Cause::SchedulingGated),
        ] {
            let mut scheduled = is("PodScheduled", "False", json!(word));
            scheduled["message"] = json!("0/1 nodes are available: 1 Insufficient cpu.");
            let pod = seen(json!({"phase": "Pending", "conditions": [scheduled]}));
            let due = at("2026-01-01T00:00:15Z");
            assert_eq!(
                find(&pod, at("2026-01-01T00:00:14Z")),
                Finding::Until(due),
                "{word}"
            );
            assert_eq!(find(&pod, due), Finding::Is(meaning), "{word}");
        }
        // The API server sets the condition of scheduling gates without a time.
        let gated = json!({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"});
        let pod = seen(json!({"phase": "Pending", "conditions": [gated]}));
        assert_eq!(
            find(&pod, at("2026-01-01T00:00:09Z")),
            Finding::Until(at("2026-01-01T00:00:10Z"))
        );
        let scheduler_failed = is("PodScheduled", "False", json!("SchedulerError"));
        assert_eq!(
            seen(json!({"phase": "Pending", "conditions": [scheduler_failed]})).trouble,
            None
        );
    }

    #[test]
    fn volumes_that_do_not_come_are_told_of_after_two_minutes_and_slow_images_never() {
        let conditions = |ready: &str| {
            json!([
                is("PodScheduled", "True", Value::Null),
                is("PodReadyToStartContainers", ready, Value::Null)
            ])
        };
        let status = |ready: &str| {
            let mut status = waits("ContainerCreating", "");
            status["conditions"] = conditions(ready);
            status
        };
        let pod = seen(status("False"));
        assert_eq!(pod.trouble, None);
        let due = at("2026-01-01T00:02:05Z");
        assert_eq!(find(&pod, at("2026-01-01T00:02:04Z")), Finding::Until(due));
        assert_eq!(find(&pod, due), Finding::Is(Cause::PodNotStarting));
        assert_eq!(cause(&seen(status("True"))), None);
    }

    #[test]
    fn a_long_report_of_an_init_container_of_ours_ends_with_an_ellipsis_after_a_whole_word() {
        let ended = json!({"terminated": {"exitCode": 0, "message": "host ".repeat(200)}});
        let init = json!([{"name": "trainyard-wait-for-hosts", "state": ended}]);
        let pod = json!({"metadata": {}, "status": {"initContainerStatuses": init}});
        let said = termination_message(&serde_json::from_value(pod).unwrap()).unwrap();
        assert!(
            said.len() <= MAX_MESSAGE && said.ends_with("host…"),
            "{said}"
        );
    }

    #[test]
    fn a_pod_that_succeeded_ended_when_it_was_no_longer_ready() {
        let conditions = json!([is("Ready", "False", json!("PodCompleted"))]);
        let status = |phase: &str| json!({"phase": phase, "conditions": conditions});
        let ended = at("2026-01-01T00:00:05Z");
        assert_eq!(seen(status("Succeeded")).succeeded_at(), Some(ended));
        assert_eq!(seen(status("Running")).succeeded_at(), None);
        assert_eq!(seen(json!({"phase": "Succeeded"})).succeeded_at(), None);
    }

    #[test]
    fn f_60_a_pod_that_its_node_controller_calls_not_ready_is_lost_and_one_that_its_kubelet_does_is_not()
     {
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:09Z"}});
        let status = |reason: Value, ready: bool| {
            json!({"phase": "Running", "conditions": [is("Ready", "False", reason), is("ContainersReady", "True", Value::Null)],
                "containerStatuses": [{"name": "pytorch", "ready": ready, "restartCount": 0, "state": running}]})
        };
        let lost = seen(status(Value::Null, true));
        assert_eq!(cause(&lost), Some(Cause::NodeLost));
        assert_eq!(
            lost.trouble.unwrap().since,
            Some(at("2026-01-01T00:00:05Z"))
        );
        assert_eq!(
            cause(&seen(status(json!("ContainersNotReady"), false))),
            None
        );
        assert_eq!(
            cause(&seen(status(json!("ReadinessGatesNotReady"), true))),
            None
        );
    }

    #[test]
    fn f_60_a_pod_that_does_not_go_is_told_of_half_a_minute_after_its_grace() {
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:09Z"}});
        let status = |disrupted: bool| {
            let mut conditions = vec![is("Ready", "True", Value::Null)];
            if disrupted {
                conditions.push(is(
                    "DisruptionTarget",
                    "True",
                    json!("DeletionByTaintManager"),
                ));
            }
            json!({"phase": "Running", "conditions": conditions,
                "containerStatuses": [{"name": "pytorch", "ready": true, "restartCount": 0, "state": running}]})
        };
        for (disrupted, meaning) in [(false, Cause::PodStuckTerminating), (true, Cause::NodeLost)] {
            let pod = changed(&status(disrupted), |p| {
                p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:40Z");
                p["metadata"]["deletionGracePeriodSeconds"] = json!(30);
            });
            let due = at("2026-01-01T00:01:10Z");
            assert_eq!(find(&pod, at("2026-01-01T00:01:09Z")), Finding::Until(due));
            assert_eq!(find(&pod, due), Finding::Is(meaning));
            assert!(!pod.trouble.unwrap().forced);
        }
    }

    #[test]
    fn a_failed_pod_says_which_container_ended_it_and_where() {
        let rows = [
            (
                json!({"phase": "Failed", "initContainerStatuses": [
                    {"name": "prepare", "state": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no data"}}}],
                    "containerStatuses": [{"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}]}),
                "exit code 3 (init container prepare on node n1); last words: no data",
            ),
            (
                json!({"phase": "Failed", "containerStatuses": [
                    {"name": "pytorch", "state": {"terminated": {"exitCode": 0}}},
                    {"name": "side", "state": {"terminated": {"exitCode": 139, "reason": "Error"}}}]}),
                "exit code 139: crashed on a bad memory access (SIGSEGV) (container side on node n1)",
            ),
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.",
                    "containerStatuses": [{"name": "pytorch", "state": {"terminated": {"exitCode": 137}}}]}),
                "evicted, because the node ran out of something; ask for what the pod needs in resources.requests, or use less \
                 (container pytorch on node n1): The node was low on resource: memory.",
            ),
        ];
        for (status, said) in rows {
            assert_eq!(training_core::health::explain_failure(&seen(status)), said);
        }
    }

    #[test]
    fn a_failed_pod_that_is_deleted_after_a_restart_says_why_it_restarted() {
        let read = "Error on reading termination message from logs: failed to open log file";
        for (code, words) in [(3, read), (143, "")] {
            let status = json!({"phase": "Failed", "containerStatuses": [{"name": "pytorch", "restartCount": 1,
                "state": {"terminated": {"exitCode": code, "reason": "Error", "message": words,
                    "finishedAt": "2026-01-01T00:00:40Z"}},
                "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no such input",
                    "finishedAt": "2026-01-01T00:00:30Z"}}}]});
            let deleted = changed(&status, |p| {
                p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:39Z");
            });
            let said = training_core::health::explain_failure(&deleted);
            assert_eq!(
                said,
                "exit code 3 (container pytorch on node n1); last words: no such input"
            );
            let since = deleted.trouble.unwrap().since;
            assert_eq!(since, Some(at("2026-01-01T00:00:40Z")));
            // A container that ran for long after its restart ended by something else.
            let mut started = status.clone();
            started["containerStatuses"][0]["state"]["terminated"]["startedAt"] =
                json!("2026-01-01T00:00:31Z");
            for (by, restarted) in [
                ("2026-01-01T00:05:32Z", true),
                ("2026-01-01T00:06:40Z", false),
            ] {
                let deleted = changed(&started, |p| {
                    p["metadata"]["deletionTimestamp"] = json!(by);
                    p["metadata"]["deletionGracePeriodSeconds"] = json!(300);
                });
                let said = training_core::health::explain_failure(&deleted);
                assert_eq!(
                    said.ends_with("last words: no such input"),
                    restarted,
                    "{said}"
                );
            }
            let kept = training_core::health::explain_failure(&seen(status));
            assert!(kept.starts_with(&format!("exit code {code}")), "{kept}");
        }
    }

    #[test]
    fn b_130_mt_23_a_mebibyte_of_control_characters_is_cut_to_its_end_and_cleaned() {
        let noise = format!(
            "{}the last line\u{0}\u{7}\u{1b}[2J\n",
            "x\u{1b}]0;evil\u{7}".repeat(1 << 17)
        );
        let pod = seen(
            json!({"phase": "Failed", "reason": "a\u{1b}b", "containerStatuses": [{"name": "pytorch", "state":
            {"terminated": {"exitCode": 1, "reason": "Error", "message": noise}}}]}),
        );
        let trouble = pod.trouble.unwrap();
        assert!(
            trouble.message.len() <= MAX_MESSAGE,
            "{}",
            trouble.message.len()
        );
        assert!(trouble.message.contains("the last line"));
        let texts = [&trouble.message, &trouble.reason];
        assert!(
            texts.iter().all(|t| !t.contains(char::is_control)),
            "{trouble:?}"
        );
    }
}
