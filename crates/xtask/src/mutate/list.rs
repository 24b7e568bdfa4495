//! The breaks. Each is a mistake that somebody could make while changing the line.

use super::Mutation;

/// Tables of the operator, without its binary: little is built anew for each break.
macro_rules! table {
    ($($name:literal),+) => {
        &["-p", "pytorch-operator", "--no-default-features", $("--test", $name),+]
    };
}

/// The requests of the operator, on the wire.
const WRITES: &[&str] = &["-p", "pytorch-operator", "--test", "writes"];
const RUNTIME: &[&str] = &["-p", "training-runtime", "--lib"];
const CORE: &[&str] = &["-p", "training-core", "--lib"];

const FAILING: &str = "crates/training-core/src/plan/failing.rs";
const FINISHED: &str = "crates/training-core/src/plan/finished.rs";
const PROGRESS: &str = "crates/training-core/src/plan/progress.rs";
const SUSPENDED: &str = "crates/training-core/src/plan/suspended.rs";
/// Where calls are made.
const CALLER: &str = "crates/training-runtime/src/caller.rs";
/// Where steps are carried out.
const EXECUTOR: &str = "crates/training-runtime/src/executor.rs";

/// All breaks: first the executor, then the planner.
pub const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "no resource version in a status write",
        file: CALLER,
        from: r#""metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},"#,
        to: r#""metadata": {"uid": meta.uid},"#,
        tests: WRITES,
    },
    Mutation {
        name: "no uid in a status write",
        file: CALLER,
        from: r#""metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},"#,
        to: r#""metadata": {"resourceVersion": meta.resource_version},"#,
        tests: WRITES,
    },
    Mutation {
        name: "no uid precondition on a delete",
        file: CALLER,
        from: "uid: Some(uid.to_owned()),",
        to: "uid: None,",
        tests: WRITES,
    },
    Mutation {
        name: "a decision is stored beside its deletes",
        file: "crates/training-runtime/src/pass.rs",
        from: "self.store(key, job, plan, told).await?;\n            (Ok(()), act.await)",
        to: "futures::join!(self.store(key, job, plan, told), act)",
        tests: WRITES,
    },
    Mutation {
        name: "the lease is not asked before a request",
        file: CALLER,
        from: "if !(self.gate)() {",
        to: "if false {",
        tests: WRITES,
    },
    Mutation {
        name: "a taken name is adopted",
        file: EXECUTOR,
        from: "view.filter(|v| v.owner == owner)",
        to: "view",
        tests: WRITES,
    },
    Mutation {
        name: "own creates are not kept through a list",
        file: "crates/training-runtime/src/feed/index.rs",
        from: "inner.unseen.insert(uid, now);",
        to: "",
        tests: RUNTIME,
    },
    Mutation {
        name: "what is gone comes back with late news",
        file: "crates/training-runtime/src/feed/index.rs",
        from: "self.gone.insert(uid, Gone { version }, now);",
        to: "",
        tests: RUNTIME,
    },
    Mutation {
        name: "the first condition of success is forgotten",
        file: PROGRESS,
        from: "draft.set(ConditionType::Succeeded, true, &reason, &message);",
        to: "",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "a failure has no completion time",
        file: FAILING,
        from: "draft.memory.completed = Some(draft.now);",
        to: "",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "the backoff budget is off by one",
        file: FAILING,
        from: "&& i64::from(spent) > i64::from(limit.max(0))",
        to: "&& i64::from(spent) >= i64::from(limit.max(0))",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "restarts in place are forgotten with their pod",
        file: PROGRESS,
        from: "draft.memory.container_restarts.max(in_place)",
        to: "in_place",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "a failure does not raise the attempt",
        file: FAILING,
        from: "attempt: entry.attempt.max(carried).saturating_add(1),",
        to: "attempt: entry.attempt.max(carried),",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "a new attempt is not stored first",
        file: FAILING,
        from: "draft.notes.push(Note::warning(reason, message));\n    draft.urgency(Urgency::First);",
        to: "draft.notes.push(Note::warning(reason, message));",
        tests: WRITES,
    },
    Mutation {
        name: "a suspension is stored beside its deletes",
        file: SUSPENDED,
        from: "draft.memory.made_from = None;\n        draft.urgency(Urgency::First);",
        to: "draft.memory.made_from = None;\n        draft.urgency(Urgency::Beside);",
        tests: table!("properties"),
    },
    Mutation {
        name: "a resume is stored beside its pods",
        file: SUSPENDED,
        from: "makes a pod one of the former run.\n    draft.urgency(Urgency::First);",
        to: "makes a pod one of the former run.\n    draft.urgency(Urgency::Beside);",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "pods carry no attempt",
        file: "crates/training-core/src/pod.rs",
        from: "annotations.insert(keys::ATTEMPT.to_owned(), attempt.to_string());",
        to: "let _ = (&mut annotations, attempt);",
        tests: table!("conformance_golden"),
    },
    Mutation {
        name: "pods that are not ready count as ready",
        file: "crates/training-core/src/census.rs",
        from: "p.ready && !p.leaving",
        to: "!p.leaving",
        tests: table!("plan"),
    },
    Mutation {
        name: "terminating pods count as failed",
        file: "crates/training-core/src/census.rs",
        from: "PodPhase::Failed if !pod.leaving => SlotState::Failed,",
        to: "PodPhase::Failed => SlotState::Failed,",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "everything is cleaned up by default",
        file: "crates/training-api/src/run_policy.rs",
        from: r#"None | Some("None") => Self::None,"#,
        to: r#"Some("None") => Self::None,
            None => Self::All,"#,
        tests: table!("every_kind"),
    },
    Mutation {
        name: "the time to live is a second short",
        file: FINISHED,
        from: "let after = i64::from(ttl.max(0)) + 1;",
        to: "let after = i64::from(ttl.max(0));",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "nobody waits for the deadline",
        file: PROGRESS,
        from: "draft.wake_after(started, deadline.max(0));",
        to: "let _ = (started, deadline);",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "replacements come without a pause",
        file: "crates/training-core/src/restart.rs",
        from: "if attempt <= 1 {",
        to: "if attempt > 0 {",
        tests: CORE,
    },
    Mutation {
        name: "the pause of a replacement is not kept",
        file: PROGRESS,
        from: "Some(at) if at > draft.now => {",
        to: "Some(at) if false && at > draft.now => {",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "a replica that ended well is forgotten",
        file: "crates/training-core/src/plan.rs",
        from: ".insert(slot.index);",
        to: ";",
        tests: table!("every_kind"),
    },
    Mutation {
        name: "jobs of another controller are planned",
        file: "crates/training-core/src/plan.rs",
        from: "job.meta().deletion_timestamp.is_some() || is_managed_elsewhere::<F>(job)",
        to: "job.meta().deletion_timestamp.is_some()",
        tests: table!("every_kind"),
    },
];
