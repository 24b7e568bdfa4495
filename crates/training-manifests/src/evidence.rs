//! The kinds, level and ids of each test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

use crate::operator::Operator;
use crate::sources::Sources;
use crate::tree::files_below;

/// The data file that maps tests to kinds if their path doesn't.
pub const DATA: &str = "docs/data/tests.yaml";
/// The pseudo kind for properties of the process: leader election, transport, rights.
pub const OPERATOR: &str = "operator";
/// The prefixes of ids.
const PREFIXES: [&str; 6] = ["f", "i", "b", "mt", "cs", "s"];
/// The directory of tests that several operators include.
const SHARED: &str = "operators/every-kind/";

/// The level of a test: how much of a cluster is real.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No API server.
    Unit,
    /// A real API server and the shipped binary.
    Api,
    /// A whole cluster with real pods.
    Pods,
    /// `make test-deep` only.
    Deep,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unit => "unit",
            Self::Api => "api",
            Self::Pods => "pods",
            Self::Deep => "deep",
        })
    }
}

/// The data file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Names for several kinds at once.
    pub groups: BTreeMap<String, Vec<String>>,
    /// The kinds of tests, by a prefix of `path::test`. The longest one wins.
    pub scopes: Vec<Scope>,
    /// Tests whose names carry a range of ids, by the same kind of prefix.
    #[serde(default)]
    pub ranges: Vec<Range>,
}

/// The kinds of some tests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// A prefix of `path::test`; `*` matches any text.
    pub tests: String,
    /// Kinds and groups.
    pub kinds: Vec<String>,
    /// The level, if the path doesn't imply it: tables that a test of another folder reads.
    #[serde(default)]
    pub level: Option<Level>,
}

/// The ids that a range in a name stands for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// A prefix of `path::test`.
    pub tests: String,
    /// The sources that check the ids: an id of the range counts if one of these contains it as a word.
    #[serde(default)]
    pub laws: Vec<PathBuf>,
    /// Ids of the range that count, if sources don't name them.
    #[serde(default)]
    pub ids: Vec<String>,
}

/// A test with its kinds, level and ids.
#[derive(Clone, Debug)]
pub struct Test<'a> {
    /// Its file.
    pub path: &'a Path,
    /// Its name.
    pub name: &'a str,
    /// Its level.
    pub level: Level,
    /// Its kinds; only [`OPERATOR`] if it has none.
    pub kinds: &'a BTreeSet<String>,
    /// Whether its file runs more cases in `make test-deep`.
    pub deep: bool,
    /// The ids in its name, in canonical form.
    pub ids: Vec<String>,
}

/// Determines kinds, level and ids of tests.
#[derive(Debug)]
pub struct Evidence {
    groups: BTreeMap<String, BTreeSet<String>>,
    scopes: BTreeMap<String, (BTreeSet<String>, Option<Level>)>,
    /// The ids in the sources of a range.
    laws: BTreeMap<String, BTreeSet<String>>,
    folders: BTreeMap<String, BTreeSet<String>>,
    shared: BTreeMap<String, BTreeSet<String>>,
    none: BTreeSet<String>,
}

impl Evidence {
    /// Reads the data and the operators' registry of kinds. Appends mistakes to `wrong`.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn read(
        root: &Path,
        operators: &[Operator],
        sources: &Sources,
        wrong: &mut Vec<String>,
    ) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(root.join(DATA)).context(DATA)?;
        let data: Data = serde_saphyr::from_str(&text).context(DATA)?;
        let registry = operators
            .iter()
            .map(|o| (o.name, o.kinds.iter().map(|k| k.name.clone()).collect()))
            .collect();
        let mut laws = BTreeMap::new();
        for range in &data.ranges {
            let mut ids: BTreeSet<String> = range.ids.iter().map(|id| canonical(id)).collect();
            for path in &range.laws {
                collect_ids(&root.join(path), &mut ids)?;
            }
            laws.insert(range.tests.clone(), ids);
        }
        Ok(Self::new(&data, &registry, laws, sources, wrong))
    }

    /// Creates it from parsed data.
    pub fn new(
        data: &Data,
        registry: &BTreeMap<&str, BTreeSet<String>>,
        laws: BTreeMap<String, BTreeSet<String>>,
        sources: &Sources,
        wrong: &mut Vec<String>,
    ) -> Self {
        let known: BTreeSet<&String> = registry.values().flatten().collect();
        let mut groups = BTreeMap::new();
        for (name, kinds) in &data.groups {
            for kind in kinds.iter().filter(|k| !known.contains(k)) {
                wrong.push(format!(
                    "{DATA}: group {name}: no operator serves {kind}; remove it"
                ));
            }
            groups.insert(name.clone(), kinds.iter().cloned().collect());
        }
        for kind in known {
            groups.insert(kind.clone(), BTreeSet::from([kind.clone()]));
        }
        let none = BTreeSet::from([OPERATOR.to_owned()]);
        groups.insert(OPERATOR.to_owned(), none.clone());

        let mut scopes = BTreeMap::new();
        for scope in &data.scopes {
            match expand(&groups, &scope.kinds) {
                Ok(kinds) => {
                    scopes.insert(scope.tests.clone(), (kinds, scope.level));
                }
                Err(error) => wrong.push(format!("{DATA}: {}: {error}", scope.tests)),
            }
        }
        let beginnings = scopes.keys().chain(laws.keys());
        for beginning in beginnings {
            if !sources
                .all()
                .any(|(path, name)| begins(&address(path, name), beginning))
            {
                wrong.push(format!(
                    "{DATA}: no test begins with {beginning}; remove or correct it"
                ));
            }
        }
        // Operators that include a shared file, directly or through `mod.rs`, run its tests.
        let mut shared: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (operator, kinds) in registry {
            for file in sources.included(&format!("operators/{operator}/")) {
                shared
                    .entry(file)
                    .or_default()
                    .extend(kinds.iter().cloned());
            }
        }
        let folders = registry
            .iter()
            .map(|(name, kinds)| (format!("operators/{name}/"), kinds.clone()))
            .collect();
        Self {
            groups,
            scopes,
            laws,
            folders,
            shared,
            none,
        }
    }

    /// Expands names of kinds and groups to kinds.
    ///
    /// # Errors
    /// If a name is neither.
    pub fn expand(&self, names: &[String]) -> anyhow::Result<BTreeSet<String>> {
        expand(&self.groups, names)
    }

    /// Returns all served kinds.
    pub fn kinds(&self) -> BTreeSet<&str> {
        self.folders
            .values()
            .flatten()
            .map(String::as_str)
            .collect()
    }

    /// Returns a short name for these kinds: that of the equal group, if there is one.
    pub fn name(&self, kinds: &BTreeSet<String>) -> String {
        let group = self.groups.iter().find(|(_, group)| *group == kinds);
        group.map_or_else(
            || kinds.iter().cloned().collect::<Vec<_>>().join(", "),
            |(name, _)| name.clone(),
        )
    }

    /// Returns a test's kinds, level and ids.
    pub fn test<'a>(&'a self, sources: &'a Sources, path: &'a Path, name: &'a str) -> Test<'a> {
        let address = address(path, name);
        let said = longest(&self.scopes, &address).and_then(|(_, level)| *level);
        let level = said.unwrap_or_else(|| level(&address));
        Test {
            path,
            name,
            level,
            kinds: self.kinds_of(&address),
            deep: sources.is_deep(path),
            ids: ids(name, self.laws_of(&address)),
        }
    }

    /// Returns files of tests at the API level and above without declared kinds.
    pub fn unknown(&self, sources: &Sources) -> BTreeSet<PathBuf> {
        sources
            .all()
            .filter(|(path, name)| {
                let address = address(path, name);
                address.starts_with("e2e/tests/") && longest(&self.scopes, &address).is_none()
            })
            .map(|(path, _)| path.to_owned())
            .collect()
    }

    fn kinds_of(&self, address: &str) -> &BTreeSet<String> {
        if let Some((kinds, _)) = longest(&self.scopes, address) {
            return kinds;
        }
        if let Some(rest) = address.strip_prefix(SHARED) {
            let file = rest.split("::").next().unwrap_or_default();
            return self
                .shared
                .get(file)
                .or_else(|| self.shared.get("mod.rs"))
                .unwrap_or(&self.none);
        }
        longest(&self.folders, address).unwrap_or(&self.none)
    }

    fn laws_of(&self, address: &str) -> Option<&BTreeSet<String>> {
        longest(&self.laws, address)
    }
}

/// Formats a test as `path::name`.
fn address(path: &Path, name: &str) -> String {
    format!("{}::{name}", path.display())
}

fn longest<'a, T>(map: &'a BTreeMap<String, T>, address: &str) -> Option<&'a T> {
    map.iter()
        .filter(|(beginning, _)| begins(address, beginning))
        .max_by_key(|(beginning, _)| beginning.len())
        .map(|(_, value)| value)
}

/// Returns whether an address has a prefix; `*` matches any text.
fn begins(address: &str, beginning: &str) -> bool {
    let mut parts = beginning.split('*');
    let first = parts.next().unwrap_or_default();
    let rest = address.strip_prefix(first);
    parts
        .try_fold(rest, |rest, part| {
            let rest = rest?;
            rest.find(part).map(|at| Some(&rest[at + part.len()..]))
        })
        .flatten()
        .is_some()
}

fn expand(
    groups: &BTreeMap<String, BTreeSet<String>>,
    names: &[String],
) -> anyhow::Result<BTreeSet<String>> {
    let mut kinds = BTreeSet::new();
    for name in names {
        let group = groups
            .get(name)
            .with_context(|| format!("{name} is neither a kind nor a group of {DATA}"))?;
        kinds.extend(group.iter().cloned());
    }
    Ok(kinds)
}

fn level(address: &str) -> Level {
    match address.strip_prefix("e2e/tests/") {
        Some(rest) if rest.starts_with("pods_") || rest.starts_with("cluster_") => Level::Pods,
        Some(_) => Level::Api,
        None => Level::Unit,
    }
}

/// Returns an id's canonical form: `CS-1` and `cs_01` are one id.
pub fn canonical(id: &str) -> String {
    let (prefix, number) = id.split_once('-').unwrap_or((id, "0"));
    let number: u32 = number.parse().unwrap_or(0);
    format!("{}-{number:03}", prefix.to_uppercase())
}

/// Returns the ids at the beginning of a test's name (`f_10_f_72_…`, `i31_i32_…`) or a row's (`B-021 …`). `i_01_to_i_24_…`
/// stands for those ids of the range that `laws` has.
fn ids(name: &str, laws: Option<&BTreeSet<String>>) -> Vec<String> {
    if let Some(first) = name.split(' ').next()
        && let Some((prefix, number)) = first.split_once('-')
        && PREFIXES.contains(&prefix.to_lowercase().as_str())
        && number.parse::<u32>().is_ok()
    {
        return vec![canonical(first)];
    }
    let mut ids: Vec<String> = Vec::new();
    let mut range = false;
    let mut words = name.split('_').peekable();
    while let Some(word) = words.next() {
        let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = match &word[letters.len()..] {
            // `f_10`: the next word is the number.
            "" => words.peek().copied().unwrap_or_default(),
            digits => digits,
        };
        if word == "to" && !ids.is_empty() {
            range = true;
            continue;
        }
        if !PREFIXES.contains(&letters)
            || number.is_empty()
            || !number.bytes().all(|b| b.is_ascii_digit())
        {
            break;
        }
        let id = canonical(&format!("{letters}-{number}"));
        if letters.len() == word.len() {
            words.next();
        }
        match ids.pop() {
            Some(first) if range => ids.extend(
                laws.into_iter()
                    .flatten()
                    .filter(|law| (&first..=&id).contains(law))
                    .cloned(),
            ),
            first => ids.extend(first.into_iter().chain([id])),
        }
        range = false;
    }
    ids
}

/// Collects the ids that a source, or the sources below a folder, contain as words: `I-05`.
fn collect_ids(path: &Path, found: &mut BTreeSet<String>) -> anyhow::Result<()> {
    let files = if path.is_dir() {
        files_below(path)?
    } else {
        vec![path.to_owned()]
    };
    for path in files {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        found.extend(ids_in(&text));
    }
    Ok(())
}

/// Returns the ids in lines that are not comments.
fn ids_in(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-'))
        .filter_map(|word| {
            let mut parts = word.split('-');
            let (prefix, number) = (parts.next()?, parts.next()?);
            let known = PREFIXES.iter().any(|p| p.to_uppercase() == prefix);
            (known && number.len() >= 2 && number.bytes().all(|b| b.is_ascii_digit()))
                .then(|| canonical(&format!("{prefix}-{number}")))
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns two operators, one of which includes the shared tests, and tests of every type.
    pub(crate) fn sample() -> (Evidence, Sources) {
        let sources = Sources::of(&[
            (
                "operators/a-operator/tests/x.rs",
                "#[path = \"../../every-kind/mod.rs\"]\nmod k;\n#[test]\nfn b_01_x() {}\n",
            ),
            (
                "operators/b-operator/src/lib.rs",
                "#[test]\nfn b_02_x() {}\n",
            ),
            ("operators/every-kind/y.rs", "#[test]\nfn b_03_x() {}\n"),
            ("crates/c/src/lib.rs", "#[test]\nfn f_01_x() {}\n"),
            (
                "e2e/tests/api_x.rs",
                "// deep\n#[test]\nfn f_02_both() {}\n#[test]\nfn f_03_one() {}\n",
            ),
            (
                "e2e/tests/pods_x.rs",
                "#[test]\nfn i_01_to_i_03_hold() {}\n",
            ),
        ]);
        let data: Data = serde_saphyr::from_str(
            "groups: {both: [A, B]}\nscopes:\n- {tests: e2e/tests/, kinds: [both]}\n- {tests: \"e2e/tests/api_x.rs::f_03\", kinds: [B], level: pods}\n",
        )
        .unwrap();
        let registry = BTreeMap::from([
            ("a-operator", BTreeSet::from(["A".to_owned()])),
            ("b-operator", BTreeSet::from(["B".to_owned()])),
        ]);
        let laws = BTreeMap::from([(
            "e2e/tests/pods_x.rs".to_owned(),
            ids_in("\"I-01: a\"\n// I-02\nI-03-None"),
        )]);
        let mut wrong = Vec::new();
        let evidence = Evidence::new(&data, &registry, laws, &sources, &mut wrong);
        assert_eq!(wrong, Vec::<String>::new());
        (evidence, sources)
    }

    #[test]
    fn a_test_shows_the_kinds_of_its_operator_its_scope_or_whoever_includes_it() {
        let (evidence, sources) = sample();
        let expected = [
            ("b_01_x", "A", Level::Unit),
            ("b_02_x", "B", Level::Unit),
            ("b_03_x", "A", Level::Unit),
            ("f_01_x", OPERATOR, Level::Unit),
            ("f_02_both", "both", Level::Api),
            ("f_03_one", "B", Level::Pods),
            ("i_01_to_i_03_hold", "both", Level::Pods),
        ];
        for (wanted, kinds, level) in expected {
            let (path, name) = sources.all().find(|(_, name)| *name == wanted).unwrap();
            let test = evidence.test(&sources, path, name);
            assert_eq!(
                (evidence.name(test.kinds).as_str(), test.level),
                (kinds, level),
                "{name}"
            );
        }
        assert!(evidence.unknown(&sources).is_empty());
    }

    #[test]
    fn a_star_in_a_beginning_stands_for_any_text() {
        for (beginning, expected) in [
            ("a.rs", true),
            ("a.rs::f_01", true),
            ("a.rs::*_tf_job", true),
            ("*::f_*_job_", true),
            ("b.rs", false),
            ("a.rs::*_mpi_job", false),
            ("a.rs::*_job_*_tf", false),
        ] {
            assert_eq!(
                begins("a.rs::f_01_a_tf_job_runs", beginning),
                expected,
                "{beginning}"
            );
        }
    }

    #[test]
    fn a_scope_names_kinds_that_exist_and_tests_that_exist() {
        let (_, sources) = sample();
        let data: Data = serde_saphyr::from_str(
            "groups: {all: [C]}\nscopes:\n- {tests: e2e/tests/api_x.rs, kinds: [D]}\n- {tests: e2e/tests/gone.rs, kinds: [all]}\n",
        )
        .unwrap();
        let mut wrong = Vec::new();
        let evidence = Evidence::new(
            &data,
            &BTreeMap::new(),
            BTreeMap::new(),
            &sources,
            &mut wrong,
        );
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong[0].contains("no operator serves C"), "{wrong:?}");
        assert!(
            wrong[1].contains("D is neither a kind nor a group"),
            "{wrong:?}"
        );
        assert!(
            wrong[2].contains("no test begins with e2e/tests/gone.rs"),
            "{wrong:?}"
        );
        assert_eq!(evidence.unknown(&sources).len(), 2);
    }

    #[test]
    fn ids_are_what_names_begin_with() {
        let laws = ids_in("I-02 I-09 I-12 I-40");
        let rows: [(&str, &[&str]); 10] = [
            ("f_10_f_72_the_header", &["F-010", "F-072"]),
            ("f50_a_killed_leader", &["F-050"]),
            ("i31_i32_a_life", &["I-031", "I-032"]),
            ("i_01_to_i_31_hold", &["I-002", "I-009", "I-012"]),
            (
                "b_01_i_01_to_i_09_b_02_x",
                &["B-001", "I-002", "I-009", "B-002"],
            ),
            ("cs1_killed", &["CS-001"]),
            ("B-021 a quantity", &["B-021"]),
            ("a_job_of_10_pods", &[]),
            ("mt_64_b_9_s", &["MT-064", "B-009"]),
            ("i_said_so", &[]),
        ];
        for (name, expected) in rows {
            assert_eq!(ids(name, Some(&laws)), expected, "{name}");
        }
        assert_eq!(ids("i_01_to_i_31_hold", None), Vec::<String>::new());
    }

    #[test]
    fn laws_are_ids_outside_of_comments() {
        let text = "// I-01\n    format!(\"I-02: {}\")\n\"S-06-{seconds}s\" \"S-1\" UTF-16 I-x";
        assert_eq!(
            ids_in(text).into_iter().collect::<Vec<_>>(),
            ["I-002", "S-006"]
        );
    }
}
