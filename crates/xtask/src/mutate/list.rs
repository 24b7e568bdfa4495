//! The mutations. Each is a plausible mistake in its line.

use super::Mutation;

/// Selects modules of an operator's tests, without its binary, so that little is rebuilt for each mutation.
macro_rules! table {
    ($($name:literal),+) => {
        table!(in "pytorch-operator": $($name),+)
    };
    (in $operator:literal: $($name:literal),+) => {
        &["-p", $operator, "--no-default-features", "--test", "all", "--", $(concat!($name, "::")),+]
    };
}

/// The tests of the operator's HTTP requests.
const WRITES: &[&str] = &[
    "-p",
    "pytorch-operator",
    "--test",
    "all",
    "--",
    "writes::",
    "taken::",
    "cache::",
];
/// The tests of every kind, for `PyTorchJob`.
const EVERY_KIND: &[&str] = table!("every_kind", "lives", "masters");
const RUNTIME: &[&str] = &["-p", "training-runtime", "--lib"];
const CORE: &[&str] = &["-p", "training-core", "--lib"];

const FAILING: &str = "crates/training-core/src/plan/failing.rs";
const RESTART: &str = "crates/training-core/src/model/restart.rs";
const FINISHED: &str = "crates/training-core/src/plan/finished.rs";
const PROGRESS: &str = "crates/training-core/src/plan/progress.rs";
const SUSPENDED: &str = "crates/training-core/src/plan/suspended.rs";
/// The source of API calls.
const CALLER: &str = "crates/training-runtime/src/caller.rs";
/// The source that executes steps.
const EXECUTOR: &str = "crates/training-runtime/src/executor.rs";

const TF: &str = "operators/tf-operator/src/framework.rs";
const TF_CLUSTER: &str = "operators/tf-operator/src/cluster_spec.rs";
const XGBOOST: &str = "operators/xgboost-operator/src/framework.rs";
const MPI: &str = "operators/mpi-operator/src/lifecycle.rs";
const MPI_ENDS: &str = "operators/mpi-operator/src/lifecycle/ends.rs";
const MPI_LAUNCHER: &str = "operators/mpi-operator/src/lifecycle/launcher.rs";
const MPI_REPORT: &str = "operators/mpi-operator/src/lifecycle/report.rs";
const MPI_HOSTS: &str = "operators/mpi-operator/src/hosts.rs";
const SPARK_RETRY: &str = "operators/spark-operator/src/lifecycle/retry.rs";
const SPARK_CRON: &str = "operators/spark-operator/src/cron.rs";
const SPARK_SCHEDULE: &str = "operators/spark-operator/src/schedule.rs";
const SPARK_MEMORY: &str = "operators/spark-operator/src/memory.rs";
const SPARK_SUBMITTING: &str = "operators/spark-operator/src/lifecycle/submitting.rs";
const SPARK_RUNNING: &str = "operators/spark-operator/src/lifecycle/running.rs";
const SPARK_EXECUTORS: &str = "operators/spark-operator/src/lifecycle/executors.rs";
const OF_TF: &[&str] =
    table!(in "tf-operator": "cluster_spec", "ends", "every_kind", "lives", "masters");
const OF_XGBOOST: &[&str] =
    table!(in "xgboost-operator": "rendezvous", "every_kind", "lives", "masters");
const OF_MPI: &[&str] =
    table!(in "mpi-operator": "lifecycle", "gang", "golden", "launcher", "setup");
const OF_HOSTS: &[&str] = &[
    "-p",
    "mpi-operator",
    "--no-default-features",
    "--lib",
    "--",
    "hosts::",
];
const OF_SPARK: &[&str] = &[
    "-p",
    "spark-operator",
    "--no-default-features",
    "--test",
    "spark",
];

/// All mutations: first the executor, then the planner, then those of a kind.
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
        name: "a decision is stored in parallel with its deletes",
        file: "crates/training-runtime/src/worker.rs",
        from: "self.store(subject, plan, told).await?;\n                (Ok(()), execute.await)",
        to: "futures::join!(self.store(subject, plan, told), execute)",
        tests: WRITES,
    },
    Mutation {
        name: "a job is not read after a status write without a response",
        file: "crates/training-runtime/src/worker.rs",
        from: "fault.outcome_unknown() || matches!(fault, Fault::Conflict(_))",
        to: "matches!(fault, Fault::Conflict(_))",
        tests: WRITES,
    },
    Mutation {
        name: "a job is not read after a conflict",
        file: "crates/training-runtime/src/worker.rs",
        from: "fault.outcome_unknown() || matches!(fault, Fault::Conflict(_))",
        to: "fault.outcome_unknown()",
        tests: WRITES,
    },
    Mutation {
        name: "a job is read although the watch has shown a later version",
        file: "crates/training-runtime/src/worker.rs",
        from: "if base == object.meta().resource_version {",
        to: "if true {",
        tests: WRITES,
    },
    Mutation {
        name: "a decoded job stays although a list has shown a later version",
        file: "crates/training-runtime/src/feed/jobs.rs",
        from: "decoded.filter(|job| Identity::of(&**job) == identity)",
        to: "decoded.filter(|job| Identity::of(&**job) == identity || true)",
        tests: WRITES,
    },
    Mutation {
        name: "two faults in a row stop a plan",
        file: EXECUTOR,
        from: "const FAULTS: usize = 3;",
        to: "const FAULTS: usize = 2;",
        tests: RUNTIME,
    },
    Mutation {
        name: "a denied delete stops a plan",
        file: EXECUTOR,
        from: "if step.is_delete() && fault.is_of_the_object() => {}",
        to: "if false && fault.is_of_the_object() => {}",
        tests: RUNTIME,
    },
    Mutation {
        name: "events are written four at a time",
        file: "crates/training-runtime/src/events.rs",
        from: "Semaphore::new(1)",
        to: "Semaphore::new(4)",
        tests: RUNTIME,
    },
    Mutation {
        name: "a finished replica is remembered after it was scaled away",
        file: "crates/training-core/src/plan.rs",
        from: "indices.truncate(role.map_or(0, |(_, role)| role.replicas));",
        to: "",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "the lease is not checked before a request",
        file: CALLER,
        from: "if !(self.may_write)() {",
        to: "if false {",
        tests: WRITES,
    },
    Mutation {
        name: "a taken name is adopted",
        file: "crates/training-runtime/src/requests.rs",
        from: "existing(&holder).filter(|owned| owned.owner == self.owner)",
        to: "existing(&holder)",
        tests: RUNTIME,
    },
    Mutation {
        name: "own creates are not kept through a list",
        file: "crates/training-runtime/src/feed/index.rs",
        from: "inner.expected_creates.insert(uid, now);",
        to: "",
        tests: RUNTIME,
    },
    Mutation {
        name: "a job that is not listed yet loses its children",
        file: "crates/training-runtime/src/feed/index.rs",
        from: "for child in inner.kept.remove(key).into_iter().flatten() {",
        to: "inner.owners.retain(|_, siblings| siblings.key != *key);\n        for child in inner.kept.remove(key).into_iter().flatten() {",
        tests: RUNTIME,
    },
    Mutation {
        name: "a deleted object comes back with a stale event",
        file: "crates/training-runtime/src/feed/index.rs",
        from: "self.gone.insert(uid, DeletedChild { version }, now);",
        to: "",
        tests: RUNTIME,
    },
    Mutation {
        name: "the first condition of success is forgotten",
        file: PROGRESS,
        from: "draft.set(ConditionType::Succeeded, true, &reason, &message);",
        to: "",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "a failure has no completion time",
        file: FAILING,
        from: "draft.complete();",
        to: "",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "the backoff budget is off by one",
        file: FAILING,
        from: "&& i64::from(spent) > i64::from(limit)",
        to: "&& i64::from(spent) >= i64::from(limit)",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "in-place restarts are forgotten with their pod",
        file: PROGRESS,
        from: "draft.state.container_restarts.max(in_place)",
        to: "in_place",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "a failure does not raise the attempt",
        file: RESTART,
        from: "attempt: attempt.saturating_add(1),",
        to: "attempt,",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "a pod that a disruption failed fails the job under Never",
        file: RESTART,
        from: "if pod.disrupted {",
        to: "if false && pod.disrupted {",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "the backoff is never reset",
        file: RESTART,
        from: "settled: if ran_long { attempt } else { self.settled },",
        to: "settled: self.settled,",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "an invalid edit fails a running job",
        file: "crates/training-core/src/plan.rs",
        from: "let runs = draft.state.started.is_some() && !resumes;",
        to: "let runs = false && draft.state.started.is_some() && !resumes;",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "a role that was removed from the spec keeps its counts",
        file: "crates/training-core/src/plan/counts.rs",
        from: "shown.active = of_type(PodPhase::Running);",
        to: "",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "a webhook's refusal that looks like a validation error is final",
        file: "crates/training-runtime/src/fault.rs",
        from: "if message.starts_with(\"admission webhook\") ||",
        to: "if",
        tests: RUNTIME,
    },
    Mutation {
        name: "events are written while jobs are reconciled",
        file: "crates/training-runtime/src/worker.rs",
        from: "let _hold = self.context.events.hold();",
        to: "",
        tests: WRITES,
    },
    Mutation {
        name: "creates of one namespace may take all places",
        file: CALLER,
        from: "const OF_NAMESPACE: usize = 64;",
        to: "const OF_NAMESPACE: usize = 96;",
        tests: RUNTIME,
    },
    Mutation {
        name: "reconciles of one namespace may take all places",
        file: "crates/training-runtime/src/dispatcher.rs",
        from: "let reserved = free <= concurrency / RESERVED;",
        to: "let reserved = false && free <= concurrency / RESERVED;",
        tests: RUNTIME,
    },
    Mutation {
        name: "a new attempt is not stored first",
        file: FAILING,
        from: "draft.notes.push(Note::warning(reason, message));\n    draft.urgency(Urgency::First);",
        to: "draft.notes.push(Note::warning(reason, message));",
        tests: WRITES,
    },
    Mutation {
        name: "a suspension is stored in parallel with its deletes",
        file: SUSPENDED,
        from: "draft.state.made_from = None;\n        draft.urgency(Urgency::First);",
        to: "draft.state.made_from = None;\n        draft.urgency(Urgency::Parallel);",
        tests: table!("properties"),
    },
    Mutation {
        name: "the search finds a suspension that is stored in parallel with its deletes",
        file: SUSPENDED,
        from: "draft.state.made_from = None;\n        draft.urgency(Urgency::First);",
        to: "draft.state.made_from = None;\n        draft.urgency(Urgency::Parallel);",
        tests: &[
            "-p",
            "pytorch-operator",
            "--no-default-features",
            "--test",
            "all",
            "--",
            "cs8",
        ],
    },
    Mutation {
        name: "a resume is stored in parallel with its pods",
        file: SUSPENDED,
        from: "while the status says suspended.\n    draft.urgency(Urgency::First);",
        to: "while the status says suspended.\n    draft.urgency(Urgency::Parallel);",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "pods carry no attempt",
        file: "crates/training-core/src/render/pod.rs",
        from: "annotations.insert(keys::ATTEMPT.to_owned(), attempt.to_string());",
        to: "let _ = (&mut annotations, attempt);",
        tests: table!("conformance_golden"),
    },
    Mutation {
        name: "pods that are not ready count as ready",
        file: "crates/training-core/src/model/census.rs",
        from: "p.ready && !p.terminating",
        to: "!p.terminating",
        tests: table!("plan"),
    },
    Mutation {
        name: "terminating pods count as failed",
        file: "crates/training-core/src/model/census.rs",
        from: "if pod.phase.has_ended() && !pod.terminating {",
        to: "if pod.phase.has_ended() {",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "everything is cleaned up by default",
        file: "crates/training-api/src/run_policy.rs",
        from: r#"None | Some("None") => Self::None,"#,
        to: r#"Some("None") => Self::None,
            None => Self::All,"#,
        tests: EVERY_KIND,
    },
    Mutation {
        name: "the TTL is a second short",
        file: FINISHED,
        from: "let after = i64::from(ttl.max(0)) + 1;",
        to: "let after = i64::from(ttl.max(0));",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "the deadline causes no requeue",
        file: PROGRESS,
        from: "draft.requeue_after(started, seconds);",
        to: "let _ = (started, seconds);",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "replacements have no backoff",
        file: "crates/training-core/src/model/restart.rs",
        from: "if attempt <= 1 {",
        to: "if attempt > 0 {",
        tests: CORE,
    },
    Mutation {
        name: "the backoff of a replacement is not kept",
        file: PROGRESS,
        from: "next.is_none()",
        to: "true",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "a succeeded replica is forgotten",
        file: "crates/training-core/src/plan.rs",
        from: ".insert(slot.index);",
        to: ";",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "jobs of another controller are planned",
        file: "crates/training-core/src/plan.rs",
        from: "job.meta().deletion_timestamp.is_some() || is_managed_elsewhere::<F>(job)",
        to: "job.meta().deletion_timestamp.is_some()",
        tests: EVERY_KIND,
    },
    Mutation {
        name: "TFJob: a job of one pod gets a cluster",
        file: TF_CLUSTER,
        from: "if total == 1 {",
        to: "if total == 0 {",
        tests: OF_TF,
    },
    Mutation {
        name: "TFJob: a dynamic worker gets all others",
        file: TF_CLUSTER,
        from: "let dynamic = cx.job.spec.enable_dynamic_worker == Some(true);",
        to: "let dynamic = false;",
        tests: OF_TF,
    },
    Mutation {
        name: "TFJob: the cluster's domain is left out",
        file: TF_CLUSTER,
        from: "let domain = domain.unwrap_or_default();",
        to: r#"let domain = "";"#,
        tests: OF_TF,
    },
    Mutation {
        name: "TFJob: the first worker ends a job of all workers",
        file: TF,
        from: "all || one_is_enough && first == Some(SlotState::Finished)",
        to: "let _ = one_is_enough;\n    all || first == Some(SlotState::Finished)",
        tests: OF_TF,
    },
    Mutation {
        name: "TFJob: no replicas have succeeded at once",
        file: TF,
        from: "let all = role.replicas > 0 && census.counts[at]",
        to: "let all = census.counts[at]",
        tests: OF_TF,
    },
    Mutation {
        name: "TFJob: a chief and a master are allowed together",
        file: TF,
        from: "if roles.get(CHIEF).is_some() && roles.get(MASTER).is_some() {",
        to: "if false {",
        tests: OF_TF,
    },
    Mutation {
        name: "TFJob: an unknown role ends the job",
        file: TF,
        from: "is_unknown(role) || is_dynamic(cx)",
        to: "is_dynamic(cx)",
        tests: OF_TF,
    },
    Mutation {
        name: "TFJob: a dynamic job outlives its last worker",
        file: TF,
        from: "decider != WORKER || census",
        to: "true || census",
        tests: OF_TF,
    },
    Mutation {
        name: "XGBoostJob: workers are listed as masters",
        file: XGBOOST,
        from: r#"names::replica(cx.name, "worker", index)"#,
        to: r#"names::replica(cx.name, "master", index)"#,
        tests: OF_XGBOOST,
    },
    Mutation {
        name: "XGBoostJob: a single master gets a list of workers",
        file: XGBOOST,
        from: "if total > 1 {",
        to: "if total > 0 {",
        tests: OF_XGBOOST,
    },
    Mutation {
        name: "XGBoostJob: a job needs no master",
        file: XGBOOST,
        from: "if roles.get(MASTER).is_none() {",
        to: "if false {",
        tests: OF_XGBOOST,
    },
    Mutation {
        name: "XGBoostJob: ranks restart with each role",
        file: XGBOOST,
        from: "me.rank.to_string()",
        to: "me.index.to_string()",
        tests: OF_XGBOOST,
    },
    Mutation {
        name: "XGBoostJob: workers listen at the master's port",
        file: XGBOOST,
        from: "port(WORKER)",
        to: "port(MASTER)",
        tests: OF_XGBOOST,
    },
    Mutation {
        name: "MPIJob: hosts are listed in the order of their numbers",
        file: MPI_HOSTS,
        from: "workers.sort_unstable();",
        to: "",
        tests: OF_HOSTS,
    },
    Mutation {
        name: "MPIJob: two launchers run at once",
        file: MPI,
        from: "pods.any(|p| Some(p.batch) != batch && !p.pod.phase.has_ended())",
        to: "let _ = batch;\n        pods.any(|_| false)",
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: a launcher that was never suspended continues",
        file: MPI,
        from: "if resumes && reconcile.still_launches() {",
        to: "if resumes && reconcile.still_launches() && false {",
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: a suspended job's launcher continues",
        file: MPI,
        from: r#"json!({"spec": {"suspend": true}})"#,
        to: r#"json!({"spec": {"suspend": false}})"#,
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: a launcher that was deleted at its TTL runs again",
        file: MPI_ENDS,
        from: "if policy.ttl_seconds_after_finished.is_none() || known.is_none_or(seen_to_go) {",
        to: "let _ = (known, seen_to_go);\n            if true {",
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: a launcher that has ended is cleaned up",
        file: MPI,
        from: "all || !ended && policy != CleanPodPolicy::None",
        to: "all || (ended || !ended) && policy != CleanPodPolicy::None",
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: the first failure of the launcher is reported, not the last",
        file: MPI_ENDS,
        from: ".max_by_key(|p| p.pod.version)",
        to: ".min_by_key(|p| p.pod.version)",
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: the launcher waits for no worker",
        file: MPI_LAUNCHER,
        from: "let may_run = !self.setup.waits_for_workers || self",
        to: "let may_run = true || self",
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: a job runs while a worker is missing",
        file: MPI_REPORT,
        from: "&& self.workers(census).all(runs)",
        to: "",
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: a worker that exits with 0 is not replaced",
        file: "operators/mpi-operator/src/setup.rs",
        from: "is_host: origin == Origin::V2beta1 && key == WORKER,",
        to: "is_host: false,",
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: a change of the launcher's template is not detected",
        file: MPI_LAUNCHER,
        from: "if made_from.is_some_and(|old| *old != self.launcher_digest(common, gang)) {",
        to: "if made_from.is_some_and(|_| false) {",
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: a resumed job keeps the disabled init container",
        file: MPI_LAUNCHER,
        from: "setup.main, gate)).to_string()",
        to: "setup.main, gate.is_none() && false)).to_string()",
        tests: OF_MPI,
    },
    Mutation {
        name: "MPIJob: the Job controller keeps a lost launcher's pod",
        file: "crates/training-core/src/plan/lost.rs",
        from: "made.is_some_and(|made| Some(made.batch) != owner)",
        to: "made.is_some_and(|made| false && Some(made.batch) != owner)",
        tests: OF_MPI,
    },
    Mutation {
        name: "Spark: one retry too few",
        file: SPARK_RETRY,
        from: "failed <= most",
        to: "failed < most",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: the backoff does not grow",
        file: SPARK_RETRY,
        from: ".saturating_mul(failures);",
        to: ".saturating_mul(failures.min(1));",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: succeeded runs use up retries",
        file: SPARK_RETRY,
        from: "status.failed_runs.or(status.execution_attempts)",
        to: "status.execution_attempts.or(status.failed_runs)",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: a schedule needs day and weekday",
        file: SPARK_CRON,
        from: "day || weekday",
        to: "day && weekday",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: a scheduled time occurs twice",
        file: SPARK_CRON,
        from: ".filter(|at| *at > after)",
        to: ".filter(|at| *at >= after)",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: a run starts although an unfinished one forbids it",
        file: SPARK_SCHEDULE,
        from: "|| ready.concurrency != Concurrency::Forbid",
        to: "|| true",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: no run is replaced by a new one",
        file: SPARK_SCHEDULE,
        from: "if ready.concurrency == Concurrency::Replace {",
        to: "if false {",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: no minimum overhead",
        file: SPARK_MEMORY,
        from: "share(factor, heap).max(least)",
        to: "share(factor, heap).max(least.min(0))",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: Python's memory is forgotten",
        file: SPARK_MEMORY,
        from: "sum = sum.saturating_add(python.unwrap_or(0));",
        to: "let _ = python;",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: a driver of a former run is taken for the current one",
        file: SPARK_SUBMITTING,
        from: "d.submission_id == id || former.is_none() || edited(d)",
        to: "true || d.submission_id == id || former.is_none() || edited(d)",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: a pod that has the driver's name is no obstacle",
        file: SPARK_SUBMITTING,
        from: "if let Some(name) = &self.input.observed.taken_name {",
        to: "if let Some(name) = self.input.observed.taken_name.as_ref().filter(|_| false) {",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: a driver that exits by zero has failed",
        file: SPARK_RUNNING,
        from: "if end.code == 0 => State::Succeeding",
        to: "if end.code == 1 => State::Succeeding",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: a failed run is not counted",
        file: SPARK_RUNNING,
        from: "status.failed_runs = Some(incremented(status.failed_runs));",
        to: "",
        tests: OF_SPARK,
    },
    Mutation {
        name: "Spark: executors of other runs are counted",
        file: SPARK_EXECUTORS,
        from: "executors.iter().filter(|e| e.submission_id == id)",
        to: "executors.iter().filter(|e| e.submission_id == id || true)",
        tests: OF_SPARK,
    },
];
