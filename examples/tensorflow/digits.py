"""The digits data set, 1,797 images of 8x8 pixels, and a small network for it without Keras."""

import importlib.util
import os

import numpy as np
import tensorflow as tf

SEED = 1
TEST_SHARE = 0.2
GOOD = 0.9  # what a trained network must at least recognise of the test set


def load():
    """Returns train and test set, shuffled in the same way on every pod.

    Reads scikit-learn's file without importing scikit-learn, which would take
    longer than the training.
    """
    package = importlib.util.find_spec("sklearn").submodule_search_locations[0]
    file = os.path.join(package, "datasets", "data", "digits.csv.gz")
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = np.random.default_rng(SEED).permutation(table)
    x, y = table[:, :-1] / 16, table[:, -1].astype(np.int32)
    test = int(len(y) * TEST_SHARE)
    return (x[test:], y[test:]), (x[:test], y[:test])


def initial():
    """Returns the initial weights."""
    random = np.random.default_rng(SEED)
    shapes = {"w1": (64, 32), "b1": (32,), "w2": (32, 10), "b2": (10,)}
    return {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def logits(w, x):
    hidden = tf.nn.relu(tf.matmul(x, w["w1"]) + w["b1"])
    return tf.matmul(hidden, w["w2"]) + w["b2"]


def loss(logits, y):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def accuracy(w, data):
    x, y = data
    return float(np.mean(np.argmax(logits(w, x), axis=1) == y))


class Network(tf.Module):
    """Holds the weights as variables, which can be checkpointed."""

    def __init__(self):
        super().__init__()
        self.weights = {name: tf.Variable(value, name=name) for name, value in initial().items()}

    def descend(self, x, y, rate=0.3):
        """Does one step of gradient descent; returns the loss before it."""
        with tf.GradientTape() as tape:
            value = loss(logits(self.weights, x), y)
        for v, g in zip(self.weights.values(), tape.gradient(value, list(self.weights.values()))):
            v.assign_sub(rate * g)
        return value
