//! The engine behind the Makefile: set-up, the local cluster, the demos, the test stages.
//!
//! It has few dependencies, so that it runs seconds after a fresh clone and can start the long builds in parallel.

mod bench;
mod book;
mod cases;
mod cluster;
mod cross;
mod deep;
mod demo;
mod deps;
mod image;
mod kueue;
mod leftovers;
mod licences;
mod mutants;
mod mutate;
mod paths;
mod process;
mod programs;
mod release;
mod sdk;
mod stages;
mod table;
mod tests;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask COMMAND
  demo [pytorch|tf|xgboost|jax|mpi|spark] train a job on a local cluster, from nothing
  test [STAGE...]              run all stages, or those named
  test-deep                    repeat the tests many times; DEEP=1/3 for a third of it
  deep-merge DIR...            merge the results of all parts into one table
  spark-recordings             record the objects of spark-submit again, for the comparison with ours
  peers                        build the Go operators that ours are compared with
  peer-recordings [missing]    record again what they do, or only with jobs that have no recording
  bench                        measure speed and memory; BENCH=full for all of it
  mutate [WORD...]             break single lines of a copy, and check that tests fail; only those with a word in their names
  cluster [NAME]               start a local cluster (default name: dev)
  cluster-down [NAME]          remove every trace of it
  kubectl [NAME] -- ARG...     run kubectl against it
  load [NAME] FILE...          import image archives into it
  kueue [NAME]                 deploy Kueue on it
  image OPERATOR OUT           build an operator's image as an archive
  release DIR [REGISTRY [URL]] write all release artifacts
  licences OPERATOR OUT        write the licence texts of an operator's dependencies
  book                         build the documents as a book with search, and check its links
  deps                         check licences, sources and banned crates
  clean-cache                  remove everything that is cached outside target";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["demo"] => demo::run("pytorch"),
        ["demo", name] => demo::run(name),
        ["test", names @ ..] => tests::run(names),
        ["test-deep"] => deep::run(),
        ["deep-merge", dirs @ ..] if !dirs.is_empty() => deep::merge(dirs),
        ["spark-recordings"] => tests::spark_recordings(),
        ["peers"] => tests::peers(),
        ["peer-recordings"] => tests::peer_recordings("all"),
        ["peer-recordings", "missing"] => tests::peer_recordings("missing"),
        ["bench"] => bench::run(),
        ["mutate", words @ ..] => mutate::run(words),
        ["cluster"] => cluster::up(cluster::DEFAULT).map(|_| ()),
        ["cluster", name] => cluster::up(name).map(|_| ()),
        ["cluster-down"] => cluster::down(cluster::DEFAULT),
        ["cluster-down", name] => cluster::down(name),
        ["kubectl", "--", rest @ ..] => cluster::kubectl_interactive(cluster::DEFAULT, rest),
        ["kubectl", name, "--", rest @ ..] => cluster::kubectl_interactive(name, rest),
        ["load", name, files @ ..] if !files.is_empty() => cluster::load(name, files),
        ["kueue"] => kueue::install(cluster::DEFAULT),
        ["kueue", name] => kueue::install(name),
        ["image", operator, out] => image::operator(operator, out).map(|_| ()),
        ["release", out, rest @ ..] if rest.len() <= 2 => {
            let [registry, url] = [0, 1].map(|at| rest.get(at).copied().unwrap_or_default());
            release::run(out, release::Choice { registry, url })
        }
        ["licences", operator, out] => {
            licences::write(operator, image::Build::Shipped, out.as_ref()).map(drop)
        }
        ["book"] => book::build().map(|page| eprintln!("open {}", page.display())),
        ["deps"] => deps::check(),
        ["clean-cache"] => cluster::clean_cache(),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            if !message.is_empty() {
                eprintln!("{message}");
            }
            ExitCode::FAILURE
        }
    }
}
