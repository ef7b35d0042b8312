#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the Python module for the PyTorch of `python3` and runs its tests and PyTorch's own suite, on gloo and on cohort, in
# 2, 3, 4 and 8 processes at the same time: for machines with another PyTorch than Debian's, where `make test` does not run.
#
#   python_suite.sh [--deps DIR] [--out DIR] [--jobs N] [--python PROGRAM]
#
# --deps: a prefix with libraries that the machine lacks (Asio, Highway, Gloo). --out: where logs go (default
# build/python_suite/out). What was seen belongs into docs/python.md, with its date. Set CXX to a compiler that links the
# shared libstdc++: PyTorch's libtorch has a Gloo of its own in it.
set -uo pipefail

cd "$(dirname "$0")/../.." || exit 1
deps="" out=build/python_suite/out jobs=$(nproc) python=python3
while (($# > 0)); do
  case $1 in
    --deps) deps=$(realpath "$2") && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    --python) python=$2 && shift 2 ;;
    *)
      echo "python_suite.sh: unknown argument $1: --deps DIR, --out DIR, --jobs N, --python PROGRAM" >&2
      exit 2
      ;;
  esac
done
mkdir -p "$out"
out=$(realpath "$out")
build=build/python_suite
found=$($python -c 'import os, torch; print(torch.utils.cmake_prefix_path, os.path.dirname(os.path.dirname(torch.__file__)))') || exit 1
torch=${found% *}
# NCCL lies beside PyTorch.
nccl=$(find "${found#* }" -path '*/nccl/include/nccl.h' -print -quit)
multiarch=$(gcc -print-multiarch)
export LD_LIBRARY_PATH="${deps:+$deps/lib:$deps/lib/$multiarch:}${nccl:+${nccl%/include/nccl.h}/lib:}${LD_LIBRARY_PATH:-}"

cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=4 \
  -DCOHORT_EXAMPLES=OFF -DCOHORT_TOOLS=OFF -DCOHORT_WERROR=OFF -DCOHORT_TORCH=ON -DCOHORT_PYTHON=ON \
  -DCOHORT_PYTHON_EXECUTABLE="$python" -DCMAKE_PREFIX_PATH="$deps;$torch" \
  "-DCMAKE_LIBRARY_PATH=${deps:+$deps/lib/$multiarch}" "-DCMAKE_INCLUDE_PATH=${deps:+$deps/include}" \
  "-DNCCL_INCLUDE_DIR=${nccl%/nccl.h}" >"$out/configure.txt" 2>&1 || { tail -30 "$out/configure.txt"; exit 1; }
targets=(cohort_python torch_c10d_test cohort_gloo)
[[ -z $nccl || ! -e /dev/nvidiactl ]] || targets+=(torch_c10d_gpu_test)
# What does not compile does not stop the rest.
timeout 420 ninja -C $build -j"$jobs" -k0 "${targets[@]}" >"$out/build.txt" 2>&1 ||
  grep -E '^FAILED:|error:|undefined reference' "$out/build.txt" | head -40
echo "built after $SECONDS s"

failed=0
export PYTHONPATH=$PWD/$build/python:$PWD/tests/python OMP_NUM_THREADS=1
# run NAME COMMAND...
run() {
  local name=$1
  shift
  if timeout 300 "$@" >"$out/$name.txt" 2>&1; then
    echo "$name: passed after $SECONDS s"
  else
    echo "$name: FAILED after $SECONDS s"
    return 1
  fi
}
suite=tests/python/pytorch_suite.py
pids=()
if [[ -e /dev/nvidiactl ]]; then
  run gpu "$python" tests/python/gpu_test.py & pids+=($!)
  run torch_c10d_gpu_test $build/tests/torch/gpu/torch_c10d_gpu_test & pids+=($!)
fi
# A GPU would make PyTorch's tests ask for one for each rank.
export CUDA_VISIBLE_DEVICES=""
run torch_c10d_test $build/tests/torch/torch_c10d_test --gtest_brief=1 & pids+=($!)
for file in collectives errors ddp dtensor; do
  run "$file" "$python" "tests/python/${file}_test.py" & pids+=($!)
done
for ranks in 2 3 4 8; do
  for backend in gloo cohort; do
    run "suite_$backend$ranks" "$python" $suite --backend $backend --ranks $ranks --timeout 60 --json "$out/$backend$ranks.json" &
    pids+=($!)
  done
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
for ranks in 2 3 4 8; do
  "$python" $suite --compare "$out/gloo$ranks.json" "$out/cohort$ranks.json" || failed=1
done
tail -qn 3 "$out"/{collectives,errors,ddp,dtensor,gpu,torch_c10d_test,torch_c10d_gpu_test}.txt 2>/dev/null
exit $failed
