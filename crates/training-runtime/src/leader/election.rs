//! The election without its thread and connection.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::leadership::{ElectionConfig, Leadership, Moment};
use super::store::LeaseStore;
use crate::fault::{Absent, Fault, within};
use crate::retry::Jitter;

/// The longest time between two reads of a standby, so that it takes a released lease within two seconds.
const STANDBY_PERIOD: Duration = Duration::from_secs(1);

/// The last state of a Lease that another process holds.
struct Seen {
    version: Option<String>,
    since: Instant,
}

pub(super) struct Election<S> {
    config: ElectionConfig,
    store: S,
    leadership: Leadership,
    /// The Lease as of our own last write, while we lead.
    ours: Option<Lease>,
    seen: Option<Seen>,
    jitter: Jitter,
    /// The last logged failure, so that an outage is one log line and not one per second.
    trouble: Option<&'static str>,
}

impl<S: LeaseStore> Election<S> {
    pub(super) fn new(config: ElectionConfig, store: S, leadership: Leadership) -> Self {
        let jitter = Jitter::new(config.seed);
        Self {
            config,
            store,
            leadership,
            ours: None,
            seen: None,
            jitter,
            trouble: None,
        }
    }

    /// Takes part until asked to release, then clears the holder if it is this process.
    pub(super) async fn run(mut self, mut released: oneshot::Receiver<()>) {
        loop {
            let asked = tokio::select! {
                // A dropped handle requests no release: the lease expires.
                asked = &mut released => Some(asked.is_ok()),
                () = self.turn() => None,
            };
            if let Some(in_order) = asked {
                self.leadership.0.lose();
                if in_order {
                    self.release().await;
                }
                return;
            }
        }
    }

    /// Runs one attempt, then waits until the next.
    async fn turn(&mut self) {
        let pause = if self.leads() {
            self.renew().await
        } else {
            self.stand_by().await
        };
        sleep(pause).await;
    }

    fn leads(&self) -> bool {
        self.leadership.0.held.borrow().is_some()
    }

    /// Renews the Lease; returns when to renew again. Loses leadership if another process holds the Lease or the deadline passes.
    async fn renew(&mut self) -> Duration {
        let deadline = self.deadline();
        let attempt = self.try_renew();
        match tokio::time::timeout_at(deadline, attempt).await {
            Ok(Ok(())) => {
                self.log_fault(None);
                return self.config.retry_period;
            }
            Ok(Err(Fault::NotLeading)) => {
                tracing::warn!("another replica holds the lease; this one stops leading");
                self.lose();
                return self.standby_pause();
            }
            Ok(Err(fault)) => self.log_fault(Some(&fault)),
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            tracing::warn!("the lease could not be renewed in time; this replica stops leading");
            self.lose();
            return self.standby_pause();
        }
        // Sooner than the usual period, as each attempt may be the last.
        let pause = self
            .jitter
            .half(self.config.retry_period.min(STANDBY_PERIOD));
        pause.min(deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns when leadership ends without a further renewal.
    fn deadline(&self) -> Instant {
        let until = self
            .leadership
            .0
            .until
            .load(std::sync::atomic::Ordering::SeqCst);
        self.leadership.0.origin + Duration::from_nanos(until)
    }

    async fn try_renew(&mut self) -> Result<(), Fault> {
        let lease = match self.ours.clone() {
            Some(lease) => lease,
            // The last write ended in a conflict or with an unknown outcome: read the holder.
            None => match within(self.config.call_deadline(), self.store.get()).await? {
                Some(lease) if holder(&lease) == Some(&self.config.holder) => lease,
                Some(_) => return Err(Fault::NotLeading),
                None => return self.create().await,
            },
        };
        self.replace(lease).await
    }

    /// Tries to take the Lease; returns when to try again.
    async fn stand_by(&mut self) -> Duration {
        match self.try_take().await {
            Ok(()) => {
                self.log_fault(None);
                tracing::info!(holder = %self.config.holder, "leading");
                return self.config.retry_period;
            }
            Err(Fault::NotLeading | Fault::Conflict(_)) => self.log_fault(None),
            Err(fault) => self.log_fault(Some(&fault)),
        }
        self.standby_pause()
    }

    async fn try_take(&mut self) -> Result<(), Fault> {
        let Some(lease) = within(self.config.call_deadline(), self.store.get()).await? else {
            // Deleted by hand while another process held it, which may write until it notices.
            if self.seen.is_some() && !self.unchanged(None, Duration::ZERO) {
                return Err(Fault::NotLeading);
            }
            return self.create().await;
        };
        let spec = lease.spec.as_ref();
        let promised = spec.and_then(|spec| spec.lease_duration_seconds);
        match holder(&lease) {
            // Written by this process in an earlier term.
            Some(name) if *name == self.config.holder => {}
            // Never held, or properly released, which shortens the lease to a second.
            None if promised.is_none_or(|seconds| seconds <= 1) => {}
            Some(_) | None => {
                // The holder may have been started with a longer lease than ours.
                let promised = promised.and_then(|s| u64::try_from(s).ok()).unwrap_or(0);
                let version = lease.metadata.resource_version.clone();
                if !self.unchanged(version, Duration::from_secs(promised)) {
                    return Err(Fault::NotLeading);
                }
            }
        }
        self.replace(lease).await
    }

    /// Returns whether another holder's Lease has not changed for its duration, by our clock.
    fn unchanged(&mut self, version: Option<String>, promised: Duration) -> bool {
        let now = Instant::now();
        match &self.seen {
            Some(seen) if seen.version == version => {
                let timeout = self.config.lease_duration.max(promised);
                now.saturating_duration_since(seen.since) >= timeout
            }
            _ => {
                self.seen = Some(Seen {
                    version,
                    since: now,
                });
                false
            }
        }
    }

    async fn create(&mut self) -> Result<(), Fault> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.config.name.clone()),
                namespace: Some(self.config.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(self.record(None)),
        };
        let sent = self.leadership.0.now();
        let call = self.store.create(&lease);
        let answer = within(self.config.call_deadline(), call).await;
        self.written(sent, answer)
    }

    async fn replace(&mut self, mut lease: Lease) -> Result<(), Fault> {
        lease.spec = Some(self.record(lease.spec.as_ref()));
        let sent = self.leadership.0.now();
        let call = self.store.replace(&lease);
        let answer = within(self.config.call_deadline(), call).await;
        self.written(sent, answer)
    }

    fn written(&mut self, sent: Moment, answer: Result<Lease, Fault>) -> Result<(), Fault> {
        match answer {
            Ok(lease) => {
                self.ours = Some(lease);
                self.seen = None;
                self.leadership.0.extend(sent, self.config.renew_deadline);
                Ok(())
            }
            Err(fault) => {
                // The cached Lease may be stale in any case: read it before the next write.
                self.ours = None;
                Err(fault)
            }
        }
    }

    fn lose(&mut self) {
        self.ours = None;
        self.leadership.0.lose();
    }

    async fn release(&mut self) {
        let Some(mut lease) = self.ours.take() else {
            return;
        };
        if let Some(spec) = lease.spec.as_mut() {
            // An empty holder, as in other implementations of this protocol.
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        let call = self.store.replace(&lease);
        match within(self.config.call_deadline(), call).await {
            Ok(_) => tracing::info!("the lease is released"),
            Err(fault) => tracing::warn!(%fault, "the lease is not released; it will expire"),
        }
    }

    /// Returns the spec to write. Its times are for human readers; no process compares them with a clock.
    fn record(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let mine = before
            .filter(|spec| spec.holder_identity.as_deref() == Some(self.config.holder.as_str()));
        let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.config.holder.clone()),
            lease_duration_seconds: Some(
                i32::try_from(self.config.lease_duration.as_secs()).unwrap_or(i32::MAX),
            ),
            acquire_time: mine
                .and_then(|spec| spec.acquire_time.clone())
                .or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(match (mine, before) {
                (None, Some(_)) => transitions.saturating_add(1),
                (Some(_), _) | (None, None) => transitions,
            }),
            ..LeaseSpec::default()
        }
    }

    fn standby_pause(&mut self) -> Duration {
        self.jitter
            .half(self.config.retry_period.min(STANDBY_PERIOD))
    }

    fn log_fault(&mut self, fault: Option<&Fault>) {
        let kind = fault.map(|fault| match fault {
            Fault::Missing {
                what: Absent::Namespace,
                ..
            } => "namespace",
            other => other.as_str(),
        });
        if kind != self.trouble {
            if let Some(fault) = fault {
                tracing::warn!(%fault, "the lease can't be read or written");
            } else {
                tracing::info!("the lease can be read and written again");
            }
            self.trouble = kind;
        }
    }
}

/// Returns the holder of a Lease; an empty one counts as none.
fn holder(lease: &Lease) -> Option<&String> {
    let holder = lease.spec.as_ref()?.holder_identity.as_ref()?;
    (!holder.is_empty()).then_some(holder)
}
