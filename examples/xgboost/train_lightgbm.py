#!/usr/bin/env python3
"""Trains a LightGBM model on all pods of an XGBoostJob together, each with a part of the data.

LightGBM has no tracker: every pod gets the same list of all pods, and finds
itself in it by its address.
"""

import hashlib
import time

import pod

pod.end_on_sigterm()

import lightgbm

import cancer

ROUNDS = 20


def network():
    """Returns LightGBM's parameters for the list of pods, in rank order with the master first."""
    ports = [pod.MASTER_PORT] + [pod.WORKER_PORT] * len(pod.WORKER_ADDRS)
    machines = [f"{pod.address(name)}:{port}" for name, port in zip(pod.NAMES, ports)]
    pod.say(f"machines {','.join(machines)}")
    return {
        "machines": ",".join(machines),
        "num_machines": len(machines),
        "local_listen_port": ports[pod.RANK],
        "time_out": 2,  # minutes to wait for the others
        "tree_learner": "data",
        "pre_partition": True,
    }


def digest(model):
    """Returns a digest of the trees only: the parameters below them differ between pods."""
    trees, _, _ = model.model_to_string().partition("\nparameters:")
    return hashlib.sha256(trees.encode()).hexdigest()[:16]


def main():
    begin = time.monotonic()
    pod.start()
    train_set, (test_x, test_y) = cancer.load()
    x, y = cancer.shard(train_set, pod.RANK, pod.WORLD_SIZE)
    pod.say(f"{len(y)} of {len(train_set[1])} rows")
    parameters = {"objective": "binary", "num_leaves": 7, "min_data_in_leaf": 5, "num_threads": 1, "verbosity": -1}
    if pod.WORLD_SIZE > 1:
        parameters |= network()
    model = lightgbm.train(parameters, lightgbm.Dataset(x, y), num_boost_round=ROUNDS)
    model.free_network()
    # The same on every rank if they have trained together.
    pod.say(f"model {digest(model)}")
    right = ((model.predict(test_x) > 0.5) == test_y).mean()
    pod.say(f"accuracy {right:.4f} in {time.monotonic() - begin:.1f} s")
    pod.check(right >= cancer.GOOD, f"that is below {cancer.GOOD}")


if __name__ == "__main__":
    main()
