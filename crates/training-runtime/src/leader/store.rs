//! The three requests that an election needs.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::fault::{Fault, is_already_exists};

/// Stores the Lease.
pub trait LeaseStore: 'static {
    /// Reads the Lease, if it exists.
    ///
    /// # Errors
    /// If the request fails.
    fn get(&self) -> impl Future<Output = Result<Option<Lease>, Fault>>;

    /// Creates the Lease.
    ///
    /// # Errors
    /// [`Fault::Conflict`] if it exists already.
    fn create(&self, lease: &Lease) -> impl Future<Output = Result<Lease, Fault>>;

    /// Replaces the Lease that was read.
    ///
    /// # Errors
    /// [`Fault::Conflict`] if it changed since it was read, [`Fault::Missing`] if it is gone.
    fn replace(&self, lease: &Lease) -> impl Future<Output = Result<Lease, Fault>>;
}

/// The Lease in the API server.
#[derive(Clone, Debug)]
pub struct KubeLeases {
    api: Api<Lease>,
    name: String,
}

impl KubeLeases {
    /// Creates a store for the Lease of this name.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
        }
    }
}

impl LeaseStore for KubeLeases {
    async fn get(&self) -> Result<Option<Lease>, Fault> {
        Ok(self.api.get_opt(&self.name).await?)
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, Fault> {
        let answer = self.api.create(&PostParams::default(), lease).await;
        answer.map_err(|error| match error {
            taken if is_already_exists(&taken) => Fault::Conflict(taken.to_string()),
            other => other.into(),
        })
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, Fault> {
        Ok(self
            .api
            .replace(&self.name, &PostParams::default(), lease)
            .await?)
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    const PATH: &str =
        "/apis/coordination.k8s.io/v1/namespaces/trainyard/leases/pytorch-operator.trainyard.dev";

    /// Answers one request and returns its method and path.
    async fn exchange<T>(
        code: u16,
        answer: Value,
        call: impl AsyncFnOnce(KubeLeases) -> T,
    ) -> (Method, String, T) {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let server = tokio::spawn(async move {
            let (request, send) = handle.next_request().await.unwrap();
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            send.send_response(Response::builder().status(code).body(body).unwrap());
            (request.method().clone(), request.uri().path().to_owned())
        });
        let client = Client::new(service, "default");
        let leases = KubeLeases::new(client, "trainyard", "pytorch-operator.trainyard.dev");
        let result = call(leases).await;
        let (method, path) = server.await.unwrap();
        (method, path, result)
    }

    fn lease() -> Lease {
        let mut lease = Lease::default();
        lease.metadata.name = Some("pytorch-operator.trainyard.dev".to_owned());
        lease.metadata.resource_version = Some("5".to_owned());
        lease
    }

    #[tokio::test]
    async fn a_missing_lease_is_none_and_a_taken_one_a_conflict() {
        let gone = json!({"status": "Failure", "reason": "NotFound", "code": 404});
        let (method, path, answer) = exchange(404, gone, async |leases| leases.get().await).await;
        assert_eq!((method, path.as_str()), (Method::GET, PATH));
        assert_eq!(answer, Ok(None));
        let taken = json!({"status": "Failure", "reason": "AlreadyExists", "code": 409});
        let (method, _, answer) =
            exchange(409, taken, async |leases| leases.create(&lease()).await).await;
        assert_eq!(method, Method::POST);
        assert!(matches!(answer, Err(Fault::Conflict(_))));
    }

    #[tokio::test]
    async fn a_lost_race_is_a_conflict() {
        let changed = json!({"status": "Failure", "reason": "Conflict", "code": 409});
        let (method, path, answer) =
            exchange(409, changed, async |leases| leases.replace(&lease()).await).await;
        assert_eq!((method, path.as_str()), (Method::PUT, PATH));
        assert!(matches!(answer, Err(Fault::Conflict(_))));
    }
}
