//! Generates the tables of `docs/reliability.md`: every id of the programme, its property, and the tests whose names carry the id.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::evidence::{Evidence, Level, OPERATOR, Test, canonical};
use crate::sources::Sources;

/// The page; only its tables are generated.
pub const PAGE: &str = "docs/reliability.md";
/// The data file with ids and properties.
const DATA: &str = "docs/data/reliability.yaml";
const BEGIN: &str = "<!-- Generated from docs/data/reliability.yaml by `cargo run -p training-manifests -- generate`; don't edit. -->";
const END: &str = "<!-- End of the generated tables. -->";
/// The maximum number of ids that are declared as not applicable.
const MOST_DECLARED: usize = 30;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    families: Vec<Family>,
    rows: Vec<Row>,
}

/// The ids of one prefix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Family {
    prefix: String,
    title: String,
    /// First and last numbers.
    ids: Vec<(u32, u32)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    ids: Vec<String>,
    /// The kinds that need a test.
    kinds: Vec<String>,
    level: Level,
    holds: String,
    /// Why it is not applicable.
    declared: Option<String>,
    /// Texts that no generated manifest or flag may contain, so that the reason stays true.
    #[serde(default)]
    lacks: Vec<String>,
    /// The ids under which it is tested.
    #[serde(default)]
    under: Vec<String>,
    /// Whether it has no test yet.
    #[serde(default)]
    missing: bool,
}

/// The result of an id per required kind.
#[derive(Debug, Default)]
struct Outcome {
    asked: BTreeSet<String>,
    asserted: BTreeSet<String>,
    declared: bool,
    under: bool,
}

impl Outcome {
    fn open(&self) -> BTreeSet<String> {
        if self.declared {
            return BTreeSet::new();
        }
        self.asked.difference(&self.asserted).cloned().collect()
    }
}

/// Renders the page with updated tables. Appends mistakes to `wrong`.
///
/// # Errors
/// If a file can't be read, or the page has no place for the tables.
pub fn page(
    root: &Path,
    sources: &Sources,
    evidence: &Evidence,
    manifests: &str,
    wrong: &mut Vec<String>,
) -> anyhow::Result<String> {
    let read =
        |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let data: Data = serde_saphyr::from_str(&read(DATA)?).context(DATA)?;
    let tests: Vec<Test<'_>> = sources
        .all()
        .map(|(path, name)| evidence.test(sources, path, name))
        .collect();
    let tables = Programme {
        data: &data,
        evidence,
        tests: by_id(&tests),
        manifests,
    }
    .tables(wrong);
    let page = read(PAGE)?;
    let (before, rest) = page
        .split_once(BEGIN)
        .with_context(|| format!("{PAGE} lacks {BEGIN}"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("{PAGE} lacks {END}"))?;
    Ok(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

fn by_id<'a>(tests: &'a [Test<'a>]) -> BTreeMap<&'a str, Vec<&'a Test<'a>>> {
    let mut found: BTreeMap<&str, Vec<&Test<'_>>> = BTreeMap::new();
    for test in tests {
        for id in &test.ids {
            found.entry(id).or_default().push(test);
        }
    }
    found
}

struct Programme<'a> {
    data: &'a Data,
    evidence: &'a Evidence,
    tests: BTreeMap<&'a str, Vec<&'a Test<'a>>>,
    /// The text of all generated manifests and flags.
    manifests: &'a str,
}

impl Programme<'_> {
    fn tables(&self, wrong: &mut Vec<String>) -> String {
        let rows = self.rows(wrong);
        self.every_id_stands_once(wrong);
        let mut outcomes = BTreeMap::new();
        for row in &self.data.rows {
            for id in &row.ids {
                outcomes.insert(canonical(id), self.outcome(id, row, &rows, wrong));
            }
        }
        let declared = outcomes.values().filter(|o| o.declared).count();
        if declared > MOST_DECLARED {
            wrong.push(format!(
                "{DATA}: {declared} ids are declared, at most {MOST_DECLARED} may be; test some of them"
            ));
        }
        let mut text = self.counts(&outcomes);
        for family in &self.data.families {
            text.push_str(&self.family(family, &outcomes));
        }
        text
    }

    /// Returns every row by its ids.
    fn rows(&self, wrong: &mut Vec<String>) -> BTreeMap<String, &Row> {
        let mut rows = BTreeMap::new();
        for row in &self.data.rows {
            for id in &row.ids {
                if rows.insert(canonical(id), row).is_some() {
                    wrong.push(format!("{DATA}: {id} stands in two rows; remove one"));
                }
            }
        }
        rows
    }

    fn every_id_stands_once(&self, wrong: &mut Vec<String>) {
        let mut programme = BTreeSet::new();
        for family in &self.data.families {
            for (first, last) in &family.ids {
                programme
                    .extend((*first..=*last).map(|n| canonical(&format!("{}-{n}", family.prefix))));
            }
        }
        let known: BTreeSet<String> = self
            .data
            .rows
            .iter()
            .flat_map(|row| row.ids.iter().map(|id| canonical(id)))
            .collect();
        for id in programme.difference(&known) {
            wrong.push(format!("{DATA}: {id} stands in no row; add one"));
        }
        for id in known.difference(&programme) {
            wrong.push(format!(
                "{DATA}: {id} is no id of the programme; correct it"
            ));
        }
        for (id, tests) in &self.tests {
            if !programme.contains(*id) {
                for test in tests {
                    wrong.push(format!(
                        "{}: {} carries {id}, which is no id of the programme; rename it",
                        test.path.display(),
                        test.name
                    ));
                }
            }
        }
    }

    fn outcome(
        &self,
        id: &str,
        row: &Row,
        rows: &BTreeMap<String, &Row>,
        wrong: &mut Vec<String>,
    ) -> Outcome {
        let mut say = |what: String| wrong.push(format!("{DATA}: {id} {what}"));
        let asked = self.evidence.expand(&row.kinds).unwrap_or_else(|error| {
            say(format!("is asked for a kind that doesn't exist: {error}"));
            BTreeSet::new()
        });
        let tests = self.carriers(id);
        let states = [row.declared.is_some(), row.missing, !row.under.is_empty()];
        if states.iter().filter(|state| **state).count() > 1 {
            say("is more than one of declared, missing and under; choose one".to_owned());
        }
        if row.declared.is_some() {
            if row.lacks.is_empty() {
                say("is declared: let `lacks` name what no manifest contains".to_owned());
            }
            for text in row.lacks.iter().filter(|t| self.manifests.contains(*t)) {
                say(format!(
                    "is declared for want of {text}, which the generated files contain; test it"
                ));
            }
        }
        if let Some(test) = tests.first() {
            let state = match states {
                [true, _, _] => Some("declared"),
                [_, true, _] => Some("missing"),
                _ => None,
            };
            if let Some(state) = state {
                say(format!(
                    "is {state}, but {} in {} carries it; remove `{state}`",
                    test.name,
                    test.path.display()
                ));
            } else if row.under.is_empty() && !tests.iter().any(|test| is_of(test, row.level)) {
                say(format!(
                    "has no test of the level {}; correct the level",
                    row.level
                ));
            }
        } else if !states.contains(&true) {
            say("has no test: name one after it, or say `missing: true`".to_owned());
        }
        let mut asserted = covered(&asked, &tests);
        // If an id's own tests are not enough.
        let under = !row.under.is_empty() && asserted != asked;
        for other in &row.under {
            match rows.get(&canonical(other)) {
                Some(found) if found.declared.is_none() && found.under.is_empty() => {
                    asserted.extend(covered(&asked, &self.carriers(other)));
                }
                Some(_) => say(format!(
                    "is tested under {other}, which has no tests of its own; name another"
                )),
                None => say(format!(
                    "is tested under {other}, which stands in no row; correct it"
                )),
            }
        }
        Outcome {
            asked,
            asserted,
            declared: row.declared.is_some(),
            under,
        }
    }

    fn carriers(&self, id: &str) -> Vec<&Test<'_>> {
        let tests = self.tests.get(canonical(id).as_str());
        tests.into_iter().flatten().copied().collect()
    }

    fn counts(&self, outcomes: &BTreeMap<String, Outcome>) -> String {
        let mut text = String::from(
            "\n## Counts\n\nAn id is *asserted* if a test carries it for every kind for which it is asked, *in part* if for some, *open* if for none.\n\n\
             | Family | Ids | Asserted | of these under another id | In part | Declared | Open |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        );
        let mut total = [0; 6];
        for family in &self.data.families {
            let mut counts = [0; 6];
            for outcome in of(family, outcomes) {
                counts[0] += 1;
                let place = match (outcome.declared, outcome.open(), outcome.asserted.len()) {
                    (true, _, _) => 4,
                    (false, open, _) if open.is_empty() => 1,
                    (false, _, 0) => 5,
                    _ => 3,
                };
                counts[place] += 1;
                if place == 1 && outcome.under {
                    counts[2] += 1;
                }
            }
            for (sum, count) in total.iter_mut().zip(counts) {
                *sum += count;
            }
            let _ = writeln!(text, "| {} | {} |", family.title, numbers(&counts));
        }
        let _ = writeln!(text, "| All | {} |", numbers(&total));

        text.push_str(
            "\nThe same per kind. *operator* stands for properties of the process. An id of several kinds counts for each.\n\n| Kind | Asked | Asserted | Declared | Open |",
        );
        for family in &self.data.families {
            let _ = write!(text, " {} |", family.title);
        }
        text.push_str("\n| --- | ---: | ---: | ---: | ---: |");
        text.push_str(&" ---: |".repeat(self.data.families.len()));
        text.push('\n');
        for kind in self.evidence.kinds().into_iter().chain([OPERATOR]) {
            let asks = |o: &&Outcome| o.asked.contains(kind);
            let asserts = |o: &&Outcome| !o.declared && o.asserted.contains(kind);
            let all = outcomes.values().filter(asks);
            let declared = all.clone().filter(|o| o.declared).count();
            let asserted = all.clone().filter(asserts).count();
            let asked = all.count();
            let open = asked - declared - asserted;
            let _ = write!(
                text,
                "| {kind} | {asked} | {asserted} | {declared} | {open} |"
            );
            for family in &self.data.families {
                let rows: Vec<&Outcome> = of(family, outcomes).filter(asks).collect();
                let asserted = rows.iter().copied().filter(asserts).count();
                let asked = rows.iter().filter(|o| !o.declared).count();
                let _ = write!(text, " {asserted} of {asked} |");
            }
            text.push('\n');
        }
        text.push_str("\nThe columns of families omit declared ids.\n");
        text
    }

    fn family(&self, family: &Family, outcomes: &BTreeMap<String, Outcome>) -> String {
        let mut text = format!(
            "\n## {}\n\n| Id | What holds | Level | Kinds | Tested in |\n| --- | --- | --- | --- | --- |\n",
            family.title
        );
        for row in &self.data.rows {
            // Ids of one row with different results get separate lines.
            let mut lines: BTreeMap<(String, BTreeSet<&Path>), Vec<&str>> = BTreeMap::new();
            for id in row.ids.iter().filter(|id| is_of_family(family, id)) {
                let Some(outcome) = outcomes.get(&canonical(id)) else {
                    continue;
                };
                let paths: BTreeSet<&Path> = [id]
                    .into_iter()
                    .chain(&row.under)
                    .flat_map(|id| self.carriers(id))
                    .filter(|test| covers(&outcome.asked, test))
                    .map(|test| test.path)
                    .collect();
                let key = (self.standing(row, outcome), paths);
                lines.entry(key).or_default().push(id);
            }
            let mut lines: Vec<_> = lines.into_iter().collect();
            lines.sort_by_key(|(_, ids)| canonical(ids[0]));
            for ((standing, paths), ids) in lines {
                let tests: Vec<String> = paths.iter().map(|path| link(path)).collect();
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {standing} | {} |",
                    ids.join(", "),
                    row.holds,
                    row.level,
                    tests.join(", ")
                );
            }
        }
        text
    }

    fn standing(&self, row: &Row, outcome: &Outcome) -> String {
        if let Some(reason) = &row.declared {
            return format!("does not apply: {reason}");
        }
        let mut parts = Vec::new();
        if !outcome.asserted.is_empty() {
            parts.push(self.evidence.name(&outcome.asserted));
        }
        let open = outcome.open();
        if !open.is_empty() {
            parts.push(format!("**open:** {}", self.evidence.name(&open)));
        }
        if !row.under.is_empty() {
            parts.push(format!("under {}", row.under.join(", ")));
        }
        parts.join("; ")
    }
}

fn numbers(counts: &[usize]) -> String {
    let numbers: Vec<String> = counts.iter().map(ToString::to_string).collect();
    numbers.join(" | ")
}

fn is_of_family(family: &Family, id: &str) -> bool {
    id.split('-').next() == Some(family.prefix.as_str())
}

fn of<'a>(
    family: &'a Family,
    outcomes: &'a BTreeMap<String, Outcome>,
) -> impl Iterator<Item = &'a Outcome> {
    outcomes
        .iter()
        .filter(|(id, _)| is_of_family(family, id))
        .map(|(_, outcome)| outcome)
}

/// Returns whether a test has a level; it also has the deep one if its file runs more cases there.
fn is_of(test: &Test<'_>, level: Level) -> bool {
    test.level == level || (level == Level::Deep && test.deep)
}

/// Returns whether a test covers one of these kinds; any test covers the operator.
fn covers(asked: &BTreeSet<String>, test: &Test<'_>) -> bool {
    asked.contains(OPERATOR) || !asked.is_disjoint(test.kinds)
}

/// Returns the kinds of `asked` that the tests cover.
fn covered(asked: &BTreeSet<String>, tests: &[&Test<'_>]) -> BTreeSet<String> {
    asked
        .iter()
        .filter(|kind| {
            let one = BTreeSet::from([(*kind).clone()]);
            tests.iter().any(|test| covers(&one, test))
        })
        .cloned()
        .collect()
}

/// Formats a link to a source for a page in `docs`, with its folder, because several files are called `tests.rs`.
fn link(path: &Path) -> String {
    let parts: Vec<_> = path
        .components()
        .map(|c| c.as_os_str().to_string_lossy().into_owned())
        .filter(|part| {
            !matches!(
                part.as_str(),
                "src" | "tests" | "crates" | "operators" | "data"
            )
        })
        .collect();
    let short = parts[parts.len().saturating_sub(2)..].join("/");
    format!("[{short}](../{})", path.display())
}

/// Fails with all mistakes at once, if there are any.
///
/// # Errors
/// If there are mistakes.
pub fn none_is(wrong: &[String]) -> anyhow::Result<()> {
    ensure!(
        wrong.is_empty(),
        "{} mistakes in docs/data:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::tests::sample;

    const FAMILIES: &str = "families: [{prefix: B, title: Inputs, ids: [[1, 3]]}, {prefix: F, title: Faults, ids: [[1, 3]]}, {prefix: I, title: Invariants, ids: [[1, 1], [3, 3]]}]\nrows:\n";
    /// Rows without a mistake: A's own test, B's own, one of A, one of the process, two at the API level, one range.
    const ROWS: [&str; 7] = [
        "{ids: [B-01], kinds: [A], level: unit, holds: x}",
        "{ids: [B-02], kinds: [both], level: unit, holds: x}",
        "{ids: [B-03], kinds: [A, B], level: unit, holds: x}",
        "{ids: [F-01], kinds: [operator], level: unit, holds: x}",
        "{ids: [F-02], kinds: [both], level: deep, holds: x}",
        "{ids: [F-03], kinds: [A], level: pods, holds: x, under: []}",
        "{ids: [I-01, I-03], kinds: [both], level: pods, holds: x}",
    ];

    /// The page and the mistakes with one row replaced.
    fn tables(replaced: usize, by: &str) -> (String, Vec<String>) {
        let (evidence, sources) = sample();
        let mut text = FAMILIES.to_owned();
        for (n, row) in ROWS.into_iter().enumerate() {
            let row = if n == replaced { by } else { row };
            for line in row.lines() {
                let _ = writeln!(text, "- {line}");
            }
        }
        let data: Data = serde_saphyr::from_str(&text).unwrap();
        let tests: Vec<Test<'_>> = sources
            .all()
            .map(|(path, name)| evidence.test(&sources, path, name))
            .collect();
        let mut wrong = Vec::new();
        let text = Programme {
            data: &data,
            evidence: &evidence,
            tests: by_id(&tests),
            manifests: "kind: Deployment",
        }
        .tables(&mut wrong);
        (text, wrong)
    }

    #[test]
    fn ids_count_as_asserted_in_part_and_open_by_the_kinds_of_their_tests() {
        let (text, wrong) = tables(usize::MAX, "");
        assert_eq!(wrong, Vec::<String>::new());
        for line in [
            // B-02 and B-03 are tested for one of two kinds.
            "| Inputs | 3 | 1 | 0 | 2 | 0 | 0 |",
            // F-03 is asked for A and tested for B.
            "| Faults | 3 | 2 | 0 | 0 | 0 | 1 |",
            "| All | 8 | 5 | 0 | 2 | 0 | 1 |",
            "| A | 7 | 5 | 0 | 2 | 2 of 3 | 1 of 2 | 2 of 2 |",
            "| operator | 1 | 1 | 0 | 0 | 0 of 0 | 1 of 1 | 0 of 0 |",
            "| B-02 | x | unit | B; **open:** A | [b-operator/lib.rs](../operators/b-operator/src/lib.rs) |",
            "| F-03 | x | pods | **open:** A |  |",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in\n{text}");
        }
    }

    #[test]
    fn rows_may_be_declared_missing_or_tested_under_another_id() {
        let (text, wrong) = tables(
            5,
            "{ids: [F-03], kinds: [both], level: api, holds: x, under: [F-02]}",
        );
        assert_eq!(wrong, Vec::<String>::new());
        assert!(
            text.contains("| Faults | 3 | 3 | 1 | 0 | 0 | 0 |"),
            "{text}"
        );
        assert!(text.contains("| both; under F-02 |"), "{text}");
    }

    #[test]
    fn every_mistake_is_told_with_what_mends_it() {
        let rows = [
            (
                0,
                "{ids: [B-02], kinds: [A], level: unit, holds: x}",
                "B-02 stands in two rows",
            ),
            (
                0,
                "{ids: [B-02], kinds: [A], level: unit, holds: x}",
                "B-001 stands in no row",
            ),
            (
                0,
                "{ids: [B-01, B-09], kinds: [A], level: unit, holds: x}",
                "B-009 is no id of the programme",
            ),
            (
                0,
                "{ids: [B-09], kinds: [A], level: unit, holds: x}",
                "B-09 has no test",
            ),
            (
                0,
                "{ids: [B-01], kinds: [C], level: unit, holds: x}",
                "C is neither a kind nor a group",
            ),
            (
                0,
                "{ids: [B-01], kinds: [A], level: api, holds: x}",
                "B-01 has no test of the level api",
            ),
            (
                0,
                "{ids: [B-01], kinds: [A], level: deep, holds: x}",
                "B-01 has no test of the level deep",
            ),
            (
                0,
                "{ids: [B-01], kinds: [A], level: unit, holds: x, missing: true}",
                "remove `missing`",
            ),
            (
                0,
                "{ids: [B-01], kinds: [A], level: unit, holds: x, declared: no, lacks: [x]}",
                "remove `declared`",
            ),
            (
                0,
                "{ids: [B-01], kinds: [A], level: unit, holds: x, declared: no}",
                "let `lacks` name",
            ),
            (
                0,
                "{ids: [B-01], kinds: [A], level: unit, holds: x, declared: no, lacks: [Deployment]}",
                "is declared for want of Deployment",
            ),
            (
                0,
                "{ids: [B-01], kinds: [A], level: unit, holds: x, declared: no, missing: true}",
                "choose one",
            ),
            (
                5,
                "{ids: [F-03], kinds: [A], level: api, holds: x, under: [F-09]}",
                "F-09, which stands in no row",
            ),
            (
                5,
                "{ids: [F-03], kinds: [A], level: api, holds: x, under: [F-03]}",
                "F-03, which has no tests of its own",
            ),
        ];
        for (replaced, by, expected) in rows {
            let (_, wrong) = tables(replaced, by);
            assert!(
                wrong.iter().any(|what| what.contains(expected)),
                "{expected}: {wrong:?}"
            );
        }
        // A test whose id is of no family.
        let (_, wrong) = tables(6, "{ids: [I-01], kinds: [A], level: pods, holds: x}");
        assert!(
            wrong.iter().any(|w| w.contains("I-003 stands in no row")),
            "{wrong:?}"
        );
    }

    #[test]
    fn no_more_than_thirty_ids_are_declared() {
        let ids: Vec<String> = (10..41).map(|n| format!("F-{n}")).collect();
        let row = format!(
            "{{ids: [{}], kinds: [A], level: unit, holds: x, declared: no, lacks: [y]}}",
            ids.join(", ")
        );
        let (_, wrong) = tables(0, &row);
        assert!(
            wrong
                .iter()
                .any(|w| w.contains("31 ids are declared, at most 30")),
            "{wrong:?}"
        );
    }

    #[test]
    fn mistakes_fail_all_at_once() {
        assert!(none_is(&[]).is_ok());
        let error = none_is(&["one".to_owned(), "two".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "2 mistakes in docs/data:\none\ntwo");
    }
}
