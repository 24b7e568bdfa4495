#!/usr/bin/env python3
"""Trains a small network on the digits data set with ParameterServerStrategy.

The chief sends steps to any free worker; the parameter server holds the
weights. Server and workers never end by themselves: the operator removes them
when the chief has ended.
"""

import os
import time

import pod

pod.end_on_sigterm()

import numpy as np
import tensorflow as tf

import digits

EPOCHS = int(os.environ.get("EPOCHS", "8"))
BATCH = 32


def serve(resolver):
    config = tf.compat.v1.ConfigProto()
    # A worker whose threads all wait for a parameter server can't respond.
    config.inter_op_parallelism_threads = 4
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=config,
    )
    pod.say("serving")
    server.join()


def coordinate(resolver, cluster):
    begin = time.monotonic()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    devices = [tf.DeviceSpec.from_string(d.name) for d in tf.config.list_logical_devices("CPU")]
    seen = {role: sum(d.job == role for d in devices) for role in cluster}
    pod.say(f"tasks {seen}")
    pod.check(seen == {role: len(list) for role, list in cluster.items()}, "not what the job has")

    train, test = digits.load()
    with strategy.scope():
        network = digits.Network()
    places = {tf.DeviceSpec.from_string(v.device).job for v in network.weights.values()}
    pod.check(places == {"ps"}, f"the weights are on {places}")

    def batches():
        data = tf.data.Dataset.from_tensor_slices(train)
        return data.shuffle(len(train[1])).repeat().batch(BATCH)

    @tf.function
    def step(iterator):
        return network.descend(*next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    losses = []
    for epoch in range(1, EPOCHS + 1):
        steps = [coordinator.schedule(step, args=(iterator,)) for _ in range(len(train[1]) // BATCH)]
        coordinator.join()
        losses.append(np.mean([s.fetch() for s in steps]))
        share = digits.accuracy(network.weights, test)
        pod.say(f"epoch {epoch}/{EPOCHS} loss {losses[-1]:.4f} accuracy {share:.4f}")
    pod.say(f"done in {time.monotonic() - begin:.1f} s")
    pod.check(losses[-1] < losses[0], "the loss didn't fall")
    pod.check(share >= digits.GOOD, f"accuracy {share:.4f} is below {digits.GOOD}")
    pod.leave()


def main():
    cluster, role, _ = pod.start(["chief", "ps", "worker"])
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if role == "chief":
        coordinate(resolver, cluster)
    else:
        serve(resolver)


if __name__ == "__main__":
    main()
