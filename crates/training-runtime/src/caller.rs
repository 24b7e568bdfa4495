//! Requests to the API server, for every writer.
//!
//! Each request checks the lease right before it is sent, has its own deadline, and is sent once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::ACCEPT;
use http::{HeaderValue, Method, Request};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
    PropagationPolicy,
};
use kube::core::Request as Build;
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use training_core::Uid;

use crate::fault::Fault;
use crate::key::JobKey;

/// Maximum concurrent requests; the API server's priority and fairness does the rest.
const IN_FLIGHT: usize = 96;
/// Maximum creates among them, so that status writes and deletes never wait for creates alone.
const CREATES: usize = 80;
/// Maximum creates in one namespace, whose webhooks may be slow.
const OF_NAMESPACE: usize = 64;
/// Requests only an object's metadata, which halves the size of the answer to a create.
const METADATA_ONLY: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");

/// Returns whether this process may write now.
pub type MayWrite = Arc<dyn Fn() -> bool + Send + Sync>;

/// A request, or the error from building it.
pub(crate) type BuiltRequest = Result<Request<Vec<u8>>, kube::core::request::Error>;

/// Sends requests.
pub struct Caller {
    client: Client,
    may_write: MayWrite,
    deadline: Duration,
    manager: String,
    slots: RequestSlots,
}

/// The slots of concurrent requests.
struct RequestSlots {
    all: Semaphore,
    creates: Semaphore,
    namespaces: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Default for RequestSlots {
    fn default() -> Self {
        Self {
            all: Semaphore::new(IN_FLIGHT),
            creates: Semaphore::new(CREATES),
            namespaces: Mutex::default(),
        }
    }
}

impl RequestSlots {
    /// Acquires the slots that a request needs, always in the same order, and runs it.
    async fn within<T>(&self, method: &Method, path: &str, call: impl Future<Output = T>) -> T {
        if *method != Method::POST {
            let _slot = self.all.acquire().await;
            return call.await;
        }
        let namespace = namespace_of(path);
        let own = namespace.map(|name| {
            let mut all = self.namespaces.lock();
            let own = all.entry(name.to_owned());
            Arc::clone(own.or_insert_with(|| Arc::new(Semaphore::new(OF_NAMESPACE))))
        });
        let _release = ReleaseOnDrop {
            slots: self,
            namespace,
        };
        // The semaphores are never closed.
        let _own = match &own {
            Some(own) => own.acquire().await.ok(),
            None => None,
        };
        let _creates = self.creates.acquire().await;
        let _slot = self.all.acquire().await;
        call.await
    }
}

/// Drops a namespace's semaphore with its last create, even if the create is cancelled.
struct ReleaseOnDrop<'a> {
    slots: &'a RequestSlots,
    namespace: Option<&'a str>,
}

impl Drop for ReleaseOnDrop<'_> {
    fn drop(&mut self) {
        let Some(name) = self.namespace else { return };
        let mut all = self.slots.namespaces.lock();
        // The map holds one reference, and each request another.
        if all.get(name).is_some_and(|own| Arc::strong_count(own) <= 2) {
            all.remove(name);
        }
    }
}

/// Returns the namespace in a request's path.
fn namespace_of(path: &str) -> Option<&str> {
    let (_, rest) = path.split_once("/namespaces/")?;
    rest.split_once('/').map(|(name, _)| name)
}

/// What the answer to a request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// The object.
    Object,
    /// Only its metadata.
    Metadata,
}

/// The fields of an answer that are read.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub struct Answer {
    kind: String,
    metadata: AnswerMeta,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
struct AnswerMeta {
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Vec<IgnoredAny>,
}

impl Answer {
    /// Returns the object's uid and resource version.
    pub fn identity(&self) -> Option<(Uid, u64)> {
        let meta = &self.metadata;
        Some((Uid::parse(&meta.uid)?, meta.resource_version.parse().ok()?))
    }

    /// Returns the resource version, or 0 if there is none.
    pub fn version(&self) -> u64 {
        self.metadata.resource_version.parse().unwrap_or(0)
    }

    /// Returns true if it is the object of this uid and not terminating.
    fn is_live(&self, uid: &str) -> bool {
        self.metadata.uid == uid && self.metadata.deletion_timestamp.is_none()
    }

    /// For the answer to a delete: returns whether the object is still terminating. Without finalizers and grace period, the answer
    /// holds the last state of an object that is gone.
    fn is_terminating(&self) -> bool {
        let meta = &self.metadata;
        let held = meta.deletion_grace_period_seconds != Some(0) || !meta.finalizers.is_empty();
        self.kind != "Status" && meta.deletion_timestamp.is_some() && held
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The name is taken. Holds the server's message.
    AlreadyExists(String),
    /// Anything else.
    Fault(Fault),
}

impl RequestError {
    /// Converts to a fault.
    pub(crate) fn into_fault(self) -> Fault {
        match self {
            Self::AlreadyExists(message) => Fault::Conflict(message),
            Self::Fault(fault) => fault,
        }
    }
}

/// The state of an object after its delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// Terminating, at this resource version.
    Terminating(u64),
    /// Gone, or its name belongs to another object now.
    Gone,
}

impl Caller {
    /// Creates a caller with this field manager.
    pub fn new(client: Client, may_write: MayWrite, deadline: Duration, manager: &str) -> Self {
        Self {
            client,
            may_write,
            deadline,
            manager: manager.to_owned(),
            slots: RequestSlots::default(),
        }
    }

    /// Returns the parameters of a create.
    pub(crate) fn post(&self) -> PostParams {
        PostParams {
            field_manager: Some(self.manager.clone()),
            ..PostParams::default()
        }
    }

    /// Returns the parameters of a patch.
    pub(crate) fn patch(&self) -> PatchParams {
        PatchParams {
            field_manager: Some(self.manager.clone()),
            ..PatchParams::default()
        }
    }

    /// Writes a status as a merge patch with the uid and resource version that the decision is based on. Returns the new resource
    /// version.
    ///
    /// # Errors
    /// [`Fault::Conflict`] if the job has changed since, which invalidates the decision.
    pub async fn write_status<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        patch: &Value,
    ) -> Result<String, Fault> {
        let meta = job.meta();
        let body = json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": patch,
        });
        let url = J::url_path(&(), meta.namespace.as_deref());
        let request = Build::new(url).patch_subresource(
            "status",
            &job.name_any(),
            &self.patch(),
            &Patch::Merge(&body),
        );
        let answer: Answer = self
            .request(request, Response::Metadata)
            .await
            .map_err(RequestError::into_fault)?;
        Ok(answer.metadata.resource_version)
    }

    /// Returns whether a job exists and is not terminating. Watches are independent, so children may be seen to go before their job.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn exists<J: Resource<DynamicType = ()>>(&self, job: &J) -> Result<bool, Fault> {
        let meta = job.meta();
        let namespace = meta.namespace.as_deref();
        let found: Option<Answer> = self.list_one::<J, _>(namespace, &job.name_any()).await?;
        let uid = meta.uid.as_deref().unwrap_or_default();
        Ok(found.is_some_and(|found| found.is_live(uid)))
    }

    /// Reads a job; `None` if it does not exist.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn read_job<J>(&self, key: &JobKey) -> Result<Option<J>, Fault>
    where
        J: Resource<DynamicType = ()> + DeserializeOwned,
    {
        self.list_one::<J, J>(Some(&key.namespace), &key.name).await
    }

    /// Reads a job with a list, because the role may not get jobs.
    async fn list_one<J, T>(&self, namespace: Option<&str>, name: &str) -> Result<Option<T>, Fault>
    where
        J: Resource<DynamicType = ()>,
        T: DeserializeOwned,
    {
        #[derive(Deserialize)]
        struct List<T> {
            items: Vec<T>,
        }
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        let url = J::url_path(&(), namespace);
        let list: List<T> = self
            .request(Build::new(url).list(&params), Response::Object)
            .await
            .map_err(RequestError::into_fault)?;
        Ok(list.items.into_iter().next())
    }

    /// Creates an object.
    ///
    /// # Errors
    /// If it was not created, or the outcome is unknown.
    pub(crate) async fn create<K>(&self, object: &K) -> Result<Answer, RequestError>
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let body = encode(object)?;
        let url = K::url_path(&(), object.meta().namespace.as_deref());
        let request = Build::new(url).create(&self.post(), body);
        self.request(request, Response::Metadata).await
    }

    /// Reads an object at its kind's URL; `None` if it does not exist.
    ///
    /// # Errors
    /// If the request fails.
    pub(crate) async fn find<T: DeserializeOwned>(
        &self,
        url: &str,
        name: &str,
    ) -> Result<Option<T>, Fault> {
        let request = Build::new(url).get(name, &GetParams::default());
        match self.request(request, Response::Object).await {
            Ok(object) => Ok(Some(object)),
            Err(RequestError::Fault(Fault::Missing { .. })) => Ok(None),
            Err(error) => Err(error.into_fault()),
        }
    }

    /// Deletes the object with this uid.
    ///
    /// # Errors
    /// If it still exists and is not terminating.
    pub(crate) async fn delete(
        &self,
        url: &str,
        name: &str,
        uid: Uid,
        params: DeleteParams,
    ) -> Result<Deleted, Fault> {
        let params = DeleteParams {
            preconditions: only(&uid.to_string()),
            ..params
        };
        let request = Build::new(url).delete(name, &params);
        match self.request::<Answer>(request, Response::Metadata).await {
            Ok(answer) if answer.is_terminating() => Ok(Deleted::Terminating(answer.version())),
            Ok(_) | Err(RequestError::Fault(Fault::Missing { .. })) => Ok(Deleted::Gone),
            Err(
                RequestError::AlreadyExists(message)
                | RequestError::Fault(Fault::Conflict(message)),
            ) => {
                if self.is_gone(url, name, uid).await? {
                    return Ok(Deleted::Gone);
                }
                Err(Fault::Conflict(message))
            }
            Err(error) => Err(error.into_fault()),
        }
    }

    /// Sets the phase of the pod with this uid to `Failed`, in place of a lost kubelet.
    ///
    /// # Errors
    /// If the pod exists and was not changed. A pod that is gone or replaced is no error: its delete handles that.
    pub(crate) async fn fail_pod(&self, url: &str, name: &str, uid: Uid) -> Result<(), Fault> {
        let message = "its node has not reported for the duration of --force-delete-lost-after";
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "LostPodDeleted", "message": message,
            "lastTransitionTime": Time(Timestamp::now()),
        });
        let body = json!({
            "metadata": {"uid": uid.to_string()},
            "status": {"phase": "Failed", "reason": "NodeLost", "message": message, "conditions": [condition]},
        });
        // A strategic merge patch sets one condition and keeps the others.
        let change = Patch::Strategic(&body);
        let request = Build::new(url).patch_subresource("status", name, &self.patch(), &change);
        match self.request::<Answer>(request, Response::Metadata).await {
            Ok(_)
            | Err(
                RequestError::AlreadyExists(_)
                | RequestError::Fault(Fault::Missing { .. } | Fault::Conflict(_)),
            ) => Ok(()),
            Err(error) => Err(error.into_fault()),
        }
    }

    /// Confirms a conflict with a read. Mostly the name belongs to another object now, but a proxy before the API server may answer so
    /// as well, and an object wrongly taken for gone would never be deleted.
    async fn is_gone(&self, url: &str, name: &str, uid: Uid) -> Result<bool, Fault> {
        let request = Build::new(url).get(name, &GetParams::default());
        match self.request::<Answer>(request, Response::Metadata).await {
            Ok(answer) => Ok(answer.identity().is_some_and(|(there, _)| there != uid)),
            Err(RequestError::Fault(Fault::Missing { .. })) => Ok(true),
            Err(error) => Err(error.into_fault()),
        }
    }

    /// Deletes a job; the garbage collector deletes its children.
    ///
    /// # Errors
    /// If another job has its name now, which the next reconcile sees, or if the request fails.
    pub async fn delete_job<J: Resource<DynamicType = ()>>(&self, job: &J) -> Result<(), Fault> {
        let params = DeleteParams {
            preconditions: only(job.meta().uid.as_deref().unwrap_or_default()),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let url = J::url_path(&(), job.meta().namespace.as_deref());
        let request = Build::new(url).delete(&job.name_any(), &params);
        match self.request::<Answer>(request, Response::Metadata).await {
            Ok(_) | Err(RequestError::Fault(Fault::Missing { .. })) => Ok(()),
            Err(error) => Err(error.into_fault()),
        }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// If it failed, or the outcome is unknown.
    pub(crate) async fn request<T: DeserializeOwned>(
        &self,
        request: BuiltRequest,
        response: Response,
    ) -> Result<T, RequestError> {
        let mut request = request.map_err(|e| RequestError::Fault(Fault::Bug(e.to_string())))?;
        if response == Response::Metadata {
            request.headers_mut().insert(ACCEPT, METADATA_ONLY);
        }
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let call = Box::pin(self.send(request));
        self.slots.within(&method, &path, call).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<T, RequestError> {
        // Check right before sending: a process that slept through its lease must not write when it wakes.
        if !(self.may_write)() {
            return Err(RequestError::Fault(Fault::NotLeading));
        }
        match tokio::time::timeout(self.deadline, self.client.request::<T>(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if crate::fault::is_already_exists(&error) => {
                Err(RequestError::AlreadyExists(match error {
                    kube::Error::Api(status) => status.message,
                    other => other.to_string(),
                }))
            }
            Ok(Err(error)) => Err(RequestError::Fault(error.into())),
            Err(_) => Err(RequestError::Fault(Fault::Deadline {
                limit: self.deadline,
            })),
        }
    }
}

/// Serializes an object for a request.
///
/// # Errors
/// If it can't be serialized, which is a bug.
pub(crate) fn encode(object: &impl Serialize) -> Result<Vec<u8>, RequestError> {
    serde_json::to_vec(object).map_err(|e| RequestError::Fault(Fault::Bug(e.to_string())))
}

#[expect(clippy::unnecessary_wraps, reason = "matches the type of the field")]
fn only(uid: &str) -> Option<Preconditions> {
    Some(Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use kube::core::ObjectMeta;

    use super::*;

    fn object(namespace: &str) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                name: Some("a".to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    /// Returns a caller whose server never answers creates in namespaces that begin with `slow`.
    fn caller() -> Arc<Caller> {
        let server = tower::service_fn(async |request: Request<Body>| {
            let slow = request.uri().path().contains("/namespaces/slow");
            if slow && request.method() == Method::POST {
                std::future::pending::<()>().await;
            }
            let answer = json!({"kind": "Status", "metadata": {}}).to_string();
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(answer.into_bytes())))
        });
        let client = Client::new(server, "default");
        Arc::new(Caller::new(
            client,
            Arc::new(|| true),
            Duration::from_secs(20),
            "test",
        ))
    }

    fn flood(caller: &Arc<Caller>, namespace: &'static str) {
        for _ in 0..100 {
            let caller = Arc::clone(caller);
            tokio::spawn(async move { caller.create(&object(namespace)).await.is_ok() });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn creates_that_hang_in_one_namespace_leave_places_for_others() {
        let caller = caller();
        flood(&caller, "slow");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let begun = tokio::time::Instant::now();
        caller.create(&object("calm")).await.unwrap();
        // Creates that hang in two namespaces block neither writes nor deletes.
        flood(&caller, "slow-too");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let url = ConfigMap::url_path(&(), Some("calm"));
        let gone = caller.delete(&url, "a", Uid(1), DeleteParams::default());
        gone.await.unwrap();
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_a_namespace_without_requests() {
        let caller = caller();
        caller.create(&object("calm")).await.unwrap();
        assert_eq!(caller.slots.namespaces.lock().len(), 0);
        flood(&caller, "slow");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(caller.slots.namespaces.lock().len(), 1);
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert_eq!(caller.slots.namespaces.lock().len(), 0);
    }
}
