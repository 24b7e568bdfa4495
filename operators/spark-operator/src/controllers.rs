//! The operator's process: watches, controllers, and their actions.
//!
//! - [`stored`], [`cache`]: what is kept in memory, and where it comes from
//! - [`applications`]: the planner of applications, [`execute`]: its requests
//! - [`schedules`]: the planner of schedules
//! - [`metrics`]: what is counted

pub mod applications;
pub mod cache;
pub mod execute;
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

use crate::lifecycle::Rules;
use crate::lifecycle::observed::Kind;
use crate::schedule::Precision;
use crate::submission::Settings;
use applications::{Applications, ProcessState};
use cache::{Cache, CoschedulingGroup, VolcanoGroup};
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

    fn log_config(&self) {
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
        let job_cache = manager.args().job_cache();
        let applications = Applications {
            cache: Arc::default(),
            caller: Arc::clone(&caller),
            settings: self.settings.clone(),
            rules: self.rules.clone(),
            counts: self.metrics.clone(),
            state: ProcessState::default(),
        };
        let jobs = Arc::new(Jobs::new(Arc::clone(&job_cache)));
        let apps = manager.worker(applications, jobs, Arc::clone(&caller));
        let schedules = Schedules {
            runs: Arc::default(),
            caller: Arc::clone(&caller),
            local: TimeZone::system(),
            precision: self.precision,
        };
        let schedules = manager.worker(schedules, Arc::new(Jobs::new(job_cache)), caller);
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
            cache::watch_pods(
                source,
                scope,
                Arc::clone(&apps.planner.cache),
                listener,
                synced,
            )
        });
        let cache = &apps.planner.cache;
        watch::<ConfigMap>(manager, &controller, cache, Kind::ConfigMap);
        watch::<Service>(manager, &controller, cache, Kind::Service);
        watch::<Ingress>(manager, &controller, cache, Kind::Ingress);
        watch::<PersistentVolumeClaim>(manager, &controller, cache, Kind::Claim);
        // Watch these kinds only if their feature is on: the operator lacks the rights by default.
        if self.settings.network_policy.is_on() {
            watch::<NetworkPolicy>(manager, &controller, cache, Kind::NetworkPolicy);
        }
        if self.settings.disruption_budget.is_on() {
            watch::<PodDisruptionBudget>(manager, &controller, cache, Kind::Budget);
        }
        let batch = &self.settings.batch;
        if batch.enabled.is_on() {
            watch_groups::<VolcanoGroup>(manager, &controller, cache, Kind::VolcanoGroup);
        }
        if batch.enabled.is_on() && !batch.kube_schedulers.is_empty() {
            let kind = Kind::CoschedulingGroup;
            watch_groups::<CoschedulingGroup>(manager, &controller, cache, kind);
        }
    }
}

fn watch<K>(manager: &mut Manager<'_>, controller: &Arc<Controller>, cache: &Arc<Cache>, kind: Kind)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + 'static,
{
    let feed = kind.plural();
    manager.feed(feed, controller, |source, scope, listener, synced| {
        let cache = Arc::clone(cache);
        cache::watch_objects::<K>(kind, feed, (source, scope), cache, listener, synced)
    });
}

fn watch_groups<K>(
    manager: &mut Manager<'_>,
    controller: &Arc<Controller>,
    cache: &Arc<Cache>,
    kind: Kind,
) where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + 'static,
{
    // Both kinds have the same name, so the feed has the name of the API.
    manager.feed(kind.api(), controller, |source, scope, listener, synced| {
        let cache = Arc::clone(cache);
        cache::watch_groups::<K>(kind, (source, scope), cache, listener, synced)
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
