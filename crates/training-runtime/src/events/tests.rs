use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::*;
use crate::fault::{Absent, Fault};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    created: Vec<(Instant, Event)>,
    repeated: Vec<(Instant, String, i32)>,
    refuse: Vec<Fault>,
    stuck: bool,
    /// The uid of an object whose events are never answered.
    stuck_for: Option<String>,
    /// Requests under way, and the most at a time.
    under_way: (usize, usize),
}

impl Written {
    async fn answer(&self) -> Result<(), Fault> {
        if self.0.lock().stuck {
            return std::future::pending().await;
        }
        self.0.lock().refuse.pop().map_or(Ok(()), Err)
    }

    fn messages(&self) -> Vec<String> {
        let log = self.0.lock();
        log.created
            .iter()
            .map(|(_, event)| event.message.clone().unwrap())
            .collect()
    }
}

impl EventWriter for Written {
    async fn create(&self, event: &Event) -> Result<(), Fault> {
        let of = event.involved_object.uid.as_deref();
        if of.is_some() && self.0.lock().stuck_for.as_deref() == of {
            return std::future::pending().await;
        }
        {
            let mut log = self.0.lock();
            let (now, most) = log.under_way;
            log.under_way = (now + 1, most.max(now + 1));
        }
        tokio::task::yield_now().await;
        self.0.lock().under_way.0 -= 1;
        self.answer().await?;
        self.0.lock().created.push((Instant::now(), event.clone()));
        Ok(())
    }

    async fn repeat(&self, _: &str, name: &str, count: i32, _: &Time) -> Result<(), Fault> {
        self.answer().await?;
        self.0
            .lock()
            .repeated
            .push((Instant::now(), name.to_owned(), count));
        Ok(())
    }
}

fn job(uid: &str) -> Arc<Regarding> {
    Arc::new(Regarding {
        api_version: "kubeflow.org/v1".into(),
        kind: "PyTorchJob".into(),
        namespace: "team".into(),
        name: "bert".into(),
        uid: uid.into(),
        resource_version: Some("7".into()),
    })
}

fn sink_for(mode: EventMode, leadership: &Leadership) -> (EventSink, Written, Arc<Metrics>) {
    let written = Written::default();
    let metrics = Arc::new(Metrics::new("pytorch"));
    let config = EventConfig {
        component: "pytorchjob-controller".into(),
        mode,
        call_deadline: SECOND * 10,
    };
    let sink = EventSink::spawn(&config, &written, leadership, Arc::clone(&metrics));
    (sink, written, metrics)
}

fn sink(mode: EventMode) -> (EventSink, Written, Arc<Metrics>) {
    sink_for(mode, &Leadership::always())
}

#[tokio::test(start_paused = true)]
async fn an_event_has_what_tools_read() {
    let (sink, written, _) = sink(EventMode::Folded);
    sink.post(
        &job("u"),
        Note::warning("PodFailed", "line one\nline two\u{7}"),
    );
    sink.flush(SECOND).await;
    let (_, event) = written.0.lock().created.pop().unwrap();
    let value = serde_json::to_value(&event).unwrap();
    assert_eq!(value["type"], "Warning");
    assert_eq!(value["reason"], "PodFailed");
    assert_eq!(value["message"], "line one line two");
    assert_eq!(value["count"], 1);
    assert_eq!(value["source"]["component"], "pytorchjob-controller");
    assert_eq!(value["reportingComponent"], "pytorchjob-controller");
    assert_eq!(value["reportingInstance"], "");
    assert_eq!(value["firstTimestamp"], value["lastTimestamp"]);
    assert_eq!(value["metadata"]["namespace"], "team");
    assert_eq!(
        value["involvedObject"],
        serde_json::json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "namespace": "team",
            "name": "bert", "uid": "u", "resourceVersion": "7"
        })
    );
    let name = value["metadata"]["name"].as_str().unwrap();
    let suffix = name.strip_prefix("bert.").unwrap();
    assert!(
        suffix.len() == 16 && suffix.bytes().all(|b| b.is_ascii_hexdigit()),
        "{name}"
    );
}

#[tokio::test(start_paused = true)]
async fn i_40_repeats_are_counted_on_the_event_that_exists() {
    let (sink, written, _) = sink(EventMode::Folded);
    for _ in 0..3 {
        sink.post(&job("u"), Note::warning("QuotaExceeded", "no room"));
        sleep(SECOND * 20).await;
    }
    sink.post(&job("other"), Note::warning("QuotaExceeded", "no room"));
    sink.flush(SECOND).await;
    {
        let log = written.0.lock();
        assert_eq!(log.created.len(), 2);
        let name = log.created[0].1.metadata.name.clone().unwrap();
        let repeats: Vec<_> = log
            .repeated
            .iter()
            .map(|(_, n, count)| (n.clone(), *count))
            .collect();
        assert_eq!(repeats, [(name.clone(), 2), (name, 3)]);
    }
    sleep(SECOND * 3_600).await;
    sink.post(&job("u"), Note::warning("QuotaExceeded", "no room"));
    sink.flush(SECOND).await;
    assert_eq!(
        written.0.lock().created.len(),
        3,
        "after an hour the event may be gone"
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_gone_is_made_again() {
    let (sink, written, _) = sink(EventMode::Folded);
    sink.post(&job("u"), Note::normal("A", "a"));
    sink.flush(SECOND).await;
    let gone = Fault::Missing {
        what: Absent::Object,
        message: String::new(),
    };
    written.0.lock().refuse.push(gone);
    sink.post(&job("u"), Note::normal("A", "a"));
    sink.flush(SECOND).await;
    assert_eq!(written.0.lock().created.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn i_40_a_job_writes_at_most_ten_events_in_any_minute() {
    let (sink, written, metrics) = sink(EventMode::Folded);
    for n in 0..3_000 {
        sink.post(
            &job("u"),
            Note::normal("SuccessfulCreatePod", format!("Created pod: {n}")),
        );
        sleep(Duration::from_millis(100)).await;
    }
    sink.post(&job("other"), Note::normal("PyTorchJobSucceeded", "done"));
    sleep(SECOND * 120).await;
    let log = written.0.lock();
    assert!(
        log.created
            .iter()
            .any(|(_, e)| e.involved_object.uid.as_deref() == Some("other"))
    );
    let times: Vec<_> = log
        .created
        .iter()
        .filter(|(_, e)| e.involved_object.uid.as_deref() == Some("u"))
        .map(|(at, _)| *at)
        .collect();
    for (index, first) in times.iter().enumerate() {
        let within = times[index..]
            .iter()
            .take_while(|at| **at - *first < SECOND * 60)
            .count();
        assert!(within <= 10, "{within} events in a minute");
    }
    let total: u64 = log
        .created
        .iter()
        .map(|(_, event)| {
            let message = event.message.as_deref().unwrap();
            message
                .split_once(" more events")
                .map_or(1, |(count, _)| count.parse().unwrap())
        })
        .sum();
    assert_eq!(total, 3_001, "every note is written or counted");
    assert!(metrics.events_so_far(EventOutcome::Folded) > 2_000);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_finds_no_place_is_what_the_sum_tells() {
    let (sink, written, _) = sink(EventMode::Folded);
    for run in 0..20 {
        sink.post(
            &job("u"),
            Note::warning("SparkDriverFailed", run.to_string()),
        );
        sink.post(
            &job("u"),
            Note::warning("SparkApplicationFailed", run.to_string()),
        );
    }
    sink.post(&job("u"), Note::normal("SparkApplicationCompleted", "done"));
    sink.post(&job("u"), Note::warning("SparkApplicationFailed", "late"));
    sink.post(&job("u"), Note::warning("SparkDriverFailed", "later"));
    sink.flush(SECOND).await;
    let (_, sum) = written.0.lock().created.pop().unwrap();
    let message = sum.message.as_deref().unwrap();
    assert!(message.ends_with("above all: late"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn the_sum_tells_the_last_of_the_gravest() {
    let (sink, written, _) = sink(EventMode::Folded);
    for n in 0..6 {
        sink.post(&job("u"), Note::warning("A", n.to_string()));
    }
    sink.post(&job("u"), Note::warning("B", "bad"));
    sink.post(&job("u"), Note::normal("C", "well"));
    sink.flush(SECOND).await;
    let (_, sum) = written.0.lock().created.pop().unwrap();
    assert_eq!(
        sum.message.as_deref(),
        Some("2 more events, above all: bad")
    );
    assert_eq!(sum.reason.as_deref(), Some("B"));
    assert_eq!(sum.type_.as_deref(), Some("Warning"));
}

#[tokio::test(start_paused = true)]
async fn the_first_warning_among_many_events_is_written_at_once() {
    let (sink, written, _) = sink(EventMode::Folded);
    let ends = [
        Note::warning("PyTorchJobFailed", "it failed"),
        Note::warning("BackoffLimitExceeded", "at the limit"),
    ];
    for minute in 0..2 {
        for n in 0..50 {
            let text = format!("{minute} {n}");
            sink.post(&job("u"), Note::normal("SuccessfulCreatePod", text));
        }
        for n in 0..3 {
            let text = format!("{minute} warning {n}");
            sink.post(&job("u"), Note::warning("PodFailed", text));
        }
        sleep(SECOND).await;
        let told = written.messages();
        assert_eq!(told.len(), 7 + minute * 8, "{told:?}");
        assert_eq!(told.last(), Some(&format!("{minute} warning 0")));
        // The sum of the others, and until it is forgotten.
        sleep(SECOND * 130).await;
        assert_eq!(written.messages().len(), 8 + minute * 8, "{told:?}");
    }
    for end in ends.clone() {
        sink.post(&job("u"), end);
    }
    sleep(SECOND).await;
    let told = written.messages();
    assert!(told.ends_with(&ends.map(|end| end.message)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn the_restart_of_a_gang_of_which_two_failed_at_once_is_written_at_once() {
    let (sink, written, _) = sink(EventMode::Folded);
    for created in ["SuccessfulCreatePod", "SuccessfulCreateService"] {
        sink.post(&job("u"), Note::normal(created, created));
    }
    for pod in ["a", "b"] {
        sink.post(&job("u"), Note::normal("ExitedWithCode", pod));
        sink.post(
            &job("u"),
            Note::warning("PodFailed", format!("{pod} failed")),
        );
    }
    sink.post(
        &job("u"),
        Note::warning("XGBoostJobRestarting", "it restarts"),
    );
    sleep(SECOND).await;
    let told = written.messages();
    assert_eq!(
        told.last().map(String::as_str),
        Some("it restarts"),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn however_much_happened_before_the_end_of_a_job_is_told() {
    let (sink, written, _) = sink(EventMode::Folded);
    for n in 0..50 {
        sink.post(&job("u"), Note::warning("PodFailed", n.to_string()));
    }
    let end = [
        ("PyTorchJobFailed", "it failed"),
        ("BackoffLimitExceeded", "at the limit"),
        ("PodsStillRunning", "two run"),
    ];
    for (reason, message) in end {
        sink.post(&job("u"), Note::warning(reason, message));
    }
    sink.post(&job("u"), Note::normal("SuccessfulDeletePod", "Deleted"));
    sleep(SECOND * 10).await;
    let at_once = written.messages();
    assert_eq!(at_once.len(), 9, "{at_once:?}");
    for (_, message) in end {
        assert!(at_once.iter().any(|m| m == message), "{at_once:?}");
    }
    sleep(SECOND * 60).await;
    let later = written.messages();
    assert_eq!(
        later.last().map(String::as_str),
        Some("45 more events, above all: 49")
    );
}

#[tokio::test(start_paused = true)]
async fn that_a_gang_is_suspended_and_resumed_is_told_beside_all_that_is_made_and_deleted() {
    let (sink, written, _) = sink(EventMode::Folded);
    let course = [
        "SuccessfulCreatePod",
        "SuccessfulCreateService",
        "TFJobSuspended",
        "SuccessfulDeletePod",
        "SuccessfulDeleteService",
        "SuccessfulDeletePodGroup",
        "TFJobResumed",
        "SuccessfulCreatePod",
        "TFJobSucceeded",
    ];
    for reason in course {
        sink.post(&job("u"), Note::normal(reason, reason));
    }
    sleep(SECOND).await;
    let told = written.messages();
    for reason in ["TFJobSuspended", "TFJobResumed", "TFJobSucceeded"] {
        assert!(told.iter().any(|m| m == reason), "{told:?}");
    }
    assert_eq!(told.len(), 8, "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn ends_and_turns_of_an_application_are_told_beside_its_executors() {
    let (sink, written, _) = sink(EventMode::Folded);
    for executor in 0..50 {
        sink.post(
            &job("u"),
            Note::normal("SparkExecutorPending", executor.to_string()),
        );
    }
    let told = ["SparkApplicationResuming", "SparkApplicationFailed"];
    for reason in told {
        sink.post(&job("u"), Note::warning(reason, reason));
    }
    sleep(SECOND).await;
    let at_once = written.messages();
    for reason in told {
        assert!(at_once.iter().any(|m| m == reason), "{at_once:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_events_are_written_where_all_are_wanted_and_none_where_none_are() {
    let (sink, written, _) = sink(EventMode::Full);
    for n in 0..50 {
        sink.post(&job("u"), Note::normal("A", n.to_string()));
    }
    sink.flush(SECOND).await;
    assert_eq!(written.messages().len(), 50);
    let (sink, written, _) = self::sink(EventMode::Off);
    sink.post(&job("u"), Note::normal("A", "a"));
    sink.flush(SECOND).await;
    assert!(written.messages().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_short_trouble_is_bridged_and_a_long_one_counted() {
    let (sink, written, metrics) = sink(EventMode::Folded);
    let trouble = || Fault::Transient("reset".into());
    written.0.lock().refuse.push(trouble());
    sink.post(&job("u"), Note::normal("A", "a"));
    sink.flush(SECOND * 5).await;
    assert_eq!(written.messages(), ["a"]);
    written.0.lock().refuse.extend([trouble(), trouble()]);
    sink.post(&job("u"), Note::normal("B", "b"));
    sink.flush(SECOND * 5).await;
    assert_eq!(written.messages(), ["a"]);
    assert_eq!(metrics.events_so_far(EventOutcome::Failed), 1);
}

#[tokio::test(start_paused = true)]
async fn i_39_a_stuck_server_delays_no_pass_and_fills_no_memory() {
    let (sink, written, metrics) = sink(EventMode::Folded);
    written.0.lock().stuck = true;
    let start = Instant::now();
    for n in 0..20_000 {
        sink.post(&job(&n.to_string()), Note::normal("A", "a"));
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(
        metrics.events_so_far(EventOutcome::Overflowed),
        20_000 - WRITERS * (QUEUE - FOR_ENDS) as u64
    );
    sink.flush(SECOND).await;
    assert!(start.elapsed() <= SECOND * 2);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_job_has_a_place_where_many_events_wait() {
    let (sink, _, metrics) = sink(EventMode::Folded);
    for n in 0..QUEUE {
        sink.post(&job("u"), Note::normal("Created", n.to_string()));
    }
    let overflowed = || metrics.events_so_far(EventOutcome::Overflowed);
    assert_eq!(overflowed(), FOR_ENDS as u64);
    sink.post(&job("u"), Note::normal("PyTorchJobSucceeded", "done"));
    assert_eq!(overflowed(), FOR_ENDS as u64);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_takes_long_holds_only_those_of_some_jobs() {
    let (sink, written, _) = sink(EventMode::Folded);
    written.0.lock().stuck_for = Some("u0".to_owned());
    for n in 0..64 {
        sink.post(&job(&format!("u{n}")), Note::normal("A", n.to_string()));
    }
    sleep(SECOND * 2).await;
    let written = written.messages().len();
    assert!((40..64).contains(&written), "{written} of 64");
}

#[tokio::test(start_paused = true)]
async fn events_of_many_jobs_are_written_one_at_a_time() {
    let (sink, written, _) = sink(EventMode::Folded);
    for n in 0..64 {
        sink.post(&job(&format!("u{n}")), Note::normal("A", n.to_string()));
    }
    sink.flush(SECOND).await;
    assert_eq!(written.messages().len(), 64);
    assert_eq!(written.0.lock().under_way, (0, 1));
}

#[tokio::test(start_paused = true)]
async fn i_37_nothing_is_written_without_the_lease() {
    let standby = Leadership::standby_for_tests();
    let (sink, written, metrics) = sink_for(EventMode::Folded, &standby);
    sink.post(&job("u"), Note::normal("A", "a"));
    sink.flush(SECOND).await;
    assert!(written.messages().is_empty());
    assert_eq!(metrics.events_so_far(EventOutcome::NotLeading), 1);
}

#[tokio::test(start_paused = true)]
async fn events_wait_until_the_last_reconcile_ends() {
    let (sink, written, _) = sink(EventMode::Folded);
    let (one, two) = (sink.hold(), sink.hold());
    sink.post(&job("u"), Note::normal("JobCreated", "created"));
    let posted = Timestamp::now();
    sleep(SECOND / 4).await;
    drop(one);
    sleep(SECOND / 4).await;
    assert!(written.messages().is_empty(), "a reconcile still runs");
    drop(two);
    sleep(SECOND / 4).await;
    assert_eq!(written.messages(), ["created"]);
    let (_, event) = written.0.lock().created.pop().unwrap();
    assert!(event.first_timestamp.unwrap().0 <= posted);
    assert!(event.last_timestamp.unwrap().0 <= posted);

    sink.post(&job("u"), Note::normal("JobRunning", "running"));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(written.messages(), ["running"], "nothing is reconciled");
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_hangs_delays_each_event_by_two_seconds_at_most() {
    let (sink, written, _) = sink(EventMode::Folded);
    let _hold = sink.hold();
    let begun = Instant::now();
    for n in 0..3 {
        sink.post(&job("u"), Note::normal("JobCreated", n.to_string()));
    }
    sleep(SECOND).await;
    sink.post(&job("u"), Note::normal("JobCreated", "later"));
    sleep(SECOND * 3).await;
    let log = written.0.lock();
    let times = log.created.iter().map(|(at, _)| (*at - begun).as_secs());
    assert_eq!(times.collect::<Vec<_>>(), [2, 2, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_fills_up_waits_for_no_reconcile() {
    let (sink, written, metrics) = sink(EventMode::Full);
    let _hold = sink.hold();
    sink.post(&job("u"), Note::normal("JobCreated", "first"));
    sleep(SECOND / 4).await;
    for n in 0..=QUEUE - FOR_ENDS {
        sink.post(&job("u"), Note::normal("JobCreated", n.to_string()));
    }
    sleep(SECOND).await;
    let early = QUEUE / 2 - FOR_ENDS;
    assert_eq!(written.messages().len(), early, "the other half waits");
    assert_eq!(metrics.events_so_far(EventOutcome::Overflowed), 1);
    sleep(SECOND * 2).await;
    assert_eq!(written.messages().len(), QUEUE - FOR_ENDS + 1);
}

#[tokio::test(start_paused = true)]
async fn events_wait_for_no_reconcile_once_the_process_stops() {
    let (sink, written, _) = sink(EventMode::Folded);
    let _hold = sink.hold();
    sink.post(&job("u"), Note::normal("JobCreated", "before"));
    sleep(SECOND).await;
    sink.end_holds();
    let _another = sink.hold();
    sink.post(&job("u"), Note::normal("JobCreated", "after"));
    sink.flush(SECOND / 4).await;
    assert_eq!(written.messages(), ["before", "after"]);
}
