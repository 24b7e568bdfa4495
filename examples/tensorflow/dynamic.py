#!/usr/bin/env python3
"""A dynamic number of workers: each knows only itself and the parameter server.

A worker reads the weights from the parameter server, computes gradients, and
has the server subtract them, without waiting for other workers. So any number
of them can train, and workers can join and leave at any time.

Training continues until the name in UNTIL is in DNS, or else for STEPS steps of
all workers together.
"""

import os
import time

import pod

pod.end_on_sigterm()

import numpy as np
import tensorflow.compat.v1 as tf

import digits

UNTIL = os.environ.get("UNTIL", "")
STEPS = int(os.environ.get("STEPS", "600"))
PAUSE = float(os.environ.get("SLEEP_PER_STEP", "0.05"))
BATCH = 32
RATE = 0.1


def server(cluster, role, index):
    """Returns this task's server, which knows only the tasks in TF_CONFIG."""
    # JSON keys are strings, TensorFlow needs numbers. The TF_CONFIG of a parameter server
    # contains only itself.
    spec = {
        "worker": {int(i): address for i, address in cluster["worker"].items()},
        "ps": {index: cluster["ps"][0]} if role == "ps" else cluster["ps"],
    }
    spec = {role: tasks for role, tasks in spec.items() if tasks}
    return tf.distribute.Server(tf.train.ClusterSpec(spec), job_name=role, task_index=index)


def variables():
    """Returns the weights and the number of steps on the parameter server, shared by name between graphs."""
    with tf.device("/job:ps/task:0"):
        weights = {n: tf.get_variable(n, initializer=v, use_resource=True) for n, v in digits.initial().items()}
        return weights, tf.get_variable("step", initializer=0, use_resource=True)


class Parameters:
    """The requests to the parameter server.

    They use the server's own session: it knows no workers and can't fetch
    gradients from them, so the request contains the gradients.
    """

    def __init__(self, address):
        with tf.Graph().as_default() as graph, tf.device("/job:ps/task:0"):
            weights, self.step = variables()
            self.gradients = [tf.placeholder(tf.float32, w.shape) for w in weights.values()]
            pushes = [w.assign_sub(RATE * g) for w, g in zip(weights.values(), self.gradients)]
            with tf.control_dependencies(pushes):
                self.pushed = self.step.assign_add(1)
            self.missing = tf.report_uninitialized_variables()
            self.initialize = tf.global_variables_initializer()
        self.session = tf.Session(f"grpc://{address}", graph=graph)

    def begin(self, index):
        """Initializes the weights on worker 0 unless they exist: the worker may be a replacement."""
        while len(self.session.run(self.missing)) > 0:
            if index == 0:
                self.session.run(self.initialize)
            time.sleep(0.2)
        return self.session.run(self.step)

    def push(self, gradients):
        return self.session.run(self.pushed, dict(zip(self.gradients, gradients)))


class Network:
    """The worker's computation, with weights from the parameter server."""

    def __init__(self, own, index):
        with tf.Graph().as_default() as graph, tf.device(f"/job:worker/task:{index}"):
            weights, _ = variables()
            self.x = tf.placeholder(tf.float32, [None, 64])
            self.y = tf.placeholder(tf.int32, [None])
            self.logits = digits.logits(weights, self.x)
            self.loss = digits.loss(self.logits, self.y)
            self.gradients = tf.gradients(self.loss, list(weights.values()))
        self.session = tf.Session(own.target, graph=graph)

    def compute(self, x, y):
        return self.session.run([self.loss, self.gradients], {self.x: x, self.y: y})

    def accuracy(self, x, y):
        return (np.argmax(self.session.run(self.logits, {self.x: x}), axis=1) == y).mean()


def train(parameters, network, index):
    (x, y), test = digits.load()
    random = np.random.default_rng(index)
    pod.say(f"joining at step {parameters.begin(index)}")
    done, told = 0, time.monotonic()
    while True:
        batch = random.choice(len(y), BATCH)
        loss, gradients = network.compute(x[batch], y[batch])
        step = parameters.push(gradients)
        done += 1
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            pod.say(f"{done} steps of {step}, loss {loss:.4f}")
            if UNTIL and pod.resolves(UNTIL):
                break
        if not UNTIL and step >= STEPS:
            break
        time.sleep(PAUSE)
    pod.say(f"done with {done} steps of {step}")
    return network.accuracy(*test), step


def main():
    cluster, role, index = pod.start(["ps", "worker"])
    own = server(cluster, role, index)
    if role == "ps":
        pod.say("serving")
        own.join()
    pod.check(list(cluster["worker"]) == [str(index)], "told of other workers")
    share, step = train(Parameters(cluster["ps"][0]), Network(own, index), index)
    pod.say(f"accuracy {share:.4f}")
    # If the training ended early, accuracy may be low.
    pod.check(step < STEPS or share >= digits.GOOD, f"that is below {digits.GOOD}")
    pod.leave()


if __name__ == "__main__":
    main()
