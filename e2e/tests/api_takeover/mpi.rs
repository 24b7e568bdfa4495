//! An `MPIJob` of `v1`: its launcher is a bare pod, which our operator follows to its end.

use training_testkit::audit::{Entry, Mark};
use training_testkit::builders::{Kind, MPI};
use training_testkit::job::{Jobs, condition};

use super::*;

/// The version through which the training operator's jobs were stored.
const V1: Kind = Kind {
    version: "v1",
    ..MPI
};
/// The kinds that one of our runs would create, change or delete.
const OBJECTS: [(&str, &str, &str); 7] = [
    ("", "v1", "Pod"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "Service"),
    ("", "v1", "ServiceAccount"),
    ("rbac.authorization.k8s.io", "v1", "Role"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
];

/// A namespace with the training operator's jobs, stored under a CRD that has only `v1`.
async fn left(jobs: &[(&str, &str, &str)]) -> Result<Option<Left>> {
    let turn = TURN.lock().await;
    let control = control().await?;
    if !control.can().play_kubelet {
        e2e::skip("the definition of this cluster is in use");
        return Ok(None);
    }
    let admin = control.client(ADMIN).await?;
    manifest::apply(&admin, vec![loose::definition_of(&V1)?]).await?;
    until_served(&admin, &V1).await?;
    let Some(mut world) = World::made(V1, control, "takeover-mpi", lockstep()).await? else {
        return Ok(None);
    };
    for (name, clean, restart) in jobs {
        takeover::leave_mpi(&world, name, clean, restart)
            .await
            .with_context(|| (*name).to_owned())?;
    }
    control.install(MPI.operator).await?;
    until_served(&admin, &MPI).await?;
    // The change of the CRD ended all watches of jobs.
    let client = world.client.clone();
    world.auditor = Auditor::start(client.clone(), world.namespace(), &MPI.resource()).await?;
    world.jobs = Jobs::of(client, world.namespace(), &MPI.resource());
    world.kind = MPI;
    Ok(Some(Left { world, _turn: turn }))
}

async fn until_served(client: &kube::Client, kind: &Kind) -> Result<()> {
    let jobs: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
    let what = format!("{} to be served", kind.version);
    eventually(&what, HANG, async || {
        Ok(match jobs.list(&ListParams::default()).await {
            Ok(_) => Seen::Yes(()),
            Err(error) => Seen::NotYet(error.to_string()),
        })
    })
    .await
}

impl Left {
    /// Uid and version of each object of the jobs, by kind and name.
    async fn objects(&self) -> Result<BTreeMap<String, Value>> {
        let mut all = BTreeMap::new();
        for (group, version, kind) in OBJECTS {
            let gvk = kube::core::GroupVersionKind::gvk(group, version, kind);
            let resource = kube::core::ApiResource::from_gvk(&gvk);
            let (client, namespace) = (self.world.client.clone(), self.world.namespace());
            let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
            for object in api.list(&ListParams::default()).await? {
                let owners = object.metadata.owner_references.iter().flatten();
                if owners.clone().any(|owner| owner.kind == MPI.name) {
                    let object = serde_json::to_value(object)?;
                    let place = format!("{kind}/{}", read::name(&object));
                    let (uid, version) = version_of(&object);
                    all.insert(place, json!([uid, version]));
                }
            }
        }
        Ok(all)
    }

    /// Our operator's writes since then, except for events and statuses of jobs.
    async fn wrote(&self, since: Mark) -> Result<Vec<String>> {
        let audit = self.world.control.audit()?;
        let entries = audit.by_user(since, &MPI.user()).await?;
        let counts = |entry: &&Entry| {
            let reads = matches!(entry.verb.as_str(), "get" | "list" | "watch");
            let status = entry.what() == "patch mpijobs/status";
            let of_the_test = entry.namespace == self.world.namespace();
            of_the_test && !reads && !status && entry.resource != "events"
        };
        let wrote = entries.iter().filter(counts);
        let mut wrote: Vec<String> = wrote.map(|e| format!("{} {}", e.what(), e.name)).collect();
        wrote.sort();
        Ok(wrote)
    }

    async fn until_quiet_of_mpi(&self) -> Result<()> {
        let counts = |entry: &Entry| !entry.is_watch();
        let audit = self.world.control.audit()?;
        audit.until_quiet(&MPI.user(), counts, QUIET, HANG).await
    }
}

fn version_of(object: &Value) -> (Value, Value) {
    let (uid, version) = version(object);
    (uid.clone(), version.clone())
}

fn states(job: &Value) -> Vec<String> {
    let all = conditions(job).into_iter();
    all.map(|c| format!("{}={}", c.kind, c.status)).collect()
}

#[tokio::test]
async fn i_42_a_launcher_that_the_training_operator_began_is_followed_to_its_end() -> Result<()> {
    let jobs = [
        ("running", "Running", "Never"),
        ("all", "All", "Never"),
        ("none", "None", "OnFailure"),
        ("failing", "Running", "Never"),
        ("retried", "Running", "ExitCode"),
    ];
    let Some(left) = left(&jobs).await? else {
        return Ok(());
    };
    let (world, namespace) = (&left.world, left.world.namespace());
    let before = left.objects().await?;
    // Two workers, a launcher, a ConfigMap, a ServiceAccount, a Role and its binding.
    assert_eq!(before.len(), 7 * jobs.len(), "{:?}", before.keys());
    let audit = world.control.audit()?;
    let begin = audit.mark().await?;
    let operator = world.operator().await?;
    for (name, ..) in jobs {
        let seen = |job: &Value| job["status"]["ready"] == "3/3";
        let job = world.jobs.until(name, "taken over", seen).await?;
        assert_eq!(job["spec"]["submittedAs"], "v1", "{name}");
        assert_eq!(states(&job), ["Created=True", "Running=True"], "{name}");
        let running = condition(&job, "Running")?;
        assert_eq!(running.message, format!("MPIJob {name} is running."));
        assert_eq!(job["status"]["startTime"], "2025-01-01T00:00:00Z", "{name}");
    }
    left.until_quiet_of_mpi().await?;
    assert_eq!(left.wrote(begin).await?, [] as [&str; 0]);
    assert_eq!(left.objects().await?, before);

    // The launchers end. The workers are deleted as each job's policy says, and nothing else is.
    for name in ["running", "all", "none"] {
        let launcher = format!("{name}-launcher");
        let kubelet = &world.kubelet;
        kubelet.set(namespace, &launcher, &State::Succeeded).await?;
        let job = world.jobs.until_true(name, "Succeeded").await?;
        let expected = ["Created=True", "Running=False", "Succeeded=True"];
        assert_eq!(states(&job), expected, "{name}");
        let counts = json!({ "Launcher": { "succeeded": 1 }, "Worker": {} });
        assert_eq!(job["status"]["replicaStatuses"], counts, "{name}");
        ensure!(job["status"]["completionTime"].is_string(), "{name}");
    }
    let failed = State::Failed {
        exit_code: 1,
        message: "no convergence".to_owned(),
    };
    let kubelet = &world.kubelet;
    kubelet.set(namespace, "failing-launcher", &failed).await?;
    let job = world.jobs.until_true("failing", "Failed").await?;
    let expected = ["Created=True", "Running=False", "Failed=True"];
    assert_eq!(states(&job), expected);
    let words = "MPIJob failing is failed because 1 Launcher replica(s) failed.";
    assert_eq!(condition(&job, "Failed")?.message, words);
    assert_eq!(job["status"]["lastFailure"]["pod"], "failing-launcher");
    let deletes = [
        "all-launcher",
        "all-worker-0",
        "all-worker-1",
        "failing-worker-0",
        "failing-worker-1",
        "running-worker-0",
        "running-worker-1",
    ]
    .map(|name| format!("delete pods {name}"));
    eventually("every delete", HANG, async || {
        let wrote = left.wrote(begin).await?;
        Ok(if wrote.len() >= deletes.len() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{wrote:?}"))
        })
    })
    .await?;
    left.until_quiet_of_mpi().await?;
    assert_eq!(left.wrote(begin).await?, deletes);
    let now = left.objects().await?;
    let stays = |place: &&String| !place.starts_with("Pod/");
    let mine = before.keys().filter(stays);
    ensure!(mine.clone().all(|p| now[p] == before[p]), "{now:#?}");
    assert_eq!(now["Pod/retried-launcher"], before["Pod/retried-launcher"]);

    a_retry_is_ours(&left, &before).await?;
    operator.assert_no_panic()?;
    world.kubelet.assert_no_errors()?;
    world.auditor.settled().await?;
    let mut wrong = world.auditor.violations();
    // The auditor expects our names, where a Job gives its pods a random suffix.
    wrong.retain(|wrong| !(wrong.starts_with("I-02: Pod ") && wrong.contains("-launcher should")));
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// A retry of the job `retried` uses SSH, with new workers, a Secret and a launcher's Job.
async fn a_retry_is_ours(left: &Left, before: &BTreeMap<String, Value>) -> Result<()> {
    let (world, namespace) = (&left.world, left.world.namespace());
    let kubelet = &world.kubelet;
    let killed = State::Failed {
        exit_code: 137,
        message: String::new(),
    };
    kubelet.set(namespace, "retried-launcher", &killed).await?;
    let replaced = |job: &Value| job["status"]["madeOnce"]["secret"] == "retried-ssh";
    world.jobs.until("retried", "made anew", replaced).await?;
    eventually("a run of ours", HANG, async || {
        let now = left.objects().await?;
        let new = |place: &str| {
            now.get(place)
                .is_some_and(|is| before.get(place) != Some(is))
        };
        let all = [
            "Secret/retried-ssh",
            "Service/retried",
            "Pod/retried-worker-0",
            "Pod/retried-worker-1",
        ];
        Ok(if all.into_iter().all(new) {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{:?}", now.keys()))
        })
    })
    .await?;
    eventually("the retried job to run", HANG, async || {
        let pods = kubelet.pods(namespace, "retried");
        if pods.iter().any(|p| p.bound && p.phase == "Pending") {
            kubelet.all_running(namespace, "retried").await?;
        }
        let job = world.jobs.get("retried").await?;
        let runs = job["status"]["ready"] == "3/3" && is_true(&job, "Running");
        Ok(if runs {
            Seen::Yes(())
        } else {
            Seen::NotYet(job["status"].to_string())
        })
    })
    .await?;
    let now = left.objects().await?;
    for kind in ["ServiceAccount", "Role", "RoleBinding"] {
        let place = format!("{kind}/retried-launcher");
        assert_eq!(now[&place], before[&place], "it goes with its job");
    }
    Ok(())
}
