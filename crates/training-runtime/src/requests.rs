//! Requests for children, for every kind.
//!
//! The index stores each answer at once, so that the next reconcile sees our own writes.

use kube::api::{DeleteParams, Patch};
use kube::core::Request as Build;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use training_core::Uid;

use crate::caller::{Caller, Deleted, RequestError, Response, encode};
use crate::fault::Fault;
use crate::feed::child::Child;
use crate::feed::index::Index;
use crate::feed::slim::Owned;

/// Requests for an owner's children of one kind.
pub struct ChildRequests<'a, V> {
    /// Sends the requests.
    pub caller: &'a Caller,
    /// The path of the kind in the owner's namespace.
    pub url: String,
    /// The owner.
    pub owner: Uid,
    /// The cached children.
    pub index: &'a Index<V>,
}

/// Why a child was not created.
#[derive(Debug)]
pub enum CreateError<T> {
    /// The request failed, or its outcome is unknown.
    RequestFailed(Fault),
    /// The owner has this child already: an answer was lost, or the watch is behind. The index has it now.
    AlreadyExists,
    /// A foreign object has the name, or a child of the owner that the watch doesn't select.
    NameConflict {
        /// The object with this name.
        holder: Box<T>,
        /// The API server's message.
        message: String,
    },
    /// The object with this name could not be read, or the name is free again. Or the child can't be serialized, which is a bug.
    Fault(Fault),
}

impl<V: Child> ChildRequests<'_, V> {
    /// Creates a child. `created` makes the index's entry from the answer. If the name exists, `existing` makes the entry of the object
    /// that has it, or returns `None` if that is no child, or none that the watch selects: it would never be updated.
    ///
    /// # Errors
    /// If the child was not created, or the outcome is unknown.
    pub async fn create<A: DeserializeOwned, T: DeserializeOwned>(
        &self,
        (name, object): (&str, &impl Serialize),
        response: Response,
        created: impl Fn(&A) -> Option<Owned<V>>,
        existing: impl Fn(&T) -> Option<Owned<V>>,
    ) -> Result<(), CreateError<T>> {
        let body = encode(object).map_err(|error| CreateError::Fault(error.into_fault()))?;
        let request = Build::new(&self.url).create(&self.caller.post(), body);
        let message = match self.caller.request(request, response).await {
            Ok(answer) => {
                if let Some(owned) = created(&answer) {
                    self.index.created(owned, Instant::now());
                }
                return Ok(());
            }
            Err(RequestError::AlreadyExists(message)) => message,
            Err(RequestError::Fault(fault)) => return Err(CreateError::RequestFailed(fault)),
        };
        let holder = self.caller.find::<T>(&self.url, name).await;
        // The next reconcile sees that the name is free.
        let freed = |message| CreateError::Fault(Fault::Conflict(message));
        let Some(holder) = holder.map_err(CreateError::Fault)? else {
            return Err(freed(message));
        };
        let ours = existing(&holder).filter(|owned| owned.owner == self.owner);
        Err(match ours.map(|owned| self.index.found(owned)) {
            Some(true) => CreateError::AlreadyExists,
            Some(false) => freed(message),
            None => CreateError::NameConflict {
                holder: Box::new(holder),
                message,
            },
        })
    }

    /// Reads a child that no watch has shown. True if it exists and is the owner's; then the index has it.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn find<T: DeserializeOwned>(
        &self,
        name: &str,
        existing: impl Fn(&T) -> Option<Owned<V>>,
    ) -> Result<bool, Fault> {
        let found = self.caller.find::<T>(&self.url, name).await?;
        let ours = found.as_ref().and_then(existing);
        let ours = ours.filter(|owned| owned.owner == self.owner);
        Ok(ours.is_some_and(|owned| self.index.found(owned)))
    }

    /// Sends a merge patch. `changed` makes the index's entry from the answer.
    ///
    /// # Errors
    /// If the child was not changed, or the outcome is unknown.
    pub async fn patch<A: DeserializeOwned>(
        &self,
        (name, subresource): (&str, Option<&str>),
        patch: &Value,
        response: Response,
        changed: impl Fn(&A) -> Option<Owned<V>>,
    ) -> Result<(), Fault> {
        let (params, patch) = (self.caller.patch(), Patch::Merge(patch));
        let build = Build::new(&self.url);
        let request = match subresource {
            Some(part) => build.patch_subresource(part, name, &params, &patch),
            None => build.patch(name, &params, &patch),
        };
        let answer = self.caller.request::<A>(request, response).await;
        if let Some(owned) = changed(&answer.map_err(RequestError::into_fault)?) {
            self.index.written(owned, Instant::now());
        }
        Ok(())
    }

    /// Deletes the child with this uid.
    ///
    /// # Errors
    /// If it still exists and is not terminating, or if that is unknown.
    pub async fn delete(
        &self,
        name: &str,
        uid: Uid,
        params: DeleteParams,
    ) -> Result<Deleted, Fault> {
        let deleted = self.caller.delete(&self.url, name, uid, params).await?;
        let now = Instant::now();
        self.index
            .record_delete_response(self.owner, uid, deleted, now);
        Ok(deleted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use http::{Method, Request};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use training_core::ServiceView;

    use super::*;
    use crate::caller::Answer;
    use crate::key::JobKey;

    const OWNER: Uid = Uid(7);

    /// Creates a child in an empty index, or one that knows the child as deleted, with a server that answers the create with `code`, and
    /// a read with `read`. Returns the result, and how many children the index has then.
    async fn create(
        code: u16,
        read: Option<Value>,
        deleted: bool,
    ) -> (Result<(), CreateError<Answer>>, usize) {
        let server = tower::service_fn(move |request: Request<Body>| {
            let created = request.method() == Method::POST;
            let read = read.clone();
            async move {
                let error = |code| {
                    (
                        code,
                        json!({ "kind": "Status", "code": code, "message": "no",
                    "reason": if code == 409 { "AlreadyExists" } else { "Forbidden" } }),
                    )
                };
                let (code, body) = match (created, read) {
                    (true, _) if code == 201 => (
                        201,
                        json!({ "metadata": { "uid": Uid(1).to_string(), "resourceVersion": "3" } }),
                    ),
                    (true, _) => error(code),
                    (false, Some(read)) => (200, json!({ "metadata": read })),
                    (false, None) => error(404),
                };
                let body = Body::from(body.to_string().into_bytes());
                http::Response::builder().status(code).body(body)
            }
        });
        let client = Client::new(server, "default");
        let caller = Caller::new(client, Arc::new(|| true), Duration::from_secs(20), "test");
        let index = Index::<ServiceView>::default();
        if deleted {
            index.record_gone(OWNER, Uid(1), Instant::now());
        }
        let requests = ChildRequests {
            caller: &caller,
            url: "/api/v1/namespaces/default/services".to_owned(),
            owner: OWNER,
            index: &index,
        };
        // The object with uid 2 belongs to another owner.
        let entry = |answer: &Answer| {
            let (uid, version) = answer.identity()?;
            let view = ServiceView {
                uid,
                version,
                role: "worker".into(),
                index: 0,
                terminating: false,
            };
            let owner = if uid == Uid(1) { OWNER } else { Uid(8) };
            let key = JobKey::new("default", "a");
            Some(Owned { key, owner, view })
        };
        let object = ("a", &json!({}));
        let result = requests.create(object, Response::Metadata, entry, entry);
        (result.await, index.of(OWNER).len())
    }

    fn metadata(uid: Uid) -> Value {
        json!({ "uid": uid.to_string(), "resourceVersion": "3" })
    }

    #[tokio::test]
    async fn a_created_child_is_in_the_index_and_a_refused_one_is_not() {
        assert!(matches!(create(201, None, false).await, (Ok(()), 1)));
        let refused = create(403, None, false).await;
        assert!(
            matches!(refused, (Err(CreateError::RequestFailed(_)), 0)),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn a_name_that_exists_is_the_owners_or_taken_or_free_again() {
        let ours = create(409, Some(metadata(Uid(1))), false).await;
        assert!(
            matches!(ours, (Err(CreateError::AlreadyExists), 1)),
            "{ours:?}"
        );
        let foreign = create(409, Some(metadata(Uid(2))), false).await;
        assert!(
            matches!(foreign, (Err(CreateError::NameConflict { .. }), 0)),
            "{foreign:?}"
        );
        for (read, deleted) in [(None, false), (Some(metadata(Uid(1))), true)] {
            let freed = create(409, read, deleted).await;
            let conflict = matches!(&freed, (Err(CreateError::Fault(Fault::Conflict(_))), 0));
            assert!(conflict, "{freed:?}");
        }
    }
}
