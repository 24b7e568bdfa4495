//! The operator's process: what is watched, looked at and carried out.
//!
//! - [`stored`], [`known`]: what is kept in memory, and where it comes from
//! - [`apps`]: looks at applications, [`act`]: what they lead to
//! - [`schedules`]: looks at schedules
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
use parking_lot::Mutex;
use training_runtime::caller::Caller;
use training_runtime::controller::Controller;
use training_runtime::feed::{self, jobs::Jobs};
use training_runtime::metrics::Metrics;
use training_runtime::retry::{Backoff, Jitter};
use training_runtime::run::{Manager, Operator};

use crate::course::Rules;
use crate::course::seen::Kind;
use crate::schedule::Precision;
use crate::submission::Settings;
use apps::{Apps, Passing, Times};
use known::{CoschedulingGroup, Known, VolcanoGroup};
use metrics::SparkMetrics;
use schedules::Schedules;

/// The Spark operator.
#[derive(Clone, Debug)]
pub struct Spark {
    /// How submissions are made.
    pub settings: Settings,
    /// How applications are looked after.
    pub rules: Rules,
    /// What the names of scheduled runs are counted in.
    pub precision: Precision,
    /// What is counted.
    pub metrics: SparkMetrics,
    /// Namespaces with these labels are served beside those that are named.
    pub namespace_selector: Option<String>,
    /// Arguments that were given although they change nothing.
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
        let args = manager.args();
        let times = Times {
            deadline: args.pass_deadline,
            status_delay: args.status_delay,
            safety_period: args.safety_period,
        };
        let backoff = || Backoff::new(args.backoff_base, args.backoff_cap, args.jitter_seed());
        let caller = Arc::new(Caller::new(
            manager.clients().calling.clone(),
            manager.gate(),
            args.call_deadline,
            Self::NAME,
        ));
        let cache = args.job_cache();
        let apps = Arc::new(Apps {
            jobs: Arc::new(Jobs::new(Arc::clone(&cache))),
            known: Arc::default(),
            caller: Arc::clone(&caller),
            settings: self.settings.clone(),
            rules: self.rules.clone(),
            backoff: backoff(),
            events: manager.events().clone(),
            metrics: Arc::clone(manager.metrics()),
            counts: self.metrics.clone(),
            times,
            passing: Passing::new(args.jitter_seed()),
        });
        let schedules = Arc::new(Schedules {
            jobs: Arc::new(Jobs::new(cache)),
            runs: Arc::default(),
            caller,
            local: TimeZone::system(),
            precision: self.precision,
            backoff: backoff(),
            events: manager.events().clone(),
            metrics: Arc::clone(manager.metrics()),
            times,
            jitter: Mutex::new(Jitter::new(args.jitter_seed())),
        });
        self.look_after_applications(manager, &apps);
        look_after_schedules(manager, &schedules);
    }
}

impl Spark {
    fn look_after_applications(&self, manager: &mut Manager<'_>, apps: &Arc<Apps>) {
        let controller = manager.controller(Arc::<Apps>::clone(apps));
        manager.feed(
            "applications",
            &controller,
            |source, scope, listener, synced| {
                let jobs = Arc::clone(&apps.jobs);
                feed::watch_jobs("applications", source, scope, jobs, listener, synced)
            },
        );
        manager.feed("pods", &controller, |source, scope, listener, synced| {
            known::watch_pods(source, scope, Arc::clone(&apps.known), listener, synced)
        });
        let known = &apps.known;
        watch::<ConfigMap>(manager, &controller, known, Kind::ConfigMap);
        watch::<Service>(manager, &controller, known, Kind::Service);
        watch::<Ingress>(manager, &controller, known, Kind::Ingress);
        watch::<PersistentVolumeClaim>(manager, &controller, known, Kind::Claim);
        // Rights that operators don't have by default go with what they are for.
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
        known::watch_things::<K>(kind, feed, (source, scope), known, listener, synced)
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
    // Both are called the same; their API tells them apart.
    manager.feed(kind.api(), controller, |source, scope, listener, synced| {
        let known = Arc::clone(known);
        known::watch_groups::<K>(kind, (source, scope), known, listener, synced)
    });
}

fn look_after_schedules(manager: &mut Manager<'_>, schedules: &Arc<Schedules>) {
    let controller = manager.controller(Arc::<Schedules>::clone(schedules));
    manager.feed(
        "schedules",
        &controller,
        |source, scope, listener, synced| {
            let jobs = Arc::clone(&schedules.jobs);
            feed::watch_jobs("schedules", source, scope, jobs, listener, synced)
        },
    );
    manager.feed("runs", &controller, |source, scope, listener, synced| {
        let runs = Arc::clone(&schedules.runs);
        schedules::watch_runs((source, scope), runs, listener, synced)
    });
}
