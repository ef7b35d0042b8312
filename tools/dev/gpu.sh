#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds and runs what needs a GPU, on a machine with an NVIDIA driver and NCCL (PyTorch's own is found): the conformance
# and fault tests of backend nccl and its host time beside PyTorch's ProcessGroupNCCL; where there is a PyTorch, the tests
# of DistributedDataParallel, meshes, distributed tensors, functional collectives and captured steps on CUDA memory, what the
# wrapper adds to a step, captured steps beside eager ones and PyTorch's, the share of dispatch in a step of a tensor-parallel
# GPT on the host, and the comparison with PyTorch's DTensor (dtensor_oracle.sh). About ten minutes on 16 cores.
#
#   gpu.sh [--deps DIR] [--out DIR] [--jobs N] [--no-bench] [--torch-only] [--filter TESTS]
#
# --torch-only: neither builds nor runs what tests the backend alone. --filter: which tests of the torch layer, as
# GoogleTest's --gtest_filter has it.
# --deps: a prefix with libraries that the machine lacks (Asio, Highway). --out: where log and results go (default
# build/gpu/out). What was seen belongs into docs/gpu.md, with its date. Set CXX to a compiler that links the shared
# libstdc++: a program with another Gloo in it, as PyTorch's libtorch is, needs one C++ library for all.
set -euo pipefail

cd "$(dirname "$0")/../.."
deps="" out=build/gpu/out jobs=$(nproc) bench=1 torch_only=0 filter='*'
while (($# > 0)); do
  case $1 in
    --deps) deps=$(realpath "$2") && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    --no-bench) bench=0 && shift ;;
    --torch-only) torch_only=1 && shift ;;
    --filter) filter=$2 && shift 2 ;;
    *)
      echo "gpu.sh: unknown argument $1: --deps DIR, --out DIR, --jobs N, --no-bench, --torch-only, --filter TESTS" >&2
      exit 2
      ;;
  esac
done
mkdir -p "$out"
out=$(realpath "$out")

# PyTorch's CMake files and the NCCL that lies beside it, where there is a PyTorch. Importing it takes seconds: once.
torch="" nccl=""
if found=$(python3 -c 'import os, torch; print(torch.utils.cmake_prefix_path, os.path.dirname(os.path.dirname(torch.__file__)))' 2>/dev/null); then
  torch=${found% *}
  library=$(find "${found#* }" -name libnccl.so.2 -print -quit)
  nccl=${library%/lib/libnccl.so.2}
fi
multiarch=$(gcc -print-multiarch)
export LD_LIBRARY_PATH="${deps:+$deps/lib:$deps/lib/$multiarch:}${nccl:+$nccl/lib:}${LD_LIBRARY_PATH:-}"

{
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || echo "no nvidia-smi"
  echo "PyTorch: ${torch:-none}; NCCL: ${nccl:-found by the loader}"
  g++ --version | head -1
} | tee "$out/machine.txt"

build=build/gpu
options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=4 -DCOHORT_EXAMPLES=OFF
  -DCOHORT_TOOLS=OFF -DCOHORT_WERROR=OFF -DCMAKE_PREFIX_PATH="$deps;$torch" "-DCMAKE_LIBRARY_PATH=${deps:+$deps/lib/$multiarch}"
  "-DCMAKE_INCLUDE_PATH=${deps:+$deps/include}")
configure() {
  cmake -S . -B $build -G Ninja "${options[@]}" "$@" >"$out/configure.txt" 2>&1 || {
    tail -30 "$out/configure.txt"
    return 1
  }
}
tests=()
with_torch=OFF
((torch_only)) || tests+=(backends/nccl/gpu/nccl_gpu_test)
if [[ -n $torch ]]; then
  tests+=(torch/gpu/torch_gpu_test)
  with_torch=ON
fi
targets=("${tests[@]##*/}")
[[ -z $torch ]] || targets+=(torch_dtensor_oracle)
if ((bench)) && [[ -n $torch ]] && configure -DCOHORT_TORCH=ON -DCOHORT_BENCH=ON "-DNCCL_INCLUDE_DIR=$nccl/include"; then
  targets+=(gpu_price gpt_step_bench capture_gpu_bench)
  ((torch_only)) || targets+=(nccl_host_time)
else
  configure -DCOHORT_TORCH=$with_torch -DCOHORT_BENCH=OFF
fi
failed=0
# All at once, which keeps the cores busy; what does not compile does not stop the rest.
timeout 400 ninja -C $build -j"$jobs" -k0 "${targets[@]}" >"$out/build.txt" 2>&1 || {
  grep -E '^FAILED:|error:|undefined reference' "$out/build.txt" | head -40 || tail -20 "$out/build.txt"
  failed=1
}
echo "built after $SECONDS s"

for test in "${tests[@]}"; do
  program=$build/tests/$test log=$out/${test##*/}.txt
  [[ -x $program ]] || continue
  only='*'
  [[ $test != torch/* ]] || only=$filter
  timeout 400 "$program" --gtest_filter="$only" >"$log" 2>&1 || failed=1
  grep -E '^\[ +(OK|FAILED|PASSED|SKIPPED) |Failure|error|child:' "$log" | head -150 || tail -20 "$log"
  echo "${test##*/} ended after $SECONDS s"
done
if [[ -x $build/tests/torch/oracle/torch_dtensor_oracle ]]; then
  tools/dev/dtensor_oracle.sh --build $build --out "$out/dtensor_oracle" --jobs "$jobs" 2>&1 | tee "$out/dtensor_oracle.txt" || failed=1
fi
program=$build/bench/engines/nccl_host_time
if [[ -x $program ]]; then
  timeout 90 "$program" 2>&1 | tee "$out/host_time.txt" || failed=1
fi
program=$build/bench/torch/gpu_price
if [[ -x $program ]]; then
  for _ in 1 2 3; do
    timeout 60 "$program" && timeout 60 python3 bench/torch/gpu_price.py || failed=1
  done 2>&1 | tee "$out/price.txt"
fi
program=$build/bench/torch/capture_gpu_bench
if [[ -x $program ]]; then
  {
    for _ in 1 2 3; do
      timeout 60 "$program" && timeout 60 python3 bench/torch/capture_gpu.py || failed=1
    done
    for kind in eager direct graph; do
      timeout 60 "$program" --memory $kind || failed=1
    done
  } 2>&1 | tee "$out/capture.txt"
fi
program=$build/bench/torch/gpt_step_bench
if [[ -x $program ]]; then
  timeout 120 "$program" 2>&1 | tee "$out/gpt_step.txt" || failed=1
fi
exit $failed
