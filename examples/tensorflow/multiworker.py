#!/usr/bin/env python3
"""Trains a Keras network on the digits data set with MultiWorkerMirroredStrategy.

Every worker of the TFJob runs this file. The operator injects TF_CONFIG with
all workers and this worker's index.
"""

import hashlib
import os
import time

import pod

pod.end_on_sigterm()
# Keras 3 can't fit() with this strategy. The Keras before it, tf_keras, can.
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

import digits

EPOCHS = int(os.environ.get("EPOCHS", "12"))
BATCH = 32  # per worker


def network():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(64, activation="relu", input_shape=(64,)),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(0.003),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def batches(x, y, size):
    """Returns batches for all workers together; the strategy gives each worker its part of the images."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(y), seed=digits.SEED)
    return data.repeat().batch(size).with_options(options)


def main():
    begin = time.monotonic()
    cluster, role, index = pod.start(["chief", "worker"])
    world = sum(len(cluster.get(r, [])) for r in ("chief", "worker"))
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    replicas = strategy.num_replicas_in_sync
    pod.say(f"{replicas} replicas in sync")
    pod.check(replicas == world, f"the job has {world} workers, the strategy {replicas}")
    told = (strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id)
    pod.check(told == (role, index), f"the strategy takes itself for {told}")

    (x, y), (test_x, test_y) = digits.load()
    tf.keras.utils.set_random_seed(digits.SEED)
    with strategy.scope():
        model = network()
    losses = []

    def report(epoch, logs):
        losses.append(logs["loss"])
        pod.say(f"epoch {epoch + 1}/{EPOCHS} loss {logs['loss']:.4f}")

    model.fit(
        batches(x, y, BATCH * replicas),
        epochs=EPOCHS,
        steps_per_epoch=len(y) // (BATCH * replicas),
        callbacks=[tf.keras.callbacks.LambdaCallback(on_epoch_end=report)],
        verbose=0,
    )
    right = np.argmax(model(test_x, training=False), axis=1) == test_y
    weights = b"".join(w.tobytes() for w in model.get_weights())
    # The same on every worker if they have trained together.
    pod.say(f"weights {hashlib.sha256(weights).hexdigest()[:16]}")
    pod.say(f"accuracy {right.mean():.4f} in {time.monotonic() - begin:.1f} s")
    pod.check(losses[-1] < losses[0], "the loss didn't fall")
    pod.check(right.mean() >= digits.GOOD, f"that is below {digits.GOOD}")
    # No leave() here: the strategy's own shutdown waits for workers that are still in their last step.


if __name__ == "__main__":
    main()
