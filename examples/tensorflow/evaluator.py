#!/usr/bin/env python3
"""A chief that trains and writes checkpoints, and an evaluator that measures them.

They share only a volume. The evaluator always waits for the next checkpoint:
the operator removes it when the chief has ended.
"""

import json
import os
import time

import pod

pod.end_on_sigterm()

import tensorflow as tf

import digits

DIRECTORY = os.environ.get("CHECKPOINTS", "/checkpoints")
RESULT = os.path.join(DIRECTORY, "evaluation.json")
EPOCHS = int(os.environ.get("EPOCHS", "8"))
BATCH = 32
PATIENCE = 90  # seconds that the chief waits for the evaluator


def checkpoint(network):
    """Returns a checkpoint: weights, epoch, and the run of the job, since the volume outlives the job."""
    return tf.train.Checkpoint(
        network=network,
        epoch=tf.Variable(0, dtype=tf.int64),
        run=tf.Variable(time.time_ns(), dtype=tf.int64),
    )


def train(cluster):
    network = digits.Network()
    state = checkpoint(network)
    manager = tf.train.CheckpointManager(state, DIRECTORY, max_to_keep=3)
    data, _ = digits.load()
    batches = tf.data.Dataset.from_tensor_slices(data).shuffle(len(data[1]), seed=digits.SEED).batch(BATCH)
    step = tf.function(network.descend)
    for epoch in range(1, EPOCHS + 1):
        loss = [step(x, y) for x, y in batches][-1]
        state.epoch.assign(epoch)
        file = manager.save(checkpoint_number=epoch)
        pod.say(f"epoch {epoch}/{EPOCHS} loss {loss:.4f} wrote {os.path.basename(file)}")
    if "evaluator" in cluster:
        share = measured(int(state.run))
        pod.say(f"the evaluator has measured {share:.4f}")
        pod.check(share >= digits.GOOD, f"that is below {digits.GOOD}")
    pod.leave()


def measured(run):
    """Returns the evaluator's accuracy for this run's last checkpoint."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            with open(RESULT) as file:
                result = json.load(file)
            if (result["run"], result["epoch"]) == (run, EPOCHS):
                return result["accuracy"]
        except FileNotFoundError:
            pass
        time.sleep(0.2)
    pod.leave(f"no evaluation of the last checkpoint after {PATIENCE} s")


def newest(state):
    """Loads the newest checkpoint, if there is one, and returns its run and epoch."""
    file = tf.train.latest_checkpoint(DIRECTORY)
    if not file:
        return None
    try:
        state.read(file).expect_partial()
    except tf.errors.OpError:
        # The chief has just replaced it by a newer one.
        return None
    return {"run": int(state.run), "epoch": int(state.epoch)}


def evaluate():
    network = digits.Network()
    state = checkpoint(network)
    _, test = digits.load()
    last = None
    while True:
        found = newest(state)
        if found in (None, last):
            time.sleep(0.2)
            continue
        last = found
        share = digits.accuracy(network.weights, test)
        pod.say(f"epoch {found['epoch']} accuracy {share:.4f}")
        # Writes to another name first, so that the chief never reads a partial file.
        with open(RESULT + ".new", "w") as file:
            json.dump(found | {"accuracy": share}, file)
        os.replace(RESULT + ".new", RESULT)


def main():
    cluster, role, _ = pod.start(["chief", "evaluator"])
    if role == "chief":
        train(cluster)
    else:
        evaluate()


if __name__ == "__main__":
    main()
