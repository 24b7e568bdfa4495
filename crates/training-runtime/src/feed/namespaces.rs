//! The served namespaces, if they depend on labels.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;
use kube_runtime::watcher::{Error, Event};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::follow::{Source, WatchStream};
use super::listener::Listener;
use crate::key::Scope;

/// The feed's name, in logs and metrics.
pub const FEED: &str = "namespaces";
/// The API server's status code for an invalid selector.
const BAD_REQUEST: u16 = 400;

/// The served namespaces: the named ones, and those that match a label selector at the moment.
#[derive(Debug)]
pub struct Namespaces {
    selector: String,
    named: HashSet<String>,
    labelled: Mutex<HashSet<String>>,
}

impl Namespaces {
    /// Combines these names with a label selector in the syntax of `kubectl get -l`.
    pub fn new(named: &[String], selector: &str) -> Self {
        Self {
            selector: selector.to_owned(),
            named: named.iter().cloned().collect(),
            labelled: Mutex::default(),
        }
    }

    /// Returns true if a namespace is served.
    pub fn has(&self, namespace: &str) -> bool {
        self.named.contains(namespace) || self.labelled.lock().contains(namespace)
    }

    fn add(&self, namespace: &str) -> bool {
        let added = self.labelled.lock().insert(namespace.to_owned());
        added && !self.named.contains(namespace)
    }

    fn remove(&self, namespace: &str) {
        if self.labelled.lock().remove(namespace) && !self.named.contains(namespace) {
            tracing::info!(namespace, "stopped serving the namespace");
        }
    }

    /// Replaces the labelled namespaces with a complete list. Returns those that are newly served.
    fn replace(&self, all: HashSet<String>) -> Vec<String> {
        let gone: Vec<String> = self.labelled.lock().difference(&all).cloned().collect();
        for namespace in gone {
            self.remove(&namespace);
        }
        let new = all.into_iter().filter(|namespace| self.add(namespace));
        new.collect()
    }
}

/// Watches the matching namespaces, and reports each that becomes served. Returns only if the API server rejects the selector at
/// the first list, and logs why.
pub async fn watch_namespaces(
    source: Source,
    namespaces: Arc<Namespaces>,
    listener: Arc<impl Listener>,
    served: impl Fn(&str),
    synced: watch::Sender<bool>,
) {
    let (scope, selector) = (Scope::new(None), namespaces.selector.clone());
    let serve = |namespace: &str| {
        tracing::info!(namespace, "served from now on");
        served(namespace);
    };
    let mut events: WatchStream<Namespace> =
        WatchStream::cluster_scoped(FEED, &source, &scope, Some(selector));
    let mut list = HashSet::new();
    loop {
        match events.next(&*listener).await {
            Ok(Event::Init) => list.clear(),
            Ok(Event::InitApply(namespace)) => _ = list.insert(namespace.name_any()),
            Ok(Event::InitDone) => {
                for namespace in namespaces.replace(std::mem::take(&mut list)) {
                    serve(&namespace);
                }
                synced.send_replace(true);
                listener.watching(FEED, &scope, None);
            }
            Ok(Event::Apply(namespace)) => {
                let name = namespace.name_any();
                if namespaces.add(&name) {
                    serve(&name);
                }
            }
            Ok(Event::Delete(namespace)) => namespaces.remove(&namespace.name_any()),
            Err(error) => {
                if let Error::InitialListFailed(kube::Error::Api(said)) = &error
                    && said.code == BAD_REQUEST
                    && !*synced.borrow()
                {
                    let selector = &namespaces.selector;
                    tracing::error!(
                        selector,
                        "--namespace-selector can't be read: {}",
                        said.message
                    );
                    return;
                }
                listener.watching(FEED, &scope, Some(&error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> HashSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn named_ones_are_served_whatever_their_labels_and_others_while_they_have_them() {
        let namespaces = Namespaces::new(&["named".to_owned()], "spark=yes");
        assert!(namespaces.has("named") && !namespaces.has("a"));
        assert_eq!(namespaces.replace(set(&["a", "named"])), ["a"]);
        assert!(namespaces.has("a"));
        assert!(!namespaces.add("a") && namespaces.add("b"));
        assert_eq!(namespaces.replace(set(&["b", "c"])), ["c"]);
        assert!(!namespaces.has("a") && namespaces.has("b"));
        namespaces.remove("b");
        assert!(!namespaces.has("b") && namespaces.has("named"));
    }
}
