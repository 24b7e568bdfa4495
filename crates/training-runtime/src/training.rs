//! Operators whose jobs are made of replicas: a [`training_core::Framework`] as an [`Operator`].

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::core::ObjectMeta;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use training_core::{GroupKind, Lifecycle, Note, Provider, Rules};

use crate::cli::JobArgs;
use crate::controller::{Controller, Reconciler, panicked};
use crate::events::Regarding;
use crate::executor::{Children, Executor};
use crate::feed::group::Groups;
use crate::feed::jobs::JobsOf;
use crate::feed::slim::Parent;
use crate::feed::{self, Source};
use crate::key::{JobKey, Scope};
use crate::metrics::Metrics;
use crate::pass::{Passing, Settings, Worker};
use crate::retry::Backoff;
use crate::run::{Manager, Operator};

/// The operator of a framework.
pub struct Training<F> {
    /// The framework.
    pub framework: F,
    /// The arguments of operators of its sort.
    pub args: JobArgs,
}

impl<F: Lifecycle + Clone> Operator for Training<F> {
    const NAME: &'static str = F::OPERATOR;
    const EVENT_SOURCE: &'static str = F::EVENT_SOURCE;

    fn validate(&self) -> anyhow::Result<()> {
        Ok(self.args.validate()?)
    }

    fn introduce(&self) {
        tracing::info!(gang = %self.args.gang(), "runs that begin now are scheduled so");
    }

    fn metrics(&self) -> Metrics {
        let metrics = Metrics::new(F::NAME);
        match F::OWN_METRICS {
            Some((prefix, _)) => metrics.with_own(prefix),
            None => metrics,
        }
    }

    fn lead(&self, manager: &mut Manager<'_>) {
        let worker = Arc::new(self.worker(manager));
        let controller = manager.controller(Arc::<Worker<F>>::clone(&worker));
        feeds(manager, &controller, &worker);
        for kind in worker.settings.gang.kinds() {
            worker.groups.watch(*kind);
        }
        if worker.settings.gang == Provider::Kueue {
            let (sender, receiver) = watch::channel(false);
            manager.wait_for(receiver);
            let (client, groups) = (
                manager.clients().watching.clone(),
                Arc::clone(&worker.groups),
            );
            manager.spawn(feed::group::watch_for_kueue(client, groups, sender));
        }
        let mut groups = GroupFeeds {
            source: manager.source(),
            scopes: manager.scopes(),
            parent: feed::parent::<F>(),
            groups: Arc::clone(&worker.groups),
            controller,
            watched: Vec::new(),
            tasks: JoinSet::new(),
        };
        let wanted = worker.groups.wanted();
        for synced in groups.open() {
            manager.wait_for(synced);
        }
        manager.spawn(groups.follow(wanted));
    }
}

impl<F: Lifecycle + Clone> Training<F> {
    /// What the passes of one term need: fresh caches, and a writer that stops with the term.
    fn worker(&self, manager: &Manager<'_>) -> Worker<F> {
        let args = manager.args();
        let children = Children {
            pods: Arc::default(),
            services: Arc::default(),
            autoscalers: Arc::default(),
            groups: Arc::default(),
            objects: Arc::default(),
            batch_pods: Arc::default(),
        };
        let executor = Executor::new::<F>(
            manager.clients().calling.clone(),
            manager.gate(),
            args.call_deadline,
            feed::parent::<F>(),
            children.clone(),
        );
        Worker {
            framework: self.framework.clone(),
            jobs: Arc::new(JobsOf::<F>::new(args.job_cache())),
            pods: children.pods,
            services: children.services,
            autoscalers: children.autoscalers,
            batch_pods: children.batch_pods,
            objects: children.objects,
            groups: children.groups,
            executor,
            backoff: Backoff::new(args.backoff_base, args.backoff_cap, args.jitter_seed()),
            events: manager.events().clone(),
            metrics: Arc::clone(manager.metrics()),
            settings: Settings {
                deadline: args.pass_deadline,
                status_delay: args.status_delay,
                safety_period: args.safety_period,
                events: args.events,
                rules: Rules {
                    strict: args.strict,
                    ..self.args.rules()
                },
                gang: self.args.gang(),
            },
            passing: Passing::new(args.jitter_seed()),
        }
    }
}

/// Starts the watches of jobs and of their children.
fn feeds<F: Lifecycle>(
    manager: &mut Manager<'_>,
    controller: &Arc<Controller>,
    worker: &Arc<Worker<F>>,
) {
    let parent = feed::parent::<F>();
    manager.feed("jobs", controller, |source, scope, listener, synced| {
        let jobs = Arc::clone(&worker.jobs);
        feed::watch_jobs("jobs", source, scope, jobs, listener, synced)
    });
    manager.feed("pods", controller, |source, scope, listener, synced| {
        let indices = (Arc::clone(&worker.pods), Arc::clone(&worker.batch_pods));
        feed::watch_pods::<F>(source, scope, parent, indices, listener, synced)
    });
    if F::AUTOSCALES {
        // A job trains without its autoscaler.
        manager.feed_beside(
            "autoscalers",
            controller,
            |source, scope, listener, synced| {
                let index = Arc::clone(&worker.autoscalers);
                index.expect(&scope);
                feed::watch_autoscalers(source, scope, parent, index, listener, synced)
            },
        );
    }
    for kind in F::OBJECTS {
        manager.feed(
            feed::object::feed(*kind),
            controller,
            |source, scope, listener, synced| {
                let objects = Arc::clone(&worker.objects);
                feed::watch_objects(*kind, source, scope, parent, objects, listener, synced)
            },
        );
    }
    if F::REPLICA_SERVICES {
        manager.feed("services", controller, |source, scope, listener, synced| {
            let index = Arc::clone(&worker.services);
            feed::watch_services(source, scope, parent, index, listener, synced)
        });
    }
}

/// The watches of kinds of groups. Which are wanted is known as jobs come.
struct GroupFeeds {
    source: Source,
    scopes: Vec<Scope>,
    parent: Parent,
    groups: Arc<Groups>,
    controller: Arc<Controller>,
    watched: Vec<GroupKind>,
    tasks: JoinSet<()>,
}

impl GroupFeeds {
    /// Starts the watches that are wanted and not open yet. Answers what tells when each has been complete once.
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
                    self.parent,
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

    /// Opens more as they are wanted; ends if one of them ends.
    async fn follow(mut self, mut wanted: watch::Receiver<Vec<GroupKind>>) {
        loop {
            tokio::select! {
                // A run that began under another setting; its pass waits for what is known by itself.
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

impl<F: Lifecycle> Reconciler for Worker<F> {
    fn pass(self: Arc<Self>, key: JobKey) -> BoxFuture<'static, Option<Instant>> {
        Box::pin(Worker::pass(self, key))
    }

    fn panicked(&self, key: &JobKey, error: &JoinError) -> Instant {
        panicked(
            key,
            error,
            &self.jobs,
            &self.backoff,
            &self.metrics,
            &self.events,
        )
    }

    fn knows(&self, key: &JobKey) -> bool {
        self.jobs.contains(key)
    }

    fn forget(&self, key: &JobKey) {
        Worker::forget(self, key);
    }

    fn freed(&self, key: &JobKey) {
        Worker::freed(self, key);
    }

    fn unreadable(&self, metadata: &ObjectMeta, error: &str) {
        let about = Regarding::of::<F::Job>(metadata);
        tracing::warn!(
            namespace = about.namespace,
            name = about.name,
            error,
            "a job can't be read and is set aside"
        );
        let text = format!("the job can't be read and is set aside: {error}");
        let note = Note::warning("InvalidSpec", text);
        self.events.post(&Arc::new(about), note);
    }

    fn held(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("jobs", self.jobs.len()),
            ("jobs_not_cached", self.jobs.away()),
            ("jobs_waiting", self.jobs.waiting()),
            ("pods", self.pods.len()),
            ("services", self.services.len()),
        ]
    }
}
