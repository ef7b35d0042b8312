#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the fuzzers and runs each for FUZZ_SECONDS (default 600) from its seeds in tests/fuzz/corpus/NAME. What they
# find new stays in build/fuzz/corpus/NAME; an input that crashes one in build/fuzz/findings.
#
#   fuzz.sh [NAME...]      names without the leading fuzz_; default: all
set -euo pipefail

cd "$(dirname "$0")/../.."
seconds=${FUZZ_SECONDS:-600}

cmake --preset fuzz
cmake --build --preset fuzz --target tests/fuzz/all -j "$(nproc)"

if (($# > 0)); then
  fuzzers=("${@/#/build/fuzz/tests/fuzz/fuzz_}")
else
  mapfile -t fuzzers < <(find build/fuzz/tests/fuzz -maxdepth 1 -name 'fuzz_*' -type f -executable 2>/dev/null | sort)
fi
if ((${#fuzzers[@]} == 0)); then
  echo "fuzz.sh: build/fuzz has no fuzzers" >&2
  exit 1
fi

mkdir -p build/fuzz/findings
failed=()
for fuzzer in "${fuzzers[@]}"; do
  name=${fuzzer##*/fuzz_}
  found=build/fuzz/corpus/$name
  seeds=tests/fuzz/corpus/$name
  mkdir -p "$found"
  echo "fuzz_$name: $seconds s"
  corpus=("$found")
  [[ -d $seeds ]] && corpus+=("$seeds")
  "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=1 \
    -artifact_prefix="build/fuzz/findings/$name-" "${corpus[@]}" >"build/fuzz/$name.log" 2>&1 || failed+=("fuzz_$name")
  grep -E '^stat::number_of_executed_units|^Done ' "build/fuzz/$name.log" || tail -n 20 "build/fuzz/$name.log"
done

if ((${#failed[@]} > 0)); then
  echo "findings: ${failed[*]} (inputs in build/fuzz/findings, logs in build/fuzz)" >&2
  exit 1
fi
echo "${#fuzzers[@]} fuzzers, no findings"
