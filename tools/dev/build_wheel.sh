#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Builds a wheel of the Python package into build/wheel, or into the folder named, without asking a package index.
#
#   build_wheel.sh [FOLDER]      PYTHON: the interpreter; without it the first of python3 and Debian's that has PyTorch
set -eu

cd "$(dirname "$0")/../.."
folder=${1:-$PWD/build/wheel}

has_torch() {
  "$1" -c 'import torch' 2>/dev/null
}

for each in ${PYTHON:-python3 /usr/bin/python3}; do
  if has_torch "$each"; then
    python=$each
    break
  fi
done
if [ -z "${python:-}" ]; then
  echo "build_wheel.sh: none of these has PyTorch, which the Python module is for: ${PYTHON:-python3, /usr/bin/python3}" >&2
  echo "Install it (Debian: python3-torch), or name an interpreter that has it: make wheel PYTHON=..." >&2
  exit 1
fi

mkdir -p "$folder"
# What setuptools leaves goes there, too, rather than into the source tree.
cat >"$folder/setuptools.cfg" <<EOF
[build]
build_base = $folder/build
[egg_info]
egg_base = $folder
EOF
rm -f "$folder"/*.whl
echo "Builds the Python package for $(command -v "$python"): about 8 minutes on 2 cores the first time"
DIST_EXTRA_CONFIG=$folder/setuptools.cfg "$python" -m pip wheel --no-build-isolation --no-deps --no-index \
  --disable-pip-version-check --wheel-dir "$folder" .
ls "$folder"/*.whl
