#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Installs the packages that are missing, on Debian 12 and its relatives.
#
#   install_deps.sh [GROUP...]      groups: build (always), engines, torch, python, lint, tidy, fuzz, bench, long,
#                                   arm, packaging
#   install_deps.sh --list [GROUP...]
set -eu

packages_of() {
  case $1 in
    build)
      echo g++ cmake ninja-build make ccache mold pkg-config python3 libasio-dev libssl-dev libhwloc-dev libcli11-dev \
        nlohmann-json3-dev libfmt-dev libhwy-dev libgtest-dev libgmock-dev
      ;;
    engines) echo libgloo-dev openmpi-bin libopenmpi-dev mpich libmpich-dev ;;
    torch) echo libtorch-dev libopenblas0-pthread graphviz ;;
    python) echo python3-torch python3-numpy python3-setuptools python3-dev pybind11-dev ;;
    lint) echo clang-14 clang-format-16 clang-tidy-14 ;;
    tidy) echo clang clang-tidy ;; # the suite's own, for suite.sh
    fuzz) echo clang-14 libclang-rt-14-dev ;;
    bench) echo libtorch-dev libopenblas0-pthread python3-torch libbenchmark-dev ;;
    long) echo iproute2 slurm-wlm munge ;;
    arm) echo g++-aarch64-linux-gnu qemu-user ;;
    packaging) echo mmdebstrap python3-pip python3-setuptools python3-wheel ;;
    *)
      echo "install_deps.sh: unknown group \"$1\": build, engines, torch, python, lint, tidy, fuzz, bench, long, arm or packaging" >&2
      exit 2
      ;;
  esac
}

list_only=no
if [ "${1:-}" = --list ]; then
  list_only=yes
  shift
fi

wanted=
for group in build "$@"; do
  wanted="$wanted $(packages_of "$group")"
done
if [ "$list_only" = yes ]; then
  echo "$wanted" | xargs -n 1 | sort -u
  exit
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "This is not Debian or a relative of it, so nothing was installed. What is needed, by Debian's names:" >&2
  echo " $wanted" >&2
  exit 0
fi

missing=
for package in $wanted; do
  # ${Status} is dpkg's, not the shell's.
  # shellcheck disable=SC2016
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
  as_root=
elif command -v sudo >/dev/null; then
  as_root=sudo
else
  echo "Packages are missing, and neither are you root nor is there sudo. As root:" >&2
  echo "  apt-get install$missing" >&2
  exit 1
fi

echo "Installing:$missing"
$as_root apt-get update -qq
# Through env, since sudo drops the variable.
# shellcheck disable=SC2086 # the list is meant to be split
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
