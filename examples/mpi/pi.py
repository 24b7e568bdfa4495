#!/usr/bin/python3
"""Estimates π by throwing darts at a square, on every rank of an MPI job."""

import random
import socket

from mpi4py import MPI

DARTS = 200_000

world = MPI.COMM_WORLD
hosts = world.gather(socket.gethostname())
dice = random.Random(world.rank)
hits = sum(dice.random() ** 2 + dice.random() ** 2 < 1 for _ in range(DARTS))
hits = world.reduce(hits)
if world.rank == 0:
    for rank, host in enumerate(hosts):
        print(f"rank {rank} of {world.size} on {host}", flush=True)
    print(f"pi is about {4 * hits / (DARTS * world.size):.3f}", flush=True)
