//! Counts the requests of a job's life cycle in the audit log, and cross-checks them with the counters that timed runs use.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::Value;
use training_testkit::audit::{Entry, Tally};

use crate::application::{Ids, conf_digits};
use crate::bodies::{Bodies, Resource};
use crate::counts::{Counts, user};
use crate::drive::Script;
use crate::http::{Ask, JSON};
use crate::kind;
use crate::load::{Load, Processes};
use crate::runs::{names, number};
use crate::size::Setting;
use crate::stage::{Audit, Client, Stage};
use crate::store::{Figures, Pair, Side};

/// The limit of a wait.
const HANG: Duration = Duration::from_mins(4);
const SCRIPT: Script = Script {
    run_after: Duration::from_millis(200),
    succeed_after: Duration::from_millis(300),
    hold: false,
};

/// Counts the requests of both clients, and compares their objects.
pub async fn life(setting: &Setting) -> Result<Pair> {
    let stage = Stage::start(setting.kind, Audit::On, Side::Ours).await?;
    let jobs = names("job", setting.size.life_jobs);
    // Unique names, because the comparison removes them.
    let stage = stage.namespace("life-of-ours").await?;
    let (ours, made) = count(&stage, Side::Ours, &jobs).await?;
    let stage = stage.namespace("life-of-floor").await?;
    let (floor, wanted) = count(&stage, Side::Floor, &jobs).await?;
    ensure!(
        made.len() == wanted.len(),
        "{} objects of the floor client, {} of the operator",
        wanted.len(),
        made.len()
    );
    for (made, wanted) in made.iter().zip(&wanted) {
        ensure!(
            made == wanted,
            "the floor client does not make what the operator makes:\n{wanted:#}\n{made:#}"
        );
    }
    Ok(Pair::new(floor, ours))
}

async fn count(stage: &Stage, side: Side, jobs: &[String]) -> Result<(Figures, Vec<Value>)> {
    let load = Load::start(stage).await?;
    let submits = kind::submits(&stage.kind);
    let script = Script {
        hold: submits,
        ..SCRIPT
    };
    let mut driver = stage.driver(script).await?;
    let mut client = stage.client(side).await?;
    let mut processes = Processes {
        client: &mut client,
        driver: &mut driver,
        stage,
    };
    // Lets the client start its watches, lists and lease.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let audit = stage.control.audit()?;
    let (mark, before) = (audit.mark().await?, Counts::read(&stage.api).await?);
    let mut while_it_runs = None;
    for few in jobs.chunks(5) {
        load.create_all(few).await?;
        // A run's objects are deleted at its end, so sample them while it runs.
        if submits && while_it_runs.is_none() {
            until_running(stage, &few[0]).await?;
            while_it_runs = Some(sample_of_application(stage, &few[0]).await?);
            processes.driver.tell("go")?;
        }
        load.until_succeeded(few, HANG, &mut processes).await?;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let flows = Counts::read(&stage.api).await?.since(&before, side);
    let mut entries = audit.by_user(mark, &user(side, &stage.kind)).await?;
    load.verify(jobs, 0).await?;
    let made = match while_it_runs {
        Some(made) => made,
        None => sample(stage, &jobs[0]).await?,
    };
    if let Client::Ours(mut operator) = client {
        operator.terminate(Duration::from_secs(20)).await?;
    }

    entries.retain(|entry| !entry.is_watch() && entry.resource != "leases");
    eprintln!("{}", Tally::of(&entries));
    let jobs = number(jobs.len());
    let count = |counts: &dyn Fn(&&Entry) -> bool| number(entries.iter().filter(counts).count());
    let events = count(&|entry| entry.resource == "events");
    let reads = |verb: &'static str| count(&move |entry: &&Entry| entry.verb == verb);
    let (gets, lists) = (reads("get"), reads("list"));
    let writes = number(entries.len()) - events - gets - lists;
    let figures = [
        ("jobs", jobs),
        ("writes_per_job", writes / jobs),
        ("events_per_job", events / jobs),
        ("gets", gets),
        ("lists", lists),
        ("conflicts", count(&|entry| entry.code == 409)),
        ("refused", count(&|entry| entry.code >= 300)),
        ("counter_writes_per_job", flows["writes"] / jobs),
        ("counter_events_per_job", flows["events"] / jobs),
    ];
    let figures: Figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
    for sort in ["writes", "events"] {
        let (log, counter) = (
            figures[&format!("{sort}_per_job")],
            figures[&format!("counter_{sort}_per_job")],
        );
        ensure!(
            (log - counter).abs() <= 0.02 * log.max(1.0),
            "the audit log has {log} {sort} per job, the counters {counter}"
        );
    }
    Ok((figures, made))
}

/// Returns a job and all of its objects without identities and times.
async fn sample(stage: &Stage, job: &str) -> Result<Vec<Value>> {
    let jobs = kind::jobs(&stage.kind, &stage.namespace);
    let bodies = Bodies::new(&stage.kind)?;
    let parts = bodies.births.iter().flatten().map(|part| {
        let all = part.resource.path(&stage.namespace);
        (Some(part.resource), format!("{all}/{job}{}", part.suffix))
    });
    let mut objects = Vec::new();
    for (resource, path) in parts.chain([(None, format!("{jobs}/{job}"))]) {
        let body = stage.api.must(Method::GET, &path, Ask::read(JSON)).await?;
        let mut object = comparable(&body, &stage.namespace)?;
        if resource.is_some() {
            // The driver's.
            object["status"] = Value::Null;
        }
        if let Some(data) = object["data"].as_object_mut()
            && resource == Some(Resource::Secret)
        {
            data.values_mut().for_each(|key| *key = Value::Null);
        }
        objects.push(object);
    }
    Ok(objects)
}

async fn get(stage: &Stage, path: &str) -> Result<Value> {
    let body = stage.api.must(Method::GET, path, Ask::read(JSON)).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Waits until an application is `RUNNING`.
async fn until_running(stage: &Stage, name: &str) -> Result<()> {
    let apps = kind::jobs(&stage.kind, &stage.namespace);
    let path = format!("{apps}/{name}");
    let runs = async {
        while get(stage, &path).await?["status"]["applicationState"]["state"] != "RUNNING" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let in_time = tokio::time::timeout(HANG, runs).await;
    in_time.with_context(|| format!("{name} does not run"))?
}

/// Returns the same for a running application, whose names contain values derived from its uid.
async fn sample_of_application(stage: &Stage, name: &str) -> Result<Vec<Value>> {
    let apps = kind::jobs(&stage.kind, &stage.namespace);
    let app = get(stage, &format!("{apps}/{name}")).await?;
    let mut all = vec![app.clone()];
    for resource in [Resource::ConfigMap, Resource::Service, Resource::Pod] {
        let (path, query) = (
            resource.path(&stage.namespace),
            kind::of_job(&stage.kind, name),
        );
        let list = get(stage, &format!("{path}?limit=10{query}")).await?;
        for mut object in list["items"].as_array().cloned().unwrap_or_default() {
            // The driver's.
            object["status"] = Value::Null;
            all.push(object);
        }
    }
    let differing = differing(&app, &all)?;
    let mut objects = Vec::new();
    for object in all {
        let text = differing
            .iter()
            .fold(object.to_string(), |text, (what, name)| {
                text.replace(what, name)
            });
        objects.push(comparable(
            without_time(&text).as_bytes(),
            &stage.namespace,
        )?);
    }
    objects.sort_by_key(|object| object["metadata"]["name"].to_string());
    Ok(objects)
}

/// Returns the values that are derived from an application's uid or chosen by the API server, with a name for each.
fn differing(app: &Value, all: &[Value]) -> Result<Vec<(String, &'static str)>> {
    let status = &app["status"];
    let submission = status["submissionID"]
        .as_str()
        .context("no submission id")?;
    let ids = Ids::of(submission.to_owned());
    // The uid is also in the executors' template.
    let uid = app["metadata"]["uid"].as_str().context("no uid")?;
    let address = status["driverInfo"]["webUIAddress"]
        .as_str()
        .and_then(|address| address.split(':').next())
        .context("no address of the web UI")?;
    let mut names = all.iter().filter_map(|o| o["metadata"]["name"].as_str());
    let conf = names.find_map(conf_digits).context("no properties")?;
    Ok(vec![
        (uid.to_owned(), "<uid>"),
        (ids.submission, "<submission>"),
        (ids.run, "<run>"),
        (ids.scratch, "<scratch>"),
        // The floor client uses the same digits for both.
        (conf.to_owned(), "<digits>"),
        (ids.digits, "<digits>"),
        (address.to_owned(), "<address>"),
    ])
}

/// Removes Spark's submission time from a text.
fn without_time(text: &str) -> String {
    const TIME: &str = "spark.app.submitTime=";
    match text.split_once(TIME) {
        Some((before, after)) => {
            let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{before}{TIME}{after}")
        }
        None => text.to_owned(),
    }
}

/// Returns an object without identities and times.
fn comparable(body: &[u8], namespace: &str) -> Result<Value> {
    // Variables and messages contain the namespace too, and each side has its own.
    let text = std::str::from_utf8(body)?.replace(namespace, "");
    let mut object = serde_json::from_str(&text)?;
    strip(&mut object);
    Ok(object)
}

/// Removes identities, times and fields that the server sets.
fn strip(value: &mut Value) {
    const DIFFER: [&str; 12] = [
        "uid",
        // On a Job's labels, and in its owner's status.
        "controller-uid",
        "batch.kubernetes.io/controller-uid",
        "launcher",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "namespace",
        "startTime",
        "completionTime",
        "generation",
        // Depends on timing: workers that ended before the master.
        "finishedIndices",
    ];
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !DIFFER.contains(&key.as_str()) && !key.ends_with("Time"));
            map.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_derived_from_an_application_s_uid_is_named() {
        let id = "22222222-2222-8333-8444-555555555555";
        let app = json!({ "metadata": { "uid": "u" }, "status": { "submissionID": id, "driverInfo": { "webUIAddress": "10.0.0.7:4040" } } });
        let conf = json!({ "metadata": { "name": "spark-drv-0123456789abcdef-conf-map" } });
        let found = differing(&app, &[app.clone(), conf]).unwrap();
        assert!(found.contains(&(id.to_owned(), "<submission>")));
        assert!(found.contains(&("0123456789abcdef".to_owned(), "<digits>")));
        assert!(found.contains(&("10.0.0.7".to_owned(), "<address>")));
        let text = r"a\nspark.app.submitTime=1767225600000\nb";
        assert_eq!(without_time(text), r"a\nspark.app.submitTime=\nb");
    }

    #[test]
    fn what_differs_from_object_to_object_is_left_out_at_any_depth() {
        let object = json!({
            "metadata": { "name": "a", "uid": "1", "ownerReferences": [{ "uid": "2", "name": "b" }] },
            "spec": { "env": ["{\"worker\":[\"a-worker-0.its-space.svc:2222\"]}"] },
            "status": { "conditions": [{ "type": "Created", "lastUpdateTime": "x" }], "startTime": "y" },
        });
        let left = json!({
            "metadata": { "name": "a", "ownerReferences": [{ "name": "b" }] },
            "spec": { "env": ["{\"worker\":[\"a-worker-0..svc:2222\"]}"] },
            "status": { "conditions": [{ "type": "Created" }] },
        });
        let compared = comparable(object.to_string().as_bytes(), "its-space").unwrap();
        assert_eq!(compared, left);
    }
}
