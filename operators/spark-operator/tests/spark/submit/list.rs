//! The list of differences from `spark-submit`, and the generated page of the docs.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::recording::{self, Difference, Entry, VERSIONS};

/// The path of the page.
pub const PAGE: &str = "docs/spark-submit.md";
/// The path of a difference in whether there is a submission at all.
pub const REFUSED: &str = "refused";
/// A wildcard for a value in the list, and for part of a path.
const ANY: &str = "*";

/// One entry of the list.
#[derive(Debug)]
pub struct Listed {
    /// The table of the entry.
    section: String,
    /// A description of the difference.
    pub what: String,
    /// The reason.
    pub why: String,
    /// The applications with this difference; unset: any.
    pub applications: Option<Vec<String>>,
    /// The versions with this difference; unset: all.
    versions: Option<Vec<String>>,
    /// The places.
    pub places: Vec<Place>,
}

/// A place of a difference.
#[derive(Debug)]
pub struct Place {
    /// The path from the object's role on.
    pub path: String,
    /// The applications with a difference in this place, if not all of the entry's.
    pub applications: Option<Vec<String>>,
    spark: Option<Value>,
    here: Option<Value>,
}

impl Listed {
    /// The versions with this difference.
    pub fn versions(&self) -> Vec<&str> {
        match &self.versions {
            Some(some) => some.iter().map(String::as_str).collect(),
            None => VERSIONS.into(),
        }
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    let items = value.as_array()?.iter();
    Some(items.map(|v| v.as_str().unwrap().to_owned()).collect())
}

/// The list.
pub fn read(root: &Path) -> Vec<Listed> {
    let file = recording::directory(root).join("differences.json");
    let list = recording::read(&file).unwrap();
    let lines = list.as_array().unwrap().iter();
    lines
        .map(|line| {
            let text = |key: &str| line[key].as_str().unwrap().to_owned();
            let places = line["places"].as_array().unwrap().iter();
            Listed {
                section: text("section"),
                what: text("what"),
                why: text("why"),
                applications: texts(&line["applications"]),
                versions: texts(&line["versions"]),
                places: places
                    .map(|place| Place {
                        path: place["path"].as_str().unwrap().to_owned(),
                        applications: texts(&place["applications"]),
                        spark: place.get("spark").cloned(),
                        here: place.get("here").cloned(),
                    })
                    .collect(),
            }
        })
        .collect()
}

/// The application of a difference.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a> {
    /// The name of its file.
    pub application: &'a str,
    /// Its name, which the list writes as `$NAME`.
    pub name: &'a str,
    /// The name of its driver, which the list writes as `$DRIVER`.
    pub driver: &'a str,
    /// The Spark version.
    pub version: &'a str,
}

fn fits(listed: Option<&Value>, seen: Option<&Value>, whose: Whose<'_>) -> bool {
    match (listed, seen) {
        (None, None) => true,
        (Some(listed), Some(seen)) => {
            let text = listed.to_string();
            let text = text.replace("$NAME", whose.name);
            let text = text.replace("$DRIVER", whose.driver);
            let meant: Value = serde_json::from_str(&text).unwrap();
            listed == ANY || meant == *seen
        }
        _ => false,
    }
}

/// True if a path matches an entry's. A `*` matches anything without `/`.
fn leads(listed: &str, path: &str) -> bool {
    match listed.split_once(ANY) {
        None => listed == path,
        Some((before, after)) => path.strip_prefix(before).is_some_and(|rest| {
            let end = rest.find('/').unwrap_or(rest.len());
            (0..=end).any(|at| rest.is_char_boundary(at) && leads(after, &rest[at..]))
        }),
    }
}

/// Finds the entry and the place for a difference.
pub fn find(list: &[Listed], whose: Whose<'_>, difference: &Difference) -> Option<(usize, usize)> {
    let Whose {
        application,
        version,
        ..
    } = whose;
    let within = |names: &Option<Vec<String>>, name: &str| {
        names
            .as_ref()
            .is_none_or(|names| names.iter().any(|n| n == name))
    };
    list.iter().enumerate().find_map(|(at, listed)| {
        if !within(&listed.applications, application) || !within(&listed.versions, version) {
            return None;
        }
        let is_it = |place: &Place| {
            within(&place.applications, application)
                && leads(&place.path, &difference.path)
                && fits(place.spark.as_ref(), difference.spark.as_ref(), whose)
                && fits(place.here.as_ref(), difference.here.as_ref(), whose)
        };
        Some((at, listed.places.iter().position(is_it)?))
    })
}

const INTRODUCTION: &str = "\
<!-- Generated from operators/spark-operator/tests/data/submit by tests/spark/submit/list.rs there; don't edit. -->

# Comparison with `spark-submit`

```sh
cargo test -p spark-operator --test spark submit   # compares with the recordings, in seconds
make spark-recordings                              # records again: root on Debian, half an hour
```

The operator builds the objects that `spark-submit` creates for the published operator. To verify them, the real `spark-submit` ran for each
application below, with the arguments of the published operator, against a real API server. The recordings have the objects that it created:
the driver's pod, the ConfigMaps of properties and of the executors' template, the Service, claims. The test compares them field by field, and
properties as written in the file. The tables below list all differences with their reasons. An unlisted difference fails the test, and so does
a listed one that no longer exists.

`make test` submits five of the applications again, and compares the objects that `spark-submit` creates with the recordings.

Both sides are normalized. Additions of an API server, such as uids and the defaults of fields, are dropped. Random parts, such as the digits
of a run's id, of names and of the scratch directory, and the time of submission are replaced. The order of variables, volumes, ports and claims
has no meaning and isn't compared, except for variables of the same name and for containers. Objects that the published operator creates without
`spark-submit` are not covered: the web UI's Service, Ingresses, pod groups, configuration of metrics.

Drivers create their executors from properties and template. For five applications with all executor options
(`e2e/tests/pods_spark/executors`), the drivers of `spark-submit` and of the operator both run on the local cluster, and the first executors of
both are compared in the same way: one application in `make test`, all in `make test-deep`. On the side of `spark-submit`, a template replaces
the webhook of the published operator.
";

/// Renders the page. `is_refused` tells by version and name whether an application was refused.
pub fn page(list: &[Listed], entries: &[Entry], is_refused: impl Fn(&str, &str) -> bool) -> String {
    let mut out = INTRODUCTION.to_owned();
    let mut section = "";
    for listed in list {
        if listed.section != section {
            section = &listed.section;
            let _ = write!(
                out,
                "\n## {section}\n\n| Difference | Reason | Applications |\n| --- | --- | --- |\n"
            );
        }
        let names = |names: &[String]| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>();
        let whose = listed.applications.as_deref().map(names);
        let whose = whose.map_or_else(|| "all".to_owned(), |names| names.join(", "));
        let _ = writeln!(out, "| {} | {} | {whose} |", listed.what, listed.why);
    }
    let _ = write!(
        out,
        "\n## Applications\n\n{} applications, with Spark {}. *Refused*: `spark-submit` fails with an error. The operator refuses \
         these as well, except for the cases above.\n\n| Application | Description | `spark-submit` |\n| --- | --- | --- |\n",
        entries.len(),
        VERSIONS.join(" and ")
    );
    for entry in entries {
        let refusing: Vec<&str> = VERSIONS
            .into_iter()
            .filter(|v| is_refused(v, &entry.name))
            .collect();
        let end = match refusing.len() {
            0 => "made".to_owned(),
            all if all == VERSIONS.len() => "refused".to_owned(),
            _ => format!("refused with {}", refusing.join(", ")),
        };
        let about = entry.json["about"].as_str().unwrap();
        let _ = writeln!(out, "| `{}` | {about} | {end} |", entry.name);
    }
    out
}
