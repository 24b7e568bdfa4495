"""The breast cancer data set of scikit-learn: 569 tumours, 30 measurements each, malignant or benign."""

import numpy as np
from sklearn.datasets import load_breast_cancer

SEED = 1
TEST_SHARE = 0.25
GOOD = 0.9  # what a model must at least get right of the test set


def load():
    """Returns train and test set, shuffled in the same way on every pod."""
    data = load_breast_cancer()
    order = np.random.default_rng(SEED).permutation(len(data.target))
    test, train = np.split(order, [int(len(order) * TEST_SHARE)])
    return (data.data[train], data.target[train]), (data.data[test], data.target[test])


def shard(data, rank, world):
    """Returns the part of one pod."""
    return tuple(values[rank::world] for values in data)
