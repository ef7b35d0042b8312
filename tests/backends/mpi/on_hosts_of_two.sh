#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Runs a program as a rank that shares its host with one other: ranks 0 and 1, 2 and 3, ...
# usage: on_hosts_of_two.sh PROGRAM [ARGUMENTS...]
export COHORT_HOST_ID="host$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} / 2))"
exec "$@"
