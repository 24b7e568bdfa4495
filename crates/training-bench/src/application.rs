//! Templates of the request bodies for one `SparkApplication`, identical to the operator's.
//!
//! They come from the operator's own plan for an application whose name and uid are placeholders. Ids and names that the operator
//! derives from an application's uid and spec are derived for each application in the same way.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use spark_operator::SparkApplication;
use spark_operator::digest::{self, SpecDigest};
use spark_operator::lifecycle::observed::{Kind as Sort, Observed};
use spark_operator::lifecycle::slim::{Pod, RunObject};
use spark_operator::lifecycle::step::{NewObject, Plan, Step};
use spark_operator::lifecycle::{PlanInput, Rules, plan};
use spark_operator::{Settings, label, names};
use training_testkit::builders::SPARK;

use crate::bodies::Resource;
use crate::drive::status as phase;
use crate::kind;
use crate::template::Template;

/// The objects besides the driver: two config maps and two services.
const THINGS: usize = 4;
/// The minimum number of bodies for an application's life cycle: these objects, a pod, four statuses.
const BODIES: usize = THINGS + 1 + STATES.len();
/// The minimum number of requests: these bodies, and deletes of the objects besides the driver.
pub const LEAST: usize = BODIES + THINGS;
/// Its states, in order.
pub const STATES: [&str; 4] = ["SUBMITTED", "RUNNING", "SUCCEEDING", "COMPLETED"];

const NAME: &str = "placeholder-application";
const NAMESPACE: &str = "placeholder-namespace";
const UID: &str = "11111111-2222-3333-4444-555555555555";
const VERSION: &str = "placeholder-version";
const TIME: &str = "2001-02-03T04:05:06Z";
/// The same time in milliseconds, as Spark records it.
const MILLIS: &str = "981173106000";
/// The address of the web UI's Service, which the API server chooses.
const ADDRESS: &str = "192.0.2.77";

/// The values that the operator derives from an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    /// The submission id.
    pub submission: String,
    /// Spark's application id.
    pub run: String,
    /// The digits in the names of Spark's objects.
    pub digits: String,
    /// Spark's scratch directory.
    pub scratch: String,
}

impl Ids {
    /// Returns the ids of an application's first submission.
    pub fn new(uid: &str, digest: &SpecDigest) -> Self {
        Self::of(digest::submission_id(uid, None, digest))
    }

    /// Returns the ids of a submission.
    pub fn of(submission: String) -> Self {
        Self {
            run: names::app_id(&submission),
            digits: names::unique(&submission, "prefix"),
            scratch: names::scratch(&submission),
            submission,
        }
    }
}

/// The values of a template's placeholders. Unknown or unused values may be arbitrary.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// The application's name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// Its resource version.
    pub version: &'a str,
    /// The current second.
    pub time: &'a str,
    /// The same in milliseconds since 1970.
    pub millis: &'a str,
    /// The address of the web UI's Service.
    pub address: &'a str,
    /// The derived ids.
    pub ids: &'a Ids,
}

impl<'a> Values<'a> {
    /// Returns the arguments of [`Template::fill`], in the order of `Bodies::marks`.
    pub fn in_order(&self) -> [&'a str; 12] {
        let Ids {
            submission,
            run,
            digits,
            scratch,
        } = self.ids;
        [
            self.name,
            self.namespace,
            self.uid,
            self.version,
            self.time,
            self.millis,
            self.address,
            run,
            submission,
            scratch,
            digits,
            // The operator derives this name from the content. Here it only has to be unique.
            digits,
        ]
    }
}

/// All request bodies for one application.
#[derive(Clone, Debug)]
pub struct Bodies {
    /// The ConfigMaps that the driver mounts, and the Services of the driver and its web UI.
    pub things: Vec<(Resource, Template)>,
    /// The index of the web UI's Service among them: the first status contains its address.
    pub ui: usize,
    /// The driver.
    pub driver: Template,
    /// The statuses, in order.
    pub statuses: Vec<Template>,
    /// The digest of the spec.
    pub digest: SpecDigest,
}

impl Bodies {
    /// Gets the bodies from the operator's plan with default settings.
    pub fn new() -> Result<Self> {
        let mut stored = manifest(NAME);
        let digest = digest::spec_digest(&stored["spec"]);
        stored["metadata"] = json!({
            "name": NAME, "namespace": NAMESPACE, "uid": UID, "resourceVersion": "1", "generation": 1,
            "creationTimestamp": TIME,
        });
        let mut app: SparkApplication = serde_json::from_value(stored)?;
        let (settings, rules) = (Settings::default(), Rules::default());
        let now: Timestamp = TIME.parse()?;
        let decide = |app: &SparkApplication, observed: &Observed| {
            plan(PlanInput {
                app,
                digest: &digest,
                observed,
                settings: &settings,
                rules: &rules,
                now,
            })
        };
        let made = Made::of(decide(&app, &Observed::default()))?;
        let ids = Ids::new(UID, &digest);
        let marks = marks(&ids, &made.conf);
        let marks: Vec<&str> = marks.iter().map(String::as_str).collect();
        let template = |body: &Value| Template::parse(&body.to_string(), &marks);

        let mut statuses = Vec::new();
        for (state, word) in STATES.iter().zip(["", "Running", "Succeeded", "Succeeded"]) {
            let next = decide(&app, &made.observed(word)?);
            ensure!(next.steps.is_empty(), "{state}: {:?}", next.steps);
            let write = next.status.with_context(|| format!("no status {state}"))?;
            let patch = write.patch;
            ensure!(
                patch["applicationState"]["state"] == *state,
                "not {state}: {patch}"
            );
            statuses.push(template(
                &json!({ "metadata": { "uid": UID, "resourceVersion": VERSION }, "status": patch }),
            ));
            app.status = Some(write.next);
        }
        let last = decide(&app, &made.observed("Succeeded")?);
        // The run's objects besides the driver are deleted.
        let goes = |step: &Step| matches!(step, Step::Delete { .. });
        ensure!(
            last.status.is_none() && last.steps.iter().all(goes),
            "one that has ended goes on: {last:?}"
        );
        ensure!(
            made.things.len() == THINGS,
            "not the application that we count with"
        );
        Ok(Self {
            ui: made.ui()?,
            things: made
                .things
                .iter()
                .map(|(resource, body)| (*resource, template(body)))
                .collect(),
            driver: template(&made.driver),
            statuses,
            digest,
        })
    }
}

/// Returns all placeholders, in the order of [`Values::in_order`].
fn marks(ids: &Ids, conf: &str) -> [String; 12] {
    [
        NAME,
        NAMESPACE,
        UID,
        VERSION,
        TIME,
        MILLIS,
        ADDRESS,
        &ids.run,
        &ids.submission,
        &ids.scratch,
        &ids.digits,
        conf,
    ]
    .map(str::to_owned)
}

/// The created objects of an application.
struct Made {
    things: Vec<(Resource, Value)>,
    driver: Value,
    /// The digits in the name of the properties' config map.
    conf: String,
}

impl Made {
    /// Collects the steps of the first reconcile.
    fn of(first: Plan) -> Result<Self> {
        ensure!(
            first.status.is_none(),
            "a status before there is a driver: {:?}",
            first.status
        );
        let (mut things, mut driver) = (Vec::new(), None);
        for step in first.steps {
            match step {
                Step::Create(NewObject::ConfigMap(map)) => {
                    things.push((Resource::ConfigMap, serde_json::to_value(map)?));
                }
                Step::Create(NewObject::Service(service))
                | Step::CreateOptional(NewObject::Service(service)) => {
                    things.push((Resource::Service, serde_json::to_value(service)?));
                }
                Step::CreateDriver(pod) => driver = Some(serde_json::to_value(pod)?),
                other => anyhow::bail!("a new application begins with {other:?}"),
            }
        }
        let mut all = things.iter().map(|(_, body)| &body["metadata"]["name"]);
        let conf = all.find_map(|name| conf_digits(name.as_str()?));
        Ok(Self {
            conf: conf.context("no config map of the properties")?.to_owned(),
            driver: driver.context("no driver")?,
            things,
        })
    }

    /// Returns the index of the Service that has an address.
    fn ui(&self) -> Result<usize> {
        let has = |(resource, body): &(Resource, Value)| {
            *resource == Resource::Service && body["spec"]["clusterIP"] != "None"
        };
        self.things.iter().position(has).context("no web UI")
    }

    /// Returns the operator's observed state, with the driver in a phase or not scheduled.
    fn observed(&self, word: &str) -> Result<Observed> {
        let mut pod = self.driver.clone();
        pod["metadata"]["uid"] = json!("99999999-8888-7777-6666-555555555555");
        if !word.is_empty() {
            let told: Value = serde_json::from_str(&phase(kind::container(&SPARK), "", word, 0))?;
            pod["status"] = told["status"].clone();
        }
        let pod: Pod = serde_json::from_value(pod)?;
        let mut observed = Observed::default();
        observed
            .drivers
            .push(pod.driver().context("a pod that is not the driver")?);
        let mut ui = self.things[self.ui()?].1.clone();
        ui["metadata"]["uid"] = json!("88888888-8888-7777-6666-555555555555");
        ui["spec"]["clusterIP"] = json!(ADDRESS);
        let ui: RunObject<Service> = serde_json::from_value(ui)?;
        observed.objects.extend(ui.object(Sort::Service));
        Ok(observed)
    }
}

/// Returns the digits in the name of a properties' config map.
pub fn conf_digits(name: &str) -> Option<&str> {
    name.strip_prefix("spark-drv-")?.strip_suffix("-conf-map")
}

/// The label with the application's name on its objects and pods.
pub const APP_NAME: &str = label::APP_NAME;
/// Its program, in the workload image.
pub const PROGRAM: &str = "local:///opt/trainyard/pi.py";

/// Returns the measured application: a driver and two executors, as users write them. Nobody creates the executors.
pub fn manifest(name: &str) -> Value {
    json!({
        "apiVersion": label::API_VERSION,
        "kind": SPARK.name,
        "metadata": { "name": name },
        "spec": {
            "type": "Python",
            "mode": "cluster",
            // Never pulled: no container runs here.
            "image": "trainyard.test/spark:1",
            "sparkVersion": "4.0.1",
            "mainApplicationFile": PROGRAM,
            "arguments": ["100"],
            "restartPolicy": { "type": "Never" },
            "sparkConf": {
                "spark.sql.shuffle.partitions": "64",
                "spark.eventLog.enabled": "false",
            },
            "driver": {
                "cores": 1, "memory": "1g", "labels": { "team": "bench" },
                "env": [{ "name": "OMP_NUM_THREADS", "value": "1" }],
            },
            "executor": {
                "cores": 1, "instances": 2, "memory": "2g", "labels": { "team": "bench" },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(bodies: &Bodies) -> Vec<String> {
        let ids = Ids::new("22222222-2222-3333-4444-555555555555", &bodies.digest);
        let values = Values {
            name: "a1",
            namespace: "ns",
            uid: "22222222-2222-3333-4444-555555555555",
            version: "77",
            time: "2026-01-01T00:00:00Z",
            millis: "1767225600000",
            address: "10.0.0.7",
            ids: &ids,
        };
        let things = bodies.things.iter().map(|(_, body)| body);
        let all = things.chain([&bodies.driver]).chain(&bodies.statuses);
        all.map(|template| template.fill(&values.in_order()))
            .collect()
    }

    #[test]
    fn every_placeholder_of_every_body_is_filled() {
        let bodies = Bodies::new().unwrap();
        let all = filled(&bodies);
        assert_eq!(all.len(), BODIES);
        let of_placeholders = Ids::new(UID, &bodies.digest);
        let marks = marks(&of_placeholders, &of_placeholders.digits);
        for text in &all {
            for mark in &marks {
                assert!(!text.contains(mark), "{mark} in {text}");
            }
            serde_json::from_str::<Value>(text).unwrap();
        }
    }

    /// The floor's bodies equal the operator's for the same application, not only in structure.
    #[test]
    fn filled_bodies_are_what_the_operator_makes() {
        let bodies = Bodies::new().unwrap();
        let mut stored = manifest("a1");
        let uid = "22222222-2222-3333-4444-555555555555";
        stored["metadata"] =
            json!({ "name": "a1", "namespace": "ns", "uid": uid, "generation": 1 });
        let app: SparkApplication = serde_json::from_value(stored).unwrap();
        let made = plan(PlanInput {
            app: &app,
            digest: &bodies.digest,
            observed: &Observed::default(),
            settings: &Settings::default(),
            rules: &Rules::default(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
        });
        let made = Made::of(made).unwrap();
        let digits = Ids::new(uid, &bodies.digest).digits;
        let wanted = made.things.iter().map(|(_, body)| body);
        for (text, wanted) in filled(&bodies).iter().zip(wanted.chain([&made.driver])) {
            // The one name that the floor client chooses differently.
            let wanted = wanted.to_string().replace(&made.conf, &digits);
            assert_eq!(*text, wanted);
        }
    }

    #[test]
    fn the_statuses_name_the_web_ui_and_the_times() {
        let all = filled(&Bodies::new().unwrap());
        let [submitted, running, succeeding, completed] = &all[BODIES - STATES.len()..] else {
            panic!("{all:?}")
        };
        assert!(submitted.contains("10.0.0.7:4040") && submitted.contains("a1-driver"));
        assert!(running.contains("RUNNING") && !running.contains("10.0.0.7"));
        assert!(succeeding.contains("2026-01-01T00:00:00Z"));
        assert!(completed.contains("COMPLETED"));
    }
}
