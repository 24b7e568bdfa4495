//! `make release`: all release artifacts. Two clones of a commit give the same bytes.

use std::collections::BTreeMap;
use std::env::{current_dir, var};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::image::{self, Build, OPERATORS, PLUGIN};
use crate::licences::{self, Part};
use crate::{cross, paths, process};

/// The version of everything.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The checksums of all files.
pub const SUMS: &str = "SHA256SUMS";
/// The statement about the build.
const PROVENANCE: &str = "provenance.json";
/// In place of an answer that nobody has, in SPDX.
const NO_ASSERTION: &str = "NOASSERTION";
/// The architectures of images and plugins.
const ARCHITECTURES: &str = "ARCHITECTURES";
/// The key for `cosign`, which signs the checksums.
const KEY: &str = "COSIGN_KEY";

/// What the user chooses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice<'a> {
    /// The registry in front of the images' names, such as `registry.example`; the charts' `global.imageRegistry`. Empty: none.
    pub registry: &'a str,
    /// Where the artifacts will be, for the plugin's manifest. Empty: there is no such manifest.
    pub url: &'a str,
}

/// The commit that is built.
struct Commit {
    id: String,
    /// In RFC 3339, so that documents don't depend on the time of the build.
    time: String,
    /// Files differ from it.
    modified: bool,
}

/// What is written where.
struct Release<'a> {
    out: &'a Path,
    /// One build for each architecture.
    builds: &'a [Build],
    choice: Choice<'a>,
    commit: Commit,
    /// The checksums of crates by name and version.
    crates: BTreeMap<(String, String), String>,
}

/// Builds everything as shipped, and writes it to a new directory.
pub fn run(out: &str, choice: Choice<'_>) -> Result<(), String> {
    let out = paths::root().join(out);
    // Before the builds, which take a quarter of an hour each.
    is_new(&out)?;
    let builds = builds(&var(ARCHITECTURES).unwrap_or_default())?;
    for how in &builds {
        image::binaries_for(*how, OPERATORS)?;
        image::plugin(*how)?;
    }
    write(&out, &builds, choice)?;
    if let Ok(key) = var(KEY) {
        // A key may be a file or the address of a key service.
        let here = current_dir().map_err(|e| e.to_string())?.join(&key);
        let key = if here.exists() {
            here.display().to_string()
        } else {
            key
        };
        let sums = out.join(SUMS).display().to_string();
        let signature = format!("{sums}.sig");
        let args = ["sign-blob", "--yes", "--tlog-upload=false", "--key", &key];
        let mut sign = process::command("cosign", args);
        process::run(sign.args(["--output-signature", &signature, &sums]))?;
    }
    let mut list = process::command("du", ["--apparent-size", "-ah", "."]);
    process::run(list.current_dir(&out))
}

/// Returns a build for each of these architectures, such as `amd64 arm64`. By default that is this machine's, and arm64.
fn builds(architectures: &str) -> Result<Vec<Build>, String> {
    let native = Build::Shipped.architecture();
    let mut names: Vec<&str> = architectures.split_whitespace().collect();
    names.sort_unstable();
    if names.is_empty() {
        names = vec![native];
        if native == "amd64" {
            names.push("arm64");
        }
    }
    let builds = names.into_iter().map(|name| match name {
        name if name == native => Ok(Build::Shipped),
        "arm64" => cross::prerequisites().map(|()| Build::Arm64),
        name => Err(format!(
            "{ARCHITECTURES}: {name} can't be built on {native}"
        )),
    });
    builds.collect()
}

fn is_new(out: &Path) -> Result<(), String> {
    if fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) {
        let out = out.display();
        return Err(format!("{out} is not empty; name a new directory with OUT"));
    }
    Ok(())
}

/// Writes the artifacts of programs that were built.
pub fn write(out: &Path, builds: &[Build], choice: Choice<'_>) -> Result<(), String> {
    is_new(out)?;
    let release = Release {
        out,
        builds,
        choice: Choice {
            registry: choice.registry.trim_end_matches('/'),
            url: choice.url.trim_end_matches('/'),
        },
        commit: Commit::read()?,
        crates: locked()?,
    };
    release.images()?;
    release.installations()?;
    release.charts()?;
    release.schemas()?;
    release.plugin()?;
    let sums = sums(out, &paths::files_below(out)?)?;
    release.provenance(&sums)?;
    let own = self::sums(out, &[PROVENANCE.to_owned()])?;
    put(&out.join(SUMS), &(sums + &own))
}

impl Commit {
    fn read() -> Result<Self, String> {
        let git = |args: &[&str]| {
            let mut git = process::command("git", args);
            process::quiet(git.env("TZ", "UTC")).map(|text| text.trim().to_owned())
        };
        let format = "--date=format-local:%Y-%m-%dT%H:%M:%SZ";
        Ok(Self {
            id: git(&["rev-parse", "HEAD"])?,
            time: git(&["show", "-s", "--format=%cd", format, "HEAD"])?,
            modified: !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty(),
        })
    }
}

impl Release<'_> {
    fn directory(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.out.join(name);
        fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    /// Writes the image and the SBOM of each operator for each architecture, and an image for all of them.
    fn images(&self) -> Result<(), String> {
        let (images, lists) = (self.directory("images")?, self.directory("sbom")?);
        for operator in OPERATORS {
            let mut archives = Vec::new();
            for how in self.builds {
                let file = images.join(format!("{}.tar", artifact(operator, *how)));
                check(&paths::binaries(*how).join(operator), *how)?;
                let parts = image::pack_as(operator, *how, &self.image(operator), &file)?;
                self.list(&lists, operator, *how, &parts)?;
                archives.push(file);
            }
            let file = images.join(format!("{operator}-{VERSION}.tar"));
            image::join(&archives, &self.image(operator), &file)?;
        }
        Ok(())
    }

    /// Writes the SBOM of a program.
    fn list(&self, to: &Path, program: &str, how: Build, parts: &[Part]) -> Result<(), String> {
        let name = artifact(program, how);
        put(
            &to.join(format!("{name}.spdx.json")),
            &self.spdx(program, &name, parts),
        )
    }

    /// The reference of an operator's image.
    fn image(&self, operator: &str) -> String {
        let name = format!("trainyard/{operator}:{VERSION}");
        match self.choice.registry {
            "" => name,
            registry => format!("{registry}/{name}"),
        }
    }

    /// Writes the objects of each kustomization, and of all.
    fn installations(&self) -> Result<(), String> {
        let directory = self.directory("install")?;
        let node = process::built("e2e/cluster/build")?;
        for name in OPERATORS.iter().copied().chain(["all"]) {
            let path = format!("manifests/{name}");
            let mut kustomize = process::command(&node, ["kubectl", "kustomize", &path]);
            let mut objects = process::output(&mut kustomize)?;
            for operator in OPERATORS {
                let of_manifests = format!("trainyard/{operator}:{VERSION}");
                let of = [operator, "all"].contains(&name);
                if of && !objects.contains(&of_manifests) {
                    return Err(format!("{path} has no image {of_manifests}"));
                }
                objects = objects.replace(&of_manifests, &self.image(operator));
            }
            put(&directory.join(format!("{name}.yaml")), &objects)?;
        }
        Ok(())
    }

    fn charts(&self) -> Result<(), String> {
        let directory = self.directory("charts")?;
        let path = directory.to_string_lossy();
        self.generated(&["charts", &path])?;
        let charts = fs::read_dir(&directory).map_err(|e| format!("{path}: {e}"))?;
        // All of them first, because archives are written to the same directory.
        let charts: Vec<_> = charts.collect();
        for entry in charts {
            let chart = entry.map_err(|e| e.to_string())?.path();
            let name = chart.file_name().unwrap_or_default().to_string_lossy();
            let file = directory.join(format!("{name}-{VERSION}.tgz"));
            archive(&file, &directory, &[&name])?;
            fs::remove_dir_all(&chart).map_err(|e| format!("{}: {e}", chart.display()))?;
        }
        Ok(())
    }

    fn schemas(&self) -> Result<(), String> {
        self.generated(&["schemas", &self.directory("schemas")?.to_string_lossy()])
    }

    /// Runs the generator of manifests.
    fn generated(&self, args: &[&str]) -> Result<(), String> {
        if self.builds.iter().any(|how| matches!(how, Build::Checked)) {
            let program = paths::binaries(Build::Checked).join("training-manifests");
            return process::run(&mut process::command(program, args));
        }
        let run = ["run", "--locked", "-q", "-p", "training-manifests", "--"];
        process::run(process::command("cargo", run).args(args))
    }

    /// Writes the plugin's archive and its SBOM for each architecture, and its manifest for krew.
    fn plugin(&self) -> Result<(), String> {
        let (directory, lists) = (self.directory("plugin")?, self.directory("sbom")?);
        let mut platforms = String::new();
        for how in self.builds {
            let program = image::plugin_path(*how);
            check(&program, *how)?;
            for (from, to) in [
                (program, PLUGIN),
                (paths::root().join("LICENSE"), "LICENSE"),
            ] {
                let to = directory.join(to);
                fs::copy(&from, to).map_err(|e| format!("{}: {e}", from.display()))?;
            }
            let linked = licences::write(PLUGIN, *how, &directory.join("THIRD-PARTY.txt"))?;
            let file = format!("{}.tar.gz", artifact(PLUGIN, *how));
            let parts = ["LICENSE", "THIRD-PARTY.txt", PLUGIN];
            archive(&directory.join(&file), &directory, &parts)?;
            for part in parts {
                fs::remove_file(directory.join(part)).map_err(|e| format!("{part}: {e}"))?;
            }
            self.list(&lists, PLUGIN, *how, &linked)?;
            let sum = sum(&directory.join(&file))?;
            platforms += &platform(self.choice.url, *how, &file, &sum);
        }
        if self.choice.url.is_empty() {
            return Ok(());
        }
        put(&directory.join("trainyard.yaml"), &krew(&platforms))
    }

    /// Returns a program's SBOM as SPDX 2.3.
    fn spdx(&self, program: &str, name: &str, parts: &[Part]) -> String {
        let own = package("SPDXRef-program", program, VERSION, "Apache-2.0");
        let mut packages = vec![own];
        let mut relations = vec![relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-program")];
        for (number, part) in parts.iter().enumerate() {
            let id = format!("SPDXRef-part-{number}");
            let mut of = package(&id, &part.name, &part.version, &part.expression);
            let key = (part.name.clone(), part.version.clone());
            if let Some(sum) = self.crates.get(&key) {
                of["checksums"] = json!([{ "algorithm": "SHA256", "checksumValue": sum }]);
            }
            of["externalRefs"] = json!([{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": purl(&part.name, &part.version),
            }]);
            packages.push(of);
            relations.push(relation("SPDXRef-program", "STATIC_LINK", &id));
        }
        let state = if self.commit.modified {
            "-modified"
        } else {
            ""
        };
        let document = json!({
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": "SPDXRef-DOCUMENT",
            "name": name,
            "documentNamespace": format!("https://trainyard.dev/spdx/{name}-{}{state}", self.commit.id),
            "creationInfo": {
                "created": self.commit.time,
                "creators": [format!("Tool: trainyard-xtask-{VERSION}")],
            },
            "packages": packages,
            "relationships": relations,
        });
        format!("{document:#}\n")
    }

    /// Writes what was built from what, as a statement of in-toto with a predicate of SLSA.
    fn provenance(&self, sums: &str) -> Result<(), String> {
        let subjects = sums.lines().filter_map(|line| line.split_once("  "));
        let subjects = subjects
            .map(|(sum, file)| json!({ "name": file, "digest": { "sha256": sum } }))
            .collect::<Vec<_>>();
        let lock = sum(&paths::root().join("Cargo.lock"))?;
        let mut sources = vec![
            json!({ "name": "source", "digest": { "gitCommit": self.commit.id } }),
            json!({ "name": "Cargo.lock", "digest": { "sha256": lock } }),
        ];
        for how in self.builds {
            let name = format!("compiler for {}", how.architecture());
            sources.push(json!({ "name": name, "uri": compiler(*how)? }));
        }
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": subjects,
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": "https://trainyard.dev/make-release/v1",
                    "externalParameters": {
                        "registry": self.choice.registry,
                        "url": self.choice.url,
                        "architectures": self.builds.iter().map(|how| how.architecture()).collect::<Vec<_>>(),
                    },
                    "internalParameters": { "modified": self.commit.modified },
                    "resolvedDependencies": sources,
                },
                "runDetails": { "builder": { "id": "https://trainyard.dev/make-release" } },
            },
        });
        put(&self.out.join(PROVENANCE), &format!("{statement:#}\n"))
    }
}

/// The name of a program's artifact.
fn artifact(program: &str, how: Build) -> String {
    format!("{program}-{VERSION}-linux-{}", how.architecture())
}

/// Checks that a program is the same wherever it was built, and that it starts.
fn check(program: &Path, how: Build) -> Result<(), String> {
    let mut sources = image::sources();
    if matches!(how, Build::Checked) {
        // Assembly has debug information, which shipped programs don't.
        sources.truncate(2);
    }
    for path in &sources {
        let search = ["-qaF", &*path.to_string_lossy()];
        if process::quiet(process::command("grep", search).arg(program)).is_ok() {
            let (program, path) = (program.display(), path.display());
            return Err(format!("{program} contains {path}"));
        }
    }
    match how {
        Build::Arm64 => cross::start(program),
        Build::Shipped | Build::Checked => {
            process::quiet(process::command(program, ["--version"]).env_clear()).map(drop)
        }
    }
}

/// Returns the package URL of the compiler of a build.
fn compiler(how: Build) -> Result<String, String> {
    let rustc = how.compiler();
    if rustc == cross::DEBIANS {
        let query = ["-W", "-f=${Version}", "rustc-web"];
        let version = process::quiet(&mut process::command("dpkg-query", query))?;
        return Ok(format!("pkg:deb/debian/rustc-web@{}", encoded(&version)));
    }
    let version = process::quiet(&mut process::command(rustc, ["--version"]))?;
    let version = version.split_whitespace().nth(1).unwrap_or_default();
    Ok(purl(licences::RUST, version))
}

/// Returns a version as package URLs have it.
fn encoded(version: &str) -> String {
    version.replace('+', "%2B")
}

/// Returns the address of a part as a package URL.
fn purl(name: &str, version: &str) -> String {
    let version = encoded(version);
    match name {
        licences::RUST => format!("pkg:generic/rust@{version}"),
        licences::LIBC if version.is_empty() => "pkg:generic/glibc".to_owned(),
        licences::LIBC => format!("pkg:deb/debian/glibc@{version}"),
        name => format!("pkg:cargo/{name}@{version}"),
    }
}

fn package(id: &str, name: &str, version: &str, licence: &str) -> Value {
    // Some crates still use the old form, with a slash.
    let licence = if licence == licences::AS_ITS_FILES {
        NO_ASSERTION.to_owned()
    } else {
        licence.replace('/', " OR ")
    };
    let mut package = json!({
        "SPDXID": id, "name": name, "downloadLocation": NO_ASSERTION, "filesAnalyzed": false,
        "licenseConcluded": NO_ASSERTION, "licenseDeclared": licence, "copyrightText": NO_ASSERTION,
    });
    if !version.is_empty() {
        package["versionInfo"] = json!(version);
    }
    package
}

fn relation(of: &str, what: &str, to: &str) -> Value {
    json!({ "spdxElementId": of, "relationshipType": what, "relatedSpdxElement": to })
}

/// Returns the checksums in Cargo's lock file by name and version.
fn locked() -> Result<BTreeMap<(String, String), String>, String> {
    let lock = fs::read_to_string(paths::root().join("Cargo.lock")).map_err(|e| e.to_string())?;
    let field = |package: &str, name: &str| {
        let begin = format!("{name} = \"");
        let line = package.lines().find_map(|line| line.strip_prefix(&begin))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]");
    let packages = packages.filter_map(|package| {
        let key = (field(package, "name")?, field(package, "version")?);
        Some((key, field(package, "checksum")?))
    });
    Ok(packages.collect())
}

/// Returns the plugin's manifest for krew, kubectl's plugin manager.
fn krew(platforms: &str) -> String {
    format!(
        "apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: trainyard
spec:
  version: v{VERSION}
  shortDescription: Says why a training job waits or failed
  description: |
    Shows why a training job or Spark application waits or failed, checks whether a cluster is ready for Trainyard's
    operators, and migrates from Kubeflow's operators.
  platforms:
{platforms}"
    )
}

/// Returns an architecture's part of that manifest.
fn platform(url: &str, how: Build, file: &str, sum: &str) -> String {
    format!(
        "    - selector:
        matchLabels:
          os: linux
          arch: {}
      uri: {url}/plugin/{file}
      sha256: {sum}
      bin: {PLUGIN}
",
        how.architecture()
    )
}

/// Packs files or directories. Neither times nor users nor the order of a directory change the bytes.
fn archive(to: &Path, directory: &Path, names: &[&str]) -> Result<(), String> {
    let mut tar = process::command("tar", ["--sort=name", "--format=ustar", "--mtime=@0"]);
    tar.args([
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=u+rw,go=rX",
    ])
    .args(["--use-compress-program", "gzip -n9", "-cf"])
    .arg(to)
    .arg("-C")
    .arg(directory)
    .args(names);
    process::run(&mut tar)
}

/// Returns a line for each file, its digest first.
fn sums(directory: &Path, files: &[String]) -> Result<String, String> {
    process::output(process::command("sha256sum", files).current_dir(directory))
}

fn sum(file: &Path) -> Result<String, String> {
    let line = sums(&paths::root(), &[file.display().to_string()])?;
    let sum = line.split_whitespace().next().unwrap_or_default();
    Ok(sum.to_owned())
}

fn put(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn an_sbom_has_versions_licences_and_checksums() {
        let release = Release {
            out: Path::new("/nowhere"),
            builds: &[Build::Shipped],
            choice: Choice::default(),
            commit: Commit {
                id: "c0ffee".to_owned(),
                time: "2026-01-01T00:00:00Z".to_owned(),
                modified: false,
            },
            crates: locked().unwrap(),
        };
        let parts = licences::parts("jax-operator", Build::Shipped).unwrap();
        let list: Value =
            serde_json::from_str(&release.spdx("jax-operator", "jax-operator-1", &parts)).unwrap();
        let packages = list["packages"].as_array().unwrap();
        let find = |name: &str| packages.iter().find(|p| p["name"] == name).unwrap();
        assert_eq!(find("jax-operator")["licenseDeclared"], "Apache-2.0");
        let tokio = find("tokio");
        assert_eq!(tokio["licenseDeclared"], "MIT");
        assert_eq!(
            tokio["checksums"][0]["checksumValue"]
                .as_str()
                .unwrap()
                .len(),
            64
        );
        let purl = tokio["externalRefs"][0]["referenceLocator"]
            .as_str()
            .unwrap();
        assert!(purl.starts_with("pkg:cargo/tokio@1."), "{purl}");
        for package in packages {
            let licence = package["licenseDeclared"].as_str().unwrap();
            assert!(!licence.contains('/') && !licence.is_empty(), "{package}");
        }
        assert_eq!(
            list["relationships"].as_array().unwrap().len(),
            packages.len()
        );
    }

    #[test]
    fn an_archive_depends_on_names_and_contents_alone() {
        let bytes = |age: u64, mode: u32, order: &mut dyn Iterator<Item = u32>| {
            let directory = tempfile::tempdir().unwrap();
            let chart = directory.path().join("chart");
            fs::create_dir(&chart).unwrap();
            for name in order {
                let path = chart.join(name.to_string());
                fs::write(&path, name.to_string()).unwrap();
                let then = SystemTime::now() - Duration::from_secs(age);
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.set_modified(then).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
            let file = directory.path().join("a.tgz");
            archive(&file, directory.path(), &["chart"]).unwrap();
            fs::read(file).unwrap()
        };
        let first = bytes(5, 0o644, &mut (0..100));
        assert_eq!(first, bytes(5_000, 0o600, &mut (0..100).rev()));
    }

    #[test]
    fn artifacts_never_replace_others() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), "").unwrap();
        let error = write(directory.path(), &[Build::Checked], Choice::default()).unwrap_err();
        assert!(
            error.ends_with("is not empty; name a new directory with OUT"),
            "{error}"
        );
    }
}
