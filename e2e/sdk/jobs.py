"""Uses the published Python SDK, unmodified, as its users do.

usage: jobs.py KIND SCENARIO NAMESPACE

Prints what it saw as its last line, and fails with a traceback if anything is not as the SDK's
documentation and its own tests promise. The cluster is that of $KUBECONFIG.
"""

import signal
import sys
import time

from kubernetes import client as k8s
from kubernetes import config
from kubeflow.training import (
    KubeflowOrgV1MPIJob,
    KubeflowOrgV1MPIJobSpec,
    KubeflowOrgV1PyTorchJob,
    KubeflowOrgV1PyTorchJobSpec,
    KubeflowOrgV1ReplicaSpec,
    KubeflowOrgV1RunPolicy,
    KubeflowOrgV1SchedulingPolicy,
    KubeflowOrgV1TFJob,
    KubeflowOrgV1TFJobSpec,
    KubeflowOrgV1XGBoostJob,
    KubeflowOrgV1XGBoostJobSpec,
    TrainingClient,
)

# Per kind: the SDK's models, the field that holds the replicas, and the container that counts.
KINDS = {
    "PyTorchJob": (KubeflowOrgV1PyTorchJob, KubeflowOrgV1PyTorchJobSpec, "pytorch_replica_specs", "pytorch"),
    "TFJob": (KubeflowOrgV1TFJob, KubeflowOrgV1TFJobSpec, "tf_replica_specs", "tensorflow"),
    "XGBoostJob": (KubeflowOrgV1XGBoostJob, KubeflowOrgV1XGBoostJobSpec, "xgb_replica_specs", "xgboost"),
}
SHELL_IMAGE = "trainyard/python:1"
TORCH_IMAGE = "trainyard/pytorch-cpu:1"
MPI_IMAGE = "trainyard/openmpi:1"
# Ends as soon as a service of that name is there.
UNTIL_GO = "echo at work; until getent hosts go; do sleep 0.2; done; echo done"
# Nothing here takes as long; a hang must end.
LIMIT = 300


def wait(client, name, *conditions, **more):
    """The SDK's own wait. It looks every 15 seconds unless told otherwise."""
    return client.wait_for_job_conditions(
        name=name, expected_conditions=set(conditions), wait_timeout=LIMIT, polling_interval=1, **more
    )


def eventually(what, look):
    """For what the SDK can't wait for: repeats until the function gives something."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        seen = look()
        if seen:
            return seen
        time.sleep(0.5)
    raise AssertionError(f"in vain: {what}")


def refused(call, error=RuntimeError):
    """The message with which the SDK refuses to do it."""
    try:
        call()
    except error as e:
        return str(e)
    raise AssertionError("this was expected to be refused")


def go():
    """Ends all that runs UNTIL_GO."""
    service = k8s.V1Service(
        metadata=k8s.V1ObjectMeta(name="go"), spec=k8s.V1ServiceSpec(ports=[k8s.V1ServicePort(port=1)])
    )
    k8s.CoreV1Api().create_namespaced_service(NAMESPACE, service)


def job(name, script, workers=1, restart="OnFailure", labels=None, **policy):
    """A job with a Master and some Workers that run a shell script."""
    model, spec, replica_specs, container_name = KINDS[KIND]
    container = k8s.V1Container(
        name=container_name,
        image=SHELL_IMAGE,
        command=["sh", "-c", script],
        resources=k8s.V1ResourceRequirements(requests={"cpu": "10m", "memory": "16Mi"}),
    )
    pod = k8s.V1PodTemplateSpec(
        # A shell that is a container's first process ignores SIGTERM.
        spec=k8s.V1PodSpec(containers=[container], termination_grace_period_seconds=1)
    )

    def replicas(count):
        return KubeflowOrgV1ReplicaSpec(replicas=count, restart_policy=restart, template=pod)

    roles = {"Master": replicas(1), "Worker": replicas(workers)}
    return model(
        api_version="kubeflow.org/v1",
        kind=KIND,
        metadata=k8s.V1ObjectMeta(name=name, namespace=NAMESPACE, labels=labels),
        spec=spec(run_policy=KubeflowOrgV1RunPolicy(**policy), **{replica_specs: roles}),
    )


def assert_succeeded(client, name):
    """What the SDK's end-to-end suite asserts of a job that went well."""
    done = client.get_job(name)
    conditions = client.get_job_conditions(job=done)
    assert len(conditions) >= 2, conditions
    assert client.is_job_created(job=done), conditions
    assert client.is_job_succeeded(job=done), conditions
    assert not client.is_job_running(job=done), conditions
    assert not client.is_job_restarting(job=done), conditions
    assert not client.is_job_failed(job=done), conditions
    assert conditions[-1].type == "Succeeded", conditions
    assert done.status.completion_time >= done.status.start_time, done.status
    return done


def from_function(client):
    """A Python function becomes a job of three ranks that compute together."""

    def train(parameters):
        import os
        import socket

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        total = torch.tensor([float(rank + parameters["add"])])
        dist.all_reduce(total)
        print(f"rank {rank} of {world} on {socket.gethostname()}: {total.item()}", flush=True)
        dist.barrier()
        # Taking gloo's connections down in order can hang when another rank has left already.
        os._exit(0)

    name, world = "function", 3
    client.create_job(
        name=name,
        train_func=train,
        parameters={"add": 10},
        base_image=TORCH_IMAGE,
        num_workers=world,
        num_procs_per_worker=1,
        env_vars={"OMP_NUM_THREADS": "1"},
        resources_per_worker={"cpu": "100m", "memory": "1Gi"},
        labels={"team": "vision"},
    )
    seen = []
    wait(client, name, "Succeeded", callback=lambda job: seen.append(job.status))
    done = assert_succeeded(client, name)
    assert done.metadata.labels == {"team": "vision"}, done.metadata.labels
    assert done.spec.nproc_per_node == "1", done.spec.nproc_per_node

    pods = sorted(client.get_job_pod_names(name))
    assert pods == ["function-master-0", "function-worker-0", "function-worker-1"], pods
    assert client.get_job_pod_names(name, is_master=True) == pods[:1]
    assert sorted(client.get_job_pod_names(name, replica_type="worker")) == pods[1:]
    assert client.get_job_pod_names(name, replica_type="worker", replica_index=1) == pods[2:]
    # The master's end is the job's; a worker may end a moment later.
    eventually(
        "every rank to end",
        lambda: all(pod.status.phase == "Succeeded" for pod in client.get_job_pods(name)),
    )
    for pod in client.get_job_pods(name):
        assert pod.metadata.annotations["sidecar.istio.io/inject"] == "false", pod.metadata

    logs, _ = client.get_job_logs(name)
    assert list(logs) == pods[:1], list(logs)
    logs, events = client.get_job_logs(name, is_master=False, verbose=True)
    assert sorted(logs) == pods, list(logs)
    for rank, pod in enumerate(pods):
        line = f"rank {rank} of {world} on {pod}: 33.0"
        assert line in logs[pod], logs[pod]
    said = events["pytorchjob/function"]
    assert any("Created" in line and "pod" in line for line in said), said
    assert any("successfully completed" in line for line in said), said
    assert events["pod/function-master-0"], events
    return f"3 ranks added up to 33, {len(seen)} looks, events: {said}"


def life(client):
    """A job from an object: followed, listed, updated, suspended, resumed, deleted."""
    client.create_job(job("life", UNTIL_GO, workers=2, labels={"run": "first"}))
    client.create_job(job("other", "true"))
    wait(client, "life", "Created")
    running = wait(client, "life", "Running")
    assert client.is_job_running("life")
    true = [c.type for c in client.get_job_conditions(job=running) if c.status == "True"]
    assert true == ["Created", "Running"], true
    uids = {p.metadata.name: p.metadata.uid for p in client.get_job_pods("life")}
    assert sorted(uids) == ["life-master-0", "life-worker-0", "life-worker-1"], uids
    wait(client, "other", "Succeeded")
    listed = {j.metadata.name: j for j in client.list_jobs()}
    assert sorted(listed) == ["life", "other"], list(listed)
    assert client.is_job_succeeded(job=listed["other"])
    assert not client.is_job_succeeded(job=listed["life"])

    # An update in place touches no pod.
    def update():
        change = client.get_job("life")
        change.metadata.labels["run"] = "second"
        change.spec.run_policy.scheduling_policy = KubeflowOrgV1SchedulingPolicy(min_available=2)
        change.spec.run_policy.ttl_seconds_after_finished = 3600
        try:
            client.update_job(change, "life")
        except RuntimeError as e:
            # The object names its version, and the operator may have counted a pod in between.
            if getattr(e.__context__, "status", None) != 409:
                raise
            return False
        return True

    eventually("an update of what was read", update)
    changed = client.get_job("life")
    assert changed.metadata.labels == {"run": "second"}, changed.metadata
    assert changed.spec.run_policy.scheduling_policy.min_available == 2, changed.spec.run_policy
    assert {p.metadata.name: p.metadata.uid for p in client.get_job_pods("life")} == uids

    # Suspended: no pods, and active is 0; the SDK's wait doesn't know this condition.
    change = job("life", UNTIL_GO, workers=2, suspend=True)
    client.update_job(change, "life")

    def suspended():
        now = client.get_job("life")
        true = [c.type for c in client.get_job_conditions(job=now) if c.status == "True"]
        active = sum(r.active or 0 for r in now.status.replica_statuses.values())
        return true[-1] == "Suspended" and active == 0 and not client.get_job_pods("life")

    eventually("a suspended job without pods", suspended)
    assert not client.is_job_running("life")

    client.update_job(job("life", UNTIL_GO, workers=2, suspend=False), "life")
    wait(client, "life", "Running")
    again = {p.metadata.name: p.metadata.uid for p in client.get_job_pods("life")}
    assert sorted(again) == sorted(uids) and not set(again.values()) & set(uids.values()), again
    # The SDK passes over pods that don't run yet, and the job runs as soon as its Master does.
    eventually(
        "three running pods", lambda: all(p.status.phase == "Running" for p in client.get_job_pods("life"))
    )
    go()
    # Follows until the containers have ended, and prints on the way.
    logs, _ = client.get_job_logs("life", is_master=False, follow=True)
    wait(client, "life", "Succeeded")
    assert_succeeded(client, "life")
    for name in again:
        assert "at work" in logs[name] and "done" in logs[name], logs

    client.delete_job("life")
    missing = refused(lambda: client.get_job("life"))
    assert "life" in missing, missing
    assert [j.metadata.name for j in client.list_jobs()] == ["other"]
    eventually("the end of its pods", lambda: not client.get_job_pods("life"))
    return f"updated without touching {len(uids)} pods, suspended, resumed with others, deleted"


def endings(client):
    """Jobs that fail, that begin suspended, that somebody else manages, and that are no jobs."""
    client.create_job(job("fails", "echo 'no such data'; exit 3", restart="Never"))
    message = refused(lambda: wait(client, "fails", "Succeeded"))
    assert "is Failed" in message, message
    failed = wait(client, "fails", "Failed")
    assert client.is_job_failed(job=failed) and not client.is_job_succeeded(job=failed)
    assert client.get_job_conditions(job=failed)[-1].type == "Failed"
    # The worker may have failed first, while its master was still pending: the SDK passes over such pods.
    said = eventually("the master's log", lambda: client.get_job_logs("fails")[0].get("fails-master-0"))
    assert "no such data" in said, said

    # The default of who manages it may be written out.
    client.create_job(job("sleeps", "true", suspend=True, managed_by="kubeflow.org/training-operator"))
    client.create_job(job("elsewhere", "true", managed_by="kueue.x-k8s.io/multikueue"))
    asleep = wait(client, "sleeps", "Created")
    asleep = eventually(
        "a suspended job", lambda: len(client.get_job_conditions("sleeps")) == 2 and client.get_job("sleeps")
    )
    kinds = [(c.type, c.status) for c in client.get_job_conditions(job=asleep)]
    assert kinds == [("Created", "True"), ("Suspended", "True")], kinds
    assert asleep.status.start_time is None, asleep.status
    assert client.get_job_pods("sleeps") == []
    change = client.get_job("sleeps")
    change.spec.run_policy.suspend = False
    client.update_job(change, "sleeps")
    wait(client, "sleeps", "Succeeded")
    assert_succeeded(client, "sleeps")

    # A whole job has come and gone, and this one is as it was.
    assert client.get_job_conditions("elsewhere") == []
    assert client.get_job_pods("elsewhere") == []
    message = refused(lambda: client.create_job(job("nobodys", "true", managed_by="example.com/me")))
    assert f"Failed to create {KIND}" in message and "managedBy" in message, message
    return f"failed, begun suspended, left alone; refused with {message.splitlines()[0][:80]}"


def bare(client):
    """Jobs that others have applied without what the SDK's models want to be there."""
    names = sorted(j.metadata.name for j in client.list_jobs())
    assert names == ["no-policy", "with-policy"], names
    for name in names:
        wait(client, name, "Succeeded")
        done = assert_succeeded(client, name)
        assert done.spec.run_policy is not None, done.spec
    return f"read {names}"


def queued(client):
    """A job that the SDK puts into a queue of Kueue's."""
    client.create_job(job("queued", "true"), queue_name="queue")
    wait(client, "queued", "Succeeded")
    done = assert_succeeded(client, "queued")
    assert done.metadata.labels["kueue.x-k8s.io/queue-name"] == "queue", done.metadata
    conditions = {c.type: c for c in client.get_job_conditions(job=done)}
    assert conditions["Suspended"].status == "False", conditions
    return "it was suspended, admitted and ended well"


def mpi_role(count, *command):
    """Pods that run a shell script as root, with an MPI in their image."""
    container = k8s.V1Container(
        name="mpi",
        image=MPI_IMAGE,
        command=["sh", "-c", *command],
        resources=k8s.V1ResourceRequirements(requests={"cpu": "20m", "memory": "64Mi"}),
    )
    pod = k8s.V1PodTemplateSpec(spec=k8s.V1PodSpec(containers=[container], termination_grace_period_seconds=1))
    return KubeflowOrgV1ReplicaSpec(replicas=count, restart_policy="Never", template=pod)


SSH_SERVER = "mkdir -p /run/sshd && exec /usr/sbin/sshd -De -p 2222 -o StrictModes=no"
RANKS = "mpirun --allow-run-as-root --bind-to none -n 2 python3 -c 'import socket; print(\"rank on\", socket.gethostname())'"


def assert_ranks(said):
    """One rank has run on each of the hosts."""
    hosts = sorted(line.split()[-1] for line in said.splitlines() if line.startswith("rank on"))
    assert hosts == ["pi-worker-0", "pi-worker-1"], said
    return f"ranks on {hosts}"


def mpi(client):
    """A program that mpirun starts on two hosts, as root, in the version of the API that the SDK knows."""
    client.create_job(
        KubeflowOrgV1MPIJob(
            api_version="kubeflow.org/v1",
            kind=KIND,
            metadata=k8s.V1ObjectMeta(name="pi", namespace=NAMESPACE),
            spec=KubeflowOrgV1MPIJobSpec(
                slots_per_worker=1,
                clean_pod_policy="Running",
                run_policy=KubeflowOrgV1RunPolicy(),
                mpi_replica_specs={"Launcher": mpi_role(1, RANKS), "Worker": mpi_role(2, SSH_SERVER)},
            ),
        )
    )
    wait(client, "pi", "Succeeded")
    assert_succeeded(client, "pi")
    logs, _ = client.get_job_logs("pi")
    assert len(logs) == 1, logs
    (launcher, said), = logs.items()
    assert launcher.startswith("pi-launcher-"), logs
    saw = assert_ranks(said)
    eventually("no worker", lambda: len(client.get_job_pods("pi")) == 1)
    assert [j.metadata.name for j in client.list_jobs()] == ["pi"]
    client.delete_job("pi")
    return saw


def mpi_v2beta1(_):
    """The same in the MPI operator's own version, which its clients reach as a custom object."""
    which = {"group": "kubeflow.org", "version": "v2beta1", "namespace": NAMESPACE, "plural": "mpijobs"}
    jobs, core = k8s.CustomObjectsApi(), k8s.CoreV1Api()
    roles = {"Launcher": mpi_role(1, RANKS), "Worker": mpi_role(2, SSH_SERVER)}
    body = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": KIND,
        "metadata": {"name": "pi"},
        "spec": {
            "slotsPerWorker": 1,
            "runPolicy": {"cleanPodPolicy": "Running"},
            "mpiReplicaSpecs": k8s.ApiClient().sanitize_for_serialization(roles),
        },
    }
    made = jobs.create_namespaced_custom_object(body=body, **which)
    assert made["spec"]["submittedAs"] == "v2beta1", made["spec"]
    # Who wants the status alone asks for it.
    read = lambda: jobs.get_namespaced_custom_object_status(name="pi", **which)["status"]

    def conditions():
        return {c["type"]: c["status"] for c in read().get("conditions", [])}

    def ended():
        now = conditions()
        assert now.get("Failed") != "True", now
        return now.get("Succeeded") == "True" and now

    eventually("a job that is there", lambda: "status" in jobs.get_namespaced_custom_object(name="pi", **which))
    last = eventually("a job that has succeeded", ended)
    # It may have been Stalled for a moment.
    last.pop("Stalled", None)
    assert last == {"Created": "True", "Running": "False", "Succeeded": "True"}, last
    status = read()
    assert status["replicaStatuses"]["Launcher"]["succeeded"] == 1, status
    assert status["completionTime"] >= status["startTime"], status
    role = "training.kubeflow.org/job-name=pi,training.kubeflow.org/job-role=launcher"
    (launcher,) = core.list_namespaced_pod(NAMESPACE, label_selector=role).items
    saw = assert_ranks(core.read_namespaced_pod_log(launcher.metadata.name, NAMESPACE))
    listed = jobs.list_namespaced_custom_object(**which)["items"]
    assert [j["metadata"]["name"] for j in listed] == ["pi"], listed
    jobs.delete_namespaced_custom_object(name="pi", **which)
    of_job = "training.kubeflow.org/job-name=pi"
    eventually("no pod", lambda: not core.list_namespaced_pod(NAMESPACE, label_selector=of_job).items)
    assert jobs.list_namespaced_custom_object(**which)["items"] == []
    return saw


SCENARIOS = {f.__name__: f for f in (from_function, life, endings, bare, queued, mpi, mpi_v2beta1)}

if __name__ == "__main__":
    KIND, SCENARIO, NAMESPACE = sys.argv[1:]
    # Whatever hangs where none of the limits holds ends here.
    signal.alarm(3 * LIMIT)
    config.load_kube_config()
    print(SCENARIOS[SCENARIO](TrainingClient(namespace=NAMESPACE, job_kind=KIND)))
