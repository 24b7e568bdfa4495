//! The list of what is not as `spark-submit` makes it, and the page of the documents that it becomes.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::recording::{self, Difference, Entry, VERSIONS};

/// Where the page is.
pub const PAGE: &str = "docs/spark-submit.md";
/// The place of a difference in whether there is a submission at all.
pub const REFUSED: &str = "refused";
/// Stands for anything in a value of the list, and for anything in a part of a path.
const ANY: &str = "*";

/// One line of the list.
#[derive(Debug)]
pub struct Listed {
    /// The table that it stands in.
    section: String,
    /// What differs, in words.
    pub what: String,
    /// Why.
    pub why: String,
    /// The applications in which it differs; none: any.
    pub applications: Option<Vec<String>>,
    /// The versions in which it differs; none: all.
    versions: Option<Vec<String>>,
    /// Where.
    pub places: Vec<Place>,
}

/// A place in which something differs.
#[derive(Debug)]
pub struct Place {
    /// From the object's role on.
    pub path: String,
    /// The applications in which it differs there, if not in all of the line's.
    pub applications: Option<Vec<String>>,
    spark: Option<Value>,
    here: Option<Value>,
}

impl Listed {
    /// The versions in which it differs.
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

/// Whose difference it is.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a> {
    /// The name of its file.
    pub application: &'a str,
    /// Its name, for which the list has `$NAME`.
    pub name: &'a str,
    /// The name of its driver, for which the list has `$DRIVER`.
    pub driver: &'a str,
    /// The version of Spark.
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

/// True if a path is one that the list means. A `*` stands for what has no `/` in it.
fn leads(listed: &str, path: &str) -> bool {
    match listed.split_once(ANY) {
        None => listed == path,
        Some((before, after)) => path.strip_prefix(before).is_some_and(|rest| {
            let end = rest.find('/').unwrap_or(rest.len());
            (0..=end).any(|at| rest.is_char_boundary(at) && leads(after, &rest[at..]))
        }),
    }
}

/// The line and the place of the list that a difference is.
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

# Beside `spark-submit`

```sh
cargo test -p spark-operator --test spark submit   # compares with what is recorded, in seconds
make spark-recordings                              # records again: root on Debian, half an hour
```

The operator makes itself what `spark-submit` makes for the published operator. Whether it is the same is a question to the real
`spark-submit`, which was run for each of the applications below with the arguments that the published operator gives it, against a real API
server. What it made was recorded: the driver's pod, the ConfigMaps of properties and of the executors' template, the Service, claims. The
test compares field by field, properties as they are written in the file. What is not the same stands in the tables below, with its reason: a
difference that doesn't stand there fails the test, and so does one that stands there and is gone.

`make test` submits five of the applications again, and what `spark-submit` makes has to be what is recorded.

Left out on both sides: what an API server adds, such as uids and the defaults of fields. Called alike: what is drawn at random, such as the
digits of a run's id, of names and of the scratch directory, and the time of submission. The order of variables, volumes, ports and claims has no
meaning and isn't compared, but for several variables of one name and for containers. Not here are objects that the published operator makes
without `spark-submit`: the web UI's Service, Ingresses, groups of batch schedulers, configuration of metrics.

Executors' pods are made by drivers, from properties and template. For five applications with every option of executors
(`e2e/tests/pods_spark/executors`) both drivers run on the local cluster, one of `spark-submit` and one of the operator, and the first executor of each is
compared in the same way: one application in `make test`, all in `make test-deep`. What the published operator puts into pods in a webhook, its side
gets as a template.
";

/// The page of the documents. What came of an application is asked for by version and name.
pub fn page(list: &[Listed], entries: &[Entry], is_refused: impl Fn(&str, &str) -> bool) -> String {
    let mut out = INTRODUCTION.to_owned();
    let mut section = "";
    for listed in list {
        if listed.section != section {
            section = &listed.section;
            let _ = write!(
                out,
                "\n## {section}\n\n| What is not the same | Why | Applications |\n| --- | --- | --- |\n"
            );
        }
        let names = |names: &[String]| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>();
        let whose = listed.applications.as_deref().map(names);
        let whose = whose.map_or_else(|| "all".to_owned(), |names| names.join(", "));
        let _ = writeln!(out, "| {} | {} | {whose} |", listed.what, listed.why);
    }
    let _ = write!(
        out,
        "\n## Applications\n\n{} applications, with Spark {}. *Refused* is what `spark-submit` ends with an error for; the operator refuses \
         these as well, but for what stands above.\n\n| Application | Is | `spark-submit` |\n| --- | --- | --- |\n",
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
