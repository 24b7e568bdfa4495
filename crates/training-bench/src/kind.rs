//! The kinds of jobs: by which word each is chosen, and where the API server has its jobs.

use anyhow::{Context as _, Result};
use training_testkit::builders::{KINDS, Kind, PYTORCH};

use crate::http::JOBS;

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

/// Where the jobs of a namespace are.
pub fn jobs(kind: &Kind, namespace: &str) -> String {
    format!("{JOBS}/namespaces/{namespace}/{}", kind.plural)
}

/// The selector of the operator's pods and services, as a query has it.
pub fn selector(kind: &Kind) -> String {
    format!(
        "&labelSelector=training.kubeflow.org%2Foperator-name%3D{}",
        kind.controller
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_choose_and_none_chooses_all() {
        let chosen = |list: &str| {
            let kinds = super::chosen(list).unwrap();
            kinds.iter().map(|kind| kind.name).collect::<Vec<_>>()
        };
        assert_eq!(chosen(""), ["PyTorchJob", "TFJob", "XGBoostJob"]);
        assert_eq!(chosen("tf, xgboost"), ["TFJob", "XGBoostJob"]);
        assert_eq!(chosen("pytorch"), ["PyTorchJob"]);
        let error = format!("{:#}", super::chosen("tf,mpi").unwrap_err());
        assert_eq!(error, "\"mpi\" is none of pytorch, tf, xgboost");
    }
}
