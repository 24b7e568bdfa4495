#!/bin/bash
# Runs before an executor is stopped: tells it to hand over what it holds, and waits until it has.
set -e
executor=$(pgrep -f KubernetesExecutorBackend | head -n 1) || exit 0
kill -PWR "$executor"
while kill -0 "$executor" 2>/dev/null; do sleep 1; done
