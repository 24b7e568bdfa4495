//! Jobs beside others of the same name, beside planted objects, and beside pods that claim to be theirs.

use futures::future::try_join_all;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use training_testkit::builders::{PYTORCH, TENSORFLOW, XGBOOST};
use training_testkit::job::{conditions, is_finished};
use training_testkit::proxy::{Action, Gate, Rule};
use training_testkit::wait::holds_for;

use super::*;

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);

#[tokio::test]
async fn mt_05_i_30_jobs_of_one_name_in_two_namespaces_have_nothing_in_common() -> Result<()> {
    try_join_all(kinds().map(|kind| async move {
        let Some(ours) = Tenant::of(kind, "same-a").await? else {
            return Ok(());
        };
        let Some(theirs) = Tenant::of(kind, "same-b").await? else {
            return Ok(());
        };
        let operator = OperatorProcess::start(ours.options_with(&theirs).await?).await?;
        let mut uids = Vec::new();
        for tenant in [&ours, &theirs] {
            let job = tenant.create("pt").await?;
            uids.push(job["metadata"]["uid"].as_str().map(str::to_owned));
        }
        for (tenant, uid) in [&ours, &theirs].into_iter().zip(&uids) {
            for pod in tenant.until_pods(pods_of(&kind)).await? {
                let owner = &pod.owner_references()[0];
                // A launcher's pod belongs to its Job.
                let direct = owner.kind == kind.name;
                ensure!(
                    !direct || Some(&owner.uid) == uid.as_ref(),
                    "{kind:?}: {owner:?}"
                );
            }
            tenant.until_quiet().await?;
        }
        let before = theirs.made().await?;
        ensure!(!before.is_empty(), "{kind:?}");
        let begin = ours.control.audit()?.mark().await?;
        ours.jobs.merge("pt", &suspension(&kind, true)).await?;
        ours.until_pods(0).await?;
        ours.jobs.delete("pt").await?;
        eventually("nothing of ours", HANG, async || {
            let made = ours.made().await?;
            Ok(if made.is_empty() {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{made:?}"))
            })
        })
        .await?;
        ours.until_quiet().await?;
        ensure!(
            !ours.asked(begin).await?.is_empty(),
            "{kind:?}: nobody ended it"
        );
        let asked = theirs.asked_anew(begin).await?;
        ensure!(
            asked.is_empty(),
            "{kind:?}: asked in the other namespace: {asked:#?}"
        );
        assert_eq!(theirs.made().await?, before, "{kind:?}");
        let job = theirs.jobs.get("pt").await?;
        ensure!(!is_finished(&job), "{}", job["status"]);
        ours.assert_well(&operator).await?;
        theirs.assert_well(&operator).await
    }))
    .await
    .map(drop)
}

/// A foreign object with the name that a job needs.
#[derive(Clone, Copy)]
struct Planted {
    kind: Kind,
    resource: (&'static str, &'static str, &'static str),
    name: &'static str,
}

const SERVICE: (&str, &str, &str) = ("", "v1", "Service");
const CONFIG: (&str, &str, &str) = ("", "v1", "ConfigMap");
const SECRET: (&str, &str, &str) = ("", "v1", "Secret");
const POD: (&str, &str, &str) = ("", "v1", "Pod");
const JOB: (&str, &str, &str) = ("batch", "v1", "Job");

fn planted() -> Vec<Planted> {
    let of = |kind, resource, name| Planted {
        kind,
        resource,
        name,
    };
    vec![
        of(PYTORCH, SERVICE, "pt-worker-0"),
        of(TENSORFLOW, SERVICE, "pt-master-0"),
        of(XGBOOST, SERVICE, "pt-worker-0"),
        of(TENSORFLOW, POD, "pt-worker-0"),
        of(XGBOOST, POD, "pt-master-0"),
        of(MPI, SERVICE, "pt"),
        of(MPI, CONFIG, "pt-config"),
        of(MPI, SECRET, "pt-ssh"),
        of(MPI, JOB, "pt-launcher"),
        of(SPARK, POD, "pt-driver"),
    ]
}

impl Planted {
    fn api(&self, tenant: &Tenant) -> Api<DynamicObject> {
        let (group, version, kind) = self.resource;
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk(&gvk);
        Api::namespaced_with(tenant.client.clone(), tenant.name(), &resource)
    }

    /// An attacker's object for pods to mount, run or reach.
    fn object(&self) -> Value {
        let (group, version, kind) = self.resource;
        let api = if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        };
        let pod =
            json!({ "containers": [{ "name": "a", "image": "theirs" }], "restartPolicy": "Never" });
        let mut object =
            json!({ "apiVersion": api, "kind": kind, "metadata": { "name": self.name } });
        match kind {
            "Service" => object["spec"] = json!({ "ports": [{ "port": 80 }] }),
            "ConfigMap" => object["data"] = json!({ "hostfile": "theirs" }),
            "Secret" => object["stringData"] = json!({ "ssh-privatekey": "theirs" }),
            "Job" => object["spec"] = json!({ "suspend": true, "template": { "spec": pod } }),
            _ => object["spec"] = pod,
        }
        object
    }

    async fn plant(&self, tenant: &Tenant) -> Result<DynamicObject> {
        let object = serde_json::from_value(self.object())?;
        Ok(self
            .api(tenant)
            .create(&PostParams::default(), &object)
            .await?)
    }

    /// The end of a test: the object is unchanged, and the operator is well.
    async fn ends_well(
        &self,
        tenant: &Tenant,
        before: &DynamicObject,
        operator: &OperatorProcess,
    ) -> Result<()> {
        self.is_left_alone(tenant, before)
            .await
            .with_context(|| format!("{} {}", self.kind.name, self.resource.2))?;
        tenant.assert_well(operator).await
    }

    /// The object stays unchanged, and no pod that would mount it runs; after its deletion the job goes on.
    async fn is_left_alone(&self, tenant: &Tenant, before: &DynamicObject) -> Result<()> {
        let theirs = || format!("{} {}", self.kind.name, self.resource.2);
        let waits = |job: &Value| {
            let words = |text: &str| text.contains(self.name);
            let stalled = conditions(job).into_iter().find(|c| c.kind == "Stalled");
            let message = &job["status"]["applicationState"]["errorMessage"];
            stalled.is_some_and(|c| c.status == "True" && c.reason == "NameConflict")
                || message.as_str().is_some_and(words)
        };
        // The operator never reads a Secret: the job has another one, under the next name.
        if self.resource == SECRET {
            tenant.until_pods(pods_of(&self.kind)).await?;
        } else {
            tenant.jobs.until("pt", "naming it", waits).await?;
        }
        let untouched = async || {
            let now = self.api(tenant).get(self.name).await?;
            // Controllers of the cluster write the status of their objects.
            let own = |o: &DynamicObject| {
                let mut data = o.data.clone();
                data["status"] = Value::Null;
                (
                    o.uid(),
                    o.owner_references().to_vec(),
                    o.metadata.deletion_timestamp.clone(),
                    data,
                )
            };
            ensure!(own(&now) == own(before), "{}: {now:?}", theirs());
            Ok(())
        };
        holds_for(STAYS, untouched).await?;
        if self.resource == SECRET {
            let text = serde_json::to_string(&tenant.pods().await?)?;
            ensure!(!text.contains("\"pt-ssh\""), "{}: {text}", theirs());
            return Ok(());
        }
        let foreground = kube::api::DeleteParams::background().grace_period(0);
        self.api(tenant).delete(self.name, &foreground).await?;
        eventually(&format!("{} to be made", theirs()), HANG, async || {
            let now = self.api(tenant).get_opt(self.name).await?;
            let ours = now.filter(|o| !o.owner_references().is_empty());
            Ok(ours.map_or(Seen::NotYet("not there".to_owned()), |_| Seen::Yes(())))
        })
        .await?;
        tenant.until_pods(pods_of(&self.kind)).await.map(drop)
    }
}

#[tokio::test]
async fn mt_51_b_041_what_was_planted_before_a_job_is_neither_used_nor_changed() -> Result<()> {
    try_join_all(planted().into_iter().map(|planted| async move {
        let Some(tenant) = Tenant::of(planted.kind, "planted").await? else {
            return Ok(());
        };
        let before = planted.plant(&tenant).await?;
        let operator = tenant.operator().await?;
        tenant.create("pt").await?;
        planted.ends_well(&tenant, &before, &operator).await
    }))
    .await
    .map(drop)
}

/// The first to create an object has its name: somebody else creates it between the operator's decision and its write.
#[tokio::test]
async fn mt_52_what_is_planted_in_the_last_moment_is_neither_used_nor_changed() -> Result<()> {
    try_join_all(planted().into_iter().map(|planted| async move {
        let Some(tenant) = Tenant::of(planted.kind, "race").await? else {
            return Ok(());
        };
        let (proxy, options) = tenant.proxied(tenant.options().await?).await?;
        let gate = Gate::closed();
        let plural = format!("{}s", planted.resource.2.to_lowercase());
        let held = Rule::new("its create", Action::Hold(gate.clone()), move |call| {
            call.is("create", &plural) && call.name == planted.name
        })
        .first(1);
        proxy.add(&held);
        let operator = OperatorProcess::start(options).await?;
        tenant.create("pt").await?;
        eventually("its create to be held", HANG, async || {
            Ok(if held.hits() == 1 {
                Seen::Yes(())
            } else {
                Seen::NotYet("not sent".to_owned())
            })
        })
        .await?;
        let before = planted.plant(&tenant).await?;
        gate.open();
        planted.ends_well(&tenant, &before, &operator).await
    }))
    .await
    .map(drop)
}

/// Creates a pod with the labels and the owner of a job's pod, under another name.
async fn forge(tenant: &Tenant, of: &Pod, name: &str) -> Result<Pod> {
    let mut forged: Pod = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "a", "image": "i" }], "restartPolicy": "Never" },
    }))?;
    forged.metadata.labels.clone_from(&of.metadata.labels);
    forged
        .metadata
        .owner_references
        .clone_from(&of.metadata.owner_references);
    let made = tenant
        .api::<Pod>()
        .create(&PostParams::default(), &forged)
        .await?;
    Ok(made)
}

/// The launcher's pods belong to Kubernetes' Job controller; the workers are the operator's.
#[tokio::test]
async fn mt_53_forged_pods_end_no_job_and_are_not_deleted_for_it() -> Result<()> {
    try_join_all(kinds().map(|kind| async move {
        let Some(tenant) = Tenant::of(kind, "forged").await? else {
            return Ok(());
        };
        let operator = tenant.operator().await?;
        tenant.create("pt").await?;
        let pods = tenant.until_pods(pods_of(&kind)).await?;
        tenant.until_quiet().await?;
        let direct = |pod: &&Pod| pod.owner_references()[0].kind == kind.name;
        let real: Vec<&Pod> = pods.iter().filter(direct).collect();
        let begin = tenant.control.audit()?.mark().await?;
        for (number, pod) in real.iter().enumerate() {
            for phase in ["Failed", "Succeeded"] {
                let name = format!("forged-{number}-{}", phase.to_lowercase());
                forge(&tenant, pod, &name).await?;
                tenant.says(&name, json!({ "phase": phase })).await?;
            }
        }
        tenant.until_quiet().await?;
        let job = tenant.jobs.get("pt").await?;
        ensure!(!is_finished(&job), "{}: {}", kind.name, job["status"]);
        let state = &job["status"]["applicationState"]["state"];
        ensure!(state.is_null() || state == "SUBMITTED", "{state}");
        let asked = tenant.asked(begin).await?;
        let writes = asked
            .iter()
            .filter(|e| ["create", "delete"].contains(&e.verb.as_str()));
        let writes: Vec<_> = writes.filter(|e| e.resource != "events").collect();
        ensure!(writes.is_empty(), "{}: {writes:#?}", kind.name);
        let there = tenant.pods().await?.len();
        assert_eq!(there, pods.len() + 2 * real.len(), "{}", kind.name);
        // No auditor, because the forged pods violate its invariants.
        tenant.assert_serves(&operator).await
    }))
    .await
    .map(drop)
}

/// Applications ask for executors; their number is the driver's business.
#[tokio::test]
async fn mt_36_b_060_a_million_replicas_make_no_pod_and_take_no_memory() -> Result<()> {
    try_join_all(kinds().filter(|k| *k != SPARK).map(|kind| async move {
        let Some(tenant) = Tenant::of(kind, "million").await? else {
            return Ok(());
        };
        let operator = tenant.operator().await?;
        let (before, _) = operator.memory()?;
        let mut job = manifest(&kind, "pt");
        job["spec"][kind.replica_map]["Worker"]["replicas"] = json!(1_000_000);
        let roles = job["spec"][kind.replica_map].as_object();
        let counts = roles.into_iter().flat_map(|roles| roles.values());
        let total: i64 = counts.filter_map(|role| role["replicas"].as_i64()).sum();
        tenant.jobs.create(&job).await?;
        let failed = tenant.jobs.until_true("pt", "Failed").await?;
        let said = training_testkit::job::condition(&failed, "Failed")?;
        ensure!(
            said.message.contains(&format!("{total} replicas are more")),
            "{said:?}"
        );
        ensure!(said.message.contains(".replicas"), "{said:?}");
        tenant.until_quiet().await?;
        assert_eq!(tenant.made().await?, BTreeMap::new());
        let (_, most) = operator.memory()?;
        let grown = most.saturating_sub(before) >> 20;
        ensure!(grown < 64, "{}: {grown} MiB more", kind.name);
        tenant.assert_well(&operator).await
    }))
    .await
    .map(drop)
}
