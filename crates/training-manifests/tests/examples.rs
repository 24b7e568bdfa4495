//! Checks that the Dockerfiles of the examples have what the manifests beside them use, in the versions that tests run.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use training_manifests::tree::files_below;

/// The directories with an image of their own.
const DIRECTORIES: [&str; 6] = ["jax", "mpi", "pytorch", "spark", "tensorflow", "xgboost"];
/// Where images have the programs of examples.
const PROGRAMS: &str = "/opt/trainyard/";

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The manifests of a directory, by name.
fn manifests(directory: &str) -> Vec<(String, String)> {
    let mut paths = files_below(&root().join("examples").join(directory)).unwrap();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "yaml")
    });
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read_to_string(path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// The words after this text, up to a character that no path or version has.
fn after<'a>(text: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).map(|rest| {
        let is_end = |c: char| !c.is_alphanumeric() && !"/._-:".contains(c);
        rest.split(is_end).next().unwrap_or_default()
    })
}

#[test]
fn each_dockerfile_builds_the_image_of_its_manifests() {
    for directory in DIRECTORIES {
        let file = read(&format!("examples/{directory}/Dockerfile"));
        let built = after(&file, "docker build -t ").next().unwrap();
        let manifests = manifests(directory);
        let used = manifests
            .iter()
            .flat_map(|(_, text)| after(text, "image: "));
        assert_eq!(used.collect::<BTreeSet<_>>(), [built].into(), "{directory}");
    }
}

#[test]
fn each_dockerfile_copies_the_programs_of_its_manifests() {
    for directory in DIRECTORIES {
        let file = read(&format!("examples/{directory}/Dockerfile"));
        let manifests = manifests(directory);
        let programs = manifests.iter().flat_map(|(_, text)| after(text, PROGRAMS));
        for program in programs {
            let path = format!("examples/{directory}/{program}");
            assert!(root().join(&path).is_file(), "{path}");
            let copied = [
                format!("COPY *.py {PROGRAMS}"),
                format!("COPY {program} {PROGRAMS}"),
            ];
            assert!(copied.iter().any(|line| file.contains(line)), "{path}");
        }
        for line in file.lines().filter_map(|line| line.strip_prefix("COPY ")) {
            let mut words = line.split(' ').filter(|word| !word.starts_with("--"));
            let source = words.next().unwrap();
            let path = format!("examples/{directory}/{source}");
            assert!(
                source.contains('*') || root().join(&path).is_file(),
                "{path}"
            );
        }
    }
}

/// The words of a recipe's field, of the image with this name.
fn recipe(image: &str, field: &str) -> BTreeSet<String> {
    let all = read("e2e/image/recipe.go");
    let (_, recipe) = all.split_once(&format!("\"{image}\"")).unwrap();
    let (recipe, _) = recipe.split_once("Name:").unwrap_or((recipe, ""));
    let Some((_, list)) = recipe.split_once(&format!("{field}:")) else {
        return BTreeSet::new();
    };
    let (list, _) = list.split_once('}').unwrap();
    let words = list.split('"').skip(1).step_by(2);
    words.map(str::to_owned).collect()
}

#[test]
fn dockerfiles_install_what_tests_run() {
    // PyTorch is Debian's in tests, with what Transformers needs, and Spark comes with Python's packages.
    for directory in ["jax", "mpi", "tensorflow", "xgboost"] {
        let file = read(&format!("examples/{directory}/Dockerfile"));
        let image = after(&file, "docker build -t ").next().unwrap();
        let words: BTreeSet<&str> = file.split_whitespace().collect();
        let packages = words.iter().filter(|word| word.contains("=="));
        let packages: BTreeSet<String> = packages.map(|word| (*word).to_owned()).collect();
        assert_eq!(packages, recipe(image, "Pip"), "{directory}");
        for package in recipe(image, "Apt") {
            assert!(words.contains(&*package), "{directory}: {package}");
        }
    }
}

#[test]
fn dockerfiles_and_tests_agree_on_versions() {
    for directory in ["pytorch", "spark"] {
        let file = read(&format!("examples/{directory}/Dockerfile"));
        let image = after(&file, "docker build -t ").next().unwrap();
        let mut tested = recipe(image, "Pip");
        if let Some(version) = after(&file, "FROM apache/spark:").next() {
            let version = version.split('-').next().unwrap();
            assert!(tested.contains(&format!("pyspark=={version}")), "{version}");
            tested.clear();
        }
        for package in &tested {
            assert!(file.contains(package), "{package}");
        }
        for package in file.split_whitespace().filter(|word| word.contains("==")) {
            let (name, _) = package.split_once("==").unwrap();
            let name = format!("{name}==");
            let same = tested.iter().find(|other| other.starts_with(&name));
            assert!(same.is_none_or(|same| same == package), "{package}");
        }
    }
}

#[test]
fn the_page_lists_every_manifest_with_a_job() {
    let page = read("examples/README.md");
    for directory in DIRECTORIES.into_iter().chain(["quickstart", "gpu"]) {
        assert!(page.contains(&format!("| `{directory}` |")), "{directory}");
        for (name, text) in manifests(directory) {
            let is_job = text.contains("kubeflow.org/") || text.contains("sparkoperator");
            assert!(
                !is_job || page.contains(&format!("`{name}`")),
                "{directory}/{name}"
            );
        }
    }
}
