use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, sleep};

use super::*;
use crate::fault::{Absent, Fault};

/// One Lease with the API server's rules, and the failures that a test injects.
#[derive(Clone, Default)]
struct Server(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    lease: Option<Lease>,
    version: u64,
    writes: u32,
    /// One failure per write, in order.
    troubles: VecDeque<Trouble>,
    /// While set, no request is answered.
    silent: bool,
    /// How long the answer to a write takes.
    slow: Duration,
}

enum Trouble {
    /// Applied, but the answer is lost.
    AnswerLost,
    /// Refused.
    Refused(Fault),
}

impl Server {
    fn write(&self, lease: &Lease, creates: bool) -> Result<Lease, Fault> {
        let mut state = self.0.borrow_mut();
        state.writes += 1;
        let trouble = state.troubles.pop_front();
        if let Some(Trouble::Refused(fault)) = trouble {
            return Err(fault);
        }
        match (&state.lease, creates) {
            (Some(_), true) => return Err(Fault::Conflict("exists".into())),
            (None, false) => {
                return Err(Fault::Missing {
                    what: Absent::Object,
                    message: "gone".into(),
                });
            }
            (Some(stored), false)
                if stored.metadata.resource_version != lease.metadata.resource_version =>
            {
                return Err(Fault::Conflict("changed".into()));
            }
            _ => {}
        }
        state.version += 1;
        let mut stored = lease.clone();
        stored.metadata.resource_version = Some(state.version.to_string());
        state.lease = Some(stored.clone());
        match trouble {
            Some(Trouble::AnswerLost) => Err(Fault::Transient("reset".into())),
            _ => Ok(stored),
        }
    }

    async fn answer(&self) {
        if self.0.borrow().silent {
            std::future::pending::<()>().await;
        }
    }

    fn holder(&self) -> Option<String> {
        self.0
            .borrow()
            .lease
            .as_ref()?
            .spec
            .as_ref()?
            .holder_identity
            .clone()
    }

    /// Edits the Lease by hand.
    fn edit(&self, holder: Option<&str>) {
        let mut state = self.0.borrow_mut();
        state.version += 1;
        let version = state.version.to_string();
        match (holder, state.lease.as_mut()) {
            (Some(holder), Some(lease)) => {
                lease
                    .spec
                    .get_or_insert_with(LeaseSpec::default)
                    .holder_identity = Some(holder.to_owned());
                lease.metadata.resource_version = Some(version);
            }
            _ => state.lease = None,
        }
    }
}

impl LeaseStore for Server {
    async fn get(&self) -> Result<Option<Lease>, Fault> {
        self.answer().await;
        Ok(self.0.borrow().lease.clone())
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, Fault> {
        self.answer().await;
        let answer = self.write(lease, true);
        let slow = self.0.borrow().slow;
        sleep(slow).await;
        answer
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, Fault> {
        self.answer().await;
        let answer = self.write(lease, false);
        let slow = self.0.borrow().slow;
        sleep(slow).await;
        answer
    }
}

struct Replica {
    leadership: Leadership,
    release: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

fn config(holder: &str) -> ElectionConfig {
    ElectionConfig {
        namespace: "trainyard".into(),
        name: "pytorch-operator.trainyard.dev".into(),
        holder: holder.into(),
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(3),
        seed: 1,
    }
}

fn start(server: &Server, holder: &str) -> Replica {
    start_by(server, holder, || Duration::ZERO)
}

/// Starts a replica with another wall clock.
fn start_by(server: &Server, holder: &str, wall: fn() -> Duration) -> Replica {
    let leadership = Leadership::by(wall);
    let (release, released) = oneshot::channel();
    let election = Election::new(config(holder), server.clone(), leadership.clone());
    let task = tokio::task::spawn_local(election.run(released));
    Replica {
        leadership,
        release: Some(release),
        task,
    }
}

/// Runs a test with local tasks.
async fn local(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn the_first_one_leads_and_the_second_stands_by() {
    local(async {
        let server = Server::default();
        let first = start(&server, "a");
        first.leadership.acquired().await;
        let second = start(&server, "b");
        for _ in 0..120 {
            sleep(SECOND).await;
            assert!(first.leadership.may_write() && !second.leadership.may_write());
        }
        // Only renewals, one per period.
        assert!(
            (40..=42).contains(&server.0.borrow().writes),
            "{}",
            server.0.borrow().writes
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f_51_a_released_lease_is_taken_within_two_seconds() {
    local(async {
        let server = Server::default();
        let mut first = start(&server, "a");
        first.leadership.acquired().await;
        let second = start(&server, "b");
        sleep(SECOND * 5).await;
        first.release.take().unwrap().send(()).unwrap();
        let released = Instant::now();
        first.task.await.unwrap();
        assert!(!first.leadership.may_write());
        second.leadership.acquired().await;
        assert!(released.elapsed() <= SECOND * 2, "{:?}", released.elapsed());
        let transitions = server
            .0
            .borrow()
            .lease
            .clone()
            .unwrap()
            .spec
            .unwrap()
            .lease_transitions;
        assert_eq!(transitions, Some(1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_replaced_after_its_lease_and_not_before() {
    local(async {
        let server = Server::default();
        let first = start(&server, "a");
        first.leadership.acquired().await;
        let second = start(&server, "b");
        sleep(SECOND * 5).await;
        first.task.abort();
        let died = Instant::now();
        second.leadership.acquired().await;
        let took = died.elapsed();
        assert!(took >= SECOND * 11 && took <= SECOND * 17, "{took:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f_52_a_process_that_slept_through_its_lease_may_not_write_when_it_wakes() {
    local(async {
        let server = Server::default();
        let first = start(&server, "a");
        let term = first.leadership.acquired().await;
        sleep(SECOND).await;
        // The whole process is stopped: no task of it runs, but time passes.
        first.task.abort();
        tokio::time::advance(SECOND * 11).await;
        assert!(!first.leadership.may_write());
        assert!(!term.may_write());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f_52_the_deadline_counts_from_before_the_request_was_sent() {
    local(async {
        let server = Server::default();
        server.0.borrow_mut().slow = SECOND * 4;
        let sent = Instant::now();
        let first = start(&server, "a");
        let term = first.leadership.acquired().await;
        assert_eq!(sent.elapsed(), SECOND * 4);
        server.0.borrow_mut().silent = true;
        while term.may_write() {
            sleep(SECOND / 10).await;
        }
        assert!(sent.elapsed() <= SECOND * 10, "{:?}", sent.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f_53_a_leader_without_answers_stops_by_its_renew_deadline() {
    local(async {
        let server = Server::default();
        let first = start(&server, "a");
        let term = first.leadership.acquired().await;
        sleep(SECOND * 4).await;
        server.0.borrow_mut().silent = true;
        let cut = Instant::now();
        term.lost().await;
        assert!(!term.may_write());
        assert!(cut.elapsed() <= SECOND * 10, "{:?}", cut.elapsed());
        server.0.borrow_mut().silent = false;
        let next = first.leadership.acquired().await;
        assert!(next.may_write() && !term.may_write());
        assert_eq!(next.number(), term.number() + 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_short_trouble_costs_no_leadership() {
    local(async {
        let server = Server::default();
        let first = start(&server, "a");
        let term = first.leadership.acquired().await;
        server.0.borrow_mut().troubles.extend([
            Trouble::AnswerLost,
            Trouble::Refused(Fault::Transient("500".into())),
            Trouble::AnswerLost,
            Trouble::Refused(Fault::Conflict("injected".into())),
        ]);
        for _ in 0..60 {
            sleep(SECOND / 2).await;
            assert!(term.may_write());
        }
        assert!(server.0.borrow().troubles.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f_56_a_lease_given_to_another_ends_the_leadership() {
    local(async {
        let server = Server::default();
        let first = start(&server, "a");
        let term = first.leadership.acquired().await;
        sleep(SECOND).await;
        server.edit(Some("stranger"));
        let edited = Instant::now();
        term.lost().await;
        assert!(edited.elapsed() <= SECOND * 4, "{:?}", edited.elapsed());
        assert_eq!(server.holder().as_deref(), Some("stranger"));
        // The stranger never renews, so its lease expires.
        first.leadership.acquired().await;
        assert!(edited.elapsed() >= SECOND * 15);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f_56_a_deleted_lease_never_makes_two_leaders() {
    local(async {
        let server = Server::default();
        let replicas = [start(&server, "a"), start(&server, "b")];
        sleep(SECOND * 5).await;
        for _ in 0..5 {
            server.edit(None);
            for _ in 0..120 {
                sleep(SECOND / 4).await;
                let leading = replicas.iter().filter(|r| r.leadership.may_write()).count();
                assert!(leading <= 1);
            }
            let leading = replicas.iter().filter(|r| r.leadership.may_write()).count();
            assert_eq!(leading, 1);
        }
    })
    .await;
}

thread_local! {
    static WALL: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_suspended_writes_nothing_before_it_renews() {
    local(async {
        let server = Server::default();
        let first = start_by(&server, "a", || WALL.get());
        let term = first.leadership.acquired().await;
        sleep(SECOND * 5).await;
        // The monotonic clock stood still meanwhile.
        WALL.set(SECOND * 60);
        let writes = server.0.borrow().writes;
        assert!(!term.may_write() && !first.leadership.may_write());
        assert_eq!(server.0.borrow().writes, writes);
        let next = first.leadership.acquired().await;
        assert!(server.0.borrow().writes > writes, "it leads by a renewal");
        assert!(next.may_write() && !term.may_write());
        // A clock that is set back changes nothing.
        WALL.set(Duration::ZERO);
        sleep(SECOND * 60).await;
        assert!(next.may_write());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_sent_before_a_suspension_doesn_t_count_from_its_end() {
    local(async {
        let server = Server::default();
        let first = start_by(&server, "a", || WALL.get());
        let term = first.leadership.acquired().await;
        server.0.borrow_mut().slow = SECOND;
        // Wait until a renewal is in flight.
        let writes = server.0.borrow().writes;
        while server.0.borrow().writes == writes {
            sleep(SECOND / 10).await;
        }
        WALL.set(SECOND * 60);
        sleep(SECOND * 2).await;
        assert!(!term.may_write());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_election_leadership_is_always_held() {
    let leadership = Leadership::always();
    let term = leadership.acquired().await;
    tokio::time::advance(SECOND * 1_000_000).await;
    assert!(leadership.may_write() && term.may_write());
}

#[tokio::test]
async fn the_thread_elects_and_releases() {
    let (leadership, handle) = elect(config("a"), || Ok::<_, String>(Server::default())).unwrap();
    leadership.acquired().await;
    assert!(leadership.may_write());
    handle.release(SECOND * 5).await;
    assert!(!leadership.may_write());
    leadership.lost().await;
}

#[tokio::test]
async fn a_thread_that_ends_by_itself_is_noticed() {
    let (leadership, mut handle) =
        elect(config("a"), || Err::<Server, _>("no connection")).unwrap();
    assert!(handle.ended().await.to_string().contains("no connection"));
    assert!(!leadership.may_write());
}
