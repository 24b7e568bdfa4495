//! The audit log of the API server: what it was really asked, by whom.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

/// One answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The authenticated user.
    pub user: String,
    /// What the client calls itself.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The plural; empty for a path that is no resource.
    pub resource: String,
    /// `status`, `binding`, …; empty for the object itself.
    pub subresource: String,
    /// The namespace; empty for what has none.
    pub namespace: String,
    /// The object's name; empty for lists and watches.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// The request's path and query.
    pub uri: String,
}

impl Entry {
    /// `create pods`, `patch pytorchjobs/status`, `get /api`.
    pub fn what(&self) -> String {
        match (self.resource.as_str(), self.subresource.as_str()) {
            ("", _) => format!(
                "{} {}",
                self.verb,
                self.uri.split('?').next().unwrap_or_default()
            ),
            (resource, "") => format!("{} {resource}", self.verb),
            (resource, subresource) => format!("{} {resource}/{subresource}", self.verb),
        }
    }

    /// Whether the request keeps a stream open instead of being answered at once.
    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }
}

/// Numbers of requests by [`Entry::what`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(pub BTreeMap<String, usize>);

impl Tally {
    /// Counts entries.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut tally = Self::default();
        for entry in entries {
            *tally.0.entry(entry.what()).or_default() += 1;
        }
        tally
    }

    /// A tally to compare with.
    pub fn expected(rows: &[(&str, usize)]) -> Self {
        Self(
            rows.iter()
                .map(|(what, count)| ((*what).to_owned(), *count))
                .collect(),
        )
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "{count:6}  {what}")?;
        }
        Ok(())
    }
}

/// A place in the log: what is before it has been seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u64);

/// The log file of a running API server, written before the answer is given.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
}

impl AuditLog {
    /// The log at a path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The end of the log as it is now.
    pub fn mark(&self) -> Result<Mark> {
        Ok(Mark(fs::metadata(&self.path)?.len()))
    }

    /// What was written after a mark, and the mark after that.
    pub fn read(&self, from: Mark) -> Result<(Vec<Entry>, Mark)> {
        let mut file = File::open(&self.path)
            .with_context(|| format!("no audit log at {}", self.path.display()))?;
        // A line that was half written at the mark was begun before it.
        let back = from.0.saturating_sub(1);
        file.seek(SeekFrom::Start(back))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let end_of_line = |byte: &u8| *byte == b'\n';
        let begin = match text.iter().position(end_of_line) {
            _ if from.0 == 0 => 0,
            Some(at) => at + 1,
            None => return Ok((Vec::new(), from)),
        };
        // The last line may be half written; it is read next time.
        let whole = text.iter().rposition(end_of_line).map_or(0, |at| at + 1);
        let entries = parse(&String::from_utf8_lossy(&text[begin..whole]))?;
        Ok((entries, Mark(back + whole as u64)))
    }

    /// What a user asked after a mark.
    pub fn by_user(&self, from: Mark, user: &str) -> Result<Vec<Entry>> {
        let (entries, _) = self.read(from)?;
        Ok(entries
            .into_iter()
            .filter(|entry| entry.user == user)
            .collect())
    }

    /// What a user asked for in a namespace and had no right to, so far: MT-60.
    pub fn denied(&self, user: &str, namespace: &str) -> Result<Vec<String>> {
        let text = fs::read(&self.path)
            .with_context(|| format!("no audit log at {}", self.path.display()))?;
        let text = String::from_utf8_lossy(&text);
        // Looked at as text: to understand every line would take longer than most tests.
        let told = [
            "\"authorization.k8s.io/decision\":\"forbid\"",
            user,
            namespace,
        ];
        let lines = text
            .lines()
            .filter(|line| told.iter().all(|part| line.contains(part)));
        Ok(lines.map(str::to_owned).collect())
    }

    /// Waits until a user has asked nothing that `counts` for a `quiet` while.
    ///
    /// # Errors
    /// When that doesn't come within `limit`; the error names the last request.
    pub async fn until_quiet(
        &self,
        user: &str,
        counts: impl Fn(&Entry) -> bool,
        quiet: Duration,
        limit: Duration,
    ) -> Result<()> {
        let end = Instant::now() + limit;
        let mut at = self.mark()?;
        let mut since = Instant::now();
        loop {
            sleep(Duration::from_millis(50)).await;
            let (entries, next) = self.read(at)?;
            at = next;
            let last = entries
                .iter()
                .rfind(|entry| entry.user == user && counts(entry));
            if last.is_some() {
                since = Instant::now();
            }
            if since.elapsed() >= quiet {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < end,
                "{user} did not become quiet; last: {last:?}"
            );
        }
    }
}

/// Reads the lines of a log, one entry per request.
///
/// A watch appears when it is answered first, everything else when it is answered completely, so
/// that a watch which is still open counts, and none counts twice.
pub fn parse(text: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let raw: Raw =
            serde_json::from_str(line).with_context(|| format!("audit log line: {line}"))?;
        let counted = if raw.verb == "watch" {
            "ResponseStarted"
        } else {
            "ResponseComplete"
        };
        // A watch that is refused never starts.
        let refused = raw.verb == "watch"
            && raw.stage == "ResponseComplete"
            && raw.response_status.code >= 300;
        if raw.stage == counted || refused {
            entries.push(raw.into());
        }
    }
    Ok(entries)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    stage: String,
    verb: String,
    #[serde(rename = "requestURI", default)]
    request_uri: String,
    #[serde(default)]
    user: RawUser,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: RawObject,
    #[serde(default)]
    response_status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawUser {
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawObject {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawStatus {
    code: u16,
}

impl From<Raw> for Entry {
    fn from(raw: Raw) -> Self {
        Self {
            user: raw.user.username,
            user_agent: raw.user_agent,
            verb: raw.verb,
            resource: raw.object_ref.resource,
            subresource: raw.object_ref.subresource,
            namespace: raw.object_ref.namespace,
            name: raw.object_ref.name,
            code: raw.response_status.code,
            uri: raw.request_uri,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"
{"stage":"ResponseComplete","verb":"create","requestURI":"/api/v1/namespaces/a/pods","user":{"username":"op"},"userAgent":"x/1","objectRef":{"resource":"pods","namespace":"a","name":"p-0","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":201}}
{"stage":"ResponseStarted","verb":"watch","requestURI":"/api/v1/pods?watch=true","user":{"username":"op"},"objectRef":{"resource":"pods"},"responseStatus":{"code":200}}
{"stage":"ResponseComplete","verb":"watch","requestURI":"/api/v1/pods?watch=true","user":{"username":"op"},"objectRef":{"resource":"pods"},"responseStatus":{"code":200}}
{"stage":"ResponseComplete","verb":"watch","requestURI":"/api/v1/pods?watch=true","user":{"username":"op"},"objectRef":{"resource":"pods"},"responseStatus":{"code":403}}
{"stage":"ResponseComplete","verb":"patch","requestURI":"/apis/kubeflow.org/v1/namespaces/a/pytorchjobs/j/status","user":{"username":"op"},"objectRef":{"resource":"pytorchjobs","subresource":"status","namespace":"a","name":"j"},"responseStatus":{"code":409}}
{"stage":"ResponseComplete","verb":"get","requestURI":"/version?x=1","user":{"username":"other"},"responseStatus":{"code":200}}
"#;

    #[test]
    fn a_watch_counts_once_and_a_refused_one_too() {
        let entries = parse(LOG).unwrap();
        let expected = Tally::expected(&[
            ("create pods", 1),
            ("watch pods", 2),
            ("patch pytorchjobs/status", 1),
            ("get /version", 1),
        ]);
        assert_eq!(Tally::of(&entries), expected);
        assert_eq!(entries[3].code, 409);
        assert_eq!(entries[0].name, "p-0");
    }

    #[test]
    fn mt_60_a_request_without_the_right_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = |decision: &str| {
            format!(
                r#"{{"stage":"ResponseComplete","verb":"get","user":{{"username":"op"}},"objectRef":{{"namespace":"a"}},"annotations":{{"authorization.k8s.io/decision":"{decision}"}}}}"#
            )
        };
        let text = format!("{}\n{}\n", line("allow"), line("forbid"));
        std::fs::write(file.path(), text).unwrap();
        let log = AuditLog::at(file.path());
        assert_eq!(log.denied("op", "\"a\"").unwrap(), [line("forbid")]);
        assert_eq!(log.denied("op", "\"b\"").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_half_written_line_is_read_when_it_is_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = AuditLog::at(file.path());
        let line = LOG.lines().nth(1).unwrap();
        std::fs::write(file.path(), &line[..40]).unwrap();
        let (entries, at) = log.read(Mark::default()).unwrap();
        assert!(entries.is_empty());
        std::fs::write(file.path(), format!("{line}\n")).unwrap();
        let (entries, at) = log.read(at).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(log.mark().unwrap(), at);
    }
}
