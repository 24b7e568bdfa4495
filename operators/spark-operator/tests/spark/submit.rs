//! Compares our objects with those of the real `spark-submit`: field by field, for every application of the matrix and every
//! recorded version. A list has all differences with their reasons, and nothing else.

pub mod recording;

mod list;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use spark_operator::api::SparkApplication;
use spark_operator::names;
use spark_operator::submission::{Inputs, Refusal, Settings, Submission, submit};

use list::{Listed, REFUSED, Whose};
use recording::{Difference, Entry, MASTER, SUBMISSION, VERSIONS, differences};

fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap()
}

fn entries() -> Vec<Entry> {
    recording::entries(&recording::directory(root())).unwrap()
}

fn recorded(version: &str, name: &str) -> Value {
    let directory = recording::directory(root());
    recording::read(&recording::path(&directory, version, name)).unwrap()
}

fn made(entry: &Entry, version: &str) -> Result<Submission, Refusal> {
    let app: SparkApplication = serde_json::from_value(entry.application(version)).unwrap();
    let settings = Settings {
        master: MASTER.to_owned(),
        ..Settings::default()
    };
    submit(
        &app,
        Inputs {
            submission_id: SUBMISSION,
            submitted_at: Timestamp::from_millisecond(1_755_000_000_123).unwrap(),
            spec_digest: "2-0123-4567",
            settings: &settings,
        },
    )
}

/// The objects that `spark-submit` creates too, in the form of a recording.
fn objects(made: &Submission) -> Value {
    let mut all = vec![
        serde_json::to_value(&made.driver).unwrap(),
        serde_json::to_value(&made.conf).unwrap(),
        serde_json::to_value(&made.executor_template).unwrap(),
        serde_json::to_value(&made.driver_service).unwrap(),
    ];
    let claims = made.claims.iter();
    all.extend(claims.map(|claim| serde_json::to_value(claim).unwrap()));
    let policy = made.network_policy.iter();
    all.extend(policy.map(|policy| serde_json::to_value(policy).unwrap()));
    Value::Object(recording::collected(&all).unwrap())
}

/// Returns all differences of one application.
fn compared(entry: &Entry, version: &str) -> Vec<Difference> {
    let recorded = recorded(version, &entry.name);
    let refused = &recorded["refused"];
    match made(entry, version) {
        Err(_) if !refused.is_null() => Vec::new(),
        Ok(made) if refused.is_null() => {
            let (spark, here) = (&recorded["objects"], objects(&made));
            let roles = spark.as_object().unwrap().keys();
            let roles: BTreeSet<&String> = roles.chain(here.as_object().unwrap().keys()).collect();
            let of = |role: &&String| differences(role, spark.get(*role), here.get(*role));
            roles.iter().flat_map(of).collect()
        }
        Ok(_) => vec![Difference {
            path: REFUSED.to_owned(),
            spark: Some(refused.clone()),
            here: None,
        }],
        Err(refusal) => vec![Difference {
            path: REFUSED.to_owned(),
            spark: None,
            here: Some(json!(refusal.to_string())),
        }],
    }
}

#[test]
fn everything_is_as_spark_submit_makes_it_or_stands_in_the_list() {
    let list = list::read(root());
    let mut met: BTreeSet<(usize, usize, String, String)> = BTreeSet::new();
    let mut unlisted = BTreeMap::<String, Vec<String>>::new();
    let mut compared_ones = 0;
    for entry in entries().iter().filter(|e| e.named().is_none()) {
        for version in VERSIONS {
            compared_ones += 1;
            let driver = &recorded(version, &entry.name)["objects"]["driver"]["metadata"]["name"];
            let whose = Whose {
                application: &entry.name,
                name: entry.json["metadata"]["name"].as_str().unwrap(),
                driver: driver.as_str().unwrap_or_default(),
                version,
            };
            for difference in compared(entry, version) {
                if let Some((at, line)) = list::find(&list, whose, &difference) {
                    met.insert((at, line, entry.name.clone(), version.to_owned()));
                    continue;
                }
                let show = |v: &Option<Value>| v.as_ref().map_or("-".to_owned(), Value::to_string);
                let text = format!(
                    "{}\n    spark-submit: {}\n    here:         {}",
                    difference.path,
                    show(&difference.spark),
                    show(&difference.here)
                );
                let whose = format!("{} {version}", entry.name);
                unlisted.entry(text).or_default().push(whose);
            }
        }
    }
    assert!(compared_ones > 200, "{compared_ones}");
    let unlisted: Vec<String> = unlisted
        .into_iter()
        .map(|(text, whose)| format!("{text}\n    in {}", whose.join(", ")))
        .collect();
    let gone = gone(&list, &met);
    assert!(
        unlisted.is_empty() && gone.is_empty(),
        "differences that the list doesn't have:\n{}\n\nthat it has and that aren't there:\n{}",
        unlisted.join("\n"),
        gone.join("\n")
    );
}

/// Every refusal has the intended reason: the file of refusals beside the recordings has all of them.
#[test]
fn refusals_say_what_stands_beside_the_recordings() {
    let mut said = BTreeMap::<String, BTreeMap<&str, String>>::new();
    for entry in entries().iter().filter(|e| e.named().is_none()) {
        for version in VERSIONS {
            if let Err(refusal) = made(entry, version) {
                let of = said.entry(entry.name.clone()).or_default();
                of.insert(version, refusal.to_string());
            }
        }
    }
    let path = recording::directory(root()).join("refusals.json");
    if std::env::var_os("TRAINYARD_WRITE").is_some() {
        let text = serde_json::to_string_pretty(&said).unwrap() + "\n";
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(recording::read(&path).unwrap(), json!(said));
}

/// Returns listed differences that don't occur. Those of single applications must occur in each of them.
fn gone(list: &[Listed], met: &BTreeSet<(usize, usize, String, String)>) -> Vec<String> {
    let mut out = Vec::new();
    for (at, listed) in list.iter().enumerate() {
        for (line, place) in listed.places.iter().enumerate() {
            let seen = |name: &str, version: &str| {
                met.iter().any(|(a, l, n, v)| {
                    (*a, *l) == (at, line) && (name.is_empty() || n == name) && v == version
                })
            };
            for version in listed.versions() {
                let names = place.applications.as_ref().or(listed.applications.as_ref());
                let anywhere = [String::new()];
                for name in names.map_or(&anywhere[..], Vec::as_slice) {
                    if !seen(name, version) {
                        out.push(format!("{}: {} {name} {version}", listed.what, place.path));
                    }
                }
            }
        }
    }
    out
}

#[test]
fn every_application_is_recorded_and_nothing_else_is() {
    let entries = entries();
    let names: BTreeSet<&str> = entries.iter().map(|e| e.name.as_str()).collect();
    let directory = recording::directory(root());
    for version in VERSIONS {
        let there = std::fs::read_dir(directory.join(version)).unwrap();
        let there: Vec<String> = there
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        let there: BTreeSet<&str> = there
            .iter()
            .filter_map(|f| f.strip_suffix(".json"))
            .collect();
        assert_eq!(there, names, "{version}");
    }
    let how = recording::read(&directory.join("provenance.json")).unwrap();
    assert!(
        VERSIONS
            .iter()
            .all(|version| how[version]["java"].is_string())
    );
}

#[test]
fn odd_names_become_the_names_that_spark_submit_makes_of_them() {
    let mut seen = 0;
    for entry in entries() {
        let Some(name) = entry.named() else { continue };
        for version in VERSIONS {
            seen += 1;
            let objects = &recorded(version, &entry.name)["objects"];
            let unique = "0123456789abcdef";
            let prefix = names::prefix(name, unique);
            let masked = recording::masked(&prefix);
            let of = |role: &str| {
                objects[role]["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
            };
            assert_eq!(of("template"), format!("{masked}-driver-podspec-conf-map"));
            let service = recording::masked(&names::driver_service(&prefix, SUBMISSION));
            assert_eq!(of("service"), service, "{name}");
            let label = &objects["driver"]["metadata"]["labels"]["spark-app-name"];
            assert_eq!(*label, names::app_name_label(name), "{name} {version}");
        }
    }
    assert!(seen > 8, "{seen}");
}

#[test]
fn the_page_says_what_the_list_says() {
    let path = root().join(list::PAGE);
    let is_refused = |version: &str, name: &str| !recorded(version, name)["refused"].is_null();
    let page = list::page(&list::read(root()), &entries(), is_refused);
    if std::env::var_os("TRAINYARD_WRITE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "{} is not up to date; run: TRAINYARD_WRITE=1 cargo test -p spark-operator --test spark submit::the_page",
        list::PAGE
    );
}
