#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Runs a program under an MPI's own launcher. Exit status 77: it cannot run here, which ctest shows as skipped.
# usage: launch.sh openmpi|mpich MODULE RANKS PROGRAM [ARGUMENTS...]
mpi=$1 module=$2 ranks=$3
shift 3
if [ ! -e "$module" ]; then
  echo "skipped: Cohort was built without $mpi"
  exit 77
fi
if ! command -v "mpirun.$mpi" >/dev/null; then
  echo "skipped: mpirun.$mpi is not installed"
  exit 77
fi

# Open MPI's launcher may hang at its end after ranks that did not finalise (its PMIx server waits for itself).
limit=${COHORT_TEST_LAUNCH_LIMIT:-280}

# Tests run more ranks than there are processors, and in containers as root; Open MPI must be told about both.
launch() {
  case $mpi in
  openmpi) timeout -k 5 "$limit" mpirun.openmpi --allow-run-as-root --oversubscribe -n "$ranks" "$@" ;;
  *) timeout -k 5 "$limit" "mpirun.$mpi" -n "$ranks" "$@" ;;
  esac
}

# Not a program that ends at once: MPICH 4's launcher may die of SIGPIPE then.
if ! said=$(launch sleep 0.2 2>&1); then
  echo "skipped: mpirun.$mpi starts no programs on this machine: $said"
  exit 77
fi
launch "$@"
