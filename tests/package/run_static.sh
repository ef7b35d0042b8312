#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Builds libcohort as a static library, then uses it both ways.
#
#   run_static.sh SOURCE_DIR WORK_DIR CXX
set -eu

source=$1 work=$2 cxx=$3
here=$(cd "$(dirname "$0")" && pwd)

cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" -DBUILD_SHARED_LIBS=OFF \
  -DCOHORT_TESTS=OFF -DCOHORT_EXAMPLES=OFF -DCOHORT_TOOLS=OFF -DCOHORT_TORCH=OFF -DCMAKE_UNITY_BUILD=ON
cmake --build "$work/build" -j2
"$here/run.sh" find_package "$work/build" "$work/find_package" "$cxx"
"$here/run.sh" pkg_config "$work/build" "$work/pkg_config" "$cxx"
