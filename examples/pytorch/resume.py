#!/usr/bin/env python3
"""Trains on any number of workers, and resumes from its checkpoint.

torchrun runs this script on each worker. When a worker joins or leaves, torchrun runs it again on
all of them. CHECKPOINTS is a directory that the workers share.
"""

import os
import socket

import torch
import torch.distributed as dist
from ddp import BATCH, SEED, accuracy, digits, finish, network, train_epoch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

EPOCHS = int(os.environ.get("EPOCHS", "30"))
STATE = os.path.join(os.environ["CHECKPOINTS"], "state.pt")


def save(epoch, model, optimizer):
    """Replaces the checkpoint in one step: a pod that is killed here leaves the former one."""
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, STATE + ".new")
    os.replace(STATE + ".new", STATE)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    train, test = digits()
    sampler = DistributedSampler(train, world, rank, seed=SEED)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    # Rank 0 reads for all: on some shared file systems, ranks see a new file at different times.
    found = [torch.load(STATE, weights_only=True) if rank == 0 and os.path.exists(STATE) else None]
    dist.broadcast_object_list(found)
    done = 0
    if found[0]:
        done = found[0]["epoch"]
        model.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
    print(f"rank {rank}/{world} on {socket.gethostname()} from epoch {done}", flush=True)

    for epoch in range(done + 1, EPOCHS + 1):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer)
        # Rank 0 alone writes, after all ranks have taken part in the epoch.
        if rank == 0:
            save(epoch, model, optimizer)
            print(f"epoch {epoch}/{EPOCHS} loss {loss:.4f}", flush=True)

    share = accuracy(model.module, test, rank, world)
    finish(rank, EPOCHS, share)


if __name__ == "__main__":
    main()
