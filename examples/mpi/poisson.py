"""Solves Poisson's equation on a square, with its rows distributed over the ranks of an MPI job.

-Δu = f on the unit square, u = 0 at its edge, on N x N inner points. f is chosen so that u = sin(πx) sin(πy)
solves it: every rank compares its rows with that at the end. The method is conjugate gradients. Each step
exchanges the rows at the borders with the neighbours and adds up two numbers over all ranks.
"""

import os
import socket
import sys
import time

import numpy as np
from mpi4py import MPI

N = int(os.environ.get("POINTS", "384"))
SLEEP = float(os.environ.get("SLEEP_PER_STEP", "0"))
TOLERANCE = 1e-8

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
above = rank - 1 if rank > 0 else MPI.PROC_NULL
below = rank + 1 if rank < size - 1 else MPI.PROC_NULL

# This rank has rows first..last-1; the first ranks have one more if the rows don't divide evenly.
share, rest = divmod(N, size)
first = rank * share + min(rank, rest)
rows = share + (rank < rest)
h = 1.0 / (N + 1)


def say(text):
    print(text, flush=True)


def apply(u, out):
    """Returns the five-point Laplacian times -h². `u` also has a row of each neighbour above and below."""
    world.Sendrecv(u[1], dest=above, recvbuf=u[-1], source=below)
    world.Sendrecv(u[-2], dest=below, recvbuf=u[0], source=above)
    inner = u[1:-1]
    out[:] = 4 * inner - u[:-2] - u[2:]
    out[:, 1:] -= inner[:, :-1]
    out[:, :-1] -= inner[:, 1:]


def dot(a, b):
    return world.allreduce(float(np.vdot(a, b)))


# Every rank prints its host, in rank order; mpirun forwards the output to the launcher's log.
hosts = world.gather(socket.gethostname())
if rank == 0:
    for number, host in enumerate(hosts):
        say(f"rank {number} of {size} on {host}")
    say(f"{N} x {N} points, {rows} rows on rank 0")

y = np.arange(first + 1, first + rows + 1)[:, None] * h
x = np.arange(1, N + 1)[None, :] * h
exact = np.sin(np.pi * x) * np.sin(np.pi * y)
# The initial vector is no eigenvector, or the first step would be the last.
solution = np.random.default_rng(rank).standard_normal((rows, N)) * 0.01
right = 2 * np.pi**2 * exact * h * h

padded = np.zeros((rows + 2, N))
product = np.empty((rows, N))
padded[1:-1] = solution
apply(padded, product)
residual = right - product
direction = residual.copy()
error = dot(residual, residual)
goal = TOLERANCE**2 * dot(right, right)
begun = time.monotonic()
step = 0
while error > goal:
    padded[1:-1] = direction
    apply(padded, product)
    length = error / dot(direction, product)
    solution += length * direction
    residual -= length * product
    before, error = error, dot(residual, residual)
    direction *= error / before
    direction += residual
    step += 1
    if rank == 0 and step % 100 == 0:
        say(f"step {step}: residual {error ** 0.5:.2e}")
    if SLEEP:
        time.sleep(SLEEP)
    if step > 20 * N:
        sys.exit("no solution was found")

worst = world.allreduce(float(np.abs(solution - exact).max()), op=MPI.MAX)
if rank == 0:
    seconds = time.monotonic() - begun
    say(f"solved in {step} steps and {seconds:.1f} s, largest error {worst:.1e} on {len(set(hosts))} hosts")
# The discretization error is proportional to the square of the grid spacing.
if worst > 2 * h * h:
    sys.exit(f"rank {rank}: an error of {worst:.1e} is too large")
