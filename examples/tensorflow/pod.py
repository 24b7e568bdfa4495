"""Common code for all roles of these examples. Import it first: loading TensorFlow takes seconds."""

import json
import os
import signal
import socket
import sys
import threading
import time

# Errors only: otherwise each process logs its compile options at length.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def task():
    """Reads TF_CONFIG: the cluster by role, this pod's role and its index."""
    config = json.loads(os.environ["TF_CONFIG"])
    return config["cluster"], config["task"]["type"], config["task"]["index"]


def say(text):
    _, role, index = task()
    print(f"{role} {index}: {text}", flush=True)


def leave(problem=None):
    """Ends the process at once: closing TensorFlow's connections can hang when a peer has left."""
    if problem:
        say(problem)
    sys.stderr.flush()
    os._exit(1 if problem else 0)


def check(condition, problem):
    if not condition:
        leave(problem)


def end_on_sigterm():
    """Ends the process on SIGTERM, which a container's main process must handle itself.

    Python runs handlers in its main thread, which can be inside TensorFlow
    forever. So the signal is blocked there, and another thread waits for it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait():
        signal.sigwait({signal.SIGTERM})
        os.write(1, b"SIGTERM received, leaving\n")
        # The training isn't complete, so 0 would be wrong.
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def resolves(name):
    try:
        socket.getaddrinfo(name, None)
        return True
    except OSError:
        return False


def wait_for(addresses, seconds=120):
    """Waits until these names are in DNS: gRPC retries a missing name with growing backoff."""
    end = time.monotonic() + seconds
    for address in addresses:
        name = address.rsplit(":", 1)[0]
        while not resolves(name):
            check(time.monotonic() < end, f"{name} isn't in DNS after {seconds} s")
            time.sleep(0.2)


def start(roles):
    """Checks this pod's entry in TF_CONFIG, and waits for the other pods in it."""
    cluster, role, index = task()
    check(role in roles, f"this example has no role {role}")
    # The lists of a job with dynamic workers are shorter: a server's contains only itself,
    # a worker's itself under its index, which is a string key in JSON.
    own = cluster[role]
    own = own[str(index)] if isinstance(own, dict) else own[min(index, len(own) - 1)]
    check(own.split(".")[0] == socket.gethostname(), f"{own} isn't this pod, {socket.gethostname()}")
    say(f"cluster {json.dumps(cluster)}")
    for tasks in cluster.values():
        wait_for(tasks.values() if isinstance(tasks, dict) else tasks)
    return cluster, role, index
