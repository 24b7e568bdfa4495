//! Namespaces that are deleted, and deletions that nothing may block.

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, ResourceQuota};
use kube::api::{DeleteParams, PostParams};
use training_testkit::control_plane::{self, DRIVER};
use training_testkit::job::is_true;
use training_testkit::kubelet::{Kubelet, lockstep};

use super::*;

/// The operator's longest backoff: long enough to count its requests meanwhile.
const PATIENT: &str = "30s";
/// A longest backoff below [`QUIET`], with which an operator that retries without end is never quiet.
const RESTLESS: &str = "1s";

/// When the namespace is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Before the operator reconciles its jobs.
    Before,
    /// When their pods exist.
    MidLife,
}

impl Tenant {
    /// Deletes the namespace.
    async fn end(&self) -> Result<()> {
        let all: Api<NamespaceObject> = Api::all(self.client.clone());
        all.delete(self.name(), &DeleteParams::background()).await?;
        Ok(())
    }

    async fn until_refused(&self, since: Mark) -> Result<()> {
        let what = format!("a refusal of what a {} needs", self.kind.name);
        eventually(&what, HANG, async || {
            let asked = self.asked(since).await?;
            let refused = |e: &&Entry| e.verb == "create" && e.code == 403;
            Ok(match asked.iter().find(refused) {
                Some(_) => Seen::Yes(()),
                None => Seen::NotYet(format!("{asked:?}")),
            })
        })
        .await
    }

    /// Nothing is deleted here, so the job stays while its namespace accepts nothing new.
    async fn asks_little_while_its_namespace_ends(&self, when: When) -> Result<()> {
        let audit = self.control.audit()?;
        // The operator backs off for this long after a refusal; without backoff it is never quiet.
        let options = self.options().await?.flag("backoff-cap", "30s");
        let mut job = manifest(&self.kind, "pt");
        if self.kind == SPARK {
            job["spec"]["restartPolicy"] = json!({
                "type": "Always", "onFailureRetryInterval": 1, "onSubmissionFailureRetryInterval": 1,
            });
        }
        self.jobs.create(&job).await?;
        let operator = match when {
            When::Before => None,
            When::MidLife => {
                let operator = OperatorProcess::start(options.clone()).await?;
                // Without a Job controller there is no launcher's pod.
                let launchers = usize::from(self.kind == MPI);
                self.until_pods(pods_of(&self.kind) - launchers).await?;
                self.until_quiet().await?;
                Some(operator)
            }
        };
        let begin = audit.mark().await?;
        self.end().await?;
        let operator = match operator {
            Some(operator) => {
                for pod in self.pods().await? {
                    let now = DeleteParams::default().grace_period(0);
                    self.api::<Pod>().delete(&pod.name_any(), &now).await?;
                }
                operator
            }
            None => OperatorProcess::start(options).await?,
        };
        self.until_refused(begin).await?;
        self.until_quiet().await?;
        let asked = self.asked(begin).await?;
        let what = || format!("{} {when:?}: {asked:#?}", self.kind.name);
        let made = asked.iter().filter(|e| e.verb == "create" && e.code < 300);
        ensure!(made.count() == 0, "made in the end: {}", what());
        ensure!(asked.len() <= 16, "{} requests: {}", asked.len(), what());
        // After the deletion of its job, there is nothing left to request.
        let begin = audit.mark().await?;
        self.jobs.delete("pt").await?;
        self.until_quiet().await?;
        let asked = self.asked_anew(begin).await?;
        ensure!(asked.is_empty(), "{}: {asked:#?}", self.kind.name);
        self.assert_well(&operator).await
    }

    /// With all controllers of a cluster. `cap` is the operator's longest backoff.
    async fn ends_with_its_namespace(&self, cap: &str) -> Result<()> {
        let audit = self.control.audit()?;
        let driver = self.control.client(DRIVER).await?;
        let kubelet = Kubelet::start(driver, &[self.name()], lockstep()).await?;
        let options = self.options().await?.flag("backoff-cap", cap);
        let operator = OperatorProcess::start(options).await?;
        self.create("pt").await?;
        let pods = pods_of(&self.kind);
        kubelet.until_pods(self.name(), "pt", pods).await?;
        let run = kubelet.all_running(self.name(), "pt").await?;
        assert_eq!(run, pods, "{}", self.kind.name);
        let runs = |job: &Value| {
            is_true(job, "Running") || job["status"]["applicationState"]["state"] == "RUNNING"
        };
        self.jobs.until("pt", "running", runs).await?;
        self.until_quiet().await?;
        let begin = audit.mark().await?;
        self.end().await?;
        let all: Api<NamespaceObject> = Api::all(self.client.clone());
        eventually("the namespace to be gone", HANG, async || {
            Ok(match all.get_opt(self.name()).await? {
                None => Seen::Yes(()),
                Some(there) => Seen::NotYet(format!("{:?}", there.status)),
            })
        })
        .await?;
        let gone = audit.mark().await?;
        self.until_quiet().await?;
        let asked = self.asked(begin).await?;
        let made = asked.iter().filter(|e| e.verb == "create" && e.code < 300);
        ensure!(made.count() == 0, "{}: {asked:#?}", self.kind.name);
        if cap == PATIENT {
            ensure!(asked.len() <= 40, "{}: {asked:#?}", self.kind.name);
        }
        // No more than was in flight: one reconcile, and the queued events.
        let late = self.asked(gone).await?;
        ensure!(late.len() <= 8, "{}: {late:#?}", self.kind.name);
        self.assert_well(&operator).await
    }
}

/// On a control plane without controllers: the API server refuses new objects for as long as the test needs.
#[tokio::test]
async fn f_22_b_045_in_a_namespace_that_ends_no_job_is_tried_again_and_again() -> Result<()> {
    let options = control_plane::Options {
        audit: true,
        ..control_plane::Options::default()
    };
    let control: &'static ControlPlane = Box::leak(Box::new(ControlPlane::start(options).await?));
    let ends = kinds().flat_map(|kind| [(kind, When::Before), (kind, When::MidLife)]);
    try_join_all(ends.map(|(kind, when)| async move {
        let Some(tenant) = Tenant::on(control, kind, "ending").await? else {
            return Ok(());
        };
        let ending = tenant.asks_little_while_its_namespace_ends(when);
        ending
            .await
            .with_context(|| format!("{} {when:?}", kind.name))
    }))
    .await
    .map(drop)
}

/// With the controllers of a cluster, which delete everything in their own order.
#[tokio::test]
async fn f_62_b_045_a_job_goes_with_its_namespace() -> Result<()> {
    let caps = kinds().flat_map(|kind| [(kind, PATIENT), (kind, RESTLESS)]);
    try_join_all(caps.map(|(kind, cap)| async move {
        let Some(tenant) = Tenant::of(kind, "gone").await? else {
            return Ok(());
        };
        let ending = tenant.ends_with_its_namespace(cap);
        ending.await.with_context(|| format!("{} {cap}", kind.name))
    }))
    .await
    .map(drop)
}

/// A quota that admits nothing new.
fn nothing_more() -> Value {
    json!({
        "metadata": { "name": "nothing" },
        "spec": { "hard": { "pods": "0", "services": "0", "count/configmaps": "0", "count/secrets": "0", "count/events": "0" } },
    })
}

#[tokio::test]
async fn mt_39_nothing_holds_a_deletion_up() -> Result<()> {
    try_join_all(kinds().map(|kind| async move {
        let Some(tenant) = Tenant::of(kind, "deleted").await? else {
            return Ok(());
        };
        // Refused requests are retried after this long, with quiet in between.
        let options = tenant.options().await?.flag("backoff-cap", "30s");
        let mut operator = OperatorProcess::start(options).await?;
        tenant.create("running").await?;
        tenant.until_pods(pods_of(&kind)).await?;
        let quota: ResourceQuota = serde_json::from_value(nothing_more())?;
        let quotas = tenant.api::<ResourceQuota>();
        quotas.create(&PostParams::default(), &quota).await?;
        eventually("the quota to be known", HANG, async || {
            let status = quotas.get("nothing").await?.status;
            Ok(match status.and_then(|s| s.hard) {
                Some(_) => Seen::Yes(()),
                None => Seen::NotYet("no status".to_owned()),
            })
        })
        .await?;
        // One job runs, and two can't: one while the operator runs, one that it never sees.
        tenant.create("refused").await?;
        tenant.until_quiet().await?;
        tenant.jobs.delete("refused").await?;
        tenant.until_gone("refused").await?;
        operator.kill()?;
        tenant.create("unseen").await?;
        for name in ["running", "unseen"] {
            let job = tenant.jobs.get(name).await?;
            let finalizers = &job["metadata"]["finalizers"];
            ensure!(finalizers.is_null(), "{} {name}: {finalizers}", kind.name);
        }
        // Foreground deletion waits for the job's dependents.
        tenant
            .jobs
            .delete_with("running", &DeleteParams::foreground())
            .await?;
        tenant.jobs.delete("unseen").await?;
        for name in ["running", "unseen"] {
            tenant.until_gone(name).await?;
        }
        let left = async || {
            let made = tenant.made().await?;
            Ok(if made.is_empty() {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{made:?}"))
            })
        };
        eventually("nothing to be left", HANG, left).await?;
        // The operator stays dead, so only the auditor can tell.
        tenant.assert_clean(&operator).await
    }))
    .await
    .map(drop)
}

impl Tenant {
    async fn until_gone(&self, name: &str) -> Result<()> {
        let what = format!("{} {name} to be gone", self.kind.name);
        eventually(&what, HANG, async || {
            Ok(if self.jobs.exists(name).await? {
                Seen::NotYet(self.jobs.get(name).await?["metadata"].to_string())
            } else {
                Seen::Yes(())
            })
        })
        .await
    }
}
