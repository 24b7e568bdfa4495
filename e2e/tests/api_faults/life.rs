//! What a job of each kind is, and how the campaign sees what has become of it.

use std::sync::Arc;

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use training_testkit::builders::{self, Job, Kind, MPI, SPARK, WITH_MASTER};
use training_testkit::job::{condition, counters, is_true};
use training_testkit::kubelet::{Act, Script, State, Step, run_and_succeed};

use super::driver::{JOB, Phase};

/// A verb, and a `resource` or `resource/subresource`.
pub type Target = (&'static str, &'static str);

/// The pod of an application's driver.
const DRIVER: &str = "pt-driver";
/// So many workers a job has, unless it is said otherwise.
pub const WORKERS: u32 = 2;

/// How a job of this kind lives through the campaign: a pod fails and is replaced, and then all end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life(pub Kind);

impl Life {
    /// The job that faults strike: a pod that fails is replaced, and at the end everything goes that may go.
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
        // The workers of an MPIJob are hosts: they are replaced whatever their policy says.
        if self.0 == MPI {
            job.build()
        } else {
            job.restart_policy("Worker", "ExitCode").build()
        }
    }

    /// The healthy job beside it.
    pub fn canary(self, name: &str) -> Value {
        if self.0 == SPARK {
            return application(name, &json!({ "type": "Never" }));
        }
        self.leader(name).workers(self.workers(1)).build()
    }

    /// What becomes of the pods of the healthy job.
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

    /// Where there is no master, a further worker that never fails stands in for it.
    fn workers(self, workers: u32) -> u32 {
        workers + u32::from(self.leading().is_none())
    }

    /// The pods that it has while it runs.
    pub fn pods(self, workers: u32) -> usize {
        if self.0 == SPARK {
            1
        } else {
            workers as usize + 1
        }
    }

    /// The pods that may fail, in their turn. The first replacement of each comes at once; an application has but one.
    pub fn victims(self, workers: u32) -> Vec<String> {
        if self.0 == SPARK {
            return vec![DRIVER.to_owned()];
        }
        let all = (0..workers).rev();
        all.map(|index| format!("pt-worker-{index}")).collect()
    }

    /// Whether a pod of this role ends by itself when the job has done its work.
    pub fn ends_by_itself(self, role: &str) -> bool {
        self.0 != MPI || role == "launcher"
    }

    /// The pods that the operator makes, in the order of their names; the launcher's are made by the controller of Jobs.
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

    /// Whether the operator has taken the job up.
    pub fn is_taken_up(self, job: &Value) -> bool {
        if self.0 == SPARK {
            return matches!(state(job), "SUBMITTED" | "RUNNING");
        }
        is_true(job, "Created")
    }

    /// Whether all of it runs.
    pub fn runs(self, job: &Value, workers: u32) -> bool {
        if self.0 == SPARK {
            return state(job) == "RUNNING";
        }
        let active = |role| counters(job, role).get("active").copied();
        is_true(job, "Running")
            && self.leading().is_none_or(|role| active(role) == Some(1))
            && active("Worker") == Some(self.workers(workers).into())
    }

    /// Whether it has ended well.
    pub fn has_succeeded(job: &Value) -> bool {
        state(job) == "COMPLETED" || is_true(job, "Succeeded")
    }

    /// Whether it has ended badly.
    pub fn has_failed(job: &Value) -> bool {
        state(job) == "FAILED" || is_true(job, "Failed")
    }

    /// Why it has ended badly, or waits.
    pub fn told(self, job: &Value, of: &str) -> String {
        if self.0 == SPARK {
            let text = job["status"]["applicationState"]["errorMessage"].as_str();
            return text.unwrap_or_default().to_owned();
        }
        let told = condition(job, of);
        told.map(|told| told.message).unwrap_or_default()
    }

    /// What the operator watches.
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

    /// The status of its jobs, as a request names it.
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

    /// Requests that faults strike in a phase.
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

    /// How many requests of a kind a phase makes at least.
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
            // Pods begin to run when it is taken up, which is told before.
            (Phase::Creating, "patch", _) => 2,
            _ => 1,
        }
    }

    /// What its jobs have beside pods and services.
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
