#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Compares our distributed tensors with PyTorch's own: tests/torch/oracle/dtensor_reference.py runs programs with its
# DTensor on gloo, with 2 and 4 ranks, and torch_dtensor_oracle runs the same ones and compares. Needs a Python with
# PyTorch 2.7 or newer and a folder that CMake has configured; a minute on 16 cores.
#
#   dtensor_oracle.sh [--build DIR] [--out DIR] [--jobs N]
set -euo pipefail

cd "$(dirname "$0")/../.."
build=build/default out="" jobs=$(nproc)
while (($# > 0)); do
  case $1 in
    --build) build=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    *)
      echo "dtensor_oracle.sh: unknown argument $1: --build DIR, --out DIR, --jobs N" >&2
      exit 2
      ;;
  esac
done
out=${out:-$build/dtensor_oracle}
rm -rf "$out"
mkdir -p "$out"
python3 -c 'import torch.distributed.tensor.debug' 2>/dev/null || {
  echo "skipped: this Python has no PyTorch with DTensor"
  exit 77
}
timeout 600 ninja -C "$build" -j"$jobs" torch_dtensor_oracle >"$out/build.txt" 2>&1 || {
  tail -40 "$out/build.txt"
  exit 1
}
timeout 180 python3 tests/torch/oracle/dtensor_reference.py "$out/reference" 2>&1 | tail -40
timeout 120 "$build/tests/torch/oracle/torch_dtensor_oracle" "$out/reference"
