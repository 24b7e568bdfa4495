//! Operators whose jobs consist of replicas: a [`training_core::Framework`] as an [`Operator`].

mod planner;

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use training_core::{GroupKind, Lifecycle, Provider, Rules};

use crate::cli::JobArgs;
use crate::controller::Controller;
use crate::executor::{Children, Executor};
use crate::feed::group::Groups;
use crate::feed::jobs::JobsOf;
use crate::feed::slim::OwnerKind;
use crate::feed::{self, Source};
use crate::key::Scope;
use crate::metrics::Metrics;
use crate::run::{Manager, Operator};
use crate::worker::Worker;

pub use planner::{Settings, TrainingPlanner};

/// The operator of a framework.
pub struct Training<F> {
    /// The framework.
    pub framework: F,
    /// The arguments of such operators.
    pub args: JobArgs,
}

impl<F: Lifecycle + Clone> Operator for Training<F> {
    const NAME: &'static str = F::OPERATOR;
    const EVENT_SOURCE: &'static str = F::EVENT_SOURCE;

    fn validate(&self) -> anyhow::Result<()> {
        Ok(self.args.validate()?)
    }

    fn log_config(&self) {
        tracing::info!(gang = %self.args.gang(), "gang scheduler of new runs");
    }

    fn metrics(&self) -> Metrics {
        let metrics = Metrics::new(F::NAME);
        match F::OWN_METRICS {
            Some((prefix, _)) => metrics.with_own(prefix),
            None => metrics,
        }
    }

    fn lead(&self, manager: &mut Manager<'_>) {
        let worker = self.worker(manager);
        let controller = manager.controller(Arc::<Worker<TrainingPlanner<F>>>::clone(&worker));
        let children = worker.planner.executor.children();
        feeds::<F>(manager, &controller, &worker.jobs, children);
        let gang = &worker.planner.settings.gang;
        for kind in gang.kinds() {
            children.groups.watch(*kind);
        }
        if *gang == Provider::Kueue {
            let (sender, receiver) = watch::channel(false);
            manager.wait_for(receiver);
            let (client, groups) = (
                manager.clients().watching.clone(),
                Arc::clone(&children.groups),
            );
            manager.spawn(feed::group::watch_for_kueue(client, groups, sender));
        }
        let mut groups = GroupFeeds {
            source: manager.source(),
            scopes: manager.scopes(),
            owner_kind: feed::owner_kind::<F>(),
            groups: Arc::clone(&children.groups),
            controller,
            watched: Vec::new(),
            tasks: JoinSet::new(),
        };
        let wanted = children.groups.wanted();
        for synced in groups.open() {
            manager.wait_for(synced);
        }
        manager.spawn(groups.follow(wanted));
    }
}

impl<F: Lifecycle + Clone> Training<F> {
    /// The worker of one term: fresh caches, and a writer that stops with the term.
    fn worker(&self, manager: &Manager<'_>) -> Arc<Worker<TrainingPlanner<F>>> {
        let args = manager.args();
        let caller = manager.caller(F::OPERATOR);
        let children = Children::default();
        let executor = Executor::new::<F>(Arc::clone(&caller), feed::owner_kind::<F>(), children);
        let settings = Settings {
            events: args.events,
            rules: Rules {
                strict: args.strict,
                ..self.args.rules()
            },
            gang: self.args.gang(),
        };
        let (framework, metrics) = (self.framework.clone(), Arc::clone(manager.metrics()));
        let planner = TrainingPlanner::new(framework, executor, metrics, settings);
        let jobs = Arc::new(JobsOf::<F>::new(args.job_cache()));
        manager.worker(planner, jobs, caller)
    }
}

/// Starts the watches of jobs and of their children.
fn feeds<F: Lifecycle>(
    manager: &mut Manager<'_>,
    controller: &Arc<Controller>,
    jobs: &Arc<JobsOf<F>>,
    children: &Children,
) {
    let owner_kind = feed::owner_kind::<F>();
    manager.feed("jobs", controller, |source, scope, listener, synced| {
        let jobs = Arc::clone(jobs);
        feed::watch_jobs("jobs", source, scope, jobs, listener, synced)
    });
    manager.feed("pods", controller, |source, scope, listener, synced| {
        let indices = (Arc::clone(&children.pods), Arc::clone(&children.batch_pods));
        feed::watch_pods::<F>(source, scope, owner_kind, indices, listener, synced)
    });
    if F::AUTOSCALES {
        // A job trains without its autoscaler.
        manager.feed_beside(
            "autoscalers",
            controller,
            |source, scope, listener, synced| {
                let index = Arc::clone(&children.autoscalers);
                index.expect(&scope);
                feed::watch_autoscalers(source, scope, owner_kind, index, listener, synced)
            },
        );
    }
    for kind in F::OBJECTS {
        manager.feed(
            feed::object::feed(*kind),
            controller,
            |source, scope, listener, synced| {
                let objects = Arc::clone(&children.objects);
                feed::watch_objects(*kind, source, scope, owner_kind, objects, listener, synced)
            },
        );
    }
    if F::REPLICA_SERVICES {
        manager.feed("services", controller, |source, scope, listener, synced| {
            let index = Arc::clone(&children.services);
            feed::watch_services(source, scope, owner_kind, index, listener, synced)
        });
    }
}

/// The watches of kinds of groups. Jobs determine which are needed.
struct GroupFeeds {
    source: Source,
    scopes: Vec<Scope>,
    owner_kind: OwnerKind,
    groups: Arc<Groups>,
    controller: Arc<Controller>,
    watched: Vec<GroupKind>,
    tasks: JoinSet<()>,
}

impl GroupFeeds {
    /// Starts the missing watches. Returns receivers that turn true once each has synced.
    fn open(&mut self) -> Vec<watch::Receiver<bool>> {
        let wanted = self.groups.wanted().borrow().clone();
        let new = wanted.into_iter().filter(|k| !self.watched.contains(k));
        let new: Vec<GroupKind> = new.collect();
        let mut synced = Vec::new();
        for kind in &new {
            for scope in &self.scopes {
                self.controller.ready(kind.as_str(), scope, false);
                let (sender, receiver) = watch::channel(false);
                synced.push(receiver);
                self.tasks.spawn(feed::group::watch_groups(
                    self.source.clone(),
                    scope.clone(),
                    self.owner_kind,
                    *kind,
                    Arc::clone(&self.groups),
                    Arc::clone(&self.controller),
                    sender,
                ));
            }
        }
        self.watched.extend(new);
        synced
    }

    /// Opens watches as they are needed; ends if one of them ends.
    async fn follow(mut self, mut wanted: watch::Receiver<Vec<GroupKind>>) {
        loop {
            tokio::select! {
                // For a run that began under another setting; its reconcile itself waits for the availability.
                Ok(()) = wanted.changed() => drop(self.open()),
                Some(dead) = self.tasks.join_next() => {
                    let error = dead.err().map_or_else(String::new, |e| e.to_string());
                    tracing::error!(error, "a watch of groups ended");
                    return;
                }
            }
        }
    }
}
