#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Installs a build into a fresh prefix and builds and runs a program against it, the way the first argument says.
#
#   run.sh find_package|pkg_config|torch|torch_pkg_config BUILD_DIR WORK_DIR CXX
set -eu

how=$1 build=$2 work=$3 cxx=$4
here=$(cd "$(dirname "$0")" && pwd)
prefix=$work/prefix

rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$prefix" >"$work/install.log" || { cat "$work/install.log" >&2; exit 1; }
libdir=$(dirname "$(find "$prefix" -name 'libcohort.so' -o -name 'libcohort.a' | head -n 1)")

if find "$prefix" -name '*.in' | grep .; then
  echo "templates were installed" >&2
  exit 1
fi

case $how in
  find_package)
    cmake -S "$here/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
      -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF
    cmake --build "$work/build"
    "$work/build/consumer"
    ;;
  torch)
    cmake -S "$here/torch_consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
      -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF
    cmake --build "$work/build"
    "$work/build/consumer"
    ;;
  pkg_config | torch_pkg_config)
    case $how in
      pkg_config) package=cohort source=$here/consumer/main.cpp ;;
      *) package=cohort-torch source=$here/torch_consumer/main.cpp ;;
    esac
    # Moved after the installation: the .pc file must not have remembered where it was.
    mv "$prefix" "$work/moved"
    export PKG_CONFIG_PATH="$work/moved${libdir#"$prefix"}/pkgconfig"
    # shellcheck disable=SC2046 # flags are meant to be split
    "$cxx" -std=c++20 "$source" -o "$work/consumer" $(pkg-config --cflags --libs $package)
    LD_LIBRARY_PATH="$work/moved${libdir#"$prefix"}" "$work/consumer"
    ;;
  *)
    echo "unknown way: $how" >&2
    exit 2
    ;;
esac
