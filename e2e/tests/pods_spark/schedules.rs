//! Schedules whose runs take longer than the interval, under each policy in parallel.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use e2e::pods::spark::{ChangeLog, Entry, has_ended, until_go};
use e2e::pods::{Site, Weight, eventually, example};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use training_testkit::job::Jobs;
use training_testkit::wait::Seen;

/// The label with the schedule of an application.
const SCHEDULE: &str = "sparkoperator.k8s.io/scheduled-app-name";

pub fn schedules(site: &Site) -> Jobs {
    let kind = GroupVersionKind::gvk(
        "sparkoperator.k8s.io",
        "v1beta2",
        "ScheduledSparkApplication",
    );
    let resource = ApiResource::from_gvk_with_plural(&kind, "scheduledsparkapplications");
    Jobs::of(site.client.clone(), &site.namespace, &resource)
}

/// A schedule for every 15 seconds. The drivers are shells, because Spark doesn't decide when runs start, and a dozen JVMs at once would
/// keep two cores busy for a minute.
fn schedule(name: &str, policy: &str, script: &str) -> Value {
    let mut run = until_go(name, 1)["spec"].clone();
    run["image"] = json!("trainyard/python:1");
    run["driver"] = json!({
        "coreRequest": "10m",
        "memory": "16m",
        "memoryOverhead": "16m",
        "serviceAccount": "spark-operator-spark",
        "template": { "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "spark-kubernetes-driver", "command": ["sh", "-c", script],
            }],
        } },
    });
    json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "ScheduledSparkApplication",
        "metadata": { "name": name },
        "spec": {
            "schedule": "@every 15s",
            "concurrencyPolicy": policy,
            "successfulRunHistoryLimit": 1,
            "failedRunHistoryLimit": 1,
            "template": run,
        },
    })
}

/// The runs of one schedule.
#[derive(Debug, Default)]
struct Runs {
    /// All runs.
    began: BTreeSet<String>,
    /// Those that ended by themselves.
    ended: BTreeSet<String>,
    /// Those that were deleted before their end.
    cut: BTreeSet<String>,
    /// The most active runs at once.
    most: usize,
    /// The active runs: neither deleted nor finished.
    alive: usize,
    /// The finished runs that still exist.
    kept: usize,
}

fn runs(entries: &[Entry], schedule: &str) -> Runs {
    let mut seen = Runs::default();
    let mut there: BTreeMap<&str, bool> = BTreeMap::new();
    for entry in entries {
        let of = &entry.object["metadata"]["labels"][SCHEDULE];
        if entry.kind != "SparkApplication" || of != schedule {
            continue;
        }
        let (name, over) = (entry.name.as_str(), has_ended(&entry.object));
        seen.began.insert(name.to_owned());
        if entry.gone {
            there.remove(name);
            if !over {
                seen.cut.insert(name.to_owned());
            }
        } else {
            there.insert(name, over);
            if over {
                seen.ended.insert(name.to_owned());
            }
        }
        seen.alive = there.values().filter(|over| !**over).count();
        seen.most = seen.most.max(seen.alive);
    }
    seen.kept = there.values().filter(|over| **over).count();
    seen
}

#[tokio::test]
async fn runs_that_overlap_are_kept_apart_cut_short_or_let_be_as_the_policy_says() -> Result<()> {
    let site = Site::spark("spark-schedules", Weight::Light).await?;
    let changes = ChangeLog::of(&site);
    let all = schedules(&site);
    // Longer than the interval, so that runs overlap.
    for (policy, script) in [
        ("Forbid", "sleep 20"),
        // None of these ends by itself.
        ("Replace", "sleep 600"),
        ("Allow", "sleep 20"),
    ] {
        let name = policy.to_lowercase();
        all.create(&schedule(&name, policy, script)).await?;
    }
    all.create(&schedule("failing", "Allow", "exit 3")).await?;

    eventually("enough runs", async || {
        let entries = changes.entries();
        let of = |name: &str| runs(&entries, name);
        let (forbid, replace, allow, failing) =
            (of("forbid"), of("replace"), of("allow"), of("failing"));
        let enough = forbid.ended.len() >= 2
            && replace.cut.len() >= 2
            && allow.ended.len() >= 2
            && failing.ended.len() >= 2;
        Ok(if enough {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{forbid:?} {replace:?} {allow:?} {failing:?}"))
        })
    })
    .await?;
    // Suspended schedules start nothing more, so their runs stay as they are.
    for name in ["forbid", "replace", "allow", "failing"] {
        let later = json!({ "spec": { "schedule": "@every 24h" } });
        all.merge(name, &later).await?;
    }
    let (forbid, replace, allow, failing) = eventually("one old run of each", async || {
        let entries = changes.entries();
        let of = |name: &str| runs(&entries, name);
        let all = (of("forbid"), of("replace"), of("allow"), of("failing"));
        let rest = [&all.0, &all.2, &all.3];
        Ok(
            if rest.iter().all(|runs| runs.alive == 0 && runs.kept == 1) {
                Seen::Yes(all)
            } else {
                Seen::NotYet(format!("{all:?}"))
            },
        )
    })
    .await?;
    ensure!(forbid.most == 1 && forbid.cut.is_empty(), "{forbid:?}");
    ensure!(replace.most == 1 && replace.ended.is_empty(), "{replace:?}");
    ensure!(allow.most >= 2 && allow.cut.is_empty(), "{allow:?}");
    ensure!(failing.cut.is_empty(), "{failing:?}");

    // The status has the last run and the kept one, with its result.
    let last = |names: &BTreeSet<String>| names.last().cloned().context("no run");
    let (failed, ended) = (last(&failing.ended)?, last(&forbid.ended)?);
    eventually("the last runs in the statuses", async || {
        let failing = all.get("failing").await?["status"].clone();
        let forbid = all.get("forbid").await?["status"].clone();
        let there = failing["pastFailedRunNames"] == json!([failed])
            && forbid["pastSuccessfulRunNames"] == json!([ended]);
        Ok(if there {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{failing} {forbid}"))
        })
    })
    .await?;
    let app = site.jobs.get(&failed).await?;
    let why = &app["status"]["applicationState"]["errorMessage"];
    ensure!(
        why.as_str().is_some_and(|why| why.contains("ExitCode: 3")),
        "{why}"
    );
    site.assert_why(
        &failed,
        "FAILED",
        &["driver container failed", "ExitCode: 3"],
    )?;
    // The driver of a replaced run is deleted with it.
    let drivers = site.pods().list(&kube::api::ListParams::default()).await?;
    let running = drivers.items.iter().filter(|pod| {
        let name = kube::ResourceExt::name_any(*pod);
        name.starts_with("replace-") && pod.metadata.deletion_timestamp.is_none()
    });
    ensure!(running.count() <= 1, "{:?}", drivers.items.len());
    let count = |runs: &Runs| runs.began.len();
    site.finish(&format!(
        "runs: forbid {}, replace {}, allow {} ({} at once), failing {}",
        count(&forbid),
        count(&replace),
        count(&allow),
        allow.most,
        count(&failing),
    ))
    .await
}

#[tokio::test]
async fn the_example_of_a_schedule_runs_as_soon_as_its_schedule_says_so() -> Result<()> {
    let site = Site::spark("spark-nightly", Weight::Heavy).await?;
    let schedules = schedules(&site);
    schedules.create(&example("spark/nightly.yaml")?).await?;
    let soon = json!({ "spec": { "schedule": "@every 2s" } });
    schedules.merge("nightly", &soon).await?;
    let run = eventually("a run", async || {
        let schedule = schedules.get("nightly").await?;
        Ok(match schedule["status"]["lastRunName"].as_str() {
            Some(run) => Seen::Yes(run.to_owned()),
            None => Seen::NotYet(schedule["status"].to_string()),
        })
    })
    .await?;
    site.until_completed(&run).await?;
    let log = site.log(&format!("{run}-driver")).await?;
    ensure!(log.contains("Pi is roughly 3.1"), "{log}");
    schedules.delete("nightly").await?;
    site.finish(&run).await
}
