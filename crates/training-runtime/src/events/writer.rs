//! The two requests that events need.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::fault::{Fault, is_already_exists};

/// Writes events to their store.
pub trait EventWriter: Send + Sync + 'static {
    /// Creates an event. If it exists, an earlier attempt created it and its answer was lost.
    ///
    /// # Errors
    /// If the request fails.
    fn create(&self, event: &Event) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Sets the count and time of an event.
    ///
    /// # Errors
    /// [`Fault::Missing`] if the event has expired, or why the request failed.
    fn repeat(
        &self,
        namespace: &str,
        name: &str,
        count: i32,
        last: &Time,
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Writes events to the API server.
#[derive(Clone)]
pub struct KubeEvents {
    client: Client,
}

impl KubeEvents {
    /// Creates a writer; `client` is the client for calls.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

impl EventWriter for KubeEvents {
    async fn create(&self, event: &Event) -> Result<(), Fault> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match api.create(&PostParams::default(), event).await {
            Ok(_) => Ok(()),
            Err(taken) if is_already_exists(&taken) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn repeat(
        &self,
        namespace: &str,
        name: &str,
        count: i32,
        last: &Time,
    ) -> Result<(), Fault> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({ "count": count, "lastTimestamp": last }));
        api.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use http_body_util::BodyExt;
    use k8s_openapi::jiff::Timestamp;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;

    /// Answers one request and returns it.
    async fn exchange<F>(
        code: u16,
        answer: Value,
        call: impl FnOnce(KubeEvents) -> F,
    ) -> (Request<Value>, Result<(), Fault>)
    where
        F: Future<Output = Result<(), Fault>>,
    {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let server = tokio::spawn(async move {
            let (request, send) = handle.next_request().await.unwrap();
            let body = serde_json::to_vec(&answer).unwrap();
            send.send_response(
                Response::builder()
                    .status(code)
                    .body(Body::from(body))
                    .unwrap(),
            );
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            Request::from_parts(parts, serde_json::from_slice(&body).unwrap())
        });
        let result = call(KubeEvents::new(Client::new(service, "default"))).await;
        (server.await.unwrap(), result)
    }

    fn event() -> Event {
        serde_json::from_value(json!({
            "metadata": {"name": "bert.1", "namespace": "team"}, "involvedObject": {}
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn events_are_posted_to_core_v1_in_their_namespace() {
        let (request, result) = exchange(201, json!(event()), async |events| {
            events.create(&event()).await
        })
        .await;
        assert_eq!(result, Ok(()));
        assert_eq!(request.method(), Method::POST);
        assert_eq!(request.uri().path(), "/api/v1/namespaces/team/events");
        assert_eq!(request.body()["metadata"]["name"], "bert.1");
    }

    #[tokio::test]
    async fn an_event_that_exists_was_made_by_a_lost_attempt() {
        let taken = json!({"status": "Failure", "reason": "AlreadyExists", "code": 409});
        let (_, result) = exchange(409, taken, async |events| events.create(&event()).await).await;
        assert_eq!(result, Ok(()));
    }

    #[tokio::test]
    async fn repeats_patch_count_and_time_only() {
        let last = Time("2026-01-02T03:04:05Z".parse::<Timestamp>().unwrap());
        let (request, result) = exchange(200, json!(event()), async |events| {
            events.repeat("team", "bert.1", 3, &last).await
        })
        .await;
        assert_eq!(result, Ok(()));
        assert_eq!(request.method(), Method::PATCH);
        assert_eq!(
            request.uri().path(),
            "/api/v1/namespaces/team/events/bert.1"
        );
        assert_eq!(
            request.headers()["content-type"],
            "application/merge-patch+json"
        );
        let expected = json!({"count": 3, "lastTimestamp": "2026-01-02T03:04:05Z"});
        assert_eq!(*request.body(), expected);
    }
}
