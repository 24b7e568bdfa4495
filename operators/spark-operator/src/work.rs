//! The operator's process: watches, controllers, and their actions.
//!
//! - [`stored`], [`known`]: what is kept in memory, and where it comes from
//! - [`apps`]: the planner of applications, [`act`]: its requests
//! - [`schedules`]: the planner of schedules
//! - [`metrics`]: what is counted

pub mod act;
pub mod apps;
pub mod known;
pub mod metrics;
pub mod schedules;
pub mod stored;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::tz::TimeZone;
use kube::core::{NamespaceResourceScope, Resource};
use training_runtime::controller::Controller;
use training_runtime::feed::{self, jobs::Jobs};
use training_runtime::metrics::Metrics;
use training_runtime::run::{Manager, Operator};
use training_runtime::worker::Worker;

use crate::course::Rules;
use crate::course::seen::Kind;
use crate::schedule::Precision;
use crate::submission::Settings;
use apps::{Applications, Memory};
use known::{CoschedulingGroup, Known, VolcanoGroup};
use metrics::SparkMetrics;
use schedules::Schedules;

/// The Spark operator.
#[derive(Clone, Debug)]
pub struct Spark {
    /// Settings of submissions.
    pub settings: Settings,
    /// Settings of the life cycle.
    pub rules: Rules,
    /// The unit of times in the names of scheduled runs.
    pub precision: Precision,
    /// Metrics of applications.
    pub metrics: SparkMetrics,
    /// The label selector of namespaces to serve in addition to the named ones.
    pub namespace_selector: Option<String>,
    /// Arguments that were given but have no effect.
    pub without_effect: Vec<String>,
}

impl Operator for Spark {
    const NAME: &'static str = "spark-operator";
    const EVENT_SOURCE: &'static str = "spark-application-controller";

    fn introduce(&self) {
        tracing::info!(
            master = self.settings.master,
            batch_schedulers = self.settings.batch.enabled.is_on(),
            "submits without a JVM"
        );
        for flag in &self.without_effect {
            tracing::info!(flag, "accepted, but without effect here");
        }
    }

    fn metrics(&self) -> Metrics {
        let own = Box::new(self.metrics.clone());
        Metrics::process().with_collector(own)
    }

    fn stand_by(&self) {
        self.metrics.stand_by();
    }

    fn lead(&self, manager: &mut Manager<'_>) {
        if let Some(selector) = &self.namespace_selector {
            manager.select_namespaces(selector);
        }
        let caller = manager.caller(Self::NAME);
        let cache = manager.args().job_cache();
        let applications = Applications {
            known: Arc::default(),
            caller: Arc::clone(&caller),
            settings: self.settings.clone(),
            rules: self.rules.clone(),
            counts: self.metrics.clone(),
            memory: Memory::default(),
        };
        let jobs = Arc::new(Jobs::new(Arc::clone(&cache)));
        let apps = manager.worker(applications, jobs, Arc::clone(&caller));
        let schedules = Schedules {
            runs: Arc::default(),
            caller: Arc::clone(&caller),
            local: TimeZone::system(),
            precision: self.precision,
        };
        let schedules = manager.worker(schedules, Arc::new(Jobs::new(cache)), caller);
        self.reconcile_applications(manager, &apps);
        reconcile_schedules(manager, &schedules);
    }
}

impl Spark {
    fn reconcile_applications(&self, manager: &mut Manager<'_>, apps: &Arc<Worker<Applications>>) {
        let controller = manager.controller(Arc::<Worker<Applications>>::clone(apps));
        manager.feed(
            "applications",
            &controller,
            |source, scope, listener, synced| {
                let jobs = Arc::clone(&apps.jobs);
                feed::watch_jobs("applications", source, scope, jobs, listener, synced)
            },
        );
        manager.feed("pods", &controller, |source, scope, listener, synced| {
            known::watch_pods(
                source,
                scope,
                Arc::clone(&apps.planner.known),
                listener,
                synced,
            )
        });
        let known = &apps.planner.known;
        watch::<ConfigMap>(manager, &controller, known, Kind::ConfigMap);
        watch::<Service>(manager, &controller, known, Kind::Service);
        watch::<Ingress>(manager, &controller, known, Kind::Ingress);
        watch::<PersistentVolumeClaim>(manager, &controller, known, Kind::Claim);
        // Watch these kinds only if their feature is on: the operator lacks the rights by default.
        if self.settings.network_policy.is_on() {
            watch::<NetworkPolicy>(manager, &controller, known, Kind::NetworkPolicy);
        }
        if self.settings.disruption_budget.is_on() {
            watch::<PodDisruptionBudget>(manager, &controller, known, Kind::Budget);
        }
        let batch = &self.settings.batch;
        if batch.enabled.is_on() {
            watch_groups::<VolcanoGroup>(manager, &controller, known, Kind::VolcanoGroup);
        }
        if batch.enabled.is_on() && !batch.kube_schedulers.is_empty() {
            let kind = Kind::CoschedulingGroup;
            watch_groups::<CoschedulingGroup>(manager, &controller, known, kind);
        }
    }
}

fn watch<K>(manager: &mut Manager<'_>, controller: &Arc<Controller>, known: &Arc<Known>, kind: Kind)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + 'static,
{
    let feed = kind.plural();
    manager.feed(feed, controller, |source, scope, listener, synced| {
        let known = Arc::clone(known);
        known::watch_objects::<K>(kind, feed, (source, scope), known, listener, synced)
    });
}

fn watch_groups<K>(
    manager: &mut Manager<'_>,
    controller: &Arc<Controller>,
    known: &Arc<Known>,
    kind: Kind,
) where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + 'static,
{
    // Both kinds have the same name, so the feed has the name of the API.
    manager.feed(kind.api(), controller, |source, scope, listener, synced| {
        let known = Arc::clone(known);
        known::watch_groups::<K>(kind, (source, scope), known, listener, synced)
    });
}

fn reconcile_schedules(manager: &mut Manager<'_>, schedules: &Arc<Worker<Schedules>>) {
    let controller = manager.controller(Arc::<Worker<Schedules>>::clone(schedules));
    manager.feed(
        "schedules",
        &controller,
        |source, scope, listener, synced| {
            let jobs = Arc::clone(&schedules.jobs);
            feed::watch_jobs("schedules", source, scope, jobs, listener, synced)
        },
    );
    manager.feed("runs", &controller, |source, scope, listener, synced| {
        let runs = Arc::clone(&schedules.planner.runs);
        schedules::watch_runs((source, scope), runs, listener, synced)
    });
}
