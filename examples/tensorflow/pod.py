"""What a pod of these examples needs, whatever its role. Imported first of all: loading TensorFlow takes seconds."""

import json
import os
import signal
import socket
import sys
import threading
import time

# Errors only: otherwise each process tells at length what it was compiled for.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def task():
    """What the operator says in TF_CONFIG: the cluster by role, this pod's role and its index."""
    config = json.loads(os.environ["TF_CONFIG"])
    return config["cluster"], config["task"]["type"], config["task"]["index"]


def say(text):
    _, role, index = task()
    print(f"{role} {index}: {text}", flush=True)


def leave(problem=None):
    """Ends the process at once: to take TensorFlow's connections down in order can hang when a peer has left."""
    if problem:
        say(problem)
    sys.stderr.flush()
    os._exit(1 if problem else 0)


def check(condition, problem):
    if not condition:
        leave(problem)


def end_on_sigterm():
    """Ends the process on SIGTERM, which a container's main process must see to itself.

    Python runs handlers in its main thread, and that can be inside TensorFlow
    for ever. So the signal is blocked there, and another thread waits for it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait():
        signal.sigwait({signal.SIGTERM})
        os.write(1, b"SIGTERM received, leaving\n")
        # The training isn't done, so that 0 would be wrong.
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def resolves(name):
    try:
        socket.getaddrinfo(name, None)
        return True
    except OSError:
        return False


def wait_for(addresses, seconds=120):
    """Waits until these names are in DNS: gRPC asks for one that isn't ever more rarely."""
    end = time.monotonic() + seconds
    for address in addresses:
        name = address.rsplit(":", 1)[0]
        while not resolves(name):
            check(time.monotonic() < end, f"{name} isn't in DNS after {seconds} s")
            time.sleep(0.2)


def start(roles):
    """Checks what this pod was told of itself, and waits for the pods that it was told of."""
    cluster, role, index = task()
    check(role in roles, f"this example has no role {role}")
    # The lists of a job whose workers come and go are shorter: a server is told of itself alone,
    # a worker of itself under its index, which is text for a key as JSON has it.
    own = cluster[role]
    own = own[str(index)] if isinstance(own, dict) else own[min(index, len(own) - 1)]
    check(own.split(".")[0] == socket.gethostname(), f"{own} isn't this pod, {socket.gethostname()}")
    say(f"cluster {json.dumps(cluster)}")
    for tasks in cluster.values():
        wait_for(tasks.values() if isinstance(tasks, dict) else tasks)
    return cluster, role, index
