"""Common code for all roles of these examples: the injected variables, and shutdown."""

import os
import signal
import socket
import threading
import time

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
MASTER_ADDR = os.environ["MASTER_ADDR"]
MASTER_PORT = int(os.environ["MASTER_PORT"])
# A job of one pod has no workers, so the variable is missing.
WORKER_ADDRS = os.environ["WORKER_ADDRS"].split(",") if WORLD_SIZE > 1 else []
WORKER_PORT = int(os.environ.get("WORKER_PORT", "0"))
# In the order of their ranks.
NAMES = [MASTER_ADDR, *WORKER_ADDRS]


def say(text):
    print(f"rank {RANK}/{WORLD_SIZE}: {text}", flush=True)


def check(condition, problem):
    if not condition:
        raise SystemExit(f"rank {RANK}/{WORLD_SIZE}: {problem}")


def address(name, seconds=120):
    """Returns the address of a pod, as soon as DNS has it."""
    if name == socket.gethostname():
        # A pod's own name is in its /etc/hosts from the start.
        return socket.gethostbyname(name)
    end = time.monotonic() + seconds
    while True:
        try:
            return socket.gethostbyname(name)
        except OSError as e:
            check(time.monotonic() < end, f"{name}: {e}")
            time.sleep(0.2)


def end_on_sigterm():
    """Starts a thread that waits for SIGTERM, which a container's main process must handle itself.

    A handler doesn't work: Python calls it in its main thread, which can be inside
    a library that waits for other pods. Exit code 143 says that the work isn't complete.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=_leave, daemon=True).start()


def _leave():
    signal.sigwait([signal.SIGTERM])
    say("SIGTERM received, leaving")
    os._exit(143)


def start():
    """Checks this pod's variables."""
    check(len(NAMES) == WORLD_SIZE, f"{WORLD_SIZE} pods, but these names: {NAMES}")
    check(NAMES[RANK] == socket.gethostname(), f"{NAMES[RANK]} isn't this pod, {socket.gethostname()}")
    say(f"on {NAMES[RANK]}, master {MASTER_ADDR}:{MASTER_PORT}, workers {','.join(WORKER_ADDRS)}:{WORKER_PORT}")
