//! What is made for one run of an application, instead of running `spark-submit`.
//!
//! [`submit`] is pure: the same application and [`Inputs`] make the same objects, byte for byte. It
//!
//! 1. fills in defaults and refuses what can't run ([`check`]),
//! 2. puts the Spark properties together ([`conf`]), with what a batch scheduler ([`batch`]) and metrics ([`metrics`]) add,
//! 3. makes the driver's pod ([`driver`]), which is its template, then Spark's part ([`volume`], [`template`]), then what the spec
//!    says of the role ([`overlay`]),
//! 4. makes the template that the driver makes executors from ([`executor`]),
//! 5. makes the ConfigMaps, the Services and the Ingresses ([`object`], [`web`]).
//!
//! Everything but the pod is owned by the application and can be made first: the pod is the commit point. Its name is the same for
//! every submission; all other names change with the submission's id, because a driver that ends removes the objects of its run.

pub mod batch;
pub mod check;
pub mod conf;
mod cx;
pub mod driver;
pub mod executor;
mod ingress;
pub mod metrics;
pub mod object;
pub mod overlay;
mod properties;
pub mod settings;
pub mod template;
pub mod volume;
pub mod web;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use training_core::Note;

use crate::api::SparkApplication;
use crate::memory::Language;
use crate::version::SparkVersion;
use crate::{defaults, names};

pub use batch::PodGroup;
pub use cx::{Cx, Inputs, Refusal};
pub use settings::{BatchSettings, DriverIngress, IngressLimits, Settings, Switch, WebSettings};

/// What is made for one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// The id that Spark knows the run by.
    pub app_id: String,
    /// What the driver is told, before it is escaped.
    pub properties: BTreeMap<String, String>,
    /// The driver.
    pub driver: Pod,
    /// [`Submission::properties`] as a file. Immutable; its name follows its content.
    pub conf: ConfigMap,
    /// What the driver makes executors from. It may be changed while the driver runs.
    pub executor_template: ConfigMap,
    /// Configuration of metrics and of their exporter.
    pub metrics: Option<ConfigMap>,
    /// By which executors find the driver.
    pub driver_service: Service,
    /// The web UI's.
    pub ui_service: Option<Service>,
    /// The web UI's.
    pub ui_ingress: Option<Ingress>,
    /// The URL of the web UI, where it has an Ingress.
    pub ui_url: Option<String>,
    /// More Services of the driver, with their Ingresses.
    pub driver_ingresses: Vec<(Service, Option<Ingress>)>,
    /// Volumes that are made for the driver.
    pub claims: Vec<PersistentVolumeClaim>,
    /// What keeps strangers from executors.
    pub network_policy: Option<NetworkPolicy>,
    /// What keeps the driver from being evicted.
    pub disruption_budget: Option<PodDisruptionBudget>,
    /// The groups of a batch scheduler. They come before the pod.
    pub groups: Vec<PodGroup>,
    /// The batch scheduler, where there is one.
    pub batch_scheduler: Option<String>,
    /// What is accepted and has no effect, or another one than it looks.
    pub notes: Vec<Note>,
}

/// Everything that is made for a run of this application.
///
/// While a driver runs, the same call with its submission's id tells what its executors are to be made from now
/// ([`Submission::executor_template`]), and how its Services and Ingresses are to look.
///
/// ```
/// use spark_operator::{Inputs, Settings, SparkApplication, digest, submit};
///
/// let stored = serde_json::json!({
///     "apiVersion": "sparkoperator.k8s.io/v1beta2",
///     "kind": "SparkApplication",
///     "metadata": { "name": "pi", "namespace": "default", "uid": "u" },
///     "spec": {
///         "sparkVersion": "4.0.1", "image": "spark", "mainApplicationFile": "local:///opt/spark/pi.py",
///         "driver": { "memory": "1g" }, "executor": { "instances": 2 },
///     },
/// });
/// let app: SparkApplication = serde_json::from_value(stored.clone())?;
/// let digest = digest::spec_digest(&stored["spec"]);
/// let made = submit(&app, Inputs {
///     submission_id: &digest::submission_id("u", None, &digest),
///     submitted_at: k8s_openapi::jiff::Timestamp::from_second(1_780_000_000)?,
///     spec_digest: &digest.to_string(),
///     settings: &Settings::default(),
/// })?;
/// assert_eq!(made.driver.metadata.name.as_deref(), Some("pi-driver"));
/// assert_eq!(made.properties["spark.executor.instances"], "2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The first thing that makes it impossible to run, with the field and what to do about it.
pub fn submit(app: &SparkApplication, inputs: Inputs<'_>) -> Result<Submission, Refusal> {
    let settings = inputs.settings;
    let spec = defaults::apply(&app.spec, &settings.defaults);
    let app_id = names::app_id(inputs.submission_id);
    let name = app.metadata.name.as_deref().unwrap_or_default();
    let unique = names::unique(inputs.submission_id, "prefix");
    let prefix = names::prefix(name, &unique);
    let cx = Cx {
        app,
        spec: &spec,
        inputs,
        name,
        namespace: app.metadata.namespace.as_deref().unwrap_or_default(),
        version: SparkVersion::parse(&spec.spark_version),
        language: Language::of(&spec.main_application_file),
        app_id: &app_id,
        prefix: &prefix,
    };
    let mut notes = check::spec(&cx)?;
    let mut properties = conf::requested(&cx, &mut notes)?;
    let batch = batch::marks(&cx, &properties)?;
    batch.apply(&mut properties);
    let feature = batch::volcano_step(&cx, &mut properties)?;
    let scheduler = batch.scheduler_name.as_deref();
    executor::adjust(&cx, &mut properties, scheduler, &mut notes);
    let ports = conf::complete(&cx, &mut properties)?;
    check::properties(&cx, &properties, &mut notes)?;

    let conf = object::conf(&cx, &properties)?;
    let volumes = volume::of_driver(&cx, &properties)?;
    let executor_template = executor::config_map(&cx, scheduler);
    let driver = driver::pod(
        &cx,
        &driver::Parts {
            properties: &properties,
            ports,
            volumes: &volumes,
            conf: conf.metadata.name.as_deref().unwrap_or_default(),
            scheduler_name: scheduler,
        },
        &mut notes,
    )?;
    let ui_service = web::ui_service(&cx, ports.ui);
    let ui = web::ui_ingress(&cx, ports.ui);
    let (ui_ingress, ui_url) = ui.unzip();
    Ok(Submission {
        driver_service: object::driver_service(&cx, &properties, ports),
        metrics: metrics::config_map(&cx),
        driver_ingresses: web::driver_ingresses(&cx),
        network_policy: object::network_policy(&cx, &properties),
        disruption_budget: object::disruption_budget(&cx, &properties),
        groups: batch.groups.into_iter().chain(feature).collect(),
        batch_scheduler: batch.name,
        claims: volumes.claims,
        app_id: app_id.clone(),
        properties,
        driver,
        conf,
        executor_template,
        ui_service,
        ui_ingress,
        ui_url,
        notes,
    })
}
