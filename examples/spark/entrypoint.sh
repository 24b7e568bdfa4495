#!/bin/bash
# The entry point of Spark containers: the first argument is driver or executor; further settings come from the driver's
# arguments or the executor's variables. Runs any other command unchanged.
set -e

export SPARK_HOME="${SPARK_HOME:-/opt/spark}"

# Hadoop needs a user name; a user id that the image doesn't know has none.
if ! id -un >/dev/null 2>&1; then
    export HADOOP_USER_NAME="${HADOOP_USER_NAME:-${SPARK_USER:-spark}}"
    # The JVM would get question marks for name and home from the system.
    export JAVA_TOOL_OPTIONS="${JAVA_TOOL_OPTIONS:-} -Duser.name=$HADOOP_USER_NAME -Duser.home=/tmp"
fi

case "${1:-}" in
driver)
    shift
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
executor)
    options=()
    # Sorted by number.
    while IFS='=' read -r -d '' name value; do
        options[${name#SPARK_JAVA_OPT_}]="$value"
    done < <(env -0 | grep -z '^SPARK_JAVA_OPT_[0-9]*=')
    classes="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*"
    if [ -n "$HADOOP_CONF_DIR" ]; then classes="$HADOOP_CONF_DIR:$classes"; fi
    if [ -n "$SPARK_DIST_CLASSPATH" ]; then classes="$classes:$SPARK_DIST_CLASSPATH"; fi
    if [ -n "$SPARK_EXTRA_CLASSPATH" ]; then classes="$classes:$SPARK_EXTRA_CLASSPATH"; fi
    exec tini -s -- "$JAVA_HOME/bin/java" "${options[@]}" \
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classes" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
