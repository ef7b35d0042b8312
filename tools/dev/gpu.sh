#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds and runs what needs a GPU, on a machine with an NVIDIA driver and NCCL (PyTorch's own is found): the conformance
# and fault tests of backend nccl, and its host time beside PyTorch's ProcessGroupNCCL. About six minutes on 16 cores.
#
#   gpu.sh [--deps DIR] [--out DIR] [--jobs N] [--no-bench]
#
# --deps: a prefix with libraries that the machine lacks (Asio, Highway). --out: where log and results go (default
# build/gpu/out). What was seen belongs into docs/gpu.md, with its date.
set -euo pipefail

cd "$(dirname "$0")/../.."
deps="" out=build/gpu/out jobs=$(nproc) bench=1
while (($# > 0)); do
  case $1 in
    --deps) deps=$(realpath "$2") && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    --no-bench) bench=0 && shift ;;
    *)
      echo "gpu.sh: unknown argument $1: --deps DIR, --out DIR, --jobs N, --no-bench" >&2
      exit 2
      ;;
  esac
done
mkdir -p "$out"
out=$(realpath "$out")

# PyTorch's CMake files and the NCCL it brings, where there is a PyTorch. Importing it takes seconds: once.
torch="" nccl=""
if python3 -c 'import torch' 2>/dev/null; then
  torch=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')
  nccl=$(python3 -c 'import importlib.util as u; s = u.find_spec("nvidia.nccl"); print(list(s.submodule_search_locations)[0] if s else "")' 2>/dev/null || true)
fi
multiarch=$(gcc -print-multiarch)
export LD_LIBRARY_PATH="${deps:+$deps/lib:$deps/lib/$multiarch:}${nccl:+$nccl/lib:}${LD_LIBRARY_PATH:-}"

{
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || echo "no nvidia-smi"
  echo "PyTorch: ${torch:-none}; NCCL: ${nccl:-found by the loader}"
  g++ --version | head -1
} | tee "$out/machine.txt"

build=build/gpu
targets=(nccl_gpu_test)
options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=4 -DCOHORT_EXAMPLES=OFF
  -DCOHORT_TOOLS=OFF -DCOHORT_WERROR=OFF -DCMAKE_PREFIX_PATH="$deps;$torch" "-DCMAKE_LIBRARY_PATH=${deps:+$deps/lib/$multiarch}"
  "-DCMAKE_INCLUDE_PATH=${deps:+$deps/include}")
if ((bench)) && [[ -n $torch ]]; then
  options+=(-DCOHORT_BENCH=ON "-DNCCL_INCLUDE_DIR=$nccl/include")
  targets+=(nccl_host_time)
fi
cmake -S . -B $build -G Ninja "${options[@]}" >"$out/configure.txt" 2>&1 || {
  tail -30 "$out/configure.txt"
  exit 1
}
failed=0
# Tests first: they are worth more than the comparison, should that not build.
for target in "${targets[@]}"; do
  timeout 300 ninja -C $build -j"$jobs" "$target" >"$out/build_$target.txt" 2>&1 || {
    tail -40 "$out/build_$target.txt"
    failed=1
  }
done

if [[ -x $build/tests/nccl/gpu/nccl_gpu_test ]]; then
  timeout 240 $build/tests/nccl/gpu/nccl_gpu_test >"$out/tests.txt" 2>&1 || failed=1
  grep -E '^\[ +(OK|FAILED|PASSED|SKIPPED) |Failure|error|child:' "$out/tests.txt" || tail -20 "$out/tests.txt"
fi
program=$build/bench/engines/nccl_host_time
if [[ -x $program ]]; then
  timeout 90 "$program" 2>&1 | tee "$out/host_time.txt" || failed=1
fi
exit $failed
