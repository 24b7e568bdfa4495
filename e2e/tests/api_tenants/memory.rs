//! A tenant who fills the operator's memory with the largest objects that the API server accepts. The process's peak memory must stay
//! below the limit in the manifests.

use kube::api::PostParams;
use serde::Serialize;
use training_testkit::builders::PYTORCH;

use super::load::each;
use super::*;

/// The memory limit of the shipped Deployments.
///
/// Units: bytes.
const LIMIT: u64 = 256 * 1024 * 1024;
/// Variables of a large template.
const VARIABLES: usize = 5_000;

/// Gives the job's workers, or the driver, this many variables: about 430 KB of them.
fn burden(job: &mut Value) {
    let variable = |n| json!({ "name": format!("VARIABLE_{n:04}"), "value": "x".repeat(50) });
    let env: Value = (0..VARIABLES).map(variable).collect();
    let spec = &mut job["spec"];
    if spec.get("driver").is_some() {
        spec["driver"]["env"] = env;
        return;
    }
    let fields = spec.as_object_mut().into_iter().flatten();
    for workers in fields.filter_map(|(_, field)| field.get_mut("Worker")) {
        workers["template"]["spec"]["containers"][0]["env"] = env.clone();
    }
}

/// Gives the job's workers, or the driver, short objects that take forty times their text in memory. No pod may have them, so the job
/// must be suspended.
fn burden_densely(job: &mut Value) {
    let tolerations: Value = (0..350_000).map(|_| json!({})).collect();
    let spec = &mut job["spec"];
    if spec.get("driver").is_some() {
        spec["driver"]["tolerations"] = tolerations;
        return;
    }
    let fields = spec.as_object_mut().into_iter().flatten();
    for workers in fields.filter_map(|(_, field)| field.get_mut("Worker")) {
        workers["template"]["spec"]["tolerations"] = tolerations.clone();
    }
}

/// Creates a large object. It takes the API server and etcd seconds of work: beside other tests, such a request may time out although
/// the object is stored, and the client also retries it by itself.
async fn store_large<T>(create: impl AsyncFn() -> Result<T>) -> Result<()> {
    const ATTEMPTS: u32 = 5;
    let mut attempt = 1;
    loop {
        match create().await {
            Err(error) if format!("{error:#}").contains("AlreadyExists") => return Ok(()),
            Err(error)
                if attempt < ATTEMPTS
                    && format!("{error:#}").contains("etcdserver: request timed out") => {}
            created => return created.map(drop),
        }
        attempt += 1;
    }
}

/// The kinds with code of their own, or in a deep run all.
fn some_kinds(some: &'static [Kind]) -> impl Iterator<Item = Kind> {
    kinds().filter(move |kind| is_deep() || some.contains(kind))
}

/// Fails if the process's peak memory reached this limit.
fn assert_fits(kind: &Kind, operator: &OperatorProcess, limit: u64) -> Result<()> {
    let (_, most) = operator.memory()?;
    eprintln!("{}: {} MiB at most", kind.name, most >> 20);
    ensure!(most < limit, "{}: {most} bytes", kind.name);
    Ok(())
}

/// The time until another tenant's job has its pods.
async fn canary(calm: &Tenant, name: &str, pods: usize) -> Result<Duration> {
    let begun = tokio::time::Instant::now();
    calm.create(name).await?;
    calm.until_pods(pods).await?;
    Ok(begun.elapsed())
}

/// Two namespaces, and the options of an operator that serves both.
async fn two(kind: Kind) -> Result<Option<(Tenant, Tenant, Options)>> {
    let (Some(large), Some(calm)) = (
        Tenant::of(kind, "large").await?,
        Tenant::of(kind, "calm").await?,
    ) else {
        return Ok(None);
    };
    let options = large.options_with(&calm).await?;
    Ok(Some((large, calm, options)))
}

impl Tenant {
    /// Creates a large object.
    pub async fn store<K>(&self, object: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let object = serde_json::from_value(object)?;
        let api = self.api::<K>();
        let create = async || Ok(api.create(&PostParams::default(), &object).await?);
        store_large(create).await.context("a large object")
    }
}

#[tokio::test]
async fn a_job_of_many_large_pods_fits_into_the_shipped_limit() -> Result<()> {
    // The pods together take more memory than this limit.
    let (workers, limit) = if is_deep() {
        (300, LIMIT)
    } else {
        (75, LIMIT / 8 * 3)
    };
    // One executor makes the pods of all these kinds.
    for kind in some_kinds(&[PYTORCH]).filter(|kind| *kind != SPARK) {
        let Some((large, calm, options)) = two(kind).await? else {
            return Ok(());
        };
        let mut operator = OperatorProcess::start(options).await?;
        let mut job = kind.small_job("pt", workers).build();
        burden(&mut job);
        let pods = pods_of(&kind);
        let before = canary(&calm, "before", pods).await?;
        large.jobs.create(&job).await?;
        let beside = canary(&calm, "beside", 2 * pods).await?;
        let times = beside.as_secs_f64() / before.as_secs_f64();
        eprintln!("a small job took {beside:.1?} instead of {before:.1?}: {times:.1} times");
        large.until_pods(usize::try_from(workers)? + 1).await?;
        large.until_quiet().await?;
        assert_fits(&kind, &operator, limit)?;
        operator.kill()?;
        operator.restart().await?;
        canary(&calm, "after", 3 * pods).await?;
        large.until_quiet().await?;
        assert_fits(&kind, &operator, limit)?;
        calm.assert_serves(&operator).await?;
    }
    Ok(())
}

#[tokio::test]
async fn suspended_jobs_with_large_templates_fit_into_the_shipped_limit() -> Result<()> {
    // All but two are as dense as the API server accepts. Only a deep run has so many that they exceed the limit when all are kept.
    let count = if is_deep() { 200 } else { 4 };
    for kind in some_kinds(&[PYTORCH, SPARK]) {
        let Some((large, calm, options)) = two(kind).await? else {
            return Ok(());
        };
        let resumed = [0, count - 1];
        for n in 0..count {
            let mut job = manifest(&kind, &format!("large-{n}"));
            if resumed.contains(&n) {
                burden(&mut job);
            } else {
                burden_densely(&mut job);
            }
            run_policy(&kind, &mut job)["suspend"] = true.into();
            store_large(async || large.jobs.create(&job).await).await?;
        }
        // Too small for all of them: a densest one is a megabyte of text.
        let operator = OperatorProcess::start(options.flag("job-cache-mib", "2")).await?;
        calm.create("pt").await?;
        calm.until_pods(pods_of(&kind)).await?;
        large.until_quiet().await?;
        assert_fits(&kind, &operator, LIMIT)?;
        for n in resumed {
            let name = format!("large-{n}");
            large.jobs.merge(&name, &suspension(&kind, false)).await?;
            large.until_pods(pods_of(&kind)).await?;
            large.jobs.merge(&name, &suspension(&kind, true)).await?;
            large.until_pods(0).await?;
        }
        assert_fits(&kind, &operator, LIMIT)?;
        let log = operator.log();
        ensure!(log.contains("cache of jobs is full"), "{}", kind.name);
        let index = if kind == SPARK {
            "applications"
        } else {
            "jobs"
        };
        let series = format!(r#"trainyard_index_objects{{index="{index}_not_cached"}}"#);
        ensure!(operator.metric(&series).await? > 0, "{series} is 0");
        calm.assert_well(&operator).await?;
        large.assert_well(&operator).await?;
    }
    Ok(())
}

/// The additional objects of an MPIJob have only the label `app`, which is in general use.
#[tokio::test]
async fn mt_33_large_objects_with_the_label_app_fit_into_the_shipped_limit() -> Result<()> {
    let count = if is_deep() { 300 } else { 100 };
    let Some((large, calm, options)) = two(MPI).await? else {
        return Ok(());
    };
    let text = "x".repeat(900 * 1024);
    // All annotations of an object together have at most 256 KiB.
    let annotation = "x".repeat(250 * 1024);
    each(count, async |n| {
        let metadata = json!({ "name": format!("large-{n}"), "labels": { "app": "large" } });
        let config = json!({ "metadata": metadata, "data": { "a": text } });
        large.store::<ConfigMap>(config).await?;
        let variables = json!([{ "name": "a", "value": text }]);
        let container = json!({ "name": "a", "image": "b", "env": variables });
        let template = json!({ "spec": { "restartPolicy": "Never", "containers": [container] } });
        let spec = json!({ "suspend": true, "template": template });
        large
            .store::<Job>(json!({ "metadata": metadata, "spec": spec }))
            .await?;
        let mut metadata = metadata;
        metadata["annotations"] = json!({ "a": annotation });
        let spec = json!({ "clusterIP": "None" });
        large
            .store::<Service>(json!({ "metadata": metadata, "spec": spec }))
            .await
    })
    .await?;
    let operator = OperatorProcess::start(options).await?;
    for (tenant, name) in [(&calm, "pt"), (&large, "pt")] {
        tenant.create(name).await?;
        tenant.until_pods(pods_of(&MPI)).await?;
    }
    large.until_quiet().await?;
    assert_fits(&MPI, &operator, LIMIT)?;
    calm.assert_well(&operator).await?;
    large.assert_well(&operator).await
}
