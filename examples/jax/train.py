"""Linear regression whose gradients are summed over all processes of a JAXJob."""

import os
import socket

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = 200
ROWS = 64  # per process
WEIGHTS = np.array([1.5, -2.0, 0.5, 3.0], dtype=np.float32)


def main():
    # Without a GPU, processes exchange arrays by Gloo.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The operator sets these four variables.
    host, port = os.environ["COORDINATOR_ADDRESS"], os.environ["COORDINATOR_PORT"]
    jax.distributed.initialize(
        coordinator_address=f"{host}:{port}",
        num_processes=int(os.environ["NUM_PROCESSES"]),
        process_id=int(os.environ["PROCESS_ID"]),
    )
    me, total = jax.process_index(), jax.process_count()
    print(f"process {me} of {total} on {socket.gethostname()}, coordinator {host}:{port}", flush=True)

    # Every process has its own rows.
    random = np.random.default_rng(me)
    x = random.standard_normal((ROWS, len(WEIGHTS)), dtype=np.float32)
    y = x @ WEIGHTS
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    x = jax.make_array_from_process_local_data(rows, x)
    y = jax.make_array_from_process_local_data(rows, y)

    @jax.jit
    def step(w, x, y):
        # A closure can't capture rows of other processes, so they are arguments.
        loss = lambda w: jnp.mean((x @ w - y) ** 2)
        return w - 0.1 * jax.grad(loss)(w), loss(w)

    w = jnp.zeros(len(WEIGHTS), dtype=jnp.float32)
    for _ in range(STEPS):
        w, loss = step(w, x, y)
    # All processes must have the same weights.
    w = np.asarray(multihost_utils.process_allgather(w)).reshape(-1, len(WEIGHTS))
    if not np.allclose(w, WEIGHTS, atol=1e-3):
        raise SystemExit(f"process {me}: the weights are {w}, should be {WEIGHTS}")
    print(f"process {me}: {x.shape[0]} rows of {total} processes, loss {float(loss):.6f}, weights {w[0].round(3).tolist()}", flush=True)


main()
