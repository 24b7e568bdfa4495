#!/usr/bin/env python3
"""Predicts with the model of train.py: each pod of an XGBoostJob a part of the data.

Every pod writes its result to the volume, and the master adds them up.
"""

import hashlib
import json
import os
import time

import pod

pod.end_on_sigterm()

import xgboost

import cancer

MODEL = os.environ.get("MODEL", "/models/cancer.json")
TIMEOUT = int(os.environ.get("TIMEOUT", "60"))  # seconds that the master waits for the others


def result_file(digest, rank):
    """Returns a path named after the model, so that results of earlier models don't count."""
    return os.path.join(os.path.dirname(MODEL), f"predictions-{digest}-{rank}-of-{pod.WORLD_SIZE}.json")


def predict(model, digest):
    _, test = cancer.load()
    x, y = cancer.shard(test, pod.RANK, pod.WORLD_SIZE)
    found = (model.predict(xgboost.DMatrix(x, nthread=1)) > 0.5).astype(int)
    result = {"predictions": found.tolist(), "right": int((found == y).sum())}
    name = result_file(digest, pod.RANK)
    # Writes to another name first, so that the master never reads a partial file.
    with open(name + ".new", "w") as file:
        json.dump(result, file)
    os.replace(name + ".new", name)
    pod.say(f"{result['right']} of {len(y)} right")


def collect(digest):
    """Returns the sum of all ranks' results."""
    end = time.monotonic() + TIMEOUT
    seen = right = 0
    for rank in range(pod.WORLD_SIZE):
        name = result_file(digest, rank)
        while not os.path.exists(name):
            pod.check(time.monotonic() < end, f"rank {rank} has written nothing for {TIMEOUT} s")
            time.sleep(0.2)
        with open(name) as file:
            result = json.load(file)
        seen += len(result["predictions"])
        right += result["right"]
    return seen, right


def main():
    pod.start()
    pod.check(os.path.exists(MODEL), f"there is no {MODEL}; train first")
    with open(MODEL, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()[:16]
    predict(xgboost.Booster(model_file=MODEL), digest)
    if pod.RANK == 0:
        seen, right = collect(digest)
        pod.say(f"{seen} predictions, accuracy {right / seen:.4f}")
        pod.check(seen == len(cancer.load()[1][1]), "those aren't all")
        pod.check(right / seen >= cancer.GOOD, f"that is below {cancer.GOOD}")


if __name__ == "__main__":
    main()
