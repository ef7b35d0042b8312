#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Compiles what knows libtorch best against the headers of a newer one, with this machine's compiler: the public headers of
# the torch layer, src/torch/compat and src/torch/dispatch. So the next break is seen when it arrives in Debian, and not when
# somebody builds there; tools/dev/suite.sh builds everything there. Half a minute, the package and the
# suite's list of packages included.
#
#   newer_headers.sh [SUITE]     of Debian; forky (libtorch 2.14) by default. Headers are kept under build/headers/SUITE.
set -euo pipefail

suite=${1:-forky}
if [[ ! $suite =~ ^[a-z]+$ ]]; then
  sed -n '/^#   newer_headers.sh/s/^# *//p' "$0" >&2
  exit 2
fi
cd "$(dirname "$0")/../.."
# shellcheck source=tools/dev/debian_system.sh
. tools/dev/debian_system.sh

here=$PWD/build/headers/$suite
# Its lists and packages are kept away from the system's.
apt_of_suite() {
  apt-get -qq -o "Dir::Etc::sourcelist=$here/apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$here/apt/lists" \
    -o "Dir::Cache=$here/apt/cache" -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root "$@"
}

# skip WHY: the machine cannot have the headers, which is nobody's mistake.
skip() {
  echo "skipped: $1"
  exit 0
}

if [[ ! -d $here/include ]]; then
  command -v apt-get >/dev/null || skip "there is no apt to get libtorch's headers from"
  mirror=$(sources | awk -v suite="$(own_suite)" '$2 == suite { print $1; exit }')
  [[ -n $mirror ]] || skip "apt knows no source of Debian's packages (apt-get update?)"
  rm -rf "$here"
  mkdir -p "$here/apt/lists/partial" "$here/apt/cache/archives/partial"
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  echo "deb [signed-by=$keyring] $mirror $suite main" >"$here/apt/sources.list"
  if ! (apt_of_suite update && cd "$here/apt" && apt_of_suite download libtorch-dev) >"$here/apt/log" 2>&1; then
    skip "libtorch-dev of $suite cannot be had: $(tail -n 1 "$here/apt/log")"
  fi
  dpkg-deb -x "$here"/apt/libtorch-dev_*.deb "$here/package"
  mv "$here/package/usr/include" "$here/include"
fi

version=$(basename "$here"/apt/libtorch-dev_*.deb | sed -E 's/^libtorch-dev_([0-9.]+).*/\1/')
every=$here/every_header.cpp
for header in include/cohort/torch/*.h; do echo "#include <${header#include/}>"; done >"$every"
cmake --preset default -B build/headers/configured -DCOHORT_TESTS=OFF -DCOHORT_EXAMPLES=OFF >"$here/configured.log" ||
  fail_with "$here/configured.log"

# check SOURCE
check() {
  local depends
  depends=$here/$(basename "$1").d
  "${CXX:-g++}" -std=gnu++20 -fsyntax-only -Wall -Wextra -Wshadow -Wconversion -Werror -DFMT_HEADER_ONLY=1 -DUSE_DISTRIBUTED \
    -DUSE_C10D_GLOO -Iinclude -Ibuild/headers/configured/include -Isrc -isystem "$here/include" \
    -isystem "$here/include/torch/csrc/api/include" -MD -MF "$depends" "$1" || return 1
  # A header that the newer version has no more is found among this machine's own.
  if tr ' ' '\n' <"$depends" | grep -E '^/usr/include/(ATen|c10|torch)/'; then
    echo "$1: libtorch $version does not have these headers any more" >&2
    return 1
  fi
}

failed=0
for source in src/torch/compat/*.cpp src/torch/dispatch/*.cpp "$every"; do
  check "$source" || { echo "FAILED: $source" >&2 && failed=1; }
done
if ((failed == 0)); then echo "libtorch $version of $suite: the torch layer's headers, compat and dispatch compile"; fi
exit $failed
