//! Messages about a launcher whose init container, which waits for the hosts, doesn't start or fails. Its image is the operator's
//! own, so nothing in the job's templates explains the failure.

use training_core::{BatchPod, Cause, PodView, health};

use crate::init::GATE;
use crate::setup::INIT_CONTAINER;

/// Returns true if that container causes the pod's trouble.
pub(crate) fn is_caused_by_gate(pod: &PodView) -> bool {
    let trouble = pod.trouble.as_deref();
    trouble.is_some_and(|t| t.init && t.container == INIT_CONTAINER && !health::is_of_pod(t))
}

/// Says what is wrong with it and what to do. `image` is the init container's image as configured now.
pub(crate) fn describe(pod: &BatchPod, cause: Cause, image: Option<&str>) -> String {
    let trouble = pod.pod.trouble.as_deref();
    let said = trouble.map_or("", |t| t.message.trim());
    let image = image.map_or_else(
        || "its image".to_owned(),
        |name| format!("its image {name}"),
    );
    let unpulled = matches!(
        cause,
        Cause::InvalidImageName | Cause::ErrImageNeverPull | Cause::ImagePullBackOff
    );
    let (what, remedy) = if is_of_another_platform(said) {
        let node = trouble.map(|t| t.node.as_str()).filter(|n| !n.is_empty());
        let node = node.map_or_else(|| "this node".to_owned(), |name| format!("node {name}"));
        (
            format!("can't run on {node}: {image} is not for the node's architecture"),
            "Set --launcher-gate-image to an image for every architecture of the cluster, keep launchers on nodes that the image \
             is for (nodeSelector kubernetes.io/arch)",
        )
    } else if unpulled {
        (
            format!("can't have {image} on this node"),
            "Let the namespace pull it, set --launcher-gate-image",
        )
    } else {
        (
            format!("doesn't run, with {image}"),
            "See its log (kubectl logs -c), set --launcher-gate-image",
        )
    };
    let said = match cause {
        _ if !said.is_empty() => said.to_owned(),
        Cause::CrashLoopBackOff | Cause::RunContainerError => health::explain_failure(&pod.pod),
        _ => String::new(),
    };
    format!(
        "Pod {}: the operator's own init container {INIT_CONTAINER}, which waits for the hosts, {what}. {remedy}, or leave it out: set \
         the annotation {GATE}: \"false\" or run the operator with --launcher-gate=false, and restart the job or submit it again. {said}",
        pod.name
    )
}

/// Returns true if a container runtime's message says that the node's architecture can't run a program or an image.
fn is_of_another_platform(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    [
        "exec format error",
        "no match for platform",
        "no matching manifest for",
        "does not match the specified platform",
        "no image found in manifest list for architecture",
    ]
    .iter()
    .any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use super::is_of_another_platform;

    #[test]
    fn runtimes_words_for_another_architecture_are_known() {
        for said in [
            "exec /mpi-operator: exec format error",
            "exec container process `/mpi-operator`: Exec format error",
            "no matching manifest for linux/arm64/v8 in the manifest list entries",
            "failed to pull and unpack image \"r.test/mpi-operator:1\": no match for platform in manifest: not found",
        ] {
            assert!(is_of_another_platform(said), "{said}");
        }
        for said in [
            "",
            "unauthorized",
            "r.test/mpi-operator:1: not found",
            "exec: \"/mpi-operator\": no such file",
        ] {
            assert!(!is_of_another_platform(said), "{said}");
        }
    }
}
