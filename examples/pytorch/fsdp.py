#!/usr/bin/env python3
"""Trains with FSDP: each rank holds a shard of the parameters, of their gradients and of the optimizer's state.

The checkpoints are sharded too: each rank writes and reads its part. CHECKPOINTS is a directory that
the ranks share. This class runs on CPUs; for GPUs, use NCCL and fully_shard of the same package.
"""

import os
import pathlib
import socket
import warnings

# PyTorch warns of its own internals.
warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ddp import BATCH, SEED, digits, finish, total
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, DistributedSampler

EPOCHS = int(os.environ.get("EPOCHS", "10"))
EVERY = 5  # epochs between two checkpoints
DIRECTORY = pathlib.Path(os.environ["CHECKPOINTS"])
WIDTH = 128
LAYERS = 2


class Layer(nn.Module):
    """A residual layer; FSDP shards one at a time."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return x + self.inner(x)


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), *(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 10))


def state(model, optimizer):
    parts, optimizer_parts = get_state_dict(model, optimizer)
    return {"model": parts, "optimizer": optimizer_parts}


def newest():
    """Returns the epoch of the newest complete checkpoint, or 0: its .metadata is written last.

    Rank 0 decides for all: on some shared file systems, ranks see a new file at different times.
    """
    found = [max((int(file.parent.name) for file in DIRECTORY.glob("*/.metadata")), default=0)]
    dist.broadcast_object_list(found)
    return found[0]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    train, test = digits()
    sampler = DistributedSampler(train, world, rank, seed=SEED)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler)
    model = FullyShardedDataParallel(
        network(), auto_wrap_policy=ModuleWrapPolicy({Layer}), device_id=torch.device("cpu"), use_orig_params=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    mine = sum(p.numel() for p in model.parameters())
    whole = int(total(mine)[0])
    print(f"rank {rank} holds {mine} of {whole} parameters", flush=True)

    done = newest()
    if done:
        stored = state(model, optimizer)
        dcp.load(stored, checkpoint_id=DIRECTORY / str(done))
        set_state_dict(model, optimizer, model_state_dict=stored["model"], optim_state_dict=stored["optimizer"])
    print(f"rank {rank}/{world} on {socket.gethostname()} from epoch {done}", flush=True)

    for epoch in range(done + 1, EPOCHS + 1):
        sampler.set_epoch(epoch)
        model.train()
        losses = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses += loss.item()
        if rank == 0:
            print(f"epoch {epoch}/{EPOCHS} loss {losses / len(loader):.4f}", flush=True)
        if epoch % EVERY == 0:
            dcp.save(state(model, optimizer), checkpoint_id=DIRECTORY / str(epoch))

    model.eval()
    with torch.no_grad():
        x, y = test.tensors
        share = (model(x).argmax(1) == y).float().mean().item()
    finish(rank, EPOCHS, share)


if __name__ == "__main__":
    main()
