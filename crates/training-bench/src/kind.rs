//! The kinds of jobs: by which word each is chosen, and where the API server has its jobs.

use anyhow::{Context as _, Result};
use spark_operator::label;
use training_testkit::builders::{Kind, MPI, PYTORCH, SPARK, TENSORFLOW, XGBOOST};

use crate::application;
use crate::bodies;
use crate::drive::JOB_NAME;

/// The kinds that are measured.
pub const KINDS: [Kind; 5] = [PYTORCH, TENSORFLOW, XGBOOST, MPI, SPARK];

/// The kind of which every row is measured. The operators differ in little more than a few functions, so that of the others it
/// is enough to see that these cost nothing.
pub const WHOLE: Kind = PYTORCH;

/// The word by which a kind is chosen: its operator's name without what all of them end in.
pub fn word(kind: &Kind) -> &'static str {
    kind.operator.trim_end_matches("-operator")
}

/// The kind that a word means.
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

/// The kinds that a list of words means; nothing named means all.
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

/// Whether one replica of a job is the pod of a `batch/v1` Job, which ends the job, and whether a job has keys of its own: both are
/// peculiar to the same kind.
pub fn launches(kind: &Kind) -> bool {
    *kind == MPI
}

/// Whether a job is an application that is submitted: it has one pod, its driver, and what that mounts.
pub fn submits(kind: &Kind) -> bool {
    *kind == SPARK
}

/// Pods that a job has.
pub fn pods(kind: &Kind) -> usize {
    if submits(kind) { 1 } else { bodies::PODS }
}

/// Requests that a job's life can't do without.
pub fn least(kind: &Kind) -> usize {
    if submits(kind) {
        application::LEAST
    } else {
        bodies::LEAST
    }
}

/// The label of pods that names their job.
pub fn job_label(kind: &Kind) -> &'static str {
    if submits(kind) {
        application::APP_NAME
    } else {
        JOB_NAME
    }
}

/// The replica type of which a job has one, and whose end is the job's.
pub fn leader(kind: &Kind) -> &'static str {
    if launches(kind) { "Launcher" } else { "Master" }
}

/// The name of the container that counts.
pub fn container(kind: &Kind) -> &'static str {
    if submits(kind) {
        "spark-kubernetes-driver"
    } else if kind.container.is_empty() {
        "main"
    } else {
        kind.container
    }
}

/// Where the jobs of all namespaces are.
pub fn everywhere(kind: &Kind) -> String {
    format!("/apis/{}/{}/{}", kind.group, kind.version, kind.plural)
}

/// Where the jobs of a namespace are.
pub fn jobs(kind: &Kind, namespace: &str) -> String {
    format!(
        "/apis/{}/{}/namespaces/{namespace}/{}",
        kind.group, kind.version, kind.plural
    )
}

/// The selector of the operator's pods, as a query has it; of kinds that have replicas also of its services.
pub fn selector(kind: &Kind) -> String {
    if submits(kind) {
        return query(&format!("{}=true", label::LAUNCHED_BY));
    }
    query(&format!(
        "training.kubeflow.org/operator-name={}",
        kind.controller
    ))
}

/// The selector of the pods of all jobs, as a query has it.
pub fn of_jobs(kind: &Kind) -> String {
    query(job_label(kind))
}

/// The selector of the objects of one job, as a query has it.
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
