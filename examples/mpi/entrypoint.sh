#!/bin/sh
# An entry point as in many images for MPICH and Intel MPI: a launcher waits until names resolve, for about two minutes
# each, and then runs the command in its pod's arguments.
resolves() {
	for pause in 0.1 0.2 0.4 0.8 1.6 3.2 6.4 12.8 25.6 51.2; do
		getent hosts "$1" >/dev/null && return
		sleep "$pause"
	done
	echo "entrypoint: $1 does not resolve" >&2
}
if [ "$K_MPI_JOB_ROLE" = launcher ]; then
	resolves "$HOSTNAME"
	while IFS=: read -r host _; do
		resolves "$host"
	done </etc/mpi/hostfile
fi
exec "$@"
