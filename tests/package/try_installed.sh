#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Uses Cohort as a package has installed it, the way the first argument says.
#
#   try_installed.sh collectives README.md    builds the page's first program with pkg-config and with CMake, and runs it
#   try_installed.sh python                   two processes with the Python module
#   try_installed.sh gloo                     the same over Gloo
set -eu

here=$(cd "$(dirname "$0")" && pwd)

# expect_sum PROGRAM: the example prints the sum of 1 and 2.
expect_sum() {
  printed=$(cohort run --no-prefix -n 2 "$1")
  if [ "$printed" != 3 ]; then
    echo "$1 printed \"$printed\", not 3" >&2
    exit 1
  fi
  echo "$1: the README's example printed $printed with two processes"
}

case $1 in
  collectives)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    awk '/^```cpp$/ { inside = 1; next } /^```$/ && inside { exit } inside' "$2" >"$work/main.cpp"
    cd "$work"
    # shellcheck disable=SC2046 # flags are meant to be split
    g++ -std=c++20 main.cpp -o by_pkg_config $(pkg-config --cflags --libs cohort)
    expect_sum ./by_pkg_config
    cat >CMakeLists.txt <<'EOF'
cmake_minimum_required(VERSION 3.22)
project(example LANGUAGES CXX)
find_package(cohort 0.1 REQUIRED)
add_executable(by_find_package main.cpp)
target_link_libraries(by_find_package PRIVATE cohort::cohort)
EOF
    cmake -S . -B . >configure.log || { cat configure.log >&2; exit 1; }
    cmake --build . >build.log || { cat build.log >&2; exit 1; }
    expect_sum ./by_find_package
    ;;
  python)
    python3 "$here/two_ranks.py"
    cd /
    python3 -c "import cohort.torch, cohort; print('python3 imports cohort.torch', cohort.__version__)"
    ;;
  gloo)
    python3 "$here/two_ranks.py" --engine gloo
    ;;
  *)
    echo "unknown way: $1" >&2
    exit 2
    ;;
esac
