#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Runs a program under an MPI's own launcher. 77: it cannot be done here, which ctest shows as skipped.
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

# Tests run more ranks than there are processors, and in containers as root; Open MPI wants to be told about both.
launch() {
  case $mpi in
  openmpi) mpirun.openmpi --allow-run-as-root --oversubscribe -n "$ranks" "$@" ;;
  *) "mpirun.$mpi" -n "$ranks" "$@" ;;
  esac
}

if ! said=$(launch true 2>&1); then
  echo "skipped: mpirun.$mpi starts no programs on this machine: $said"
  exit 77
fi
launch "$@"
