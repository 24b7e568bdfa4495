// Has the name of Spark's own example, so that published manifests work.
package org.apache.spark.examples;

import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.SparkConf;

/** Throws darts at a square, on all executors, and counts those that hit the circle in it. Argument: how many parts. */
public final class SparkPi {
    private static final int DARTS = 200_000;

    public static void main(String[] args) {
        int parts = args.length > 0 ? Integer.parseInt(args[0]) : 2;
        try (JavaSparkContext spark = new JavaSparkContext(new SparkConf().setAppName("SparkPi"))) {
            List<Integer> seeds = new ArrayList<>();
            for (int seed = 0; seed < parts; seed++) {
                seeds.add(seed);
            }
            long hits = spark.parallelize(seeds, parts).map(SparkPi::hits).reduce(Long::sum);
            System.out.println("Pi is roughly " + 4.0 * hits / ((long) DARTS * parts));
        }
    }

    private static long hits(int seed) {
        SplittableRandom random = new SplittableRandom(seed);
        long hits = 0;
        for (int dart = 0; dart < DARTS; dart++) {
            double x = random.nextDouble(-1, 1);
            double y = random.nextDouble(-1, 1);
            if (x * x + y * y <= 1) {
                hits++;
            }
        }
        return hits;
    }
}
