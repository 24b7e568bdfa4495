//! Whether the watches are open, and when they last said something.

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

/// The state of all watches, by name; ages are computed when somebody asks.
#[derive(Clone, Debug, Default)]
pub struct WatchTimes(Arc<Mutex<BTreeMap<&'static str, Watch>>>);

#[derive(Clone, Copy, Debug)]
struct Watch {
    up: bool,
    heard: Instant,
}

impl WatchTimes {
    /// A watch is open and complete.
    pub fn open(&self, watch: &'static str) {
        self.0.lock().insert(
            watch,
            Watch {
                up: true,
                heard: Instant::now(),
            },
        );
    }

    /// A watch said something, if only a bookmark.
    pub fn heard(&self, watch: &'static str) {
        if let Some(watch) = self.0.lock().get_mut(watch) {
            watch.heard = Instant::now();
        }
    }

    /// A watch broke off; its age goes on counting from when it was last heard.
    pub fn down(&self, watch: &'static str) {
        let mut watches = self.0.lock();
        let entry = watches.entry(watch).or_insert(Watch {
            up: false,
            heard: Instant::now(),
        });
        entry.up = false;
    }

    /// A watch is not wanted any more.
    pub fn forget(&self, watch: &'static str) {
        self.0.lock().remove(watch);
    }

    /// The time since a watch was last heard.
    pub fn age(&self, watch: &'static str) -> Option<Duration> {
        self.0.lock().get(watch).map(|watch| watch.heard.elapsed())
    }
}

impl Collector for WatchTimes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let watches = self.0.lock().clone();
        let mut up = encoder.encode_descriptor(
            "trainyard_watch_up",
            "1 while the watch is open and complete",
            None,
            MetricType::Gauge,
        )?;
        for (name, watch) in &watches {
            let labels = [("watch", *name)];
            ConstGauge::new(i64::from(watch.up)).encode(up.encode_family(&labels)?)?;
        }
        let mut age = encoder.encode_descriptor(
            "trainyard_watch_age_seconds",
            "Time since the watch last said something",
            None,
            MetricType::Gauge,
        )?;
        for (name, watch) in &watches {
            let labels = [("watch", *name)];
            let seconds = watch.heard.elapsed().as_secs_f64();
            ConstGauge::new(seconds).encode(age.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
