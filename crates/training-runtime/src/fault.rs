//! What an error of the API server means, and nothing about what to do then.
//!
//! Only this module maps errors; [`crate::retry`] turns a [`Fault`] into a time.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use kube::core::Status;
use thiserror::Error;

/// The longest delay that a server's `Retry-After` is followed for: one call must never sleep an hour.
pub const RETRY_AFTER_CAP: Duration = Duration::from_secs(30);

/// The delay after a refusal for overload that names none.
const RETRY_AFTER_UNSAID: Duration = Duration::from_secs(1);

/// Why a request ended without doing what it was sent for.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    /// The object changed since it was read. Look again, then decide again.
    #[error("the object changed meanwhile: {0}")]
    Conflict(String),
    /// The server is overloaded and says when to come back.
    #[error("the API server asks to wait {} s", after.as_secs())]
    Throttled {
        /// The wait, at most [`RETRY_AFTER_CAP`].
        after: Duration,
    },
    /// The network or the server failed. A write may have happened: see [`Fault::outcome_unknown`].
    #[error("{0}")]
    Transient(String),
    /// The server refuses what others decide about: quotas, policies, rights.
    #[error("denied: {message}")]
    Denied {
        /// Who decides.
        what: Denial,
        /// The server's words.
        message: String,
    },
    /// The object itself is not acceptable; sending it again can't help.
    #[error("rejected: {message}")]
    Rejected {
        /// The HTTP status.
        code: u16,
        /// The server's words.
        message: String,
        /// The path of the first field that the server names, if it names one.
        field: Option<String>,
    },
    /// What the request speaks of is not there.
    #[error("not found: {message}")]
    Missing {
        /// What is not there.
        what: Absent,
        /// The server's words.
        message: String,
    },
    /// Our own limit ended the call. A write may have happened: see [`Fault::outcome_unknown`].
    #[error("no answer within {} ms", limit.as_millis())]
    Deadline {
        /// The limit that passed.
        limit: Duration,
    },
    /// This process does not hold the lease; nothing was sent.
    #[error("not leading")]
    NotLeading,
    /// A defect of ours.
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
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// The operator's role lacks a right; the message names verb and resource.
    Rbac,
    /// Another admission policy: a limit range, a webhook, an admission rule of the cluster, whatever code it answers with.
    Policy,
}

/// What was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The one object.
    Object,
    /// The namespace.
    Namespace,
    /// The whole kind: its definition is not installed.
    Kind,
}

impl Fault {
    /// A failure whose cause lies in the network or the server, from any error; keeps its chain of sources.
    pub fn transient(error: &(dyn Error + 'static)) -> Self {
        Self::Transient(chain(error))
    }

    /// Whether a write that ended so may have taken effect. Then look before sending it again.
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

    /// Whether it concerns the one request: the next one may well succeed.
    pub fn is_by_chance(&self) -> bool {
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

    /// Whether it says something of the one object alone.
    pub fn is_of_the_object(&self) -> bool {
        matches!(
            self,
            Self::Conflict(_) | Self::Denied { .. } | Self::Rejected { .. } | Self::Missing { .. }
        )
    }

    /// A word for metrics and logs.
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

/// Whether a create was refused because the name is taken. Whose object that is must be looked up:
/// it may be our own, made by a create whose answer got lost.
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
            // An answer that can't be read says nothing about whether the write happened.
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
        let message = said(&status);
        match status.code {
            409 => Self::Conflict(message),
            429 => Self::Throttled { after: wait(asked) },
            // Without a delay this is an outage like any other 5xx.
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
            // Also the other 4xx: a token may just be renewed (401), and what a proxy in between says
            // must not end a job for good.
            _ => Self::Transient(message),
        }
    }
}

/// Runs a call, but no longer than a limit.
///
/// # Errors
/// [`Fault::Deadline`] after the limit, else what the call failed with. The call is dropped then,
/// which closes its connection; a write may have happened all the same.
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

fn said(status: &Status) -> String {
    match (status.message.trim(), status.reason.trim()) {
        ("", "") => format!("HTTP status {}", status.code),
        ("", reason) => reason.to_owned(),
        (message, _) => message.to_owned(),
    }
}

/// The server gives one code and reason to all refusals; only the words tell them apart.
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

/// True if the API server itself can't take the object: it is too large, it can't be decoded, or its validation names a field.
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

/// A missing object is named in the details; a path that leads nowhere is not.
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

/// An error and its sources in one line; sources that only repeat their parent's words are left out.
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
