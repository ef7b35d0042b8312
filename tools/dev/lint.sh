#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Formatting, clang-tidy, layering and the feature table; needs build/default (make build).
#
#   lint.sh                all of it
#   lint.sh --fix-format   formats in place, nothing else
#   lint.sh --tidy [FILE...]   clang-tidy alone, on these sources or on all
set -euo pipefail

cd "$(dirname "$0")/../.."
build=${COHORT_BUILD:-build/default}
failed=()

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
  sources '*.h' '*.cpp' | xargs -r -P 2 -n 20 clang-format-14 "$@"
}

# Headers are checked through the sources that include them (HeaderFilterRegex).
tidy() {
  if (($# == 0)); then
    mapfile -t files < <(sources 'src/*.cpp' 'tools/*.cpp' 'examples/*.cpp')
    set -- "${files[@]}"
  fi
  printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 clang-tidy-14 --quiet -p "$build" 2> >(grep -v 'warnings generated' >&2)
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
    shift
    tidy "$@"
    exit
    ;;
  *)
    echo "lint.sh: unknown argument $1: --fix-format, --tidy [FILE...] or nothing" >&2
    exit 2
    ;;
esac

step "clang-format" format --dry-run -Werror
step "layering" tests/layering/check_layering.py .
step "features" tools/dev/check_features.py --build "$build"
step "clang-tidy" tidy

if ((${#failed[@]} > 0)); then
  printf 'lint: failed: %s\n' "${failed[*]}" >&2
  exit 1
fi
echo "lint: clean"
