"""Throws darts at a square on all executors, and counts those that hit the circle in it. Argument: the number of parts."""

import random
import socket
import sys

from pyspark.sql import SparkSession

DARTS = 100_000


def throw(part):
    darts = random.Random(part)
    hits = sum(darts.uniform(-1, 1) ** 2 + darts.uniform(-1, 1) ** 2 <= 1 for _ in range(DARTS))
    return socket.gethostname(), hits


parts = int(sys.argv[1]) if len(sys.argv) > 1 else 2
spark = SparkSession.builder.appName("pi").getOrCreate()
results = spark.sparkContext.parallelize(range(parts), parts).map(throw).collect()
for host in sorted({host for host, _ in results}):
    print(f"darts were thrown on {host}", flush=True)
print(f"Pi is roughly {4 * sum(hits for _, hits in results) / (DARTS * parts)}", flush=True)
spark.stop()
