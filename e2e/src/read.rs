//! Reads objects and events as JSON.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, Pod, Service};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Map, Value};
use training_testkit::wait::{HANG, Seen, eventually};
use training_testkit::{JOB_NAME, SPARK_APP_NAME};

/// Returns the pods of a job of any kind, sorted by name.
pub async fn pods(client: &Client, namespace: &str, job: &str) -> Result<Vec<Value>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let list = api.list(&ListParams::default()).await?;
    let named = |pod: &Pod, label: &str| pod.labels().get(label).is_some_and(|name| name == job);
    let of_job = |pod: &&Pod| [JOB_NAME, SPARK_APP_NAME].iter().any(|l| named(pod, l));
    let pods = list.items.iter().filter(of_job);
    sorted(pods.map(serde_json::to_value))
}

/// Returns the services of a job, sorted by name.
pub async fn services(client: &Client, namespace: &str, job: &str) -> Result<Vec<Value>> {
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let of_job = ListParams::default().labels(&format!("{JOB_NAME}={job}"));
    let list = api.list(&of_job).await?;
    sorted(list.items.iter().map(serde_json::to_value))
}

fn sorted(objects: impl Iterator<Item = serde_json::Result<Value>>) -> Result<Vec<Value>> {
    let mut objects = objects.collect::<serde_json::Result<Vec<_>>>()?;
    objects.sort_by_key(name);
    Ok(objects)
}

/// Returns the name of an object.
pub fn name(object: &Value) -> String {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Returns the names of objects.
pub fn names(objects: &[Value]) -> Vec<String> {
    objects.iter().map(name).collect()
}

/// Waits until a job has exactly these pods and services, sorted by name.
pub async fn until_children(
    client: &Client,
    namespace: &str,
    job: &str,
    pods_expected: &[&str],
    services_expected: &[&str],
) -> Result<()> {
    let what = format!("pods {pods_expected:?} and services {services_expected:?}");
    eventually(&what, HANG, async || {
        let pods = names(&pods(client, namespace, job).await?);
        let services = names(&services(client, namespace, job).await?);
        let there = pods == pods_expected && services == services_expected;
        Ok(if there {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?} {services:?}"))
        })
    })
    .await
}

/// Like [`events`], once there is one with this reason. Events are written one after another, independently of the status, so
/// all earlier ones exist as well.
pub async fn events_with(
    client: &Client,
    namespace: &str,
    job: &str,
    reason: &str,
) -> Result<Vec<(String, String, String)>> {
    eventually(
        &format!("an event {reason} about {job}"),
        HANG,
        async || {
            let events = events(client, namespace, job).await?;
            Ok(if events.iter().any(|event| event.1 == reason) {
                Seen::Yes(events)
            } else {
                Seen::NotYet(format!("{events:?}"))
            })
        },
    )
    .await
}

/// Returns the events about a job as `(type, reason, message)`, in order.
pub async fn events(
    client: &Client,
    namespace: &str,
    job: &str,
) -> Result<Vec<(String, String, String)>> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let about = ListParams::default().fields(&format!("involvedObject.name={job}"));
    let mut list = api.list(&about).await?.items;
    list.sort_by_key(|event| event.resource_version().and_then(|v| v.parse::<u64>().ok()));
    Ok(list
        .into_iter()
        .map(|event| {
            let text = Option::unwrap_or_default;
            (text(event.type_), text(event.reason), text(event.message))
        })
        .collect())
}

/// Returns the pod of a list with this name suffix: `master-0`, `worker-1`.
pub fn by_rank<'a>(pods: &'a [Value], job: &str, rank: &str) -> Result<&'a Value> {
    let wanted = format!("{job}-{rank}");
    pods.iter()
        .find(|pod| name(pod) == wanted)
        .with_context(|| format!("no pod {wanted}"))
}

/// Returns a JSON object of strings.
pub fn map(rows: &[(&str, &str)]) -> Value {
    let rows = rows
        .iter()
        .map(|(key, value)| ((*key).to_owned(), Value::from(*value)));
    Value::Object(rows.collect::<Map<_, _>>())
}

/// Returns the paths of written values that are missing in the stored object.
pub fn lost(written: &Value, stored: &Value, at: &str) -> Vec<String> {
    match (written, stored) {
        (Value::Object(old), Value::Object(new)) => old
            .iter()
            .flat_map(|(key, value)| lost(value, &new[key], &format!("{at}.{key}")))
            .collect(),
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            let pairs = old.iter().zip(new).enumerate();
            pairs
                .flat_map(|(n, (a, b))| lost(a, b, &format!("{at}[{n}]")))
                .collect()
        }
        _ if written == stored => Vec::new(),
        _ => vec![format!("{at}: {written} became {stored}")],
    }
}
