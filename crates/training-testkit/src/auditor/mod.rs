//! An independent watcher that checks the invariants at every event.
//!
//! It has its own connection, which no test breaks, and knows of the operator only what the API shows.

mod kinds;
mod rest;
mod rules;
mod spark;
mod state;
mod summary;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use kube_runtime::watcher::{self, Event, watcher};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

pub(crate) use kinds::masked;
pub use summary::{Churn, Summary, difference};

use crate::audit::Entry;
use crate::wait::{HANG, Seen, eventually};
use state::State;

/// A running auditor; dropping it stops it.
#[derive(Debug)]
pub struct Auditor {
    state: Arc<Mutex<State>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Auditor {
    /// Watches these jobs and all objects that they can own in one namespace, and returns when its caches are synced.
    pub async fn start(client: Client, namespace: &str, jobs: &ApiResource) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let mut kinds: Vec<ApiResource> = kinds::children(&jobs.kind)
            .iter()
            .map(|(group, kind, plural)| {
                let gvk = kube::core::GroupVersionKind::gvk(group, "v1", kind);
                ApiResource::from_gvk_with_plural(&gvk, plural)
            })
            .collect();
        kinds.push(jobs.clone());
        let all = kinds.len();
        let tasks = kinds
            .into_iter()
            .map(|kind| {
                let api = Api::namespaced_with(client.clone(), namespace, &kind);
                tokio::spawn(watch(api, kind.kind, Arc::clone(&state)))
            })
            .collect();
        let auditor = Self { state, tasks };
        eventually("the auditor to see", HANG, async || {
            let synced = auditor.state.lock().synced;
            Ok(if synced >= all {
                Seen::Yes(())
            } else {
                Seen::NotYet(synced.to_string())
            })
        })
        .await?;
        Ok(auditor)
    }

    /// The creations and deletions of each object so far. `…` stands for the parts of a `SparkApplication`'s names that change with
    /// every submission.
    pub fn summary(&self) -> Summary {
        self.state.lock().summary(None)
    }

    /// The summary of one job's objects.
    pub fn summary_of(&self, job: &str) -> Summary {
        self.state.lock().summary(Some(job))
    }

    /// The number of events checked.
    pub fn events(&self) -> usize {
        self.state.lock().events
    }

    /// The violations so far.
    pub fn violations(&self) -> Vec<String> {
        self.state.lock().verdict(false).into_iter().collect()
    }

    /// I-25 and I-27: violations in an operator's requests in the namespace.
    pub fn meddled(&self, asked: &[Entry]) -> Vec<String> {
        self.state.lock().meddled(asked)
    }

    /// Declares that there is no garbage collection, so that I-28 can't hold.
    pub fn expect_no_collection(&self) {
        self.state.lock().uncollected = true;
    }

    /// Declares that the test ends the auditor's own watches, so that they may have gaps.
    pub fn expect_gaps(&self) {
        self.state.lock().gaps = true;
    }

    /// Waits until no event has arrived for a while, so that it has seen what the test has seen.
    pub async fn settled(&self) -> Result<()> {
        let quiet = Duration::from_millis(300);
        let mut last = (self.events(), tokio::time::Instant::now());
        eventually("the auditor to be idle", HANG, async || {
            if self.events() != last.0 {
                last = (self.events(), tokio::time::Instant::now());
            }
            let idle = last.1.elapsed() >= quiet;
            Ok(if idle {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{} events", last.0))
            })
        })
        .await
    }

    /// Waits until the invariants of a settled cluster hold: I-03, I-07, I-09, I-18, I-19 and I-28.
    ///
    /// # Errors
    /// If they don't, with the violations.
    pub async fn until_settled(&self) -> Result<()> {
        eventually("everything to be at rest", HANG, async || {
            let wrong = self.state.lock().restless();
            Ok(if wrong.is_empty() {
                Seen::Yes(())
            } else {
                Seen::NotYet(wrong.join("; "))
            })
        })
        .await
    }

    /// Fails if any invariant was broken.
    pub async fn assert_clean(&self) -> Result<()> {
        self.settled().await?;
        let violations: Vec<String> = self.state.lock().verdict(true).into_iter().collect();
        anyhow::ensure!(
            violations.is_empty(),
            "invariants broken:\n{}",
            violations.join("\n")
        );
        Ok(())
    }
}

impl Drop for Auditor {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn watch(api: Api<DynamicObject>, kind: String, state: Arc<Mutex<State>>) {
    // A separate list can be older than the oldest event that the watch of a new resource can replay.
    let config = watcher::Config::default().streaming_lists();
    let mut events = watcher(api, config).boxed();
    let mut synced = false;
    loop {
        let event = events.try_next().await;
        if let Err(error) = &event {
            // A broken watch resumes where it was; a gap shows below.
            state.lock().trouble = format!("{kind}: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        }
        let mut state = state.lock();
        match event {
            Ok(Some(Event::Apply(object) | Event::InitApply(object))) => state.seen(&kind, &object),
            Ok(Some(Event::Delete(object))) => state.gone(&kind, &object),
            Ok(Some(Event::InitDone)) if !synced => {
                synced = true;
                state.synced += 1;
            }
            // A relist may hide an event, so no verdict counts.
            Ok(Some(Event::Init)) if synced && !state.gaps => {
                let wrong = format!("the auditor was blind for a while ({})", state.trouble);
                state.wrong(&wrong);
            }
            Ok(Some(Event::Init | Event::InitDone)) => {}
            Ok(None) | Err(_) => return,
        }
    }
}
