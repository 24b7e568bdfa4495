//! Classifies errors of the API server, without deciding how to react.
//!
//! Only this module maps errors; [`crate::retry`] turns a [`Fault`] into a time.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use kube::core::Status;
use thiserror::Error;

/// The longest `Retry-After` that is honored: one request must never sleep an hour.
pub const RETRY_AFTER_CAP: Duration = Duration::from_secs(30);

/// The delay after an overload error without `Retry-After`.
const RETRY_AFTER_UNSAID: Duration = Duration::from_secs(1);

/// Why a request failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    /// The object changed since it was read. Read it again, then decide again.
    #[error("the object changed meanwhile: {0}")]
    Conflict(String),
    /// The server is overloaded and says when to retry.
    #[error("the API server asks to wait {} s", after.as_secs())]
    Throttled {
        /// The delay, at most [`RETRY_AFTER_CAP`].
        after: Duration,
    },
    /// The network or the server failed. A write may have happened: see [`Fault::outcome_unknown`].
    #[error("{0}")]
    Transient(String),
    /// The server denies the request for reasons outside the object: quotas, policies, permissions.
    #[error("denied: {message}")]
    Denied {
        /// Who denied it.
        what: Denial,
        /// The server's message.
        message: String,
    },
    /// The object itself is invalid; a retry can't help.
    #[error("rejected: {message}")]
    Rejected {
        /// The HTTP status.
        code: u16,
        /// The server's message.
        message: String,
        /// The path of the first field that the server names, if any.
        field: Option<String>,
    },
    /// The target of the request does not exist.
    #[error("not found: {message}")]
    Missing {
        /// What does not exist.
        what: Absent,
        /// The server's message.
        message: String,
    },
    /// Our own deadline ended the request. A write may have happened: see [`Fault::outcome_unknown`].
    #[error("no answer within {} ms", limit.as_millis())]
    Deadline {
        /// The deadline.
        limit: Duration,
    },
    /// This process does not hold the lease; nothing was sent.
    #[error("not leading")]
    NotLeading,
    /// A bug in the operator.
    #[error("internal error: {0}")]
    Bug(String),
}

/// Who denied a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// A resource quota of the namespace.
    Quota,
    /// The namespace's Pod Security level.
    PodSecurity,
    /// The namespace is terminating.
    NamespaceTerminating,
    /// The operator's role lacks a permission; the message names verb and resource.
    Rbac,
    /// Another admission policy: a limit range, a webhook, a cluster-wide admission policy, whatever its status code.
    Policy,
}

/// What was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// A single object.
    Object,
    /// The namespace.
    Namespace,
    /// The kind: its CRD is not installed.
    Kind,
}

impl Fault {
    /// Creates a network or server failure from any error; keeps its chain of sources.
    pub fn transient(error: &(dyn Error + 'static)) -> Self {
        Self::Transient(chain(error))
    }

    /// Returns whether a write that failed so may have taken effect. Read before sending it again.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Transient(_) | Self::Deadline { .. } => true,
            Self::Conflict(_)
            | Self::Throttled { .. }
            | Self::Denied { .. }
            | Self::Rejected { .. }
            | Self::Missing { .. }
            | Self::NotLeading
            | Self::Bug(_) => false,
        }
    }

    /// Returns whether the failure concerns one request only: the next may succeed.
    pub fn is_isolated(&self) -> bool {
        match self {
            Self::Conflict(_)
            | Self::Transient(_)
            | Self::Deadline { .. }
            | Self::Missing {
                what: Absent::Object,
                ..
            } => true,
            Self::Throttled { .. }
            | Self::Denied { .. }
            | Self::Rejected { .. }
            | Self::Missing { .. }
            | Self::NotLeading
            | Self::Bug(_) => false,
        }
    }

    /// Returns whether the failure concerns one object only.
    pub fn is_of_the_object(&self) -> bool {
        matches!(
            self,
            Self::Conflict(_) | Self::Denied { .. } | Self::Rejected { .. } | Self::Missing { .. }
        )
    }

    /// Returns a label for metrics and logs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Conflict(_) => "conflict",
            Self::Throttled { .. } => "throttled",
            Self::Transient(_) => "transient",
            Self::Denied { .. } => "denied",
            Self::Rejected { .. } => "rejected",
            Self::Missing { .. } => "missing",
            Self::Deadline { .. } => "deadline",
            Self::NotLeading => "not_leading",
            Self::Bug(_) => "bug",
        }
    }
}

/// Returns whether a create failed because the name is taken. Read the holder: it may be our own object, from a create whose answer
/// was lost.
pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

impl From<kube::Error> for Fault {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from(*status),
            error @ (kube::Error::BuildRequest(_) | kube::Error::HttpError(_)) => {
                Self::Bug(chain(&error))
            }
            // An unreadable answer leaves open whether the write happened.
            error => Self::transient(&error),
        }
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        let asked = status
            .details
            .as_ref()
            .map_or(0, |details| details.retry_after_seconds);
        let message = status_message(&status);
        match status.code {
            409 => Self::Conflict(message),
            429 => Self::Throttled { after: wait(asked) },
            // Without a delay, treat it as an outage like any other 5xx.
            503 if asked > 0 => Self::Throttled { after: wait(asked) },
            404 if of_namespace(&status) => Self::Denied {
                what: Denial::NamespaceTerminating,
                message,
            },
            404 => Self::Missing {
                what: absent(&status),
                message,
            },
            code @ (400 | 413 | 422) if is_final(&status) => Self::Rejected {
                code,
                field: field(&status),
                message,
            },
            400 | 403 | 413 | 422 => Self::Denied {
                what: denial(&status),
                message,
            },
            // Includes the other 4xx: a token may just be renewed (401), and a proxy's answer must not fail a job for good.
            _ => Self::Transient(message),
        }
    }
}

/// Runs a request with a time limit.
///
/// # Errors
/// [`Fault::Deadline`] after the limit, else the request's failure. At the limit the request is dropped, which closes its connection;
/// a write may still have happened.
pub async fn within<T, E: Into<Fault>>(
    limit: Duration,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(Fault::Deadline { limit }),
    }
}

fn wait(asked_seconds: u32) -> Duration {
    match asked_seconds {
        0 => RETRY_AFTER_UNSAID,
        seconds => Duration::from_secs(seconds.into()).min(RETRY_AFTER_CAP),
    }
}

fn status_message(status: &Status) -> String {
    match (status.message.trim(), status.reason.trim()) {
        ("", "") => format!("HTTP status {}", status.code),
        ("", reason) => reason.to_owned(),
        (message, _) => message.to_owned(),
    }
}

/// Classifies a denial by its message, since the server uses one code and reason for all.
/// Source: the admission plugins `ResourceQuota`, `PodSecurity`, `NamespaceLifecycle` and the RBAC
/// authorizer of Kubernetes 1.34.
fn denial(status: &Status) -> Denial {
    let message = status.message.as_str();
    let cause = |wanted: &str| {
        status
            .details
            .as_ref()
            .is_some_and(|d| d.causes.iter().any(|c| c.reason == wanted))
    };
    if cause("NamespaceTerminating") || message.contains("because it is being terminated") {
        Denial::NamespaceTerminating
    } else if message.contains("exceeded quota:") || message.contains("failed quota:") {
        Denial::Quota
    } else if message.contains("violates PodSecurity") {
        Denial::PodSecurity
    } else if message.contains("\" cannot ") {
        Denial::Rbac
    } else {
        Denial::Policy
    }
}

/// Returns true if the API server itself rejects the object: it is too large, can't be decoded, or fails the validation of a field.
/// Policies answer with the same codes: a webhook that gives no code with 400, a `ValidatingAdmissionPolicy` with 422.
fn is_final(status: &Status) -> bool {
    let message = status.message.as_str();
    if message.starts_with("admission webhook") || message.contains("ValidatingAdmissionPolicy") {
        return false;
    }
    match status.code {
        413 => true,
        400 => status.reason == "BadRequest",
        _ => status.reason == "Invalid" && field(status).is_some(),
    }
}

fn of_namespace(status: &Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| details.kind == "namespaces")
}

/// A missing object is named in the details; an unknown path is not.
fn absent(status: &Status) -> Absent {
    let named = status
        .details
        .as_ref()
        .is_some_and(|details| !details.name.is_empty());
    if named { Absent::Object } else { Absent::Kind }
}

fn field(status: &Status) -> Option<String> {
    let causes = &status.details.as_ref()?.causes;
    causes
        .iter()
        .map(|cause| &cause.field)
        .find(|field| !field.is_empty())
        .cloned()
}

/// Joins an error and its sources in one line, leaving out sources whose text the line contains already.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let words = source.to_string();
        if !text.contains(&words) {
            // Writing to a String can't fail.
            let _ = write!(text, ": {words}");
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests;
