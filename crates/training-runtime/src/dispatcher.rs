//! Which job is looked at next: at once where possible, one pass per job at a time, fair between namespaces, and no job more
//! often than the others can bear.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::key::JobKey;

/// Passes that a job may have in a row without waiting; a whole life of a small job takes fewer.
const BURST: f64 = 20.0;
/// One in so many places is kept for namespaces that have no pass under way.
const RESERVED: usize = 4;
/// Passes per second that a job may have after that.
const RATE: f64 = 5.0;

/// The queue of jobs to be looked at.
#[derive(Debug, Default)]
pub struct Dispatcher {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Namespaces with work, in the order in which they are served.
    turn: VecDeque<Arc<str>>,
    /// Work by namespace, first come, first served.
    ready: HashMap<Arc<str>, VecDeque<JobKey>>,
    queued: HashSet<JobKey>,
    running: HashSet<JobKey>,
    /// Passes under way, by namespace.
    busy: HashMap<Arc<str>, usize>,
    /// Woken while its pass was running.
    again: HashSet<JobKey>,
    timers: BTreeMap<(Instant, u64), JobKey>,
    due: HashMap<JobKey, (Instant, u64)>,
    sequence: u64,
    buckets: HashMap<JobKey, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Dispatcher {
    /// Looks at a job as soon as possible. A job that is queued already is queued once.
    pub fn wake(&self, key: JobKey) {
        self.state.lock().enqueue(key, Instant::now());
        self.changed.notify_one();
    }

    /// Looks at a job at a time, unless it is looked at before. Several times for one job: the earliest counts.
    pub fn wake_at(&self, key: JobKey, at: Instant) {
        self.state.lock().schedule(key, at);
        self.changed.notify_one();
    }

    /// Forgets what is kept about a job that is gone.
    pub fn forget(&self, key: &JobKey) {
        let state = &mut *self.state.lock();
        state.buckets.remove(key);
        if let Some(due) = state.due.remove(key) {
            state.timers.remove(&due);
        }
    }

    /// Jobs that wait for their pass.
    pub fn depth(&self) -> usize {
        self.state.lock().queued.len()
    }

    /// Runs passes until told to stop, then waits for those that run. A pass answers when it wants the next one.
    ///
    /// `panicked` is told of passes that panicked, and answers when the job is looked at again.
    pub async fn run<P, Fut>(
        &self,
        concurrency: usize,
        stop: CancellationToken,
        pass: P,
        panicked: impl Fn(&JobKey, JoinError) -> Instant,
    ) where
        P: Fn(JobKey) -> Fut,
        Fut: Future<Output = Option<Instant>> + Send + 'static,
    {
        let mut passes: JoinSet<Option<Instant>> = JoinSet::new();
        let mut who: HashMap<Id, JobKey> = HashMap::new();
        loop {
            while passes.len() < concurrency && !stop.is_cancelled() {
                let Some(key) = self.state.lock().next(concurrency, Instant::now()) else {
                    break;
                };
                let id = passes.spawn(pass(key.clone())).id();
                who.insert(id, key);
            }
            if stop.is_cancelled() && passes.is_empty() {
                return;
            }
            let timer = self.state.lock().timers.keys().next().map(|(at, _)| *at);
            tokio::select! {
                Some(done) = passes.join_next_with_id(), if !passes.is_empty() => {
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
                () = until(timer), if timer.is_some() => self.state.lock().ring(Instant::now()),
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
            self.again.insert(key);
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

    /// When a job that has had too many passes lately may have its next one.
    fn paced(&mut self, key: &JobKey, now: Instant) -> Option<Instant> {
        let bucket = self.buckets.get_mut(key)?;
        bucket.refill(now);
        (bucket.tokens < 1.0).then(|| now + Duration::from_secs_f64((1.0 - bucket.tokens) / RATE))
    }

    fn schedule(&mut self, key: JobKey, at: Instant) {
        if self.due.get(&key).is_some_and(|(due, _)| *due <= at) {
            return;
        }
        self.unschedule(&key);
        self.sequence += 1;
        let slot = (at, self.sequence);
        self.timers.insert(slot, key.clone());
        self.due.insert(key, slot);
    }

    fn unschedule(&mut self, key: &JobKey) {
        if let Some(slot) = self.due.remove(key) {
            self.timers.remove(&slot);
        }
    }

    fn ring(&mut self, now: Instant) {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.enqueue(key, now);
        }
    }

    fn next(&mut self, concurrency: usize, now: Instant) -> Option<JobKey> {
        let free = concurrency.saturating_sub(self.running.len());
        // The last places are for namespaces that have none: passes of another one may all wait for the same slow webhook.
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
        if let Some(passes) = self.busy.get_mut(&key.namespace) {
            *passes -= 1;
            if *passes == 0 {
                self.busy.remove(&key.namespace);
            }
        }
        if self.again.remove(&key) {
            self.enqueue(key.clone(), now);
        }
        if let Some(at) = next {
            if self.queued.contains(&key) {
                // The pass that comes before will say again when it wants the next one.
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

    /// Runs passes for a while; every pass takes `takes` and is recorded when it starts.
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
        let pass = move |key: JobKey| {
            log.lock().push((key.to_string(), start.elapsed()));
            async move {
                tokio::time::sleep(takes).await;
                None
            }
        };
        dispatcher
            .run(concurrency, stop, pass, |_, _| Instant::now())
            .await;
        seen.lock().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn mt_32_i_34_ten_thousand_jobs_of_one_namespace_do_not_delay_another() {
        let dispatcher = Arc::new(Dispatcher::default());
        for n in 0..10_000 {
            dispatcher.wake(key("busy", &n.to_string()));
        }
        dispatcher.wake(key("calm", "a"));
        let passes = record(
            &dispatcher,
            4,
            Duration::from_millis(10),
            Duration::from_secs(1),
        )
        .await;
        let place = passes
            .iter()
            .position(|(name, _)| name == "calm/a")
            .unwrap();
        assert!(place <= 4, "place {place}");
    }

    #[tokio::test(start_paused = true)]
    async fn passes_of_one_namespace_that_hang_leave_places_for_others() {
        let dispatcher = Arc::new(Dispatcher::default());
        for n in 0..100 {
            dispatcher.wake(key("slow", &n.to_string()));
        }
        let late = Arc::clone(&dispatcher);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            late.wake(key("calm", "a"));
        });
        let passes = record(
            &dispatcher,
            16,
            Duration::from_secs(20),
            Duration::from_secs(10),
        )
        .await;
        assert_eq!(passes.len(), 13, "twelve of the slow ones: {passes:?}");
        assert_eq!(passes[12], ("calm/a".to_owned(), Duration::from_secs(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_is_never_in_two_passes_and_a_wake_up_during_a_pass_is_not_lost() {
        let dispatcher = Arc::new(Dispatcher::default());
        dispatcher.wake(key("ns", "a"));
        let waker = Arc::clone(&dispatcher);
        tokio::spawn(async move {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(2)).await;
                waker.wake(key("ns", "a"));
            }
        });
        let passes = record(
            &dispatcher,
            4,
            Duration::from_millis(10),
            Duration::from_secs(1),
        )
        .await;
        assert_eq!(
            passes.len(),
            2,
            "three wake-ups during one pass are one more pass"
        );
        assert!(passes[1].1 >= Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn b_158_a_job_that_changes_all_the_time_is_looked_at_five_times_a_second() {
        let dispatcher = Arc::new(Dispatcher::default());
        let waker = Arc::clone(&dispatcher);
        tokio::spawn(async move {
            for _ in 0..3_000 {
                waker.wake(key("ns", "a"));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let passes = record(
            &dispatcher,
            4,
            Duration::from_millis(1),
            Duration::from_secs(30),
        )
        .await;
        let (first, last) = (20, 30 * 5 + 20);
        assert!(
            (first..=last + 1).contains(&passes.len()),
            "{}",
            passes.len()
        );
        assert!(
            passes.len() >= 140,
            "and it is not forgotten either: {}",
            passes.len()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_times_counts_and_a_wake_up_comes_before_all() {
        let dispatcher = Arc::new(Dispatcher::default());
        let now = Instant::now();
        for seconds in [5, 2, 9] {
            dispatcher.wake_at(key("ns", "a"), now + Duration::from_secs(seconds));
        }
        let passes = record(&dispatcher, 1, Duration::ZERO, Duration::from_secs(20)).await;
        assert_eq!(
            passes
                .iter()
                .map(|(_, at)| at.as_secs())
                .collect::<Vec<_>>(),
            [2]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn f_74_mt_31_a_panic_of_one_job_leaves_the_others_served() {
        let dispatcher = Arc::new(Dispatcher::default());
        dispatcher.wake(key("ns", "bad"));
        dispatcher.wake(key("ns", "good"));
        let served = Arc::new(Mutex::new(Vec::new()));
        let stop = CancellationToken::new();
        let end = stop.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(100)).await;
            end.cancel();
        });
        let log = Arc::clone(&served);
        let pass = move |key: JobKey| {
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
        dispatcher.run(1, stop, pass, again).await;
        assert_eq!(
            *served.lock(),
            ["bad", "good", "bad"],
            "the bad one is tried again later"
        );
    }
}
