//! What prevents the pods of a job of any kind from being created or starting.

use e2e::for_each_kind;
use training_testkit::builders::{EVERY_KIND, Kind, SPARK, TRAINING, application};

use super::*;

/// The number of retries of a submission.
const RETRIES: usize = 1;

const NOT_FOUND: &str = "rpc error: code = NotFound desc = failed to resolve image: not found";
/// What a kubelet says of a container, the reason that the job shows, and the kubelet's message.
const ROWS: [(&str, &str, &str); 7] = [
    ("ErrImagePull", "ImagePullBackOff", NOT_FOUND),
    (
        "InvalidImageName",
        "InvalidImageName",
        "Failed to apply default image tag \"a b\": couldn't parse image name",
    ),
    (
        "ErrImageNeverPull",
        "ErrImageNeverPull",
        "Container image \"x\" is not present with pull policy of Never",
    ),
    (
        "CreateContainerConfigError",
        "CreateContainerConfigError",
        "secret \"token\" not found",
    ),
    (
        "CreateContainerError",
        "CreateContainerError",
        "context deadline exceeded",
    ),
    (
        "RunContainerError",
        "RunContainerError",
        "exec: \"nope\": executable file not found in $PATH",
    ),
    ("NewInTheNextVersion", "ContainerWaiting", "whatever it is"),
];

async fn containers_that_do_not_start(kind: Kind) -> Result<()> {
    let Some(world) = World::of(kind, "waiting", lockstep()).await? else {
        return Ok(());
    };
    // Otherwise so many causes within a minute would share a summary event.
    let kubeconfig = world.control.kubeconfig(&kind.user()).await?;
    let options = world.options(&kubeconfig).flag("events", "full");
    let operator = OperatorProcess::start(options).await?;
    let namespace = world.namespace();
    let job = kind.small_job("pt", 2).run_policy("cleanPodPolicy", "None");
    world.jobs.create(&job.build()).await?;
    world.kubelet.until_pods(namespace, "pt", 3).await?;
    world.jobs.until_true("pt", "Created").await?;
    for (word, reason, text) in ROWS {
        world
            .kubelet
            .set(
                namespace,
                "pt-worker-1",
                &waiting(word, &format!("{text}\u{1b}[2J")),
            )
            .await?;
        let message = until_stalled(&world, reason).await?;
        let container = format!("container {}", kind.any_container());
        assert!(
            message.starts_with("Pod pt-worker-1: ") && message.contains(&container),
            "{message}"
        );
        assert!(message.contains(text), "{message}");
        assert!(!message.contains('\u{1b}'), "{message}");
    }
    // A kubelet that retries with a new message each time causes no writes.
    world
        .kubelet
        .set(
            namespace,
            "pt-worker-1",
            &waiting("ErrImagePull", NOT_FOUND),
        )
        .await?;
    until_stalled(&world, "ImagePullBackOff").await?;
    let before = world.jobs.get("pt").await?["metadata"]["resourceVersion"].clone();
    for round in 0..4 {
        let back_off =
            format!("Back-off pulling image \"x{round}\": ErrImagePull: {NOT_FOUND} {round}");
        for state in [
            waiting("ImagePullBackOff", &back_off),
            waiting("ErrImagePull", &format!("{NOT_FOUND}, try {round}")),
        ] {
            world.kubelet.set(namespace, "pt-worker-1", &state).await?;
        }
    }
    stays_untouched(&world).await?;
    let job = world.jobs.get("pt").await?;
    assert_eq!(job["metadata"]["resourceVersion"], before);
    assert_eq!(
        conditions(&job).last().map(|c| c.kind.as_str()),
        Some("Created")
    );
    assert_eq!(job["status"]["restarts"], 0, "waiting is no restart");
    for (_, reason, _) in ROWS {
        read::events_with(&world.client, namespace, "pt", reason).await?;
        let times = if reason == "ImagePullBackOff" { 2 } else { 1 };
        assert!(told(&world, reason).await? <= times, "{reason}");
    }
    ends_well(&world).await?;
    let last = job::condition(&world.jobs.get("pt").await?, "Stalled")?;
    assert_eq!(
        (last.status.as_str(), last.reason.as_str()),
        ("False", "ImagePullBackOff")
    );
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b118_b123_containers_that_do_not_start_are_said_once_and_taken_back() -> Result<()> {
    for_each_kind(TRAINING, containers_that_do_not_start).await
}

/// A job whose pods want host access.
fn reaches_for_the_host(kind: Kind) -> Value {
    let volumes = json!([{ "name": "root", "hostPath": { "path": "/" } }]);
    if kind == SPARK {
        let mut app = application("pt");
        app["spec"]["volumes"] = volumes;
        app["spec"]["driver"]["hostNetwork"] = json!(true);
        app["spec"]["restartPolicy"] = json!({
            "type": "OnFailure", "onSubmissionFailureRetries": RETRIES, "onSubmissionFailureRetryInterval": 1,
        });
        return app;
    }
    let mut job = kind.small_job("pt", 1).build();
    let roles = job["spec"][kind.replica_map].as_object_mut();
    for role in roles.into_iter().flat_map(|roles| roles.values_mut()) {
        let pod = &mut role["template"]["spec"];
        pod["hostPID"] = json!(true);
        pod["volumes"] = volumes.clone();
    }
    job
}

/// Waits until a job reports that its pods are denied. An application has no condition for it: it fails after its last retry.
async fn until_denied(world: &World) -> Result<String> {
    if world.kind != SPARK {
        return until_stalled(world, "PodSecurityDenied").await;
    }
    let failed = |app: &Value| app["status"]["applicationState"]["state"] == "FAILED";
    let app = world.jobs.until("pt", "failed", failed).await?;
    let message = app["status"]["applicationState"]["errorMessage"].as_str();
    Ok(message.unwrap_or_default().to_owned())
}

async fn denied_pods(kind: Kind) -> Result<()> {
    let Some(world) = World::of(kind, "security", lockstep()).await? else {
        return Ok(());
    };
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let label =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    namespaces
        .patch(
            world.namespace(),
            &PatchParams::default(),
            &Patch::Merge(&label),
        )
        .await?;
    let audit = world.control.audit()?;
    let begin = audit.mark().await?;
    let since = tokio::time::Instant::now();
    let operator = world.operator().await?;
    world.jobs.create(&reaches_for_the_host(kind)).await?;
    let message = until_denied(&world).await?;
    assert!(
        message.contains("violates PodSecurity \"restricted")
            && message.contains("host namespaces"),
        "{message}"
    );
    stays_untouched(&world).await?;
    assert!(
        read::pods(&world.client, world.namespace(), "pt")
            .await?
            .is_empty()
    );
    let namespace = world.namespace();
    let tries = audit
        .by_user(begin, &kind.user())
        .await?
        .into_iter()
        .filter(|entry| {
            entry.verb == "create" && entry.resource == "pods" && entry.namespace == namespace
        })
        .count();
    if kind == SPARK {
        assert_eq!(tries, 1 + RETRIES, "as often as its policy says");
    }
    // The first reconcile sends two creates at once. The backoff then doubles, up to a second in tests, with at most half of it taken off
    // as jitter. A longer time may contain more creates.
    let most = 8 + since.elapsed().as_millis() / 500;
    assert!(tries >= 1 && tries as u128 <= most, "{tries} of {most}");
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn f21_b125_what_pod_security_forbids_makes_no_pod_and_few_tries() -> Result<()> {
    for_each_kind(EVERY_KIND, denied_pods).await
}
