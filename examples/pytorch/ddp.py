#!/usr/bin/env python3
"""Trains a small network on the digits data set with DistributedDataParallel.

Every replica of the PyTorchJob runs this file with plain python3. The operator
injects MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK. The data, 1,797 images
of 8x8 pixels, ship with scikit-learn, so nothing is downloaded.
"""

import os
import signal
import sys


def supervise():
    """Runs the work in a child process and waits for it.

    A container's main process doesn't end on SIGTERM unless it handles it, and
    Python can't run a handler while torch waits for other replicas. This parent
    process always can.
    """
    child = 0

    def forward(*_):
        os.write(1, b"SIGTERM received, leaving\n")
        if child:
            os.kill(child, signal.SIGTERM)
        else:
            os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # As in a shell, 143 means "ended by SIGTERM". The training isn't complete, so
    # 0 would be wrong.
    os._exit(128 - code if code < 0 else code)


# Before the imports: they take seconds, and fork() must run without other threads.
if __name__ == "__main__":
    supervise()

import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = int(os.environ.get("EPOCHS", "30"))
BATCH = 32  # per replica
TEST_SHARE = 0.2
SEED = 1


def digits():
    """Returns train and test set, shuffled in the same way on every replica."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target, dtype=torch.long)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(SEED))
    test = int(len(x) * TEST_SHARE)
    return (
        TensorDataset(x[order[test:]], y[order[test:]]),
        TensorDataset(x[order[:test]], y[order[:test]]),
    )


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def total(*values):
    """Returns the sums of these numbers over all replicas."""
    numbers = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(numbers)
    return numbers.tolist()


def train_epoch(model, loader, optimizer):
    """Trains one epoch; returns the mean loss over all replicas."""
    model.train()
    loss_sum = seen = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(y)
        seen += len(y)
    loss_sum, seen = total(loss_sum, seen)
    return loss_sum / seen


def accuracy(model, test, rank, world):
    """Returns the accuracy on the test set; each replica evaluates a part."""
    x, y = test.tensors
    x, y = x[rank::world], y[rank::world]
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum().item()
    right, seen = total(right, len(y))
    return right / seen


def finish(rank, epochs, share):
    """Reports the result, and ends this process once all replicas have come so far."""
    if rank == 0:
        print(f"trained {epochs} epochs, accuracy {share:.4f}", flush=True)
    dist.barrier()
    leave(f"accuracy {share:.4f} is below 0.9" if share < 0.9 else None)


def leave(problem=None):
    """Ends this process at once.

    The model holds gloo's connections. Closing them can hang when another
    replica has already left.
    """
    if problem:
        print(problem, file=sys.stderr, flush=True)
    os._exit(1 if problem else 0)


def main():
    start = time.monotonic()
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    host = socket.gethostname()
    print(f"rank {rank}/{world} on {host}", flush=True)

    torch.manual_seed(SEED)
    train, test = digits()
    sampler = DistributedSampler(train, world, rank, shuffle=True, seed=SEED)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    losses = []
    for epoch in range(1, EPOCHS + 1):
        sampler.set_epoch(epoch)
        losses.append(train_epoch(model, loader, optimizer))
        # Without DDP: no replica may wait for another one's forward pass.
        share = accuracy(model.module, test, rank, world)
        if rank == 0:
            print(f"epoch {epoch}/{EPOCHS} loss {losses[-1]:.4f} accuracy {share:.4f}", flush=True)

    # The master holds the rendezvous, so all replicas wait for each other before they leave.
    dist.barrier()
    dist.destroy_process_group()
    seconds = time.monotonic() - start
    print(f"rank {rank}/{world} done on {host} in {seconds:.1f} s", flush=True)
    if losses[-1] >= losses[0]:
        leave(f"rank {rank}/{world}: the loss didn't fall: {losses[0]:.4f} to {losses[-1]:.4f}")
    if share < 0.9:
        leave(f"rank {rank}/{world}: accuracy {share:.4f} is below 0.9")
    leave()


if __name__ == "__main__":
    main()
