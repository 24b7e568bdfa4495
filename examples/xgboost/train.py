#!/usr/bin/env python3
"""Trains boosted trees on all pods of an XGBoostJob together, each with a part of the data.

The master runs XGBoost's tracker, where the pods find each other, and trains as
rank 0. It writes the model to a volume. When a pod is lost, the others end with
an error: XGBoost can't continue without it, nor let it rejoin.
"""

import hashlib
import os
import time

import pod

pod.end_on_sigterm()

import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

import cancer

MODEL = os.environ.get("MODEL", "/models/cancer.json")
ROUNDS = int(os.environ.get("ROUNDS", "20"))
PAUSE = float(os.environ.get("SLEEP_PER_ROUND", "0"))
TIMEOUT = int(os.environ.get("TIMEOUT", "60"))  # seconds to wait for other pods


class Report(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        if pod.RANK == 0:
            pod.say(f"round {epoch + 1}/{ROUNDS} logloss {evals_log['train']['logloss'][-1]:.4f}")
        time.sleep(PAUSE)
        return False


def train():
    """Trains and returns the model, which is the same on every rank."""
    train_set, _ = cancer.load()
    x, y = cancer.shard(train_set, pod.RANK, pod.WORLD_SIZE)
    pod.say(f"{len(y)} of {len(train_set[1])} rows")
    return xgboost.train(
        {"objective": "binary:logistic", "max_depth": 4, "nthread": 1, "seed": cancer.SEED},
        data := xgboost.DMatrix(x, y, nthread=1),
        num_boost_round=ROUNDS,
        evals=[(data, "train")],
        verbose_eval=False,
        callbacks=[Report()],
    )


def save(model):
    """Writes the model to another name first, so that readers never find a partial model."""
    os.makedirs(os.path.dirname(MODEL), exist_ok=True)
    part = f"{MODEL}.new.json"
    model.save_model(part)
    os.replace(part, MODEL)
    pod.say(f"wrote {MODEL}")


def join(host):
    """Joins the group, as soon as the tracker is there: XGBoost's own retries take seconds."""
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            # Quiet: it is normal that the tracker doesn't listen yet.
            with xgboost.config_context(verbosity=0):
                collective.init(
                    dmlc_tracker_uri=host,
                    dmlc_tracker_port=pod.MASTER_PORT,
                    # The tracker sorts these as text, and assigns ranks in that order.
                    dmlc_task_id=f"{pod.RANK:06}",
                    dmlc_retry=1,
                    dmlc_timeout=TIMEOUT,
                )
            return
        except xgboost.core.XGBoostError as e:
            if "connect to the tracker" not in str(e) or time.monotonic() > end:
                raise
        time.sleep(0.2)


def together():
    """Joins the group, trains, and leaves the group properly."""
    host = pod.address(pod.MASTER_ADDR)
    tracker = None
    if pod.RANK == 0:
        tracker = RabitTracker(
            n_workers=pod.WORLD_SIZE, host_ip=host, port=pod.MASTER_PORT, sortby="task", timeout=TIMEOUT
        )
        tracker.start()
    join(host)
    told = (collective.get_rank(), collective.get_world_size())
    pod.check(told == (pod.RANK, pod.WORLD_SIZE), f"XGBoost says rank {told[0]} of {told[1]}")
    model = train()
    digest = hashlib.sha256(model.save_raw("json")).hexdigest()[:16]
    pod.say(f"model {digest}")
    pod.check(collective.broadcast(digest, 0) == digest, "rank 0 has another model")
    collective.finalize()
    if tracker:
        tracker.wait_for(TIMEOUT)
    return model


def main():
    begin = time.monotonic()
    pod.start()
    try:
        model = together()
    except xgboost.core.XGBoostError as e:
        pod.say(f"lost the others: {str(e).partition('Stack trace')[0].strip()}")
        # Exits at once: leaving properly would wait for the others. Under restartPolicy
        # ExitCode, codes of 128 and above are retried; XGBoost's own is 255 too.
        os._exit(255)
    _, (x, y) = cancer.load()
    right = ((model.predict(xgboost.DMatrix(x)) > 0.5) == y).mean()
    if pod.RANK == 0:
        save(model)
    pod.say(f"accuracy {right:.4f} in {time.monotonic() - begin:.1f} s")
    pod.check(right >= cancer.GOOD, f"that is below {cancer.GOOD}")


if __name__ == "__main__":
    main()
