#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the Debian packages in a clean Debian, and tries them in another one that has never seen the sources' build
# dependencies. Both are folders under build/deb, made from the package sources of this machine and removed
# at the end. The packages are left in build/deb/packages. Needs root, for chroot.
#
#   build_deb.sh [--keep] [SUITE]    --keep: leaves the two systems where they are, to look at
#                                    SUITE: Debian's name of a release, as trixie; without it, this machine's
set -euo pipefail

cd "$(dirname "$0")/../.."
here=$PWD/build/deb
keep=no
suite=
for argument; do
  case $argument in
    --keep) keep=yes ;;
    -* | *[!a-z]*)
      echo "build_deb.sh: unknown argument $argument: --keep or the name of a suite" >&2
      exit 2
      ;;
    *) suite=$argument ;;
  esac
done

say() {
  printf '=== build_deb: %s\n' "$*"
}

if (($(id -u) != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "build_deb.sh: makes two Debian systems and changes into them, which needs root; there is no sudo either" >&2
    exit 1
  fi
  exec sudo --preserve-env=http_proxy,https_proxy,no_proxy "$0" "$@"
fi
for program in mmdebstrap unshare; do
  if ! command -v "$program" >/dev/null; then
    echo "build_deb.sh: there is no $program: tools/dev/install_deps.sh packaging" >&2
    exit 1
  fi
done

builder=$here/builder user=$here/user archives=$here/archives packages=$here/packages

remove_systems() {
  if [[ $keep == no ]]; then rm -rf --one-file-system "$builder" "$user"; fi
}
finish() {
  local status=$?
  trap - EXIT
  # With it end all processes inside, and with these their mounts. unshare does not hear a milder signal.
  if [[ -n $inside ]] && kill -KILL "$inside" 2>/dev/null; then wait "$inside" 2>/dev/null || true; fi
  remove_systems
  if [[ -n ${SUDO_UID:-} && -d $packages ]]; then chown -R "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$packages"; fi
  if ((status != 0)); then say "FAILED, see above" >&2; fi
  exit "$status"
}
# The work is done by this script once more, in namespaces of its own: whatever happens to it, the kernel ends its
# processes and undoes its mounts, and this one removes the systems.
if [[ ${COHORT_DEB_NAMESPACE:-} != yes ]]; then
  inside=
  trap finish EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  rm -rf --one-file-system "$builder" "$user" "$packages"
  mkdir -p "$here" "$packages"
  COHORT_DEB_NAMESPACE=yes unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@" &
  inside=$!
  wait "$inside"
  exit
fi

# shellcheck source=tools/dev/debian_system.sh
. tools/dev/debian_system.sh
log=$here/apt.log

prepare() {
  local root=$1
  mount_into "$root"
  # Packages are downloaded once for both systems and for the next time.
  mkdir -p "$archives/partial"
  mount --bind "$archives" "$root/var/cache/apt/archives"
}

# copy_sources TO: what git has or would take; without git, all but what builds leave.
copy_sources() {
  mkdir -p "$1"
  if git -c safe.directory="$PWD" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git -c safe.directory="$PWD" ls-files -z --cached --others --exclude-standard |
      while IFS= read -r -d '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done |
      tar --create --null --files-from=- | tar --extract --directory="$1" --no-same-owner
  else
    tar --create --exclude=./build --exclude='./build-*' . | tar --extract --directory="$1" --no-same-owner
  fi
}

# Two clean systems, the same but for what is installed into them later.
make_systems() {
  say "a clean Debian ($suite)"
  make_system "$suite" "$user" "$here/system.log"
  apt_in "$user" "$log" update
  apt_in "$user" "$log" upgrade
  cp -a "$user" "$builder"
  prepare "$builder"
  prepare "$user"
}

build_packages() {
  say "build dependencies, in one copy of it"
  copy_sources "$builder/build/cohort"
  apt_in "$builder" "$log" install --no-install-recommends build-essential lintian
  apt_in "$builder" "$log" build-dep --no-install-recommends /build/cohort

  say "dpkg-buildpackage, without a network: $(nproc) jobs, log in ${here#"$PWD"/}/build.log"
  wrapped=(unshare --net)
  in_system "$builder" sh -c "cd /build/cohort && DEB_BUILD_OPTIONS=parallel=$(nproc) dpkg-buildpackage -b -us -uc" \
    >"$here/build.log" 2>&1 || fail_with "$here/build.log"
  wrapped=()
  find "$builder/build" -maxdepth 1 -type f -exec cp {} "$packages/" \;
  find "$packages" -name '*.deb' -printf '%f: %s bytes\n' | sort

  say "lintian"
  in_system "$builder" sh -c 'lintian --allow-root --fail-on error --tag-display-limit 0 /build/*.changes'
}

# package NAME: its file, as the system sees it that packages are tried in.
package() {
  (cd "$user" && find packages -name "$1_*.deb" -printf '/%p\n')
}

try_packages() {
  say "installs the packages in the other copy, and uses them"
  mkdir "$user/packages" "$user/try"
  cp "$packages"/*.deb "$user/packages/"
  cp README.md tests/package/try_installed.sh tests/package/two_ranks.py "$user/try/"
  # Without what is recommended: the collectives need neither libtorch nor an engine.
  apt_in "$user" "$log" install --no-install-recommends "$(package libcohort0.1)" "$(package libcohort-dev)" \
    "$(package cohort-tools)" g++ cmake make pkg-config
  in_system "$user" dpkg-query -W 'libcohort*' 'cohort*'
  in_system "$user" /try/try_installed.sh collectives /try/README.md
  # With it, as apt does by itself.
  apt_in "$user" "$log" install "$(package libcohort-torch0.1)" "$(package python3-cohort)" libgloo0
  in_system "$user" /try/try_installed.sh python
  in_system "$user" /try/try_installed.sh gloo
}

main() {
  local begin=$SECONDS
  suite=${suite:-$(own_suite)}
  make_systems
  build_packages
  try_packages
  say "success after $(((SECONDS - begin) / 60)) minutes: the packages are in ${packages#"$PWD"/}"
}

main
