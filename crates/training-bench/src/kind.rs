//! The kinds of jobs, their selection words and API paths.

use anyhow::{Context as _, Result};
use e2e::peers::SERVED;
use e2e::peers::process::Peer;
use spark_operator::label;
use training_testkit::builders::{Kind, MPI, PYTORCH, SPARK, TENSORFLOW, XGBOOST};

use crate::application;
use crate::bodies;
use crate::drive::JOB_NAME;

/// The measured kinds.
pub const KINDS: [Kind; 5] = [PYTORCH, TENSORFLOW, XGBOOST, MPI, SPARK];

/// The kind that is measured completely. The other operators differ only in a few functions, so a few rows show that
/// these cost nothing.
pub const WHOLE: Kind = PYTORCH;

/// Returns the word that selects a kind: its operator's name without the common suffix.
pub fn word(kind: &Kind) -> &'static str {
    kind.operator.trim_end_matches("-operator")
}

/// Returns the kind for a word.
pub fn named(word: &str) -> Result<Kind> {
    KINDS
        .into_iter()
        .find(|kind| self::word(kind) == word)
        .with_context(|| {
            format!(
                "{word:?} is none of {}",
                KINDS.each_ref().map(self::word).join(", ")
            )
        })
}

/// Returns the kinds for a list of words; an empty list means all.
pub fn chosen(list: &str) -> Result<Vec<Kind>> {
    let words = list
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    let kinds = words.map(named).collect::<Result<Vec<_>>>()?;
    Ok(if kinds.is_empty() {
        KINDS.to_vec()
    } else {
        kinds
    })
}

/// Returns whether a job has a launcher, the pod of a `batch/v1` Job that ends the job, and its own keys. Only one kind has both.
pub fn launches(kind: &Kind) -> bool {
    *kind == MPI
}

/// Returns whether a job is a submitted application with one pod, its driver, and the driver's objects.
pub fn submits(kind: &Kind) -> bool {
    *kind == SPARK
}

/// Returns the published Go operator of a kind.
pub fn peer(kind: &Kind) -> Result<Peer> {
    let served = SERVED.iter().find(|(served, _)| served == kind);
    let (_, peer) = served.with_context(|| format!("no Go operator of {}", kind.name))?;
    Ok(*peer)
}

/// Returns the number of pods of a job.
pub fn pods(kind: &Kind) -> usize {
    if submits(kind) { 1 } else { bodies::PODS }
}

/// Returns the minimum number of requests for a job's life cycle.
pub fn least(kind: &Kind) -> usize {
    if submits(kind) {
        application::LEAST
    } else {
        bodies::LEAST
    }
}

/// Returns the label with the job's name on pods.
pub fn job_label(kind: &Kind) -> &'static str {
    if submits(kind) {
        application::APP_NAME
    } else {
        JOB_NAME
    }
}

/// Returns the replica type with one replica that decides the job's end.
pub fn leader(kind: &Kind) -> &'static str {
    if launches(kind) { "Launcher" } else { "Master" }
}

/// Returns the name of the main container.
pub fn container(kind: &Kind) -> &'static str {
    if submits(kind) {
        "spark-kubernetes-driver"
    } else if kind.container.is_empty() {
        "main"
    } else {
        kind.container
    }
}

/// Returns the path of the jobs in all namespaces.
pub fn everywhere(kind: &Kind) -> String {
    format!("/apis/{}/{}/{}", kind.group, kind.version, kind.plural)
}

/// Returns the path of the jobs in a namespace.
pub fn jobs(kind: &Kind, namespace: &str) -> String {
    format!(
        "/apis/{}/{}/namespaces/{namespace}/{}",
        kind.group, kind.version, kind.plural
    )
}

/// Returns the URL-encoded selector of the operator's pods, and for kinds with replicas also of its services.
pub fn selector(kind: &Kind) -> String {
    if submits(kind) {
        return query(&format!("{}=true", label::LAUNCHED_BY));
    }
    query(&format!(
        "training.kubeflow.org/operator-name={}",
        kind.controller
    ))
}

/// Returns the URL-encoded selector of the pods of all jobs.
pub fn of_jobs(kind: &Kind) -> String {
    query(job_label(kind))
}

/// Returns the URL-encoded selector of the objects of one job.
pub fn of_job(kind: &Kind, name: &str) -> String {
    query(&format!("{}={name}", job_label(kind)))
}

fn query(selector: &str) -> String {
    let selector = selector.replace('/', "%2F").replace('=', "%3D");
    format!("&labelSelector={selector}")
}

#[cfg(test)]
mod tests {
    use training_testkit::builders::{PYTORCH, SPARK};

    #[test]
    fn selectors_are_queries() {
        let pods = "&labelSelector=training.kubeflow.org%2Foperator-name%3Dpytorchjob-controller";
        assert_eq!(super::selector(&PYTORCH), pods);
        let app = "&labelSelector=sparkoperator.k8s.io%2Fapp-name%3Da";
        assert_eq!(super::of_job(&SPARK, "a"), app);
    }

    #[test]
    fn words_choose_and_none_chooses_all() {
        let chosen = |list: &str| {
            let kinds = super::chosen(list).unwrap();
            kinds.iter().map(|kind| kind.name).collect::<Vec<_>>()
        };
        let all = [
            "PyTorchJob",
            "TFJob",
            "XGBoostJob",
            "MPIJob",
            "SparkApplication",
        ];
        assert_eq!(chosen(""), all);
        assert_eq!(chosen("tf, xgboost"), ["TFJob", "XGBoostJob"]);
        assert_eq!(chosen("mpi,spark"), ["MPIJob", "SparkApplication"]);
        let error = format!("{:#}", super::chosen("tf,jax").unwrap_err());
        assert_eq!(error, "\"jax\" is none of pytorch, tf, xgboost, mpi, spark");
    }
}
