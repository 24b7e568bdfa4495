//! Classifies requests.

use std::fmt;

use http::{Method, Request};
use serde_json::Value;

/// A classified request to the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: &'static str,
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural; empty for a path that is not a resource.
    pub resource: String,
    /// `status`, `scale`, …; empty for the object itself.
    pub subresource: String,
    /// The namespace; empty for cluster-scoped requests and for all namespaces.
    pub namespace: String,
    /// The object's name, also for a create and for a list of one (`fieldSelector=metadata.name=…`); empty for other lists and
    /// watches.
    pub name: String,
    /// The path with its query.
    pub uri: String,
    /// The body of a write; `Null` if there is none.
    pub body: Value,
    /// The request's bearer token.
    pub token: String,
}

impl Call {
    /// Classifies a request from its head and its body.
    pub fn of<B>(request: &Request<B>, body: &[u8]) -> Self {
        let uri = request.uri();
        let mut call = Self {
            uri: uri.to_string(),
            // Our operators send only JSON bodies.
            body: serde_json::from_slice(body).unwrap_or_default(),
            token: token(request).unwrap_or_default(),
            ..Self::default()
        };
        let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
        let rooted = match parts.next() {
            Some("api") => parts.next().is_some(),
            Some("apis") => {
                parts.next().unwrap_or_default().clone_into(&mut call.group);
                parts.next().is_some()
            }
            _ => false,
        };
        let mut rest: Vec<&str> = if rooted { parts.collect() } else { Vec::new() };
        // `namespaces/x` alone is the object x; with more path segments it is the namespace.
        if rest.len() > 2 && rest[0] == "namespaces" && rest[2] != "status" && rest[2] != "finalize"
        {
            rest[1].clone_into(&mut call.namespace);
            rest.drain(..2);
        }
        let mut rest = rest.into_iter().map(str::to_owned);
        call.resource = rest.next().unwrap_or_default();
        call.name = rest.next().unwrap_or_default();
        call.subresource = rest.next().unwrap_or_default();
        call.verb = verb(
            request.method(),
            uri.query().unwrap_or_default(),
            !call.name.is_empty(),
        );
        if call.verb == "create" && call.name.is_empty() {
            let name = call.body["metadata"]["name"].as_str().unwrap_or_default();
            name.clone_into(&mut call.name);
        }
        if call.verb == "list" {
            call.name = one(uri.query().unwrap_or_default()).unwrap_or_default();
        }
        call
    }

    /// Returns true if the response is a stream of events.
    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }

    /// Returns true if the request changes something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }

    /// Returns true for writes to a job's objects, as opposed to leases and events.
    pub fn is_job_write(&self) -> bool {
        self.is_write() && !matches!(self.resource.as_str(), "leases" | "events")
    }

    /// Returns true if the request has this verb, and this `resource` or `resource/subresource`.
    pub fn is(&self, verb: &str, resource: &str) -> bool {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.verb == verb && self.resource == resource && self.subresource == subresource
    }

    /// Same as [`Self::is`], without the watch that schedules have of their own applications.
    pub fn is_for_jobs(&self, verb: &str, resource: &str) -> bool {
        self.is(verb, resource) && !self.uri.contains("scheduled-app-name")
    }

    /// Says why a write could hit an object that its author has not seen; `None` if it can't.
    ///
    /// I-26: every delete names the uid, every status write the uid and the version from which it was computed. A create can't hit
    /// an existing object, and nothing depends on an event.
    pub fn unguarded(&self) -> Option<String> {
        let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
        let guarded = match self.verb {
            "delete" => text(&self.body["preconditions"]["uid"]),
            "deletecollection" => false,
            "patch" | "update" if self.resource == "events" => true,
            "patch" | "update" => {
                let metadata = &self.body["metadata"];
                let uid = self.resource == "leases" || text(&metadata["uid"]);
                uid && text(&metadata["resourceVersion"])
            }
            _ => true,
        };
        (!guarded).then(|| format!("I-26: {self} has no precondition"))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.resource.is_empty() {
            return write!(f, "{} {}", self.verb, self.uri);
        }
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.subresource.is_empty() {
            write!(f, "/{}", self.subresource)?;
        }
        if self.name.is_empty() {
            Ok(())
        } else {
            write!(f, " {}", self.name)
        }
    }
}

fn token<B>(request: &Request<B>) -> Option<String> {
    let header = request.headers().get(http::header::AUTHORIZATION)?;
    header
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")
        .map(str::to_owned)
}

/// The single object that a list selects.
fn one(query: &str) -> Option<String> {
    let (_, selector) =
        form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "fieldSelector")?;
    selector.strip_prefix("metadata.name=").map(str::to_owned)
}

fn verb(method: &Method, query: &str, named: bool) -> &'static str {
    let watches = query
        .split('&')
        .any(|part| matches!(part, "watch=true" | "watch=1"));
    match (method.as_str(), named) {
        ("GET", _) if watches => "watch",
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, uri: &str, body: &str) -> Call {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        Call::of(&request, body.as_bytes())
    }

    #[test]
    fn each_form_of_path_is_understood() {
        for (method, uri, body, expected) in [
            ("GET", "/api/v1/namespaces/a/pods/p", "", "get pods p"),
            ("GET", "/api/v1/pods?watch=true&x=1", "", "watch pods"),
            ("GET", "/api/v1/namespaces/a/pods?limit=5", "", "list pods"),
            (
                "GET",
                "/api/v1/namespaces/a/pods?&fieldSelector=metadata.name%3Dp",
                "",
                "list pods p",
            ),
            ("GET", "/api/v1/namespaces/a", "", "get namespaces a"),
            (
                "POST",
                "/api/v1/namespaces/a/pods",
                r#"{"metadata":{"name":"p"}}"#,
                "create pods p",
            ),
            (
                "POST",
                "/api/v1/namespaces/a/pods/p/binding",
                "{}",
                "create pods/binding p",
            ),
            (
                "PATCH",
                "/apis/kubeflow.org/v1/namespaces/a/pytorchjobs/j/status?fieldManager=x",
                "{}",
                "patch pytorchjobs/status j",
            ),
            (
                "DELETE",
                "/api/v1/namespaces/a/services/s",
                "",
                "delete services s",
            ),
            ("GET", "/version", "", "list /version"),
        ] {
            assert_eq!(call(method, uri, body).to_string(), expected);
        }
        assert_eq!(
            call("GET", "/api/v1/namespaces/a/pods/p", "").namespace,
            "a"
        );
        assert!(call("PATCH", "/apis/g/v1/namespaces/a/js/j/status", "").is("patch", "js/status"));
    }

    #[test]
    fn i26_a_write_without_precondition_is_told() {
        let guarded = [
            (
                "DELETE",
                "/api/v1/namespaces/a/pods/p",
                r#"{"preconditions":{"uid":"u"}}"#,
            ),
            (
                "PATCH",
                "/apis/kubeflow.org/v1/namespaces/a/pytorchjobs/j/status",
                r#"{"metadata":{"uid":"u","resourceVersion":"3"}}"#,
            ),
            ("POST", "/api/v1/namespaces/a/pods", "{}"),
        ];
        for (method, uri, body) in guarded {
            assert_eq!(call(method, uri, body).unguarded(), None);
            let bare = call(method, uri, "{}");
            assert_eq!(bare.unguarded().is_some(), method != "POST", "{bare}");
        }
    }
}
