//! Invalid jobs that bypassed the CRD: the operator judges every row of the validation table again.
//!
//! A refused row ends as Failed, reason `InvalidSpec`, with the field and the text of the table. An accepted row does not. The feed
//! skips objects that the types can't decode, which `api_lifecycle` tests.

use std::collections::BTreeSet;

use training_testkit::validation::{Row, Table};
use training_testkit::world::World;

use crate::scene::{KIND, KindWorld, MANY, Resource, SET_ASIDE as OWN_SET_ASIDE, Scene, framework};

/// Refused rows that the types can't decode: the operator skips the job with a Warning.
const SET_ASIDE: &[&str] = &[
    "B-001 a replica count that is a string",
    "B-002 a replica count that is no whole number",
    "B-003 a replica count that is a boolean",
    "B-005 a replica count beyond 32 bits",
    "B-007 no spec",
    "B-007 an empty spec",
    "B-008 a replica map that is null",
    "B-008 a replica map that is a list",
    "B-020 a variable whose value is a number",
    "B-020 a label whose value is a boolean",
    "a number within the template beyond 32 bits",
    "a probe's port beyond 32 bits",
];

/// Refused rows whose stored object is valid, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "B-092 managed by somebody unknown",
        "not ours: nothing is written",
    ),
    ("B-092 managed by nobody", "not ours: nothing is written"),
    (
        "B-098 another queue",
        "a change, which one object does not show",
    ),
    ("B-148 another manager", "a change"),
    ("B-148 a manager where there was none", "a change"),
    ("B-148 no manager where there was one", "a change"),
    (
        "B-148 no run policy where there was one with a manager",
        "a change",
    ),
];

/// Rows that built-in rules of the API server refuse, with a message other than the operator's.
const BY_THE_SERVER: &[&str] = &[
    "B-035 a name with capitals",
    "B-035 a name with an underscore",
    "B-035 the name -test",
    "B-035 the name __test",
];

/// A row that the CRD accepts. The pods of some kinds get a list of all pods, which is too long for a variable.
const LONG_LIST: &str = "B-059 ten thousand workers";

/// Returns the message of the condition with which the operator fails the job, if it does.
fn ends(job: Resource) -> Option<String> {
    let mut world: KindWorld = World::new(framework(), job);
    // The first reconcile is enough, also for ten thousand workers.
    world.reconcile();
    let status = world.status();
    let last = status.conditions.last()?;
    let invalid = last.type_ == "Failed" && last.reason.as_deref() == Some("InvalidSpec");
    if invalid {
        assert_eq!(world.writes, ["status"], "one write, no pod");
        assert_eq!(world.conditions(), ["Created=True", "Failed=True"]);
    }
    invalid.then(|| last.message.clone().unwrap_or_default())
}

/// Normalises `map.Key` and `map[Key]`: the API server's spelling depends on the part that refuses.
fn same_slot(path: &str) -> String {
    let map = KIND.replica_map;
    path.replace(&format!("{map}."), &format!("{map}["))
        .replace(']', "")
        .replace('[', ".")
}

fn judge(table: &Table, row: &Row) -> Result<(), String> {
    let name = row.name.as_str();
    // Other spellings mean what they mean to the existing operator.
    let elsewhere =
        ELSEWHERE.iter().any(|(n, _)| *n == name) || name == "B-018 a replica type in lower case";
    let verdict = match serde_json::from_value::<Resource>(table.stored(row, &KIND).unwrap()) {
        Ok(job) => Ok(ends(job)),
        Err(error) => Err(error.to_string()),
    };
    let aside = SET_ASIDE.iter().chain(OWN_SET_ASIDE).any(|n| *n == name);
    match (&row.refused, verdict) {
        (None, Ok(None)) => Ok(()),
        (None, Ok(Some(message))) if name == LONG_LIST && MANY < 10_000 => {
            let told = message.contains("ClusterSpecTooLarge");
            told.then_some(()).ok_or(message)
        }
        (Some(_), Ok(None)) if elsewhere => Ok(()),
        (Some(_), Err(_)) if aside => Ok(()),
        (Some(refused), Ok(Some(message))) if !elsewhere && !aside => {
            let (field, problem) = message.split_once(": ").unwrap_or((&message, ""));
            let same = same_slot(field) == same_slot(&refused.field);
            let words = problem.contains(&refused.text) || BY_THE_SERVER.contains(&name);
            if same && words {
                Ok(())
            } else {
                Err(format!(
                    "{} {}, but the operator says {message}",
                    refused.field, refused.text
                ))
            }
        }
        (_, verdict) => Err(format!("{verdict:?}")),
    }
}

fn table() -> Table {
    Table::read(&KIND).unwrap()
}

#[test]
fn i_43_the_operator_judges_every_row_of_the_validation_table_as_the_crd_does() {
    let table = table();
    let wrong: Vec<String> = table
        .rows
        .iter()
        .filter_map(|row| Some(format!("{}: {}", row.name, judge(&table, row).err()?)))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} rows:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    let refused = table.rows.iter().filter(|r| r.refused.is_some()).count();
    assert!(refused > 60, "the table has {refused} refused rows");
}

#[test]
fn the_exceptions_are_rows_of_the_table() {
    let table = table();
    let names: BTreeSet<&str> = table.rows.iter().map(|r| r.name.as_str()).collect();
    let elsewhere = ELSEWHERE.iter().map(|(name, _)| name);
    for name in [LONG_LIST]
        .iter()
        .chain(SET_ASIDE)
        .chain(OWN_SET_ASIDE)
        .chain(BY_THE_SERVER)
        .chain(elsewhere)
    {
        assert!(names.contains(name), "{name}");
    }
    assert_eq!(names.len(), table.rows.len(), "names are unique");
}
