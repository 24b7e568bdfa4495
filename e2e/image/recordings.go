package main

// Recordings are images in which the objects that spark-submit makes are
// recorded. They are no workload images: one is built only when it is named.
var Recordings = []Recipe{
	{
		// Spark 3.5, for spark-submit alone; the packages are those of Spark 4, so
		// that both share a layer.
		Name: "trainyard/spark35:1",
		From: "trainyard/python:1",
		Apt:  []string{"openjdk-17-jre-headless", "python3-numpy", "tini"},
		Pip:  []string{"pyspark==3.5.9"},
		Run: []string{
			"home=$(echo /usr/local/lib/python3*/dist-packages/pyspark)",
			"mkdir -p /opt $home/conf",
			"ln -s $home /opt/spark",
			"ln -s $(readlink -f /usr/bin/java | sed s:/bin/java::) /opt/java",
		},
		Env: []string{
			"SPARK_HOME=/opt/spark",
			"JAVA_HOME=/opt/java",
		},
	},
}
