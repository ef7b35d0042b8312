#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs the benchmarks that a build folder has (cmake -DCOHORT_BENCH=ON; this builds nothing) and prints their tables.
# A missed bar is printed as MISSED; the exit code says whether the benchmarks themselves ran.
#
#   run.sh BUILD_FOLDER [JSON_FOLDER]
set -uo pipefail

if (($# < 1 || $# > 2)); then
  echo "usage: run.sh BUILD_FOLDER [JSON_FOLDER]" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
build=$1
results=${2:-}
ran=0
broken=()

# measure NAME NEEDED_FILE COMMAND...
measure() {
  local name=$1 needed=$2
  shift 2
  if [[ ! -x $needed ]]; then
    echo "$name: skipped, there is no $needed"
    return
  fi
  ran=$((ran + 1))
  [[ -z $results ]] || set -- "$@" --json "$results/$name.json"
  "$@" || broken+=("$name")
}

[[ -z $results ]] || mkdir -p "$results" || exit 1
echo "$(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $(date -u +%F)"
measure store "$build/bench/store_bench" "$build/bench/store_bench"
measure group "$build/bench/group_bench" "$build/bench/group_bench"
measure ddp "$build/bench/torch/ddp_worker" python3 "$here/torch/ddp_bench.py" "$build/bench/torch/ddp_worker"
measure python "$build/python/cohort/torch" python3 "$here/torch/python_bench.py" "$build/python"
measure redistribute "$build/bench/torch/redistribute_bench" "$build/bench/torch/redistribute_bench"
measure dtensor_dispatch "$build/bench/torch/dtensor_dispatch_bench" "$build/bench/torch/dtensor_dispatch_bench"
measure gpt_step "$build/bench/torch/gpt_step_bench" "$build/bench/torch/gpt_step_bench"
measure capture "$build/bench/torch/capture_bench" "$build/bench/torch/capture_bench"
measure capture_guards "$build/bench/torch/capture_guards_bench" "$build/bench/torch/capture_guards_bench"
measure startup "$build/bench/first_barrier" python3 "$here/startup_bench.py" "$build/tools/cohort/cohort"
measure launcher "$build/tools/cohort/cohort" python3 "$here/launcher_bench.py" "$build/tools/cohort/cohort"

if ((ran == 0)); then
  echo "run.sh: $build has no benchmarks: configure it with -DCOHORT_BENCH=ON and build it" >&2
  exit 1
fi
if ((${#broken[@]} > 0)); then
  echo "run.sh: broken: ${broken[*]}" >&2
  exit 1
fi
