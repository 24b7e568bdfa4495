"""Extracts, transforms and loads: reads sales as CSV, sums them by month and shop, and writes Parquet.

The directory is the first argument: on a cluster of several nodes, storage that all of them reach.
"""

import csv
import datetime
import os
import random
import sys

from pyspark.sql import SparkSession, functions

SALES = 20_000
SHOPS = ["Bergen", "Cork", "Delft", "Évora"]


def write_sales(path):
    """Writes the input, which a job of yours would find there."""
    dice = random.Random(1)
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "sales.csv"), "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["day", "shop", "cents"])
        for _ in range(SALES):
            day = datetime.date(2026, 1, 1) + datetime.timedelta(days=dice.randrange(365))
            # Some rows are broken, as in any file of this kind.
            cents = "?" if dice.random() < 0.01 else dice.randrange(100, 20_000)
            rows.writerow([day, dice.choice(SHOPS), cents])


directory = sys.argv[1]
write_sales(f"{directory}/in")
spark = SparkSession.builder.appName("sales").getOrCreate()
read = spark.read.csv(f"{directory}/in", header=True, schema="day DATE, shop STRING, cents LONG")
good = read.dropna()
sums = good.groupBy(functions.date_format("day", "yyyy-MM").alias("month"), "shop").agg(functions.sum("cents").alias("cents"))
sums.repartition(1).write.mode("overwrite").partitionBy("month").parquet(f"{directory}/out")
stored = spark.read.parquet(f"{directory}/out")
print(f"{good.count()} of {read.count()} sales are good", flush=True)
print(f"stored {stored.count()} sums of {stored.select('month').distinct().count()} months", flush=True)
total, wanted = (frame.agg(functions.sum("cents")).first()[0] for frame in (stored, good))
if total != wanted:
    raise SystemExit(f"stored {total} cents of {wanted}")
spark.stop()
