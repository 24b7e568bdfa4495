"""Gives the executors something to do until a name resolves, and says how often all of them came to the right sum."""

import socket
import time

from pyspark import SparkContext

PARTS = 4


def told():
    try:
        socket.gethostbyname("go")
        return True
    except OSError:
        return False


def add(numbers):
    yield sum(numbers), socket.gethostname()


# Sums need no SQL, which takes seconds to load.
spark = SparkContext()
rounds, hosts = 0, set()
while rounds == 0 or not told():
    sums = spark.parallelize(range(1000), PARTS).mapPartitions(add).collect()
    if sum(part for part, _ in sums) != sum(range(1000)):
        raise SystemExit(f"these are wrong: {sums}")
    hosts |= {host for _, host in sums}
    rounds += 1
    time.sleep(0.5)
for host in sorted(hosts):
    print(f"sums came from {host}", flush=True)
print(f"{rounds} rounds were right", flush=True)
spark.stop()
