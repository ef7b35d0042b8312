#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the core for aarch64 and runs its tests under qemu-user, all of it in build/aarch64. The libraries come from
# Debian's arm64 packages, unpacked into a folder: the machine's own package state is not touched.
#
#   aarch64.sh [CTEST OPTION...]
set -euo pipefail

cd "$(dirname "$0")/../.."
here=$PWD/build/aarch64
sysroot=$here/sysroot

arm64_apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=false \
    -o Dir::State="$here/apt" -o Dir::State::status="$here/apt/status" -o Dir::Cache="$here/apt" -o Debug::NoLocking=1 "$@"
}

if [[ ! -e $sysroot/complete ]]; then
  rm -rf "$sysroot" "$here/apt"
  mkdir -p "$sysroot" "$here/apt/lists/partial" "$here/apt/archives/partial"
  touch "$here/apt/status"
  arm64_apt update || true # a source without arm64 is no harm; what is missing shows in the next line
  arm64_apt install --download-only -y libstdc++-12-dev libasio-dev libssl-dev nlohmann-json3-dev libfmt-dev libhwy-dev \
    libgtest-dev libgmock-dev
  for package in "$here"/apt/archives/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
  touch "$sysroot/complete"
fi

cmake --preset aarch64
cmake --build --preset aarch64 -j "$(nproc)"
# The emulator visits every page of a mapping, and a group's memory may be as large as a file may be.
ulimit -f $((1 << 20))
# Not the drills: their bounds are milliseconds of a real machine, and their limits (descriptors, memory) hit the emulator.
# Not ProcessesTest: it starts programs, which the kernel would have to hand to the emulator (binfmt_misc). And after a
# fork with several threads a child of qemu 7.2 can start none.
ctest --test-dir build/aarch64 --output-on-failure --no-tests=error -LE '^(long|faults)$' \
  -E '^ProcessesTest|^AfterFork.TheChildCanDropTheGroupAndMakeItsOwn' -j "$(nproc)" "$@"
