//! The work queue: immediate where possible, one reconcile per job at a time, fair between namespaces, and with a rate limit per
//! job.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::key::JobKey;

/// Reconciles that a job may have in a row without waiting; a small job's whole life cycle takes fewer.
const BURST: f64 = 20.0;
/// One in this many slots is reserved for namespaces without a running reconcile.
const RESERVED: usize = 4;
/// Reconciles per second that a job may have after that.
const RATE: f64 = 5.0;

/// The queue of jobs to reconcile.
#[derive(Debug, Default)]
pub struct Dispatcher {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Namespaces with queued jobs, in round-robin order.
    turn: VecDeque<Arc<str>>,
    /// Queued jobs by namespace, first in, first out.
    ready: HashMap<Arc<str>, VecDeque<JobKey>>,
    queued: HashSet<JobKey>,
    running: HashSet<JobKey>,
    /// Running reconciles by namespace.
    busy: HashMap<Arc<str>, usize>,
    /// Jobs queued during their reconcile.
    requeued: HashSet<JobKey>,
    timers: BTreeSet<(Instant, JobKey)>,
    due: HashMap<JobKey, Instant>,
    buckets: HashMap<JobKey, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Dispatcher {
    /// Queues a job, unless it is queued already.
    pub fn enqueue(&self, key: JobKey) {
        self.state.lock().enqueue(key, Instant::now());
        self.changed.notify_one();
    }

    /// Queues a job at a time, unless it is reconciled before. The earliest of several times counts.
    pub fn enqueue_at(&self, key: JobKey, at: Instant) {
        self.state.lock().schedule(key, at);
        self.changed.notify_one();
    }

    /// Drops the state of a job that is gone.
    pub fn forget(&self, key: &JobKey) {
        let state = &mut *self.state.lock();
        state.buckets.remove(key);
        state.unschedule(key);
    }

    /// Returns the number of queued jobs.
    pub fn depth(&self) -> usize {
        self.state.lock().queued.len()
    }

    /// Runs reconciles until stopped, then waits for the running ones. A reconcile returns when to requeue its job.
    ///
    /// `panicked` handles panics and returns when to retry the job.
    pub async fn run<P, Fut>(
        &self,
        concurrency: usize,
        stop: CancellationToken,
        reconcile: P,
        panicked: impl Fn(&JobKey, JoinError) -> Instant,
    ) where
        P: Fn(JobKey) -> Fut,
        Fut: Future<Output = Option<Instant>> + Send + 'static,
    {
        let mut reconciles: JoinSet<Option<Instant>> = JoinSet::new();
        let mut who: HashMap<Id, JobKey> = HashMap::new();
        loop {
            while reconciles.len() < concurrency && !stop.is_cancelled() {
                let Some(key) = self.state.lock().next(concurrency, Instant::now()) else {
                    break;
                };
                let id = reconciles.spawn(reconcile(key.clone())).id();
                who.insert(id, key);
            }
            if stop.is_cancelled() && reconciles.is_empty() {
                return;
            }
            let timer = self.state.lock().timers.first().map(|(at, _)| *at);
            tokio::select! {
                Some(done) = reconciles.join_next_with_id(), if !reconciles.is_empty() => {
                    let (id, next) = match done {
                        Ok((id, next)) => (id, next),
                        Err(error) => {
                            let id = error.id();
                            (id, who.get(&id).map(|key| panicked(key, error)))
                        }
                    };
                    if let Some(key) = who.remove(&id) {
                        self.state.lock().finished(key, next, Instant::now());
                    }
                }
                () = self.changed.notified() => {}
                () = stop.cancelled(), if !stop.is_cancelled() => {}
                () = until(timer), if timer.is_some() => self.state.lock().queue_due(Instant::now()),
            }
        }
    }
}

async fn until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl State {
    fn enqueue(&mut self, key: JobKey, now: Instant) {
        if self.running.contains(&key) {
            self.requeued.insert(key);
            return;
        }
        if self.queued.contains(&key) {
            return;
        }
        if let Some(at) = self.paced(&key, now) {
            return self.schedule(key, at);
        }
        self.unschedule(&key);
        let queue = self.ready.entry(Arc::clone(&key.namespace)).or_default();
        if queue.is_empty() {
            self.turn.push_back(Arc::clone(&key.namespace));
        }
        queue.push_back(key.clone());
        self.queued.insert(key);
    }

    /// Returns when a rate-limited job may be reconciled next.
    fn paced(&mut self, key: &JobKey, now: Instant) -> Option<Instant> {
        let bucket = self.buckets.get_mut(key)?;
        bucket.refill(now);
        (bucket.tokens < 1.0).then(|| now + Duration::from_secs_f64((1.0 - bucket.tokens) / RATE))
    }

    fn schedule(&mut self, key: JobKey, at: Instant) {
        if self.due.get(&key).is_some_and(|due| *due <= at) {
            return;
        }
        self.unschedule(&key);
        self.timers.insert((at, key.clone()));
        self.due.insert(key, at);
    }

    fn unschedule(&mut self, key: &JobKey) {
        if let Some((key, at)) = self.due.remove_entry(key) {
            self.timers.remove(&(at, key));
        }
    }

    fn queue_due(&mut self, now: Instant) {
        while self.timers.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, key)) = self.timers.pop_first()
        {
            self.due.remove(&key);
            self.enqueue(key, now);
        }
    }

    fn next(&mut self, concurrency: usize, now: Instant) -> Option<JobKey> {
        let free = concurrency.saturating_sub(self.running.len());
        // The last slots are for namespaces that hold none: all reconciles of one namespace may wait for the same slow webhook.
        let reserved = free <= concurrency / RESERVED;
        let may = |namespace: &Arc<str>| !reserved || !self.busy.contains_key(namespace);
        let at = self.turn.iter().position(may)?;
        let namespace = self.turn.remove(at)?;
        let queue = self.ready.get_mut(&namespace)?;
        let key = queue.pop_front()?;
        if queue.is_empty() {
            self.ready.remove(&namespace);
        } else {
            self.turn.push_back(namespace);
        }
        self.queued.remove(&key);
        if self.queued.is_empty() {
            // A list of all jobs queues each of them.
            self.queued.shrink_to(1024);
        }
        self.running.insert(key.clone());
        *self.busy.entry(Arc::clone(&key.namespace)).or_default() += 1;
        let bucket = self.buckets.entry(key.clone()).or_insert(Bucket {
            tokens: BURST,
            at: now,
        });
        bucket.refill(now);
        bucket.tokens -= 1.0;
        if self.buckets.len() > 1024 {
            self.buckets.retain(|_, b| {
                b.refill(now);
                b.tokens < BURST
            });
            self.buckets.shrink_to(1024);
        }
        Some(key)
    }

    fn finished(&mut self, key: JobKey, next: Option<Instant>, now: Instant) {
        self.running.remove(&key);
        if let Some(reconciles) = self.busy.get_mut(&key.namespace) {
            *reconciles -= 1;
            if *reconciles == 0 {
                self.busy.remove(&key.namespace);
            }
        }
        if self.requeued.remove(&key) {
            self.enqueue(key.clone(), now);
        }
        if let Some(at) = next {
            if self.queued.contains(&key) {
                // The queued reconcile will return its own requeue time.
                return;
            }
            self.schedule(key, at);
        }
    }
}

impl Bucket {
    fn refill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * RATE).min(BURST);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: &str) -> JobKey {
        JobKey::new(namespace, name)
    }

    /// Runs reconciles for a while; each takes `takes`, and its start is recorded.
    async fn record(
        dispatcher: &Arc<Dispatcher>,
        concurrency: usize,
        takes: Duration,
        run_for: Duration,
    ) -> Vec<(String, Duration)> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let start = Instant::now();
        let stop = CancellationToken::new();
        let end = stop.clone();
        tokio::spawn(async move {
            tokio::time::sleep(run_for).await;
            end.cancel();
        });
        let log = Arc::clone(&seen);
        let reconcile = move |key: JobKey| {
            log.lock().push((key.to_string(), start.elapsed()));
            async move {
                tokio::time::sleep(takes).await;
                None
            }
        };
        dispatcher
            .run(concurrency, stop, reconcile, |_, _| Instant::now())
            .await;
        seen.lock().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn mt_32_i_34_ten_thousand_jobs_of_one_namespace_do_not_delay_another() {
        let dispatcher = Arc::new(Dispatcher::default());
        for n in 0..10_000 {
            dispatcher.enqueue(key("busy", &n.to_string()));
        }
        dispatcher.enqueue(key("calm", "a"));
        let reconciles = record(
            &dispatcher,
            4,
            Duration::from_millis(10),
            Duration::from_secs(1),
        )
        .await;
        let place = reconciles
            .iter()
            .position(|(name, _)| name == "calm/a")
            .unwrap();
        assert!(place <= 4, "place {place}");
    }

    #[tokio::test(start_paused = true)]
    async fn passes_of_one_namespace_that_hang_leave_places_for_others() {
        let dispatcher = Arc::new(Dispatcher::default());
        for n in 0..100 {
            dispatcher.enqueue(key("slow", &n.to_string()));
        }
        let late = Arc::clone(&dispatcher);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            late.enqueue(key("calm", "a"));
        });
        let reconciles = record(
            &dispatcher,
            16,
            Duration::from_secs(20),
            Duration::from_secs(10),
        )
        .await;
        assert_eq!(reconciles.len(), 13, "twelve slow ones: {reconciles:?}");
        assert_eq!(
            reconciles[12],
            ("calm/a".to_owned(), Duration::from_secs(1))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_is_never_in_two_passes_and_a_wake_up_during_a_pass_is_not_lost() {
        let dispatcher = Arc::new(Dispatcher::default());
        dispatcher.enqueue(key("ns", "a"));
        let waker = Arc::clone(&dispatcher);
        tokio::spawn(async move {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(2)).await;
                waker.enqueue(key("ns", "a"));
            }
        });
        let reconciles = record(
            &dispatcher,
            4,
            Duration::from_millis(10),
            Duration::from_secs(1),
        )
        .await;
        assert_eq!(
            reconciles.len(),
            2,
            "three wake-ups during one reconcile cause one more reconcile"
        );
        assert!(reconciles[1].1 >= Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn b_158_a_job_that_changes_all_the_time_is_looked_at_five_times_a_second() {
        let dispatcher = Arc::new(Dispatcher::default());
        let waker = Arc::clone(&dispatcher);
        tokio::spawn(async move {
            for _ in 0..3_000 {
                waker.enqueue(key("ns", "a"));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let reconciles = record(
            &dispatcher,
            4,
            Duration::from_millis(1),
            Duration::from_secs(30),
        )
        .await;
        let (first, last) = (20, 30 * 5 + 20);
        assert!(
            (first..=last + 1).contains(&reconciles.len()),
            "{}",
            reconciles.len()
        );
        assert!(
            reconciles.len() >= 140,
            "and it is not forgotten either: {}",
            reconciles.len()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_times_counts_and_a_wake_up_comes_before_all() {
        let dispatcher = Arc::new(Dispatcher::default());
        let now = Instant::now();
        for seconds in [5, 2, 9] {
            dispatcher.enqueue_at(key("ns", "a"), now + Duration::from_secs(seconds));
        }
        let reconciles = record(&dispatcher, 1, Duration::ZERO, Duration::from_secs(20)).await;
        assert_eq!(
            reconciles
                .iter()
                .map(|(_, at)| at.as_secs())
                .collect::<Vec<_>>(),
            [2]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn f_74_mt_31_a_panic_of_one_job_leaves_the_others_served() {
        let dispatcher = Arc::new(Dispatcher::default());
        dispatcher.enqueue(key("ns", "bad"));
        dispatcher.enqueue(key("ns", "good"));
        let served = Arc::new(Mutex::new(Vec::new()));
        let stop = CancellationToken::new();
        let end = stop.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(100)).await;
            end.cancel();
        });
        let log = Arc::clone(&served);
        let reconcile = move |key: JobKey| {
            let log = Arc::clone(&log);
            async move {
                log.lock().push(key.name.to_string());
                assert!(&*key.name != "bad", "a defect");
                None
            }
        };
        let again = |_: &JobKey, error: JoinError| {
            assert!(error.is_panic());
            Instant::now() + Duration::from_mins(1)
        };
        dispatcher.run(1, stop, reconcile, again).await;
        assert_eq!(
            *served.lock(),
            ["bad", "good", "bad"],
            "the bad one is tried again later"
        );
    }
}
