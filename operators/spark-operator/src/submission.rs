//! The objects of one run of an application, built without running `spark-submit`.
//!
//! [`submit`] is pure: the same application and [`Inputs`] yield the same objects, byte for byte. It
//!
//! 1. fills in defaults and refuses specs that can't run ([`check`]), and finds fields without effect (`unused`),
//! 2. assembles the Spark properties ([`conf`]), including those of a batch scheduler ([`batch`]) and of metrics ([`metrics`]),
//! 3. builds the driver's pod ([`driver`]) from its template, then Spark's settings ([`volume`], [`template`]), then the spec of
//!    the role ([`overlay`]),
//! 4. builds the pod template of executors ([`executor`]),
//! 5. builds the ConfigMaps, Services and Ingresses ([`object`], [`web`]).
//!
//! The application owns everything except executors, so all objects can be created before the pod: creating the pod commits the
//! submission. The pod's name is the same for every submission. The names of Spark's other objects depend on the submission's id,
//! because a driver that ends removes the objects of its run.

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
mod unused;
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

/// The objects of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// The id that Spark gives the run.
    pub app_id: String,
    /// The driver's Spark properties, unescaped.
    pub properties: BTreeMap<String, String>,
    /// The driver.
    pub driver: Pod,
    /// [`Submission::properties`] as a file. Immutable; its name depends on its content.
    pub conf: ConfigMap,
    /// The pod template of executors. It may change while the driver runs.
    pub executor_template: ConfigMap,
    /// Configuration of metrics and of the exporter.
    pub metrics: Option<ConfigMap>,
    /// The Service through which executors find the driver.
    pub driver_service: Service,
    /// The Service of the web UI.
    pub ui_service: Option<Service>,
    /// The Ingress of the web UI.
    pub ui_ingress: Option<Ingress>,
    /// The URL of the web UI, if it has an Ingress.
    pub ui_url: Option<String>,
    /// Additional Services of the driver, with their Ingresses.
    pub driver_ingresses: Vec<(Service, Option<Ingress>)>,
    /// Claims created for the driver.
    pub claims: Vec<PersistentVolumeClaim>,
    /// Isolates the executors from other pods.
    pub network_policy: Option<NetworkPolicy>,
    /// Protects the driver from eviction.
    pub disruption_budget: Option<PodDisruptionBudget>,
    /// The pod groups of a batch scheduler. Created before the pod.
    pub groups: Vec<PodGroup>,
    /// The batch scheduler, if any.
    pub batch_scheduler: Option<String>,
    /// Events about accepted settings that have no effect, or an unexpected one.
    pub notes: Vec<Note>,
}

/// Builds all objects for a run of this application.
///
/// While a driver runs, the same call with its submission's id returns the current template of its executors
/// ([`Submission::executor_template`]) and its current Services and Ingresses.
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
/// The first problem that makes a run impossible, with the field and the remedy.
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
    let batch = batch::scheduler_settings(&cx, &properties)?;
    batch.apply(&mut properties);
    let feature = batch::volcano_step(&cx, &mut properties)?;
    let scheduler = batch.scheduler_name.as_deref();
    executor::adjust(&cx, &mut properties, scheduler, &mut notes);
    let ports = conf::complete(&cx, &mut properties)?;
    check::properties(&cx, &properties, &mut notes)?;
    notes.extend(unused::notes(&cx, &properties, scheduler));

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
