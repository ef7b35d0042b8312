# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Clean Debian systems in folders, made from the package sources of this machine. Sourced by build_deb.sh and suite.sh,
# whose processes have a mount namespace of their own: all mounts end with them.

# sources: "URI RELEASE COMPONENT" of each of Debian's own package sources that this machine uses, others left out.
sources() {
  # The variables are apt's.
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' | sort -u
}

# own_suite: this machine's.
own_suite() {
  # shellcheck disable=SC1091 # of the system
  (. /etc/os-release && echo "${VERSION_CODENAME:-}")
}

# fail_with LOG
fail_with() {
  tail -n 40 "$1" | cut -c 1-500 >&2
  exit 1
}

# make_system SUITE ROOT LOG: a minimal one. Its packages are checked against the keys of debian-archive-keyring, but not
# how old the mirror's lists are: those of suites that change daily are good for a week, and mirrors lag behind.
make_system() {
  local suite=$1 root=$2 log=$3 own mirror any_age='Acquire::Check-Valid-Until "false";'
  own=$(own_suite)
  mirror=$(sources | awk -v suite="$own" '$2 == suite { print $1; exit }')
  if [[ -z $mirror ]]; then
    echo "$(basename "$0"): apt knows no source of Debian's packages for \"$own\" (apt-get update?)" >&2
    exit 1
  fi
  mmdebstrap --mode=root --variant=minbase --aptopt="$any_age" "$suite" "$root" "$mirror" >"$log" 2>&1 || fail_with "$log"
  if [[ $suite == "$own" ]]; then sources | awk '{ print "deb", $1, $2, $3 }' >"$root/etc/apt/sources.list"; fi
  # As this machine reaches its sources; and without a terminal, which there is none of.
  {
    apt-config dump | grep -E '^Acquire::(https?::|Retries)' || true
    echo "$any_age"
    echo 'Dpkg::Use-Pty "0";'
  } >"$root/etc/apt/apt.conf.d/90this-machine"
  cp /etc/hosts /etc/resolv.conf "$root/etc/"
}

# mount_into ROOT: what programs expect. Not the machine's /dev/shm, where others work.
mount_into() {
  local root=$1 device
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --make-rslave "$root/sys"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  mkdir "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
}

# in_system ROOT COMMAND...; what is in `wrapped` comes before it.
wrapped=()
in_system() {
  local root=$1
  shift
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive TERM="${TERM:-dumb}" \
    http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" no_proxy="${no_proxy:-}" "${wrapped[@]}" chroot "$root" "$@"
}

# apt_in ROOT LOG COMMAND ARGUMENT...
apt_in() {
  local root=$1 log=$2
  shift 2
  in_system "$root" apt-get -y -qq "$@" >"$log" 2>&1 || fail_with "$log"
}
