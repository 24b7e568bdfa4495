"""Learns to separate two clouds of points by logistic regression with Spark's own ML library and the data on all executors."""

import random
import socket

from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row, SparkSession

POINTS = 4_000
PARTS = 4


def cloud(part):
    points = random.Random(part)
    for n in range(POINTS // PARTS):
        label = float(n % 2)
        features = [points.gauss(2 * label - 1, 1.5) for _ in range(8)]
        yield Row(label=label, features=Vectors.dense(features), host=socket.gethostname())


spark = SparkSession.builder.appName("clouds").getOrCreate()
data = spark.createDataFrame(spark.sparkContext.parallelize(range(PARTS), PARTS).flatMap(cloud)).cache()
train, test = data.randomSplit([0.8, 0.2], seed=7)
model = LogisticRegression(maxIter=20).fit(train)
area = BinaryClassificationEvaluator().evaluate(model.transform(test))
for row in data.select("host").distinct().orderBy("host").collect():
    print(f"points came from {row.host}", flush=True)
print(f"the area under the curve is {area:.3f}", flush=True)
if area < 0.9:
    raise SystemExit("it has learnt nothing")
spark.stop()
