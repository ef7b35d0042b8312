#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Formatting, layering, the table of features, and clang-tidy on what has changed since its last full run.
#
#   lint.sh                all of it
#   lint.sh --fix-format   formats in place, nothing else
#   lint.sh --tidy         clang-tidy on everything without libtorch
#   lint.sh --tidy-torch   clang-tidy on the torch layer
#   lint.sh --tidy-one F   clang-tidy on one unit of build/lint
set -euo pipefail

cd "$(dirname "$0")/../.."
failed=()
# Checks of newer versions than 14 that ask for another style than this, or take what is meant for a mistake.
newer_style=-misc-include-cleaner,-misc-const-correctness,-misc-use-internal-linkage,-misc-use-anonymous-namespace
newer_style+=,-modernize-use-designated-initializers,-modernize-use-ranges,-modernize-use-constraints
newer_style+=,-modernize-use-scoped-lock,-modernize-use-integer-sign-comparison
newer_style+=,-performance-enum-size,-bugprone-unchecked-optional-access,-bugprone-empty-catch

# Of the index and of what is new and not ignored; a file deleted but not yet committed is in the index still.
sources() {
  git ls-files --cached --others --exclude-standard -- "$@" | sort -u | while read -r file; do
    [[ -f $file ]] && echo "$file"
  done
}

step() {
  local name=$1
  shift
  echo "lint: $name"
  "$@" || failed+=("$name")
}

format() {
  sources '*.h' '*.cpp' | xargs -r -P 2 -n 20 clang-format-16 "$@"
}

# tidy core|torch|changed: over the units of a unity build, where each header is read once for many sources: an eighth of
# the time.
tidy() {
  cmake --preset default -B build/lint -DCMAKE_UNITY_BUILD_BATCH_SIZE=10 -DCOHORT_TESTS=OFF -DCOHORT_EXAMPLES=OFF \
    -DCMAKE_CXX_COMPILER_LAUNCHER= >/dev/null
  tools/dev/tidy_units.py build/lint "$1" | xargs -r -P "$(nproc)" -n 1 tools/dev/lint.sh --tidy-one
}

tidy_one() {
  local program=clang-tidy-14 checks=-bugprone-suspicious-include extra=()
  if command -v "$program" >/dev/null; then
    if [[ $1 == */src/torch/* ]]; then extra=(--extra-arg=-include --extra-arg="$PWD/tools/dev/clang_reads_torch.h"); fi
  else
    program=clang-tidy # of a newer Debian (suite.sh)
    checks+=,$newer_style
  fi
  "$program" --quiet -p build/lint --checks="$checks" --extra-arg=-std=gnu++20 --extra-arg=-Wno-unused-command-line-argument \
    --extra-arg=-Wno-unknown-warning-option "${extra[@]}" "$1" \
    2> >(grep -v 'warnings generated' >&2)
}

case ${1:-} in
  "") ;;
  --fix-format)
    if (($# != 1)); then
      echo "lint.sh: --fix-format takes no arguments" >&2
      exit 2
    fi
    format -i
    exit
    ;;
  --tidy)
    tidy core
    exit
    ;;
  --tidy-torch)
    tidy torch
    exit
    ;;
  --tidy-one)
    tidy_one "$2"
    exit
    ;;
  *)
    echo "lint.sh: unknown argument $1: --fix-format, --tidy, --tidy-torch, --tidy-one FILE or nothing" >&2
    exit 2
    ;;
esac

step "clang-format" format --dry-run -Werror
step "layering" tests/layering/check_layering.py .
step "features" tools/dev/check_features.py
step "clang-tidy" tidy changed

if ((${#failed[@]} > 0)); then
  printf 'lint: failed: %s\n' "${failed[*]}" >&2
  exit 1
fi
echo "lint: clean"
