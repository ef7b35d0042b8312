#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Formatting, clang-tidy, layering, the tables of features and faults; the tables need build/default (make build).
#
#   lint.sh                all of it
#   lint.sh --fix-format   formats in place, nothing else
#   lint.sh --tidy         clang-tidy alone
#   lint.sh --tidy-torch   clang-tidy on the torch layer
#   lint.sh --tidy-one F   clang-tidy on one source of build/lint
set -euo pipefail

cd "$(dirname "$0")/../.."
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
  sources '*.h' '*.cpp' | xargs -r -P 2 -n 20 clang-format-16 "$@"
}

# Over the sources of a unity build, where each header is read once for many sources: an eighth of the time. The torch
# layer is checked by itself (--tidy-torch), because libtorch's headers take minutes.
tidy() {
  local torch=$1
  cmake --preset default -B build/lint -DCMAKE_UNITY_BUILD_BATCH_SIZE=20 -DCOHORT_TESTS=OFF -DCOHORT_TORCH="$torch" >/dev/null
  python3 - "$torch" <<'EOF' | sort | xargs -P "$(nproc)" -n 1 tools/dev/lint.sh --tidy-one
import json, sys
for entry in json.load(open("build/lint/compile_commands.json")):
    if sys.argv[1] == "OFF" or "/src/torch/" in entry["file"]:
        print(entry["file"])
EOF
}

tidy_one() {
  local extra=()
  if [[ $1 == */src/torch/* ]]; then extra=(--extra-arg=-include --extra-arg="$PWD/tools/dev/clang_reads_torch.h"); fi
  clang-tidy-14 --quiet -p build/lint --checks=-bugprone-suspicious-include "${extra[@]}" "$1" \
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
    tidy OFF
    exit
    ;;
  --tidy-torch)
    tidy ON
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
step "features" tools/dev/check_features.py --build build/default
step "fault table" tools/dev/fault_table.py --check
step "clang-tidy" tidy OFF

if ((${#failed[@]} > 0)); then
  printf 'lint: failed: %s\n' "${failed[*]}" >&2
  exit 1
fi
echo "lint: clean"
