#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Builds a wheel, lets pip install it into a folder of its own, and uses the Python package and the command from there.
#
#   run_wheel.sh SOURCE_DIR WORK_DIR PYTHON [ENGINE]      ENGINE: one that the wheel must have brought along
set -eu

source=$1 work=$2 python=$3 engine=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
site=$work/site

# The build is kept: the next one compiles what has changed.
rm -rf "$site"
PYTHON=$python "$source/tools/dev/build_wheel.sh" "$work"
"$python" -m pip install --no-deps --no-index --disable-pip-version-check --target "$site" "$work"/*.whl

export PYTHONPATH="$site"
# From elsewhere, so that nothing of the source tree is on Python's path.
cd "$work"
"$python" "$here/two_ranks.py" "$site" ${engine:+--engine "$engine"}
"$python" "$site/bin/cohort" --version
"$python" "$site/bin/cohort" run --no-prefix -n 2 true
if [ -n "$engine" ]; then
  "$python" "$site/bin/cohort" doctor | grep "^  $engine  *built in"
fi
