//! Follows one watch forever: handles errors, lost positions and silence.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::core::{ClusterResourceScope, DynamicResourceScope, NamespaceResourceScope};
use kube::{Api, Client, Resource};
use kube_runtime::utils::Backoff as _;
use kube_runtime::watcher::{Config, DefaultBackoff, Error, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};

use super::listener::Listener;
use crate::client::what;
use crate::key::Scope;
use crate::metrics::{Wanted, WatchTimes};

/// The shortest time between two complete lists of one watch: a list is the most expensive request to an API server.
const BETWEEN_LISTS: Duration = Duration::from_secs(5);
/// Objects per page of a list: a whole page is in memory, as text and as objects.
const PAGE: u32 = 200;
/// How long after its timeout a silent watch is given up.
const GRACE: Duration = Duration::from_secs(5);

/// The connection and timeout of watches.
#[derive(Clone)]
pub struct Source {
    /// The connection.
    pub client: Client,
    /// When each watch last received data; the connection updates it.
    pub watches: WatchTimes,
    /// After this time the API server ends a watch, which then resumes where it was.
    pub timeout: Duration,
}

/// The events of one watch.
pub(super) struct WatchStream<K> {
    feed: &'static str,
    scope: Scope,
    api: Api<K>,
    config: Config,
    events: BoxStream<'static, Result<Event<K>, Error>>,
    /// Grows with errors in a row. A complete list or an event resets it; the start of a list does not.
    backoff: DefaultBackoff,
    /// The earliest time to continue after an error.
    not_before: Option<Instant>,
    /// When the last list was complete.
    listed: Option<Instant>,
    wanted: Wanted,
    /// Longest time without any data, including bookmarks and the end of a watch.
    silence_limit: Duration,
    silent: bool,
}

impl<K> WatchStream<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Starts with a list. Lists are quorum reads in pages.
    pub fn namespaced(
        feed: &'static str,
        source: &Source,
        scope: &Scope,
        selector: Option<String>,
    ) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        let api: Api<K> = match scope.namespace() {
            Some(namespace) => Api::namespaced(source.client.clone(), namespace),
            None => Api::all(source.client.clone()),
        };
        Self::with_api(feed, source, scope, selector, api)
    }

    /// Like `namespaced`, for a kind that is known only at run time.
    pub fn dynamic(
        feed: &'static str,
        source: &Source,
        scope: &Scope,
        selector: Option<String>,
        kind: &K::DynamicType,
    ) -> Self
    where
        K: Resource<Scope = DynamicResourceScope>,
    {
        let api: Api<K> = match scope.namespace() {
            Some(namespace) => Api::namespaced_with(source.client.clone(), namespace, kind),
            None => Api::all_with(source.client.clone(), kind),
        };
        Self::with_api(feed, source, scope, selector, api)
    }

    /// Like `namespaced`, for a cluster-scoped kind.
    pub fn cluster_scoped(
        feed: &'static str,
        source: &Source,
        scope: &Scope,
        selector: Option<String>,
    ) -> Self
    where
        K: Resource<Scope = ClusterResourceScope, DynamicType = ()>,
    {
        let api: Api<K> = Api::all(source.client.clone());
        Self::with_api(feed, source, scope, selector, api)
    }

    fn with_api(
        feed: &'static str,
        source: &Source,
        scope: &Scope,
        selector: Option<String>,
        api: Api<K>,
    ) -> Self {
        let seconds = u32::try_from(source.timeout.as_secs().max(1)).unwrap_or(u32::MAX);
        let config = Config::default().timeout(seconds).page_size(PAGE);
        let what = what(api.resource_url(), selector.as_deref());
        let config = match selector {
            Some(selector) => config.labels(&selector),
            None => config,
        };
        let wanted = source.watches.want(feed, scope.namespace(), &what);
        Self {
            feed,
            scope: scope.clone(),
            events: watcher(api.clone(), config.clone()).boxed(),
            api,
            config,
            backoff: DefaultBackoff::default(),
            not_before: None,
            listed: None,
            wanted,
            silence_limit: (source.timeout + GRACE) * 2,
            silent: false,
        }
    }

    /// Returns the next event or error. Not cancel-safe: an event may be lost.
    pub async fn next(&mut self, listener: &impl Listener) -> Result<Event<K>, Error> {
        if let Some(at) = self.not_before.take() {
            sleep_until(at).await;
        }
        let event = self.next_event(listener).await;
        match &event {
            Ok(Event::Init) => {
                if let Some(listed) = self.listed {
                    // This delays the list request, which is sent when the next event is polled.
                    sleep_until(listed + BETWEEN_LISTS).await;
                }
            }
            Ok(Event::InitDone) => {
                self.listed = Some(Instant::now());
                self.wanted.complete();
                self.backoff.reset();
            }
            Ok(Event::Apply(_) | Event::Delete(_)) => self.backoff.reset(),
            Ok(Event::InitApply(_)) => {}
            Err(error) => {
                self.wanted.down();
                self.not_before = self.backoff.next().map(|pause| Instant::now() + pause);
                if needs_list(error) {
                    self.events = watcher(self.api.clone(), self.config.clone()).boxed();
                }
            }
        }
        event
    }

    /// Waits for the next event, and reports when the watch is silent for too long and when it receives data again.
    async fn next_event(&mut self, listener: &impl Listener) -> Result<Event<K>, Error> {
        let poll = (self.silence_limit / 8).min(GRACE);
        loop {
            let event = timeout(poll, self.events.next()).await;
            let silent = self.wanted.age() > self.silence_limit;
            if silent != self.silent {
                self.silent = silent;
                listener.silent(self.feed, &self.scope, silent);
            }
            match event {
                Ok(Some(event)) => return event,
                // The stream never ends.
                Ok(None) => self.events = watcher(self.api.clone(), self.config.clone()).boxed(),
                Err(_) => {}
            }
        }
    }
}

/// Returns whether events may have been missed, so that a list is needed.
///
/// An unreadable event may hide any change. kube handles an expired resource version within a stream, but not when a watch starts.
fn needs_list(error: &Error) -> bool {
    match error {
        Error::WatchFailed(kube::Error::SerdeError(_)) => true,
        Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        Error::InitialListFailed(_)
        | Error::WatchStartFailed(_)
        | Error::WatchError(_)
        | Error::WatchFailed(_)
        | Error::NoResourceVersion => false,
    }
}
