//! The job of each kind in the campaign, and how its state is read.

use std::sync::Arc;

use e2e::lives::has_succeeded;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use training_testkit::builders::{self, Job, Kind, MPI, SPARK, WITH_MASTER};
use training_testkit::job::{condition, counters, is_true};
use training_testkit::kubelet::{Act, Script, State, Step, run_and_succeed};

use super::driver::{JOB, Phase, WORKER};

/// A verb, and a `resource` or `resource/subresource`.
pub type Target = (&'static str, &'static str);

/// The pod of an application's driver.
const DRIVER: &str = "pt-driver";
/// The default number of a job's workers.
pub const WORKERS: u32 = 2;

/// The life cycle of a job of this kind in the campaign: one pod fails and is replaced, then all succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life(pub Kind);

impl Life {
    /// The job that faults hit: a failed pod is replaced, and the job deletes everything it can when it finishes.
    pub fn job(self, workers: u32) -> Value {
        if self.0 == SPARK {
            return application(
                JOB,
                &json!({
                    "type": "OnFailure", "onFailureRetries": 3, "onFailureRetryInterval": 1,
                }),
            );
        }
        let job = self
            .leader(JOB)
            .workers(self.workers(workers))
            .run_policy("cleanPodPolicy", "All")
            .run_policy("backoffLimit", workers + 1);
        // The workers of an MPIJob are hosts, which are replaced under any policy.
        if self.0 == MPI {
            job.build()
        } else {
            job.restart_policy("Worker", "ExitCode").build()
        }
    }

    /// A number in the spec that has no effect while all is well, and the object that contains it.
    pub fn number(self, job: &mut Value) -> (&'static str, &mut Value) {
        if self.0 == SPARK {
            ("timeToLiveSeconds", &mut job["spec"])
        } else {
            ("backoffLimit", &mut job["spec"]["runPolicy"])
        }
    }

    /// The healthy job beside it.
    pub fn canary(self, name: &str) -> Value {
        if self.0 == SPARK {
            return application(name, &json!({ "type": "Never" }));
        }
        self.leader(name).workers(self.workers(1)).build()
    }

    /// The script of the healthy job's pods.
    pub fn canary_script(self) -> Script {
        if self.0 != MPI {
            return run_and_succeed(50, 200);
        }
        Arc::new(|replica| {
            let mut steps = vec![Step::after_ms(50, Act::Become(State::Running))];
            if replica.role == "launcher" {
                steps.push(Step::after_ms(200, Act::Become(State::Succeeded)));
            }
            steps
        })
    }

    fn leader(self, name: &str) -> Job {
        let job = self.0.job(name);
        match self.leading() {
            None => job,
            Some("Launcher") => job.role("Launcher", 1).restart_policy("Launcher", "Never"),
            Some(role) => job.role(role, 1),
        }
    }

    fn leading(self) -> Option<&'static str> {
        if self.0 == MPI {
            return Some("Launcher");
        }
        WITH_MASTER.contains(&self.0).then_some("Master")
    }

    /// Kinds without a master have one more worker, which never fails.
    fn workers(self, workers: u32) -> u32 {
        workers + u32::from(self.leading().is_none())
    }

    /// The number of pods while it runs.
    pub fn pods(self, workers: u32) -> usize {
        if self.0 == SPARK {
            1
        } else {
            workers as usize + 1
        }
    }

    /// The pod that fails first.
    pub fn victim(self) -> &'static str {
        if self.0 == SPARK { DRIVER } else { WORKER }
    }

    /// The pods that may fail, in order. The first replacement of each starts at once; an application has only one pod.
    pub fn victims(self, workers: u32) -> Vec<String> {
        if self.0 == SPARK {
            return vec![DRIVER.to_owned()];
        }
        let all = (0..workers).rev();
        all.map(|index| format!("pt-worker-{index}")).collect()
    }

    /// Whether a pod of this role ends by itself when the job's work is done.
    pub fn ends_by_itself(self, role: &str) -> bool {
        self.0 != MPI || role == "launcher"
    }

    /// The pods that the operator creates, sorted by name; the Job controller creates the launcher's.
    pub fn ranks(self, workers: u32) -> Vec<String> {
        let mut all = self.victims(workers);
        match self.leading() {
            _ if matches!(self.0, MPI | SPARK) => {}
            Some(_) => all.push("pt-master-0".to_owned()),
            None => all.push(format!("pt-worker-{workers}")),
        }
        all.sort_unstable();
        all
    }

    /// Whether the operator has accepted the job.
    pub fn is_taken_up(self, job: &Value) -> bool {
        if self.0 == SPARK {
            // A driver without a known phase has the state UNKNOWN.
            return matches!(state(job), "SUBMITTED" | "RUNNING" | "UNKNOWN");
        }
        is_true(job, "Created")
    }

    /// Whether the whole job runs.
    pub fn runs(self, job: &Value, workers: u32) -> bool {
        if self.0 == SPARK {
            return state(job) == "RUNNING";
        }
        let active = |role| counters(job, role).get("active").copied();
        is_true(job, "Running")
            && self.leading().is_none_or(|role| active(role) == Some(1))
            && active("Worker") == Some(self.workers(workers).into())
    }

    /// Whether the job has finished.
    pub fn has_ended(job: &Value) -> bool {
        has_succeeded(job) || Self::has_failed(job)
    }

    /// Whether the job has failed.
    pub fn has_failed(job: &Value) -> bool {
        state(job) == "FAILED" || is_true(job, "Failed")
    }

    /// The reason for its failure or wait, as the status gives it.
    pub fn told(self, job: &Value, of: &str) -> String {
        if self.0 == SPARK {
            let text = job["status"]["applicationState"]["errorMessage"].as_str();
            return text.unwrap_or_default().to_owned();
        }
        let told = condition(job, of);
        told.map(|told| told.message).unwrap_or_default()
    }

    /// The resources that the operator watches.
    pub fn watched(self) -> Vec<&'static str> {
        match self.0 {
            SPARK => vec![self.0.plural, "pods"],
            _ => vec![self.0.plural, "pods", "services"],
        }
    }

    /// A watched resource, for untyped clients.
    pub fn resource(self, plural: &str) -> ApiResource {
        let kind = match plural {
            "pods" => "Pod",
            "services" => "Service",
            _ => return self.0.resource(),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", kind), plural)
    }

    /// The status subresource as requests name it.
    pub fn status(self) -> &'static str {
        match self.0.plural {
            "pytorchjobs" => "pytorchjobs/status",
            "tfjobs" => "tfjobs/status",
            "xgboostjobs" => "xgboostjobs/status",
            "paddlejobs" => "paddlejobs/status",
            "jaxjobs" => "jaxjobs/status",
            "mpijobs" => "mpijobs/status",
            _ => "sparkapplications/status",
        }
    }

    /// The requests that faults hit in a phase.
    pub fn targets(self, phase: Phase) -> Vec<Target> {
        let status = ("patch", self.status());
        match phase {
            Phase::Creating => {
                let mut all = vec![("list", "pods"), ("watch", self.0.plural)];
                all.extend([("create", "pods"), ("create", "services")]);
                all.extend(self.files().iter().map(|file| ("create", *file)));
                all.push(status);
                all
            }
            Phase::Running => vec![status, ("delete", "pods"), ("create", "pods")],
            Phase::Finishing if self.0 == SPARK => vec![status],
            Phase::Finishing if self.0 == MPI => vec![status, ("delete", "pods")],
            Phase::Finishing => vec![status, ("delete", "pods"), ("delete", "services")],
        }
    }

    /// The least number of such requests in a phase.
    pub fn least(self, phase: Phase, (verb, resource): Target) -> usize {
        let pods = self.ranks(WORKERS).len();
        let serves_each = !matches!(self.0, MPI | SPARK);
        match (phase, verb, resource) {
            (Phase::Creating, "create", "pods") | (Phase::Finishing, "delete", "pods") => pods,
            (Phase::Creating, "create", "services") | (Phase::Finishing, "delete", "services")
                if serves_each =>
            {
                pods
            }
            // The first status comes before the pods run.
            (Phase::Creating, "patch", _) => 2,
            _ => 1,
        }
    }

    /// The resources of its jobs beside pods and Services.
    fn files(self) -> &'static [&'static str] {
        match self.0 {
            SPARK => &["configmaps"],
            MPI => &["configmaps", "secrets", "jobs"],
            _ => &[],
        }
    }
}

fn state(job: &Value) -> &str {
    let state = &job["status"]["applicationState"]["state"];
    state.as_str().unwrap_or_default()
}

fn application(name: &str, restarts: &Value) -> Value {
    let mut app = builders::application(name);
    app["spec"]["restartPolicy"] = restarts.clone();
    app
}
