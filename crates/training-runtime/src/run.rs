//! Runs an operator from start to shutdown.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::admin::Health;
use crate::caller::{Caller, MayWrite};
use crate::cli::RuntimeArgs;
use crate::client::{Clients, Identity};
use crate::controller::{Controller, Reconciler};
use crate::events::{EventConfig, EventSink, KubeEvents};
use crate::feed::Source;
use crate::feed::jobs::Jobs;
use crate::feed::namespaces::{self, Namespaces, watch_namespaces};
use crate::key::Scope;
use crate::leader::{ElectionConfig, ElectionHandle, KubeLeases, Leadership, Term, elect};
use crate::metrics::Metrics;
use crate::retry::{Backoff, Jitter};
use crate::worker::{Context, Planner, Times, Worker};
use crate::{admin, client, shutdown, telemetry};

/// The source revision of this binary, for logs, audit logs and the lease.
const BUILD: &str = match option_env!("TRAINYARD_BUILD") {
    Some(build) => build,
    None => "dev",
};

/// Time limit for flushing events, and again for traces, at shutdown. With [`RELEASE`] and the drain of reconciles (eight seconds by
/// default) the process ends within ten seconds of a signal.
const FLUSH: Duration = Duration::from_millis(400);
/// Time limit for releasing the lease.
const RELEASE: Duration = Duration::from_secs(1);
/// Time limit for the tasks of a lost term. After it the process exits.
const TERM_END: Duration = Duration::from_secs(5);

/// What distinguishes one operator's process from another.
pub trait Operator: Send + Sync + 'static {
    /// Name of the binary, its image, Deployment and lease, and its field manager, e.g. `pytorch-operator`.
    const NAME: &'static str;
    /// The source component of its events.
    const EVENT_SOURCE: &'static str;

    /// Rejects invalid arguments.
    ///
    /// # Errors
    /// Names the argument and the values it accepts. The process exits with it.
    fn validate(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Logs the configuration.
    fn log_config(&self) {}

    /// Creates its metrics.
    fn metrics(&self) -> Metrics;

    /// Called while the process does not lead: at start and after it loses the lease.
    fn stand_by(&self) {}

    /// Starts every controller with its feeds when the process becomes leader. All of them end with the term.
    fn lead(&self, manager: &mut Manager<'_>);
}

/// Runs an operator until the process is asked to stop.
///
/// # Errors
/// If arguments contradict each other, the API server's address is invalid, a port is taken, or the election ends by itself.
pub async fn run<O: Operator>(operator: O, args: RuntimeArgs) -> anyhow::Result<()> {
    args.validate()?;
    operator.validate()?;
    let stop = shutdown::listen()?;
    let name = O::NAME;
    let telemetry = telemetry::init(name, args.log_filter(), args.log_format(), args.collector())?;
    let identity = Identity::new(name, env!("CARGO_PKG_VERSION"), BUILD);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        build = BUILD,
        identity = identity.holder,
        "starting"
    );
    operator.log_config();
    for flag in args.without_effect() {
        tracing::info!(flag, "accepted, but without effect here");
    }
    let metrics = Arc::new(operator.metrics());
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
    let text = |address: Option<SocketAddr>| address.map_or("off".to_owned(), |a| a.to_string());
    let (probes, scraped) = (text(addresses.probes), text(addresses.metrics));
    tracing::info!(probes, metrics = scraped, "listening");
    let _heartbeats = AbortOnDropHandle::new(tokio::spawn(heartbeats(health.clone())));
    let clients = client::connect(&args, &identity, &metrics).await?;
    let (leadership, mut election) = leadership(&args, name, &identity, &clients)?;
    let events = EventSink::spawn(
        &EventConfig {
            component: O::EVENT_SOURCE.to_owned(),
            mode: args.events,
            call_deadline: args.call_deadline,
        },
        &KubeEvents::new(clients.calling.clone()),
        &leadership,
        Arc::clone(&metrics),
    );
    let (stopping, held) = (stop.clone(), events.clone());
    let _end_holds = AbortOnDropHandle::new(tokio::spawn(async move {
        stopping.cancelled().await;
        held.end_holds();
    }));
    let shared = Shared {
        args: &args,
        clients: &clients,
        metrics: &metrics,
        health: &health,
        events: &events,
    };
    let result = lead_repeatedly(&operator, &shared, &leadership, election.as_mut(), &stop).await;
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

/// Records heartbeats of the runtime for the liveness probe.
async fn heartbeats(health: Health) {
    loop {
        health.heartbeat();
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

/// State that lives as long as the process.
struct Shared<'a> {
    args: &'a RuntimeArgs,
    clients: &'a Clients,
    metrics: &'a Arc<Metrics>,
    health: &'a Health,
    events: &'a EventSink,
}

/// Builds the controllers and feeds of one term of leadership.
pub struct Manager<'a> {
    shared: &'a Shared<'a>,
    term: Term,
    controllers: Vec<Arc<Controller>>,
    feeds: JoinSet<()>,
    synced: Vec<(Scope, watch::Receiver<bool>)>,
    served: Option<Arc<Namespaces>>,
}

impl Manager<'_> {
    /// Returns the arguments that all operators share.
    pub fn args(&self) -> &RuntimeArgs {
        self.shared.args
    }

    /// Returns the connections to the API server.
    pub fn clients(&self) -> &Clients {
        self.shared.clients
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.shared.metrics
    }

    /// Returns the event recorder.
    pub fn events(&self) -> &EventSink {
        self.shared.events
    }

    /// Creates the caller of an operator. It sends nothing after the term.
    pub fn caller(&self, operator: &str) -> Arc<Caller> {
        let client = self.clients().calling.clone();
        let deadline = self.args().call_deadline;
        Arc::new(Caller::new(client, self.may_write(), deadline, operator))
    }

    /// Creates the worker of this term for the objects of one kind.
    pub fn worker<P: Planner>(
        &self,
        planner: P,
        jobs: Arc<Jobs<P::Object>>,
        caller: Arc<Caller>,
    ) -> Arc<Worker<P>> {
        let args = self.args();
        let seed = args.jitter_seed();
        let context = Context {
            caller,
            events: self.events().clone(),
            metrics: Arc::clone(self.metrics()),
            backoff: Backoff::new(args.backoff_base, args.backoff_cap, seed),
            times: Times {
                deadline: args.pass_deadline,
                status_delay: args.status_delay,
                safety_period: args.safety_period,
            },
            jitter: Mutex::new(Jitter::new(seed)),
        };
        Arc::new(Worker::new(planner, jobs, context))
    }

    /// Returns whether this process may write, for the calls of this term.
    pub fn may_write(&self) -> MayWrite {
        let term = self.term.clone();
        Arc::new(move || term.may_write())
    }

    /// Returns the connection and settings of a watch.
    pub fn source(&self) -> Source {
        Source {
            client: self.shared.clients.watching.clone(),
            watches: self.shared.metrics.watches().clone(),
            timeout: self.shared.args.watch_timeout,
        }
    }

    /// Serves namespaces that match a label selector as well as the named ones. Call it before you create a controller or a feed: every
    /// watch then covers all namespaces, and objects in unserved ones wait until their namespace is served.
    pub fn select_namespaces(&mut self, selector: &str) {
        let named = self.shared.args.namespaces();
        self.served = Some(Arc::new(Namespaces::new(&named, selector)));
    }

    /// Starts the watch on the labels of namespaces.
    fn follow_namespaces(&mut self) {
        let (Some(served), Some(first)) = (&self.served, self.controllers.first()) else {
            return;
        };
        first.ready(namespaces::FEED, &Scope::new(None), false);
        let (sender, receiver) = watch::channel(false);
        let (controllers, listener) = (self.controllers.clone(), Arc::clone(first));
        let (source, served) = (self.source(), Arc::clone(served));
        self.synced.push((Scope::new(None), receiver));
        self.feeds.spawn(async move {
            let serve = |namespace: &str| {
                for controller in &controllers {
                    controller.serve(namespace);
                }
            };
            watch_namespaces(source, served, listener, serve, sender).await;
        });
    }

    /// Returns the scopes of every watch: all namespaces, or each served namespace.
    pub fn scopes(&self) -> Vec<Scope> {
        match self.shared.args.namespaces() {
            all if all.is_empty() || self.served.is_some() => vec![Scope::new(None)],
            some => some.iter().map(|name| Scope::new(Some(name))).collect(),
        }
    }

    /// Creates a controller. It reconciles once every feed has synced; in a namespace with watches of its own, once the feeds of that
    /// namespace have.
    pub fn controller(&mut self, reconciler: Arc<dyn Reconciler>) -> Arc<Controller> {
        let (health, served) = (self.shared.health.clone(), self.served.clone());
        let controller = Arc::new(Controller::new(reconciler, health, served));
        self.controllers.push(Arc::clone(&controller));
        controller
    }

    /// Starts a feed of a controller in every scope. Reconciles wait until it has synced.
    pub fn feed<Fut>(
        &mut self,
        cache: &'static str,
        controller: &Arc<Controller>,
        start: impl Fn(Source, Scope, Arc<Controller>, watch::Sender<bool>) -> Fut,
    ) where
        Fut: Future<Output = ()> + Send + 'static,
    {
        for scope in self.scopes() {
            controller.hold(&scope);
        }
        let synced = self.feed_beside(cache, controller, start);
        self.synced.extend(synced);
    }

    /// Starts a feed that no reconcile waits for. Returns a receiver per scope that turns true once the cache has synced.
    pub fn feed_beside<Fut>(
        &mut self,
        cache: &'static str,
        controller: &Arc<Controller>,
        start: impl Fn(Source, Scope, Arc<Controller>, watch::Sender<bool>) -> Fut,
    ) -> Vec<(Scope, watch::Receiver<bool>)>
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut synced = Vec::new();
        for scope in self.scopes() {
            controller.ready(cache, &scope, false);
            let (sender, receiver) = watch::channel(false);
            synced.push((scope.clone(), receiver));
            let feed = start(self.source(), scope, Arc::clone(controller), sender);
            self.feeds.spawn(feed);
        }
        synced
    }

    /// Starts another task that lasts as long as the term. The operator ends if the task does.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.feeds.spawn(task);
    }

    /// Delays all reconciles until `synced` turns true.
    pub fn wait_for(&mut self, synced: watch::Receiver<bool>) {
        self.synced.push((Scope::new(None), synced));
    }
}

async fn lead_repeatedly<O: Operator>(
    operator: &O,
    shared: &Shared<'_>,
    leadership: &Leadership,
    mut election: Option<&mut ElectionHandle>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    shared.health.set_ready("start", true);
    loop {
        shared.metrics.leader(false);
        shared.metrics.phases(Vec::new());
        shared.metrics.queue_depth(0);
        operator.stand_by();
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
        let mut manager = Manager {
            shared,
            term,
            controllers: Vec::new(),
            feeds: JoinSet::new(),
            synced: Vec::new(),
            served: None,
        };
        operator.lead(&mut manager);
        manager.follow_namespaces();
        lead(manager, stop).await?;
        if stop.is_cancelled() {
            return Ok(());
        }
        tracing::warn!("no longer leading; standing by");
    }
}

/// Runs a leader's controllers until the term ends.
async fn lead(manager: Manager<'_>, stop: &CancellationToken) -> anyhow::Result<()> {
    let Manager {
        shared,
        term,
        controllers,
        mut feeds,
        synced,
        served: _,
    } = manager;
    tokio::select! {
        () = reconciles(&controllers, shared, synced, stop) => {}
        () = term.lost() => {}
        Some(dead) = feeds.join_next() => {
            // A feed never ends by itself; without it the operator would act on stale data.
            let error = dead.err().map_or_else(|| "it returned".to_owned(), |e| e.to_string());
            anyhow::bail!("a watch ended: {error}");
        }
    }
    if tokio::time::timeout(TERM_END, feeds.shutdown())
        .await
        .is_err()
    {
        anyhow::bail!("a task of the last term does not end");
    }
    for controller in &controllers {
        controller.close();
    }
    Ok(())
}

/// Waits until the caches have synced, then reconciles until the process stops: a half-filled cache would show existing objects as
/// missing. Namespaces with watches of their own sync one by one, so that an unreadable namespace does not hold up the others.
async fn reconciles(
    controllers: &[Arc<Controller>],
    shared: &Shared<'_>,
    synced: Vec<(Scope, watch::Receiver<bool>)>,
    stop: &CancellationToken,
) {
    let mut alone: HashMap<Scope, Vec<watch::Receiver<bool>>> = HashMap::new();
    for (scope, mut receiver) in synced {
        if scope.namespace().is_some() {
            alone.entry(scope).or_default().push(receiver);
            continue;
        }
        tokio::select! {
            _ = receiver.wait_for(|done| *done) => {}
            () = stop.cancelled() => return,
        }
    }
    let opening = join_all(alone.into_iter().map(async |(scope, receivers)| {
        for mut receiver in receivers {
            // The term ends if a feed does.
            let _ = receiver.wait_for(|done| *done).await;
        }
        tracing::info!(namespace = scope.namespace(), "caches are complete");
        for controller in controllers {
            controller.release(&scope);
        }
    }));
    let opened = async {
        opening.await;
        std::future::pending::<()>().await;
    };
    let held = || controllers.iter().flat_map(|c| c.reconciler.held());
    for (resource, objects) in held() {
        tracing::info!(resource, objects, "caches are complete");
    }
    let gauges = async {
        loop {
            let waiting = controllers.iter().map(|c| c.dispatcher.depth());
            shared.metrics.queue_depth(waiting.sum());
            for (what, objects) in held() {
                shared.metrics.index_objects(what, objects);
            }
            let phases = controllers.iter().map(|c| c.reconciler.phases());
            shared.metrics.phases(phases.collect());
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    let runs = controllers.iter().map(|controller| {
        let reconciler = &controller.reconciler;
        let reconcile = |key| {
            let complete = controller.is_complete(&key);
            let admitted = complete && controller.admits(&key);
            let (reconciler, running) = (Arc::clone(reconciler), shared.health.reconcile_started());
            async move {
                let _running = running;
                if !complete {
                    // Keep the state of its children that is cached so far.
                    return None;
                }
                if !admitted {
                    // Its backoff and refusals are from when its namespace was served.
                    reconciler.forget(&key);
                    return None;
                }
                reconciler.reconcile(key).await
            }
        };
        controller.dispatcher.run(
            shared.args.controller_threads.into(),
            stop.clone(),
            reconcile,
            |key, error| reconciler.panicked(key, &error),
        )
    });
    let drained = async {
        stop.cancelled().await;
        tokio::time::sleep(shared.args.shutdown_deadline).await;
    };
    tokio::select! {
        _ = join_all(runs) => {}
        () = drained => tracing::warn!("some calls did not end in time"),
        () = gauges => {}
        () = opened => {}
    }
}
