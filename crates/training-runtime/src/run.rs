//! From arguments to a working operator, and back to the shell.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;
use kube::core::ObjectMeta;
use kube_runtime::watcher;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use training_core::{Framework, GroupKind, Note, Provider};

use crate::admin::Health;
use crate::cli::RuntimeArgs;
use crate::client::{Clients, Identity};
use crate::dispatcher::Dispatcher;
use crate::events::{EventConfig, EventSink, KubeEvents, Regarding};
use crate::executor::{Children, Executor, Gate};
use crate::feed::group::Groups;
use crate::feed::{self, Listener, Source};
use crate::key::{JobKey, Scope};
use crate::leader::{ElectionConfig, ElectionHandle, KubeLeases, Leadership, Term, elect};
use crate::metrics::Metrics;
use crate::pass::{Passing, Settings, Worker};
use crate::retry::Backoff;
use crate::{admin, client, shutdown, telemetry};

/// The caches that a leader must have complete; a standby has none.
const CACHES: [&str; 2] = ["jobs", "pods"];
/// One more, of kinds whose replicas have Services.
const SERVICES: &str = "services";
/// One more, of kinds whose jobs can have an autoscaler.
const AUTOSCALERS: &str = "autoscalers";
/// The caches that a leader of this kind must have complete.
fn caches<F: Framework>() -> impl Iterator<Item = &'static str> {
    let services = F::REPLICA_SERVICES.then_some(SERVICES);
    let autoscalers = F::AUTOSCALES.then_some(AUTOSCALERS);
    let objects = F::OBJECTS.iter().map(|kind| feed::object::feed(*kind));
    CACHES
        .into_iter()
        .chain(services)
        .chain(autoscalers)
        .chain(objects)
}

/// How long events and traces, each, may take to leave at the end. With [`RELEASE`] and the drain of passes (eight seconds by
/// default) the process ends within ten seconds of a signal.
const FLUSH: Duration = Duration::from_millis(400);
/// How long the lease may take to be released.
const RELEASE: Duration = Duration::from_secs(1);
/// How long tasks of a lost term may take to end before the process ends instead.
const TERM_END: Duration = Duration::from_secs(5);

/// Runs an operator until it is told to stop.
///
/// # Errors
/// If the arguments contradict each other, the API server can't be addressed, a port is taken, or the election ends by itself.
pub async fn run<F: Framework + Clone>(framework: F, args: RuntimeArgs) -> anyhow::Result<()> {
    args.validate()?;
    let stop = shutdown::listen()?;
    let name = F::OPERATOR;
    let telemetry = telemetry::init(
        name,
        args.log_filter(),
        args.log_format(),
        args.otlp_endpoint(),
    )?;
    let identity = Identity::new(name, env!("CARGO_PKG_VERSION"), crate::BUILD);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        build = crate::BUILD,
        identity = identity.holder,
        "starting"
    );
    tracing::info!(gang = %args.gang(), "runs that begin now are scheduled so");
    for flag in args.without_effect() {
        tracing::info!(flag, "accepted, but without effect here");
    }
    let metrics = Metrics::new(F::NAME);
    let metrics = Arc::new(match F::OWN_METRICS {
        Some((prefix, _)) => metrics.with_own(prefix),
        None => metrics,
    });
    let health = Health::new(&["start"]);
    let closing = CancellationToken::new();
    let addresses = admin::serve(
        &args.health_probe_bind_address,
        &args.metrics_bind_address,
        &health,
        &metrics,
        &closing,
    )
    .await?;
    tracing::info!(probes = ?addresses.probes, metrics = ?addresses.metrics, "listening");
    let _beat = AbortOnDropHandle::new(tokio::spawn(beat(health.clone())));
    let clients = client::connect(&args, &identity, &metrics).await?;
    let (leadership, mut election) = leadership(&args, name, &identity, &clients)?;
    let events = EventSink::spawn(
        EventConfig {
            component: F::EVENT_SOURCE.to_owned(),
            instance: identity.holder.clone(),
            mode: args.events,
            call_deadline: args.call_deadline,
        },
        KubeEvents::new(clients.calling.clone()),
        leadership.clone(),
        Arc::clone(&metrics),
    );
    let shared = Shared {
        args: &args,
        clients: &clients,
        metrics: &metrics,
        health: &health,
        events: &events,
    };
    let result =
        lead_again_and_again(&framework, &shared, &leadership, election.as_mut(), &stop).await;
    health.set_ready("stopping", false);
    events.flush(FLUSH).await;
    if let Some(election) = election {
        election.release(RELEASE).await;
    }
    closing.cancel();
    telemetry.flush(FLUSH).await;
    tracing::info!("stopped");
    result
}

/// Shows that the runtime turns.
async fn beat(health: Health) {
    loop {
        health.beat();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

fn leadership(
    args: &RuntimeArgs,
    name: &str,
    identity: &Identity,
    clients: &Clients,
) -> anyhow::Result<(Leadership, Option<ElectionHandle>)> {
    if !args.leader_elect {
        return Ok((Leadership::always(), None));
    }
    let config = ElectionConfig {
        namespace: args.leader_election_namespace(),
        name: args.leader_election_id(name),
        holder: identity.holder.clone(),
        lease_duration: args.lease_duration,
        renew_deadline: args.lease_renew_deadline,
        retry_period: args.lease_retry_period,
        seed: args.jitter_seed(),
    };
    let (recipe, namespace, lease) = (
        clients.lease.clone(),
        config.namespace.clone(),
        config.name.clone(),
    );
    let (leadership, handle) = elect(config, move || {
        recipe
            .open()
            .map(|client| KubeLeases::new(client, &namespace, &lease))
    })?;
    Ok((leadership, Some(handle)))
}

/// What lives as long as the process.
struct Shared<'a> {
    args: &'a RuntimeArgs,
    clients: &'a Clients,
    metrics: &'a Arc<Metrics>,
    health: &'a Health,
    events: &'a EventSink,
}

impl Shared<'_> {
    /// Where a watch leads.
    fn source(&self) -> Source {
        Source {
            client: self.clients.watching.clone(),
            watches: self.metrics.watches().clone(),
            timeout: self.args.watch_timeout,
        }
    }
}

async fn lead_again_and_again<F: Framework + Clone>(
    framework: &F,
    shared: &Shared<'_>,
    leadership: &Leadership,
    mut election: Option<&mut ElectionHandle>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    shared.health.set_ready("start", true);
    loop {
        shared.metrics.leader(false);
        let groups = GroupKind::ALL.map(GroupKind::as_str);
        for cache in caches::<F>().chain(groups) {
            shared.health.forget(cache);
        }
        let ended = async {
            match election.as_mut() {
                Some(election) => election.ended().await,
                None => std::future::pending().await,
            }
        };
        let term = tokio::select! {
            term = leadership.acquired() => term,
            () = stop.cancelled() => return Ok(()),
            error = ended => return Err(error.into()),
        };
        tracing::info!(term = term.number(), "leading");
        shared.metrics.leader(true);
        lead(framework.clone(), shared, term, stop).await?;
        if stop.is_cancelled() {
            return Ok(());
        }
        tracing::warn!("not leading any more: standing by");
    }
}

/// Everything that a leader runs. All of it ends with the term.
async fn lead<F: Framework>(
    framework: F,
    shared: &Shared<'_>,
    term: Term,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let worker = Arc::new(worker(framework, shared, &term));
    let dispatcher = Arc::new(Dispatcher::default());
    let hub = Arc::new(Hub {
        worker: Arc::clone(&worker),
        dispatcher: Arc::clone(&dispatcher),
        health: shared.health.clone(),
        missing: Mutex::default(),
    });
    for cache in caches::<F>() {
        shared.health.set_ready(cache, false);
    }
    let (mut feeds, mut synced) = feeds(shared, &worker, &hub);
    for kind in worker.settings.gang.kinds() {
        worker.groups.watch(*kind);
    }
    if worker.settings.gang == Provider::Kueue {
        let (sender, receiver) = watch::channel(false);
        synced.push(receiver);
        let (client, groups) = (shared.clients.watching.clone(), Arc::clone(&worker.groups));
        feeds.spawn(feed::group::watch_for_kueue(client, groups, sender));
    }
    let mut wanted = worker.groups.wanted();
    let mut watched = Vec::new();
    synced.extend(watch_groups(
        shared,
        &worker,
        &hub,
        &mut watched,
        &mut feeds,
    ));
    let passes = passes(
        Arc::clone(&worker),
        Arc::clone(&dispatcher),
        shared.health,
        synced,
        shared.args,
        stop,
    );
    let mut passes = std::pin::pin!(passes);
    loop {
        tokio::select! {
            () = &mut passes => break,
            () = term.lost() => break,
            Ok(()) = wanted.changed() => {
                // A run that began under another setting; its pass waits for what is known by itself.
                drop(watch_groups(shared, &worker, &hub, &mut watched, &mut feeds));
            }
            Some(dead) = feeds.join_next() => {
                // A feed never ends by itself; without it the operator would act on old news.
                anyhow::bail!("a watch ended: {dead:?}");
            }
        }
    }
    if tokio::time::timeout(TERM_END, feeds.shutdown())
        .await
        .is_err()
    {
        anyhow::bail!("something of the last term does not end");
    }
    Ok(())
}

/// What the passes of one term need: fresh caches, and a writer that stops with the term.
fn worker<F: Framework>(framework: F, shared: &Shared<'_>, term: &Term) -> Worker<F> {
    let args = shared.args;
    let (pods, services, autoscalers) = (Arc::default(), Arc::default(), Arc::default());
    let (batch_pods, objects) = (Arc::default(), Arc::default());
    let groups: Arc<Groups> = Arc::default();
    let term = term.clone();
    let gate: Gate = Arc::new(move || term.holds());
    let executor = Executor::new::<F>(
        shared.clients.calling.clone(),
        gate,
        args.call_deadline,
        feed::parent::<F>(),
        Children {
            pods: Arc::clone(&pods),
            services: Arc::clone(&services),
            autoscalers: Arc::clone(&autoscalers),
            groups: Arc::clone(&groups),
            objects: Arc::clone(&objects),
        },
    );
    Worker {
        framework,
        jobs: Arc::default(),
        pods,
        services,
        autoscalers,
        batch_pods,
        objects,
        groups,
        executor,
        backoff: Backoff::new(args.backoff_base, args.backoff_cap, args.jitter_seed()),
        events: shared.events.clone(),
        metrics: Arc::clone(shared.metrics),
        settings: Settings {
            deadline: args.pass_deadline,
            status_delay: args.status_delay,
            safety_period: args.safety_period,
            events: args.events,
            rules: args.rules(),
            gang: args.gang(),
        },
        passing: Passing::new(args.jitter_seed()),
    }
}

/// Starts one watch per kind and namespace; without a list of namespaces, one per kind. Also answers what tells when each
/// has been complete once.
fn feeds<F: Framework>(
    shared: &Shared<'_>,
    worker: &Arc<Worker<F>>,
    hub: &Arc<Hub<F>>,
) -> (JoinSet<()>, Vec<watch::Receiver<bool>>) {
    let mut tasks = JoinSet::new();
    let mut synced = Vec::new();
    let parent = feed::parent::<F>();
    for scope in scopes(shared.args) {
        let source = || shared.source();
        for cache in caches::<F>() {
            hub.ready(cache, &scope, false);
        }
        let mut ready = || {
            let (sender, receiver) = watch::channel(false);
            synced.push(receiver);
            sender
        };
        let (jobs, pods, services) = (&worker.jobs, &worker.pods, &worker.services);
        let hub = || Arc::clone(hub);
        tasks.spawn(feed::watch_jobs::<F>(
            source(),
            scope.clone(),
            Arc::clone(jobs),
            hub(),
            ready(),
        ));
        tasks.spawn(feed::watch_pods::<F>(
            source(),
            scope.clone(),
            parent,
            (Arc::clone(pods), Arc::clone(&worker.batch_pods)),
            hub(),
            ready(),
        ));
        if F::AUTOSCALES {
            tasks.spawn(feed::watch_autoscalers(
                source(),
                scope.clone(),
                parent,
                Arc::clone(&worker.autoscalers),
                hub(),
                ready(),
            ));
        }
        for kind in F::OBJECTS {
            tasks.spawn(feed::watch_objects(
                *kind,
                source(),
                scope.clone(),
                parent,
                Arc::clone(&worker.objects),
                hub(),
                ready(),
            ));
        }
        if F::REPLICA_SERVICES {
            tasks.spawn(feed::watch_services(
                source(),
                scope,
                parent,
                Arc::clone(services),
                hub(),
                ready(),
            ));
        }
    }
    (tasks, synced)
}

/// What every watch covers: all namespaces, or each one that is served.
fn scopes(args: &RuntimeArgs) -> Vec<Scope> {
    match args.namespaces() {
        all if all.is_empty() => vec![Scope::new(None)],
        some => some.iter().map(|name| Scope::new(Some(name))).collect(),
    }
}

/// Starts the watches of kinds of groups that are wanted and not `watched` yet; as [`feeds`].
fn watch_groups<F: Framework>(
    shared: &Shared<'_>,
    worker: &Arc<Worker<F>>,
    hub: &Arc<Hub<F>>,
    watched: &mut Vec<GroupKind>,
    tasks: &mut JoinSet<()>,
) -> Vec<watch::Receiver<bool>> {
    let wanted = worker.groups.wanted().borrow().clone();
    let new = wanted.into_iter().filter(|kind| !watched.contains(kind));
    let new: Vec<GroupKind> = new.collect();
    let mut synced = Vec::new();
    for kind in &new {
        for scope in scopes(shared.args) {
            hub.ready(kind.as_str(), &scope, false);
            let (sender, receiver) = watch::channel(false);
            synced.push(receiver);
            tasks.spawn(feed::group::watch_groups(
                shared.source(),
                scope,
                feed::parent::<F>(),
                *kind,
                Arc::clone(&worker.groups),
                Arc::clone(hub),
                sender,
            ));
        }
    }
    watched.extend(new);
    synced
}

/// Waits for complete caches, then runs passes until told to stop. A pass over half a cache would see an empty world.
async fn passes<F: Framework>(
    worker: Arc<Worker<F>>,
    dispatcher: Arc<Dispatcher>,
    health: &Health,
    synced: Vec<watch::Receiver<bool>>,
    args: &RuntimeArgs,
    stop: &CancellationToken,
) {
    for mut receiver in synced {
        tokio::select! {
            _ = receiver.wait_for(|done| *done) => {}
            () = stop.cancelled() => return,
        }
    }
    tracing::info!(
        jobs = worker.jobs.len(),
        pods = worker.pods.len(),
        services = worker.services.len(),
        "caches are complete"
    );
    let gauges = async {
        loop {
            worker.metrics.queue_depth(dispatcher.depth());
            worker.metrics.index_objects("jobs", worker.jobs.len());
            worker.metrics.index_objects("pods", worker.pods.len());
            worker
                .metrics
                .index_objects("services", worker.services.len());
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    let pass = |key: JobKey| {
        let (worker, running) = (Arc::clone(&worker), health.pass_started());
        async move {
            let _running = running;
            worker.pass(key).await
        }
    };
    let run = dispatcher.run(
        args.controller_threads.into(),
        stop.clone(),
        pass,
        |key, error| worker.panicked(key, &error),
    );
    let drained = async {
        stop.cancelled().await;
        tokio::time::sleep(args.shutdown_deadline).await;
    };
    tokio::select! {
        () = run => {}
        () = drained => tracing::warn!("some calls did not end in time"),
        () = gauges => {}
    }
}

/// Brings together what the feeds tell.
struct Hub<F: Framework> {
    worker: Arc<Worker<F>>,
    dispatcher: Arc<Dispatcher>,
    health: Health,
    /// What is not complete or too old; a cache is ready when it is so in every scope.
    missing: Mutex<HashSet<(&'static str, Scope)>>,
}

impl<F: Framework> Hub<F> {
    fn ready(&self, feed: &'static str, scope: &Scope, ready: bool) {
        let mut missing = self.missing.lock();
        if ready {
            missing.remove(&(feed, scope.clone()));
        } else {
            missing.insert((feed, scope.clone()));
        }
        let all = !missing.iter().any(|(other, _)| *other == feed);
        self.health.set_ready(feed, all);
    }
}

impl<F: Framework> Listener for Hub<F> {
    fn wake(&self, key: JobKey) {
        self.dispatcher.wake(key);
    }

    fn freed(&self, key: JobKey) {
        self.worker.freed(&key);
        self.dispatcher.wake(key);
    }

    fn forget(&self, key: &JobKey) {
        self.worker.forget(key);
        self.dispatcher.forget(key);
    }

    fn unreadable(&self, metadata: &ObjectMeta, error: &str) {
        let about = Regarding {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone(),
            api_version: F::Job::api_version(&()).into_owned(),
            kind: F::Job::kind(&()).into_owned(),
        };
        tracing::warn!(
            namespace = about.namespace,
            name = about.name,
            error,
            "a job can't be read and is set aside"
        );
        let text = format!("the job can't be read and is set aside: {error}");
        self.worker
            .events
            .post(&Arc::new(about), Note::warning("InvalidSpec", text));
    }

    fn watching(&self, feed: &'static str, scope: &Scope, error: Option<&watcher::Error>) {
        let Some(error) = error else {
            return self.ready(feed, scope, true);
        };
        // Where only the watch broke, the cache is complete as of then, and the watch is opened again where it was.
        if matches!(error, watcher::Error::InitialListFailed(_)) {
            self.ready(feed, scope, false);
        }
        tracing::warn!(feed, error = %error, "a watch failed; it is opened again");
    }

    fn silent(&self, feed: &'static str, scope: &Scope, silent: bool) {
        self.ready(feed, scope, !silent);
        if silent {
            tracing::warn!(
                feed,
                namespace = scope.namespace(),
                "a watch has been silent for too long"
            );
        } else {
            tracing::info!(feed, namespace = scope.namespace(), "a watch speaks again");
        }
    }
}
