//! Gangs of PyTorchJobs: their group objects, the marks on pods, and the order of events.

use crate::scene::{KindWorld, Scene, pt, typed, world};
use serde_json::{Value, json};
use training_core::provider::Setting;
use training_core::{
    Availabilities, Availability, GroupKind, Mark, Observed, Provider, Step, plan,
};
use training_testkit::builders::Job;
use training_testkit::world::{Move, ReconcileEnd};

fn under(provider: &str, job: Job) -> KindWorld {
    let mut world = world(job);
    world.gang = setting(provider);
    world
}

fn setting(provider: &str) -> Setting {
    Setting {
        provider: Provider::parse(provider).unwrap(),
        offers: Availabilities::all(),
        kueue: None,
    }
}

fn cpu(job: Job, role: &str, requests: &str) -> Job {
    let path = format!("/spec/pytorchReplicaSpecs/{role}/template/spec/containers/0/resources");
    job.set(&path, json!({"requests": {"cpu": requests}}))
}

/// One master with 1 CPU and two workers with 1 CPU each: the published example.
fn example() -> Job {
    cpu(cpu(pt(2), "Master", "1"), "Worker", "1").set("/metadata/annotations", json!({"team": "a"}))
}

/// Returns the groups that the first plans create, in order. Each group exists before the next one is created.
fn groups(world: &mut KindWorld) -> Vec<Value> {
    let mut out = Vec::new();
    for _ in 0..4 {
        world.view_all();
        let plan = world.plan();
        let made = plan.steps.iter().find_map(|s| match s {
            Step::CreateGroup { object, .. } => Some(object.as_ref().clone()),
            _ => None,
        });
        if plan.steps.iter().any(|s| matches!(s, Step::CreatePod(_))) {
            break;
        }
        out.extend(made);
        world.reconcile();
        world.happen(Move::Group(5));
    }
    out
}

fn stored(world: &KindWorld) -> Vec<String> {
    let groups = world.groups();
    groups
        .map(|g| format!("{}:{}", g.kind.as_str(), g.min.map_or(0, |m| m)))
        .collect()
}

#[test]
fn volcanos_group_is_the_published_one() {
    let group = groups(&mut under("volcano", example())).remove(0);
    assert_eq!(group["apiVersion"], "scheduling.volcano.sh/v1beta1");
    assert_eq!(group["kind"], "PodGroup");
    assert_eq!(group["metadata"]["name"], "pt");
    assert_eq!(group["metadata"]["annotations"]["team"], "a");
    // The init container of the workers needs memory; its CPU is less than theirs.
    let resources = json!({"cpu": "3", "memory": "20Mi"});
    let expected = json!({"minMember": 3, "queue": "default", "minResources": resources});
    assert_eq!(group["spec"], expected);
}

#[test]
fn what_the_policy_says_goes_into_the_group() {
    let policy = json!({
        "minAvailable": 2, "queue": "q", "priorityClass": "high", "scheduleTimeoutSeconds": 60,
        "minResources": {"nvidia.com/gpu": 2}
    });
    let job = || example().run_policy("schedulingPolicy", policy.clone());
    let volcano = groups(&mut under("volcano", job())).remove(0);
    let expected = json!({
        "minMember": 2, "queue": "q", "priorityClassName": "high", "minResources": {"nvidia.com/gpu": "2"}
    });
    assert_eq!(volcano["spec"], expected);
    let plugins = groups(&mut under("scheduler-plugins", job())).remove(0);
    assert_eq!(plugins["apiVersion"], "scheduling.x-k8s.io/v1alpha1");
    let expected = json!({
        "minMember": 2, "scheduleTimeoutSeconds": 60, "minResources": {"nvidia.com/gpu": "2"}
    });
    assert_eq!(plugins["spec"], expected);
}

#[test]
fn kubernetes_own_groups_are_a_workload_and_then_its_pod_group() {
    let job = example().run_policy("schedulingPolicy", json!({"priorityClass": "high"}));
    let [workload, group] = groups(&mut under("native", job)).try_into().unwrap();
    let shared = json!({
        "schedulingPolicy": {"gang": {"minCount": 3}}, "disruptionMode": {"all": {}}, "priorityClassName": "high"
    });
    let mut template = shared.clone();
    template["name"] = json!("all");
    assert_eq!(workload["apiVersion"], "scheduling.k8s.io/v1beta1");
    assert_eq!(workload["kind"], "Workload");
    let controller = json!({"apiGroup": "kubeflow.org", "kind": "PyTorchJob", "name": "pt"});
    let expected = json!({"controllerRef": controller, "podGroupTemplates": [template]});
    assert_eq!(workload["spec"], expected);
    let mut expected = shared;
    expected["workloadRef"] = json!({"workloadName": "pt", "templateName": "all"});
    assert_eq!(group["spec"], expected);
    assert_eq!(group["kind"], "PodGroup");
}

#[test]
fn kubernetes_1_36_gets_its_own_version_of_them() {
    let mut world = under("native", example());
    for kind in [GroupKind::Workload, GroupKind::PodGroup] {
        world
            .gang
            .offers
            .set(kind, Availability::Served("v1alpha2"));
    }
    let [workload, group] = groups(&mut world).try_into().unwrap();
    assert_eq!(workload["apiVersion"], "scheduling.k8s.io/v1alpha2");
    let template = &workload["spec"]["podGroupTemplates"][0];
    assert_eq!(template["disruptionMode"], "PodGroup");
    let expected = json!({
        "schedulingPolicy": {"gang": {"minCount": 3}}, "disruptionMode": "PodGroup",
        "podGroupTemplateRef": {"workload": {"workloadName": "pt", "podGroupTemplateName": "all"}}
    });
    assert_eq!(group["spec"], expected);

    // The group's minimum is immutable.
    world.settle();
    world.run_all();
    world.finish("pt-worker-0");
    world.settle();
    assert_eq!(stored(&world), ["workloads:0", "podgroups:3"]);
}

/// Returns the first pod of a plan with all groups in place.
fn pod(provider: &str, job: Job) -> Value {
    let mut world = under(provider, job);
    groups(&mut world);
    let steps = world.plan().steps;
    let made = steps.iter().find_map(|s| match s {
        Step::CreatePod(pod) => Some(serde_json::to_value(pod).unwrap()),
        _ => None,
    });
    made.unwrap()
}

#[test]
fn pods_carry_the_marks_of_their_scheduler() {
    let volcano = pod("volcano", pt(1));
    assert_eq!(volcano["spec"]["schedulerName"], "volcano");
    let annotations = &volcano["metadata"]["annotations"];
    assert_eq!(annotations["scheduling.k8s.io/group-name"], "pt");
    assert_eq!(annotations["volcano.sh/task-spec"], "master");
    let plugins = pod("scheduler-plugins/mine", pt(1));
    assert_eq!(plugins["spec"]["schedulerName"], "mine");
    let label = &plugins["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"];
    assert_eq!(label, "pt");
    let native = pod("native", pt(1));
    assert_eq!(native["spec"]["schedulingGroup"]["podGroupName"], "pt");
    assert!(native["spec"].get("schedulerName").is_none());
    let none = pod("none", pt(1));
    assert!(none["spec"].get("schedulingGroup").is_none());
    assert!(none["spec"].get("schedulerName").is_none());
}

#[test]
fn b_124_a_scheduler_of_the_users_stays_with_the_published_warning() {
    let master = "/spec/pytorchReplicaSpecs/Master/template/spec/schedulerName";
    let job = || pt(1).set(master, "theirs");
    assert_eq!(pod("volcano", job())["spec"]["schedulerName"], "theirs");
    let mut world = under("volcano", job());
    world.settle();
    let warned = world.events().into_iter();
    let warned = warned.filter(|e| e.starts_with("Warning SetPodTemplateSchedulerName"));
    assert_eq!(warned.count(), 1);
}

#[test]
fn one_class_rules_the_whole_group_of_kubernetes() {
    let class =
        |role: &str| format!("/spec/pytorchReplicaSpecs/{role}/template/spec/priorityClassName");
    let mixed = pt(1)
        .set(&class("Master"), "high")
        .set(&class("Worker"), "low");
    let mut world = under("native", mixed);
    groups(&mut world);
    let classes = world.plan().steps.into_iter().filter_map(|s| match s {
        Step::CreatePod(pod) => pod.spec.unwrap().priority_class_name,
        _ => None,
    });
    assert_eq!(classes.collect::<Vec<_>>(), ["high", "high"]);
    world.settle();
    let told = world.events().join("\n");
    assert!(told.contains("all pods of the job get high"), "{told}");
}

#[test]
fn different_schedulers_in_one_group_of_kubernetes_are_refused_with_the_cause() {
    let job = pt(1).set(
        "/spec/pytorchReplicaSpecs/Worker/template/spec/schedulerName",
        "x",
    );
    let mut world = under("native", job);
    world.settle();
    assert_eq!(world.pods().count(), 0);
    let status = world.status_json();
    let stalled = &status["conditions"][0];
    assert_eq!(stalled["reason"], "GangInvalid");
    let message = stalled["message"].as_str().unwrap();
    assert!(
        message.contains("spec.pytorchReplicaSpecs[Worker].template.spec.schedulerName is x"),
        "{message}"
    );
}

#[test]
fn no_pod_and_no_start_before_volcano_lets_the_group_in() {
    let mut world = under("volcano", pt(2));
    world.settle();
    assert_eq!((world.pods().count(), world.services().len()), (0, 0));
    assert_eq!(world.status_json().get("startTime"), None);
    assert_eq!(world.conditions(), ["Created=True"]);
    world.tick(31);
    world.settle();
    assert_eq!(world.conditions(), ["Stalled=True", "Created=True"]);
    assert_eq!(
        world.status_json()["conditions"][0]["reason"],
        "GangWaiting"
    );
    world.happen(Move::Group(5));
    world.settle();
    assert_eq!(world.pods().count(), 3);
    assert_eq!(world.conditions(), ["Stalled=False", "Created=True"]);
    assert!(world.status_json().get("startTime").is_some());
}

/// Returns the message of the stalled condition, which must have this reason.
fn stalled(world: &KindWorld, reason: &str) -> String {
    let condition = &world.status_json()["conditions"][0];
    assert_eq!(condition["reason"], reason);
    condition["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_scheduler_that_is_not_there_is_said_and_no_pod_is_made() {
    let mut world = under("scheduler-plugins", pt(1));
    world
        .gang
        .offers
        .set(GroupKind::SchedulerPlugins, Availability::Missing);
    world.settle();
    assert_eq!(world.pods().count(), 0);
    let message = stalled(&world, "SchedulerMissing");
    assert!(
        message.contains("scheduling.x-k8s.io/v1alpha1"),
        "{message}"
    );
    world.gang.offers = Availabilities::all();
    world.settle();
    assert_eq!(world.pods().count(), 2);
}

#[test]
fn a_cluster_that_can_not_be_asked_for_the_scheduler_is_said_on_the_job() {
    let mut world = under("native", pt(1));
    let words = "the server is currently unable to handle the request";
    let failing = Availability::Unanswered(words.to_owned());
    world.gang.offers.set(GroupKind::Workload, failing);
    world.settle();
    assert_eq!((world.pods().count(), world.groups().count()), (0, 0));
    let message = stalled(&world, "SchedulerMissing");
    assert!(
        message.contains("can't learn whether the cluster serves Workload"),
        "{message}"
    );
    assert!(message.ends_with(words), "{message}");
    world.gang.offers = Availabilities::all();
    world.settle();
    assert_eq!(world.pods().count(), 2);
}

#[test]
fn nothing_is_made_before_it_is_known_what_the_cluster_serves() {
    let mut world = under("native", pt(1));
    world.gang.offers = Availabilities::default();
    world.settle();
    assert_eq!((world.pods().count(), world.groups().count()), (0, 0));
    assert_eq!(world.conditions(), ["Created=True"]);
}

#[test]
fn a_replaced_pod_does_not_wait_for_a_replica_that_has_ended() {
    let mut world = under("native", pt(2));
    world.settle();
    world.run_all();
    world.settle();
    assert_eq!(stored(&world), ["workloads:0", "podgroups:3"]);
    world.finish("pt-worker-0");
    world.settle();
    assert_eq!(stored(&world), ["workloads:0", "podgroups:2"]);
    world.fail("pt-worker-1", 137);
    world.settle();
    assert!(world.pod("pt-worker-1").is_some());
    assert_eq!(stored(&world), ["workloads:0", "podgroups:2"]);
}

#[test]
fn a_declared_minimum_stands_until_a_replica_has_ended_even_above_the_total() {
    for (declared, before, after) in [(7, 7, 2), (2, 2, 2), (1, 1, 1)] {
        let job = pt(2).run_policy("schedulingPolicy", json!({"minAvailable": declared}));
        let mut world = under("scheduler-plugins", job);
        world.settle();
        world.run_all();
        world.settle();
        let min = |world: &KindWorld| world.groups().next().unwrap().min.unwrap();
        assert_eq!(min(&world), before);
        world.finish("pt-worker-0");
        world.settle();
        assert_eq!(min(&world), after);
    }
}

#[test]
fn a_restart_of_all_replicas_has_its_declared_minimum_again_and_the_same_group() {
    let job = pt(2).annotation("trainyard.dev/restart-scope", "Gang");
    let mut world = under("scheduler-plugins", job);
    world.settle();
    world.run_all();
    world.finish("pt-worker-0");
    world.settle();
    let uid = world.groups().next().unwrap().uid;
    world.fail("pt-worker-1", 137);
    world.settle();
    let group = world.groups().next().unwrap();
    assert_eq!((group.min, group.uid), (Some(3), uid));
}

#[test]
fn a_resumed_job_waits_for_the_group_of_its_former_run_and_gets_a_new_one() {
    let mut world = under("native", pt(1));
    world.settle();
    world.run_all();
    world.settle();
    let before = world
        .groups()
        .find(|g| g.kind == GroupKind::PodGroup)
        .unwrap()
        .uid;
    world.happen(Move::Suspend(true));
    world.settle();
    world.happen(Move::Suspend(false));
    world.settle();
    // The pods are still terminating, and so is the group.
    assert!(world.pods().all(|(_, p)| p.terminating));
    world.run_until_settled(false);
    assert_eq!(world.breaches, Vec::<String>::new());
    let after = world
        .groups()
        .find(|g| g.kind == GroupKind::PodGroup)
        .unwrap();
    assert!(after.uid != before && !after.terminating);
    assert!(
        world
            .pods()
            .all(|(_, p)| p.mark == Mark::Native && !p.terminating)
    );
}

#[test]
fn a_run_keeps_its_scheduler_until_it_is_suspended() {
    for (first, second, mark) in [
        ("none", "native", Mark::None),
        ("volcano", "none", Mark::Volcano),
    ] {
        let mut world = under(first, pt(2));
        world.settle();
        world.happen(Move::Group(5));
        world.settle();
        world.run_all();
        world.settle();
        world.gang = setting(second);
        world.crash();
        world.settle();
        world.happen(Move::Vanish(0));
        world.settle();
        assert_eq!(world.pods().count(), 3);
        assert!(
            world.pods().all(|(_, p)| p.mark == mark),
            "{first} then {second}"
        );
        world.happen(Move::Suspend(true));
        world.run_until_settled(false);
        world.happen(Move::Suspend(false));
        world.run_until_settled(false);
        assert_eq!(world.breaches, Vec::<String>::new());
        assert!(
            world.pods().all(|(_, p)| p.mark != mark),
            "{first} then {second}"
        );
        let kinds: Vec<GroupKind> = world.groups().map(|g| g.kind).collect();
        assert_eq!(kinds, Provider::parse(second).unwrap().kinds());
    }
}

#[test]
fn a_run_that_another_operator_began_is_scheduled_as_its_pods_say() {
    let job = pt(1).set(
        "/status",
        json!({
            "conditions": [{"type": "Created", "status": "True", "reason": "PyTorchJobCreated"}],
            "startTime": "2026-01-01T00:00:00Z", "replicaStatuses": {"Master": {}, "Worker": {}}
        }),
    );
    let mut model = under("volcano", pt(1));
    model.settle();
    model.happen(Move::Group(5));
    model.settle();
    let pods: Vec<_> = model.pods().map(|(_, p)| p.clone()).collect();
    let observed = Observed {
        pods,
        gang: setting("none"),
        ..Observed::default()
    };
    let plan = plan(
        &pytorch_operator::PyTorch::default(),
        &typed(job),
        &observed,
        model.now,
    );
    assert_eq!(
        plan.status.unwrap().next.gang_scheduler.as_deref(),
        Some("volcano")
    );
    let makes = |s: &Step| {
        matches!(
            s,
            Step::CreateGroup {
                kind: GroupKind::Volcano,
                ..
            }
        )
    };
    assert!(plan.steps.iter().any(makes), "{:?}", plan.steps);
    assert!(
        !plan
            .steps
            .iter()
            .any(|s| matches!(s, Step::DeletePod { .. }))
    );
}

/// A world with a job that another operator runs under the same scheduler, with one group of this kind. The operator has just
/// started.
fn taken_over(provider: &str, kind: GroupKind) -> KindWorld {
    let mut world = under(provider, pt(1));
    world.settle();
    world.happen(Move::Group(5));
    world.settle();
    world.run_all();
    world.settle();
    world.edit(|job| {
        let status = job["status"].as_object_mut().unwrap();
        status.remove("gangScheduler").unwrap();
        status.remove("madeFrom").unwrap();
    });
    world.unlabel_group(kind);
    world.writes.clear();
    world.crash();
    world
}

#[test]
fn another_operators_group_goes_also_when_its_job_rests_at_the_first_look() {
    for (provider, kind) in [
        ("volcano", GroupKind::Volcano),
        ("scheduler-plugins", GroupKind::SchedulerPlugins),
    ] {
        for (what, rest) in [
            ("succeeds", Move::Finish(0)),
            ("is suspended", Move::Suspend(true)),
        ] {
            for set in [provider, "none"] {
                let mut world = taken_over(provider, kind);
                world.gang = setting(set);
                world.happen(rest);
                world.settle();
                let case = format!("{provider} under {set}, {what}");
                assert_eq!(world.groups().count(), 0, "{case}: {:?}", world.writes);
                let deletes = world.writes.iter().filter(|w| w.contains(kind.as_str()));
                assert_eq!(deletes.count(), 1, "{case}: {:?}", world.writes);
                assert_eq!(world.status_json().get("gangScheduler"), None, "{case}");
                world.run_until_settled(false);
                assert_eq!(world.breaches, Vec::<String>::new(), "{case}");
            }
        }
    }
}

#[test]
fn what_is_to_be_removed_of_another_operators_survives_a_crash_at_the_end() {
    let mut world = taken_over("volcano", GroupKind::Volcano);
    world.happen(Move::Finish(0));
    world.view_all();
    world.happen(Move::Pass(ReconcileEnd::Whole, true));
    world.happen(Move::Crash);
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
    assert_eq!(world.groups().count(), 1);
    world.settle();
    assert_eq!(world.groups().count(), 0, "{:?}", world.writes);
}

#[test]
fn a_group_that_was_never_there_is_looked_for_once() {
    let mut world = taken_over("volcano", GroupKind::Volcano);
    // The group is gone for good.
    world.happen(Move::Group(0));
    world.happen(Move::Finish(0));
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
    assert_eq!(world.writes, ["status", "status"]);
    assert_eq!(world.status_json().get("gangScheduler"), None);
}

#[test]
fn a_group_that_loses_its_label_gets_it_back() {
    for provider in ["volcano", "scheduler-plugins", "native"] {
        let mut world = under(provider, pt(1));
        world.settle();
        world.happen(Move::Group(5));
        world.settle();
        world.run_all();
        world.settle();
        world.writes.clear();
        let kinds: Vec<GroupKind> = world.groups().map(|g| g.kind).collect();
        for kind in &kinds {
            world.unlabel_group(*kind);
        }
        world.settle();
        let changes: Vec<String> = kinds
            .iter()
            .map(|kind| format!("change {}", kind.as_str()))
            .collect();
        assert_eq!(world.writes, changes);
    }
}

#[test]
fn a_run_that_was_taken_over_keeps_the_scheduler_that_its_pods_name() {
    let mut world = taken_over("scheduler-plugins/theirs", GroupKind::SchedulerPlugins);
    world.gang = setting("scheduler-plugins/ours");
    world.settle();
    let recorded = world.status_json()["gangScheduler"].clone();
    assert_eq!(recorded, "scheduler-plugins/theirs");
    world.happen(Move::Vanish(1));
    world.settle();
    let again = world.pod("pt-worker-0").unwrap();
    assert_eq!(again.scheduler.as_ref().unwrap().as_str(), "theirs");

    // The scheduler of the user's template says nothing about the operator's.
    let master = "/spec/pytorchReplicaSpecs/Master/template/spec/schedulerName";
    let mut world = taken_over("scheduler-plugins/theirs", GroupKind::SchedulerPlugins);
    world.set(master, json!("theirs"));
    world.happen(Move::Vanish(1));
    world.gang = setting("scheduler-plugins/ours");
    world.settle();
    let recorded = world.status_json()["gangScheduler"].clone();
    assert_eq!(recorded, "scheduler-plugins/ours");
}

#[test]
fn what_a_template_says_of_priority_gives_way_to_the_class_with_a_warning() {
    let worker = "/spec/pytorchReplicaSpecs/Worker/template/spec";
    let job = pt(1)
        .run_policy("schedulingPolicy", json!({"priorityClass": "high"}))
        .set(&format!("{worker}/priorityClassName"), "high")
        .set(&format!("{worker}/preemptionPolicy"), "Never")
        .set(&format!("{worker}/priority"), 7);
    let mut world = under("native", job);
    world.settle();
    for field in ["preemptionPolicy", "priority"] {
        let text = format!(
            "Warning SettingIgnored: spec.pytorchReplicaSpecs[Worker].template.spec.{field}: all pods of the job get that of high"
        );
        let told = world.events().into_iter().filter(|e| e.starts_with(&text));
        assert_eq!(told.count(), 1, "{field}: {:?}", world.events());
    }
    let plain = pod("native", pt(1));
    assert_eq!(plain["spec"].get("preemptionPolicy"), None);
    let mut world = under("native", pt(1));
    world.settle();
    assert!(world.events().iter().all(|e| !e.contains("one priority")));
}

#[test]
fn a_resumed_run_has_its_own_class_also_while_the_group_of_the_former_one_ends() {
    let class = "/spec/runPolicy/schedulingPolicy";
    let mut world = under("native", pt(1));
    world.set(class, json!({"priorityClass": "low"}));
    world.settle();
    world.run_all();
    world.settle();
    world.happen(Move::Suspend(true));
    world.settle();
    assert!(
        world.groups().any(|g| g.terminating),
        "its protection holds it"
    );
    world.set(class, json!({"priorityClass": "high"}));
    world.happen(Move::Suspend(false));
    let workload = groups(&mut world).remove(0);
    let template = &workload["spec"]["podGroupTemplates"][0];
    assert_eq!(template["priorityClassName"], "high");
    world.run_until_settled(false);
    let classes: Vec<Option<String>> = world.groups().map(|g| g.class.clone()).collect();
    assert!(classes.contains(&Some("high".to_owned())), "{classes:?}");
    assert!(!classes.contains(&Some("low".to_owned())), "{classes:?}");
}

#[test]
fn variables_that_give_way_are_told_once_also_where_a_group_comes_before_pods() {
    let env = "/spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/env";
    for provider in ["none", "volcano", "scheduler-plugins", "native"] {
        let job = pt(1).set(env, json!([{"name": "RANK", "value": "7"}]));
        let mut world = under(provider, job);
        world.settle();
        world.happen(Move::Group(5));
        world.settle();
        assert_eq!(world.pods().count(), 2, "{provider}");
        let told = world.events().into_iter();
        let told: Vec<String> = told.filter(|e| e.contains("EnvReplaced")).collect();
        let text = "Warning EnvReplaced: the pod template's RANK gave way to the rendezvous values";
        assert_eq!(told, [text], "{provider}");
    }
}

#[test]
fn a_queue_of_kueue_without_kueue_is_told() {
    for (served, warned) in [(Some(false), true), (Some(true), false), (None, false)] {
        let queue = "/metadata/labels/kueue.x-k8s.io~1queue-name";
        let mut world = under("kueue", pt(1).set(queue, "team"));
        world.gang.kueue = served;
        world.settle();
        let told = world.events().join("\n");
        let text = "the job requests the queue team, but the cluster does not serve Kueue";
        assert_eq!(told.contains(text), warned, "{told}");
    }
}

#[test]
fn b_096_without_a_gang_scheduler_nothing_is_stored_and_the_policy_is_said_to_be_ignored() {
    let job = pt(1).run_policy("schedulingPolicy", json!({"queue": "q"}));
    let mut world = under("none", job);
    world.settle();
    assert_eq!(world.status_json().get("gangScheduler"), None);
    assert!(
        world
            .events()
            .iter()
            .any(|e| e.contains("schedules pods one by one"))
    );
}

#[test]
fn settings_that_a_scheduler_has_no_use_for_are_told() {
    let policy = json!({"queue": "q", "minResources": {"cpu": 1}, "scheduleTimeoutSeconds": 100});
    let job = || {
        pt(1)
            .run_policy("schedulingPolicy", policy.clone())
            .run_policy("activeDeadlineSeconds", 50)
            .set(
                "/spec/pytorchReplicaSpecs/Worker/template/spec/nodeName",
                "n",
            )
    };
    let told = |provider| {
        let mut world = under(provider, job());
        world.settle();
        world.events().join("\n")
    };
    let native = told("native");
    for field in ["queue", "minResources", "scheduleTimeoutSeconds"] {
        let text = format!("schedulingPolicy.{field} has no effect");
        assert!(native.contains(&text), "{native}");
    }
    assert!(
        native.contains("nodeName: no scheduler sees these pods"),
        "{native}"
    );
    let plugins = told("scheduler-plugins");
    assert!(
        plugins.contains("longer than activeDeadlineSeconds"),
        "{plugins}"
    );
    let kueue = told("kueue");
    assert!(
        kueue.contains("the job has no label kueue.x-k8s.io/queue-name"),
        "{kueue}"
    );
}
