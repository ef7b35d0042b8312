#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs a command in another suite of Debian, with this tree as the working directory: other compilers, another libtorch,
# other engines. The system is a folder, made once (some minutes, 4 GB with all packages) and kept under build/suites/SUITE;
# what is built there is kept, too, beside what other suites and this machine build.
#
#   suite.sh SUITE COMMAND [ARGUMENT...]     for example: suite.sh forky make test
#   suite.sh SUITE --remove                  removes the system and what was built in it
#
# Suites known to work: trixie (Debian 13, libtorch 2.6), forky (Debian 14, libtorch 2.14). As root, or as a user that may
# make user namespaces with several users in them (uidmap, /etc/subuid).
set -euo pipefail

usage() {
  sed -n '/^#   suite.sh/,/^# make user/s/^# \{0,1\}//p' "$0"
}

case ${1:-} in
  -h | --help)
    usage
    exit 0
    ;;
esac
if (($# < 2)); then
  usage >&2
  exit 2
fi
suite=$1
if [[ ! $suite =~ ^[a-z]+$ ]]; then
  echo "suite.sh: \"$suite\" is no name of a suite: trixie or forky, for example" >&2
  exit 2
fi

cd "$(dirname "$0")/../.."
here=$PWD/build/suites/$suite
root=$here/root

# The work is done by this script once more, in namespaces of its own: the kernel undoes its mounts and ends its processes.
if [[ ${COHORT_SUITE_NAMESPACE:-} != yes ]]; then
  for program in mmdebstrap unshare; do
    if ! command -v "$program" >/dev/null; then
      echo "suite.sh: there is no $program: tools/dev/install_deps.sh packaging" >&2
      exit 1
    fi
  done
  namespaces=(--mount --pid --fork --kill-child --mount-proc)
  if (($(id -u) != 0)); then
    namespaces=(--user --map-root-user --map-auto "${namespaces[@]}")
    if ! unshare "${namespaces[@]}" true; then
      echo "suite.sh: you are not root, and may not make a user namespace with several users in it, which takes uidmap," \
        "a line for you in /etc/subuid and /etc/subgid, and a kernel that allows it" >&2
      exit 1
    fi
  fi
  COHORT_SUITE_NAMESPACE=yes exec unshare "${namespaces[@]}" "$0" "$@"
fi

# shellcheck source=tools/dev/debian_system.sh
. tools/dev/debian_system.sh

if [[ $2 == --remove ]]; then
  rm -rf --one-file-system "$here"
  exit
fi

if [[ ! -e $root/made ]]; then
  echo "=== suite: makes a Debian $suite in ${root#"$PWD"/}"
  rm -rf --one-file-system "$root"
  mkdir -p "$here/build"
  make_system "$suite" "$root" "$here/made.log"
  mkdir "$root/cohort"
  mount_into "$root"
  apt_in "$root" "$here/apt.log" update
  apt_in "$root" "$here/apt.log" install --no-install-recommends make git
  touch "$root/made"
else
  mount_into "$root"
fi
mount --bind "$PWD" "$root/cohort"
mount --bind "$here/build" "$root/cohort/build"
# The tree may be another user's.
in_system "$root" git config --system --replace-all safe.directory /cohort
wrapped=(env "CCACHE_DIR=/cohort/build/ccache")
shift
# shellcheck disable=SC2016 # the inner shell's
in_system "$root" sh -c 'cd /cohort && exec "$@"' sh "$@"
