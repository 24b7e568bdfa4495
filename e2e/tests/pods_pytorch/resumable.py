"""Trains until the name `go` resolves, and resumes from the last checkpoint at each start.

Needs CHECKPOINTS, a directory, and what torchrun or the operator sets for a rendezvous. The
newest checkpoint counts, whichever replica has it. Who loses a peer doesn't end but waits, as
collective training often does, so that somebody else has to end it.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STATE = os.path.join(os.environ["CHECKPOINTS"], "state.pt")
EVERY = 5  # steps between two checkpoints
HANG = 600  # seconds


def told_to_end():
    try:
        return bool(socket.getaddrinfo("go", None))
    except OSError:
        return False


def save(step, model, optimizer):
    """Writes another file first, so that a kill in between keeps the old checkpoint."""
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, STATE + ".new")
    os.replace(STATE + ".new", STATE)


def newest():
    """Returns the newest checkpoint of all replicas, or None."""
    mine = torch.load(STATE) if os.path.exists(STATE) else None
    steps = [None] * dist.get_world_size()
    dist.all_gather_object(steps, mine["step"] if mine else 0)
    found = [mine]
    dist.broadcast_object_list(found, src=steps.index(max(steps)))
    return found[0]


def main():
    dist.init_process_group("gloo")
    rank, world, host = dist.get_rank(), dist.get_world_size(), socket.gethostname()
    torch.manual_seed(1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0
    state = newest()
    if state:
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    print(f"rank {rank}/{world} on {host} from step {step}", flush=True)
    parallel = DistributedDataParallel(model)
    # All ranks learn the same function from samples of their own.
    wanted = torch.arange(8.0).unsqueeze(1)
    samples = torch.Generator().manual_seed(1000 * world + rank)
    while True:
        step += 1
        x = torch.randn(16, 8, generator=samples)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(parallel(x), x @ wanted)
        loss.backward()
        optimizer.step()
        # All ranks end at the same step, as soon as one of them may end.
        numbers = torch.tensor([loss.item() / world, float(told_to_end())])
        dist.all_reduce(numbers)
        if rank == 0 and step % EVERY == 0:
            save(step, model, optimizer)
            print(f"step {step} world {world} loss {numbers[0]:.6f}", flush=True)
        if numbers[1]:
            break
        time.sleep(0.1)  # leaves the CPUs to others
    print(f"rank {rank}/{world} on {host} done at step {step}", flush=True)
    # A graceful shutdown of gloo can hang when another rank has already exited.
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        print(f"a peer is lost: {error}", file=sys.stderr, flush=True)
        time.sleep(HANG)
        os._exit(1)
