//! Whether the watches are open, and when they last received data.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::time::Instant;

/// The state of all watches; ages are computed on each scrape.
///
/// The path of its request identifies a watch, because the connection sees nothing else, and only the connection sees that a quiet
/// watch was answered or sent a bookmark. With `--namespace`, a feed has one watch per namespace.
#[derive(Clone, Debug, Default)]
pub struct WatchTimes(Arc<Mutex<BTreeMap<String, Watch>>>);

#[derive(Clone, Debug)]
struct Watch {
    feed: &'static str,
    namespace: Option<String>,
    up: bool,
    heard: Instant,
}

/// A registered watch; dropping it ends the registration.
#[derive(Debug)]
#[must_use = "the watch is forgotten when this is dropped"]
pub struct Wanted {
    times: WatchTimes,
    path: String,
}

impl WatchTimes {
    /// Registers a watch of a feed in one namespace, or in all if `None`. It is not open yet.
    pub fn want(&self, feed: &'static str, namespace: Option<&str>, path: &str) -> Wanted {
        let watch = Watch {
            feed,
            namespace: namespace.map(str::to_owned),
            up: false,
            heard: Instant::now(),
        };
        self.0.lock().insert(path.to_owned(), watch);
        Wanted {
            times: self.clone(),
            path: path.to_owned(),
        }
    }

    /// Records that the API server answered a watch, so it is open. Ignores unregistered paths.
    pub fn opened(&self, path: &str) {
        if let Some(watch) = self.0.lock().get_mut(path) {
            watch.up = true;
        }
    }

    /// Records that a watch received data, even just a bookmark or its end.
    pub fn received(&self, path: &str) {
        if let Some(watch) = self.0.lock().get_mut(path) {
            watch.heard = Instant::now();
        }
    }
}

impl Wanted {
    /// Records that its list is complete.
    pub fn complete(&self) {
        self.times.received(&self.path);
    }

    /// Records that the watch broke; its age goes on counting.
    pub fn down(&self) {
        if let Some(watch) = self.times.0.lock().get_mut(&self.path) {
            watch.up = false;
        }
    }

    /// Returns the time since it last received data.
    pub fn age(&self) -> Duration {
        let watches = self.times.0.lock();
        watches
            .get(&self.path)
            .map_or(Duration::ZERO, |watch| watch.heard.elapsed())
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.times.0.lock().remove(&self.path);
    }
}

impl Collector for WatchTimes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let watches = self.0.lock();
        let mut worst: BTreeMap<Vec<(&str, &str)>, (bool, Duration)> = BTreeMap::new();
        for watch in watches.values() {
            let namespace = watch.namespace.as_deref().map(|name| ("namespace", name));
            let labels = [("watch", watch.feed)].into_iter().chain(namespace);
            let known = worst.entry(labels.collect());
            let (up, age) = known.or_insert((true, Duration::ZERO));
            *up &= watch.up;
            *age = (*age).max(watch.heard.elapsed());
        }
        let mut family = encoder.encode_descriptor(
            "trainyard_watch_up",
            "1 while the watch is open and complete",
            None,
            MetricType::Gauge,
        )?;
        for (labels, (up, _)) in &worst {
            ConstGauge::new(i64::from(*up)).encode(family.encode_family(labels)?)?;
        }
        let mut family = encoder.encode_descriptor(
            "trainyard_watch_age_seconds",
            "Time since the watch last received data",
            None,
            MetricType::Gauge,
        )?;
        for (labels, (_, age)) in &worst {
            ConstGauge::new(age.as_secs_f64()).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test(start_paused = true)]
    async fn f_36_each_namespace_shows_its_own_watches() {
        let metrics = Metrics::new("pytorch");
        let times = metrics.watches();
        let [a, b] = ["a", "b"].map(|ns| times.want("pods", Some(ns), &format!("/{ns}/pods")));
        let shows = |line: &str| {
            let text = metrics.render().unwrap();
            assert!(text.contains(line), "{line} is not in\n{text}");
        };
        times.opened("/a/pods");
        shows("trainyard_watch_up{watch=\"pods\",namespace=\"a\"} 1");
        shows("trainyard_watch_up{watch=\"pods\",namespace=\"b\"} 0");
        times.opened("/b/pods");
        shows("trainyard_watch_up{watch=\"pods\",namespace=\"b\"} 1");
        tokio::time::advance(Duration::from_secs(7)).await;
        times.received("/a/pods");
        assert_eq!((a.age(), b.age()), (Duration::ZERO, Duration::from_secs(7)));
        shows("trainyard_watch_age_seconds{watch=\"pods\",namespace=\"a\"} 0");
        shows("trainyard_watch_age_seconds{watch=\"pods\",namespace=\"b\"} 7");
        a.down();
        shows("trainyard_watch_up{watch=\"pods\",namespace=\"a\"} 0");
        drop(a);
        b.complete();
        shows("trainyard_watch_age_seconds{watch=\"pods\",namespace=\"b\"} 0");
        times.opened("/elsewhere");
        drop(b);
        assert!(!metrics.render().unwrap().contains("watch=\""));
    }

    #[tokio::test(start_paused = true)]
    async fn f_36_the_worst_of_several_watches_of_a_feed_is_shown() {
        let metrics = Metrics::new("mpi");
        let times = metrics.watches();
        let _both = ["/v1/jobs", "/v2/jobs"].map(|path| times.want("jobs", None, path));
        let shows = |line: &str| {
            let text = metrics.render().unwrap();
            assert!(text.contains(line), "{line} is not in\n{text}");
        };
        times.opened("/v1/jobs");
        shows("trainyard_watch_up{watch=\"jobs\"} 0");
        times.opened("/v2/jobs");
        shows("trainyard_watch_up{watch=\"jobs\"} 1");
        tokio::time::advance(Duration::from_secs(7)).await;
        times.received("/v1/jobs");
        shows("trainyard_watch_age_seconds{watch=\"jobs\"} 7");
    }
}
