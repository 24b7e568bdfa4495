//! The audit log of the API server: the requests that it received, by user.
//!
//! A request can take effect before its answer is logged. So every read of the log first catches up: it sends a request of its own,
//! the marker, waits for the marker's line, and then for the answers of all requests that were logged as received before it. A
//! request is logged as received before it takes effect.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use memchr::memmem;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::control_plane::client_from;
use crate::wait::{HANG, Seen, eventually};

/// One answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The authenticated user.
    pub user: String,
    /// The client's user agent.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The plural; empty for a path that is not a resource.
    pub resource: String,
    /// `status`, `binding`, …; empty for the object itself.
    pub subresource: String,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name; empty for lists and watches.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// The request's path and query.
    pub uri: String,
}

impl Entry {
    /// The request in words: `create pods`, `patch pytorchjobs/status`, `get /api`.
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

    /// Returns true if the request opens a stream.
    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }
}

/// Numbers of requests by [`Entry::what`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(pub BTreeMap<String, usize>);

impl Tally {
    /// Counts entries by request.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut tally = Self::default();
        for entry in entries {
            *tally.0.entry(entry.what()).or_default() += 1;
        }
        tally
    }

    /// A tally for comparisons.
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

/// A position in the log: the lines before it have been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u64);

/// The path of markers, which belongs to no resource.
const MARKER: &str = "/trainyard-audit-marker/";
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The log file of a running API server.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
    /// The user that sends markers.
    kubeconfig: PathBuf,
    scan: Arc<Mutex<Scan>>,
}

impl AuditLog {
    /// Opens the log at a path; the kubeconfig reaches its API server.
    pub fn at(path: impl Into<PathBuf>, kubeconfig: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            kubeconfig: kubeconfig.into(),
            scan: Arc::default(),
        }
    }

    /// The end of the log, after the lines of everything that has taken effect so far.
    pub async fn mark(&self) -> Result<Mark> {
        self.caught_up(|_| true).await?;
        Ok(Mark(fs::metadata(&self.path)?.len()))
    }

    /// All requests after a mark.
    pub async fn since(&self, from: Mark) -> Result<Vec<Entry>> {
        self.caught_up(|_| true).await?;
        Ok(self.written(from, "")?.0)
    }

    /// A user's requests after a mark.
    pub async fn by_user(&self, from: Mark, user: &str) -> Result<Vec<Entry>> {
        self.caught_up(|asks| asks == user).await?;
        Ok(self.written(from, user)?.0)
    }

    /// Waits for the lines of all requests that these users have sent so far.
    async fn caught_up(&self, users: impl Fn(&str) -> bool) -> Result<()> {
        self.catch_up(users, async |marker| self.send(marker).await)
            .await
    }

    /// Catches up with this way to send the marker.
    async fn catch_up(
        &self,
        users: impl Fn(&str) -> bool,
        send: impl AsyncFnOnce(&str) -> Result<()>,
    ) -> Result<()> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let marker = format!("{MARKER}{}-{number}", std::process::id());
        send(&marker).await?;
        eventually("the audit log to catch up", HANG, async || {
            let mut scan = self.scan.lock();
            scan.advance(&self.path)?;
            let Some(at) = scan.markers.get(&marker).copied() else {
                return Ok(Seen::NotYet("no marker".to_owned()));
            };
            let before = |open: &&(u64, String)| open.0 < at && users(&open.1);
            let waits = scan.open.values().filter(before).count();
            if waits > 0 {
                return Ok(Seen::NotYet(format!("{waits} requests without answers")));
            }
            scan.markers.remove(&marker);
            Ok(Seen::Yes(()))
        })
        .await
    }

    /// Sends a marker. The answer doesn't matter.
    async fn send(&self, marker: &str) -> Result<()> {
        let client = client_from(&self.kubeconfig).await?;
        let request = http::Request::get(marker).body(Vec::new())?;
        match client.request_text(request).await {
            Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The requests that were logged after a mark so far, all or a user's, and the mark after them.
    fn written(&self, from: Mark, user: &str) -> Result<(Vec<Entry>, Mark)> {
        let (text, next) = whole_lines(&self.path, from)?;
        let mut entries = parse(text.lines().filter(|line| contains(line, user)))?;
        entries.retain(|entry| user.is_empty() || entry.user == user);
        Ok((entries, next))
    }

    /// All requests of a user in a namespace so far, and the lines of those that were denied: MT-60.
    pub async fn all_of(&self, user: &str, namespace: &str) -> Result<(Vec<Entry>, Vec<String>)> {
        self.caught_up(|asks| asks == user).await?;
        self.all_so_far(user, namespace)
    }

    fn all_so_far(&self, user: &str, namespace: &str) -> Result<(Vec<Entry>, Vec<String>)> {
        let mut lines = self.lines_of(namespace)?;
        lines.retain(|line| contains(line, user));
        let mut entries = parse(lines.iter().map(String::as_str))?;
        entries.retain(|entry| entry.user == user);
        let forbidden = "\"authorization.k8s.io/decision\":\"forbid\"";
        lines.retain(|line| line.contains(forbidden));
        Ok((entries, lines))
    }

    /// Reads the lines about objects of a namespace.
    fn lines_of(&self, namespace: &str) -> Result<Vec<String>> {
        let places = {
            let mut scan = self.scan.lock();
            scan.advance(&self.path)?;
            scan.namespaces.get(namespace).cloned().unwrap_or_default()
        };
        let file = File::open(&self.path)?;
        let line = |(at, length): (u64, usize)| {
            let mut line = vec![0; length];
            file.read_exact_at(&mut line, at)?;
            Ok(String::from_utf8(line)?)
        };
        places.into_iter().map(line).collect()
    }

    /// Waits until a user has sent no request that `counts` for `quiet`.
    ///
    /// # Errors
    /// If that doesn't happen within `limit`; the error names the last request.
    pub async fn until_quiet(
        &self,
        user: &str,
        counts: impl Fn(&Entry) -> bool,
        quiet: Duration,
        limit: Duration,
    ) -> Result<()> {
        let end = Instant::now() + limit;
        let mut at = self.mark().await?;
        let mut since = Instant::now();
        loop {
            sleep(Duration::from_millis(50)).await;
            let (entries, next) = self.written(at, user)?;
            at = next;
            let last = entries.iter().rfind(|entry| counts(entry));
            if last.is_some() {
                since = Instant::now();
            }
            if since.elapsed() >= quiet {
                // Late lines look like quiet.
                self.caught_up(|asks| asks == user).await?;
                let (entries, next) = self.written(at, user)?;
                at = next;
                if !entries.iter().any(&counts) {
                    return Ok(());
                }
                since = Instant::now();
            }
            anyhow::ensure!(
                Instant::now() < end,
                "{user} did not become quiet; last: {last:?}"
            );
        }
    }
}

/// An incremental scan of a log, which reads each line once.
#[derive(Debug, Default)]
struct Scan {
    at: Mark,
    lines: u64,
    /// Unanswered requests by id, with line number and user.
    open: HashMap<String, (u64, String)>,
    /// Line numbers of markers.
    markers: HashMap<String, u64>,
    /// The lines about objects of each namespace: offset and length in bytes.
    namespaces: HashMap<String, Vec<(u64, usize)>>,
}

impl Scan {
    fn advance(&mut self, log: &Path) -> Result<()> {
        let (text, next) = whole_lines(log, self.at)?;
        self.at = next;
        let mut at = next.0 - text.len() as u64;
        for line in text.lines() {
            self.lines += 1;
            // Searched as text: parsing every line would take longer than most tests.
            let field = |name: &str| -> Option<&str> {
                let begin = memmem::find(line.as_bytes(), name.as_bytes())? + name.len();
                line.get(begin..)?.split('"').next()
            };
            if let Some(namespace) = field("\"namespace\":\"") {
                let places = self.namespaces.entry(namespace.to_owned()).or_default();
                places.push((at, line.len()));
            }
            at += line.len() as u64 + 1;
            let Some(id) = field("\"auditID\":\"") else {
                continue;
            };
            if field("\"stage\":\"") == Some("RequestReceived") {
                let user = field("\"username\":\"").unwrap_or_default();
                self.open
                    .insert(id.to_owned(), (self.lines, user.to_owned()));
            } else {
                self.open.remove(id);
            }
            let uri = field("\"requestURI\":\"").unwrap_or_default();
            if uri.starts_with(MARKER) {
                self.markers.entry(uri.to_owned()).or_insert(self.lines);
            }
        }
        Ok(())
    }
}

/// The complete lines after a mark, and the mark after them. An incomplete line is read the next time.
fn whole_lines(log: &Path, from: Mark) -> Result<(String, Mark)> {
    let mut file = File::open(log).with_context(|| format!("no audit log at {}", log.display()))?;
    // A line that was incomplete at the mark began before it.
    let back = from.0.saturating_sub(1);
    file.seek(SeekFrom::Start(back))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let end_of_line = |byte: &u8| *byte == b'\n';
    let begin = match text.iter().position(end_of_line) {
        _ if from.0 == 0 => 0,
        Some(at) => at + 1,
        None => return Ok((String::new(), from)),
    };
    let whole = text.iter().rposition(end_of_line).map_or(0, |at| at + 1);
    let lines = String::from_utf8(text[begin..whole].to_vec())?;
    Ok((lines, Mark(back + whole as u64)))
}

fn contains(line: &str, text: &str) -> bool {
    memmem::find(line.as_bytes(), text.as_bytes()).is_some()
}

/// Parses the lines of a log, one entry per request.
///
/// A watch counts when its response starts, everything else when its response is complete, so open watches count and none counts
/// twice.
pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for line in lines.into_iter().filter(|line| !line.is_empty()) {
        let raw: Raw =
            serde_json::from_str(line).with_context(|| format!("audit log line: {line}"))?;
        let counted = if raw.verb == "watch" {
            "ResponseStarted"
        } else {
            "ResponseComplete"
        };
        // A refused watch never starts.
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
        let entries = parse(LOG.lines()).unwrap();
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
    fn mt_60_i_46_a_request_without_the_right_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = |decision: &str| {
            format!(
                r#"{{"stage":"ResponseComplete","verb":"get","user":{{"username":"op"}},"objectRef":{{"namespace":"a"}},"annotations":{{"authorization.k8s.io/decision":"{decision}"}}}}"#
            )
        };
        let text = format!("{}\n{}\n", line("allow"), line("forbid"));
        std::fs::write(file.path(), text).unwrap();
        let log = log(file.path());
        let all = |namespace| log.all_so_far("op", namespace).unwrap();
        assert_eq!((all("a").0.len(), all("a").1), (2, vec![line("forbid")]));
        assert_eq!(all("absent"), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_half_written_line_is_read_when_it_is_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = log(file.path());
        let line = LOG.lines().nth(1).unwrap();
        std::fs::write(file.path(), &line[..40]).unwrap();
        let (entries, at) = log.written(Mark::default(), "").unwrap();
        assert!(entries.is_empty());
        std::fs::write(file.path(), format!("{line}\n")).unwrap();
        let (entries, at) = log.written(at, "").unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(at, Mark(line.len() as u64 + 1));
    }

    fn log(path: &Path) -> AuditLog {
        AuditLog::at(path, "unused")
    }

    fn append(path: &Path, id: &str, stage: &str, user: &str, uri: &str) {
        use std::io::Write as _;
        let line = format!(
            r#"{{"auditID":"{id}","stage":"{stage}","requestURI":"{uri}","verb":"patch","user":{{"username":"{user}"}}}}"#
        );
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Reads while the line of the answer, or of the marker, is not yet written; returns the number of entries.
    async fn read_early(the_marker_is_late: bool, user: &str) -> usize {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        let log = log(path);
        append(path, "a", "RequestReceived", user, "/pods");
        let marked = async |marker: &str| {
            let (path, marker) = (path.to_owned(), marker.to_owned());
            if !the_marker_is_late {
                append(&path, "m", "ResponseComplete", "admin", &marker);
            }
            let user = user.to_owned();
            tokio::spawn(async move {
                sleep(Duration::from_millis(100)).await;
                append(&path, "a", "ResponseComplete", &user, "/pods");
                if the_marker_is_late {
                    append(&path, "m", "ResponseComplete", "admin", &marker);
                }
            });
            Ok(())
        };
        log.catch_up(|asks| asks == "op", marked).await.unwrap();
        let (mut entries, _) = log.written(Mark::default(), "").unwrap();
        entries.retain(|entry| entry.user == user);
        entries.len()
    }

    #[tokio::test]
    async fn a_line_that_comes_late_is_waited_for() {
        assert_eq!(read_early(false, "op").await, 1, "after the marker's");
        assert_eq!(read_early(true, "op").await, 1, "before the marker's");
    }

    #[tokio::test]
    async fn nobody_waits_for_the_answers_of_others() {
        assert_eq!(read_early(false, "other").await, 0);
    }
}
