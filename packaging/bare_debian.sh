#!/usr/bin/env bash
# A bare Debian in a folder, made by debootstrap, and commands that run in there. Works on any Debian; needs root.
#   bare_debian.sh make SUITE FOLDER [PACKAGE...]  makes one of this suite with these packages, unless the folder is there
#   bare_debian.sh run FOLDER COMMAND...           runs a command there, with its own processes and mounts, which end with it
#   bare_debian.sh run --offline FOLDER COMMAND... the same without a network, except loopback
# COMMAND may begin with variables, NAME=VALUE; it gets no others from here.
set -euo pipefail

# The package sources of this machine, only Debian's own, for another suite: "URI SUITE", also its updates and security.
debian_sources() {
  # shellcheck disable=SC2016
  apt-get indextargets "Created-By: Packages" "Origin: Debian" --format '$(REPO_URI) $(RELEASE)' |
    sed -nE "s/^([^ ]+) [^- ]+(-updates|-security)?$/\1 $1\2/p" | sort -u
}

# make_folder SUITE FOLDER PACKAGE...
make_folder() {
  local suite=$1 folder=$2 part=$2.part mirror proxy='' certificates=()
  shift 2
  mirror=$(debian_sources "$suite" | awk -v suite="$suite" '$2 == suite && !found++ {print $1}')
  [ -n "$mirror" ] || { echo "apt of this machine knows no mirror of Debian; run: apt-get update" >&2; return 1; }
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  [ -z "$proxy" ] || export http_proxy=${http_proxy:-$proxy}
  case $(debian_sources "$suite") in *https:*) certificates=(--include=ca-certificates) ;; esac
  rm -rf --one-file-system "$part"
  mkdir -p "$part"
  debootstrap --variant=minbase "${certificates[@]}" "$suite" "$part" "$mirror"
  debian_sources "$suite" | sed 's/^/deb /; s/$/ main/' >"$part/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(https?::Proxy|Check-Valid-Until) ' >"$part/etc/apt/apt.conf.d/90host" || true
  echo force-unsafe-io >"$part/etc/dpkg/dpkg.cfg.d/fast"  # the folder need not survive a power cut
  printf '#!/bin/sh\nexit 101\n' >"$part/usr/sbin/policy-rc.d"  # no services are started there
  chmod 755 "$part/usr/sbin/policy-rc.d"
  if [ $# -gt 0 ]; then
    bash "$0" run "$part" apt-get update -q
    bash "$0" run "$part" apt-get install -y -q --no-install-recommends "$@"
    bash "$0" run "$part" apt-get clean
  fi
  mv "$part" "$folder"  # a folder of that name is whole
}

run_inside() {
  local net=() up=:
  if [ "$1" = --offline ]; then net=(--net) up='ip link set lo up'; shift; fi
  # shellcheck disable=SC2016
  exec unshare --mount --propagation private --pid --ipc --uts "${net[@]}" --fork --kill-child bash -c '
    set -euo pipefail
    up=$1 root=$2; shift 2
    $up
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
      DEBIAN_FRONTEND=noninteractive "$@"
  ' _ "$up" "$@"
}

what=${1:-}
shift || true
case $what in
  make) [ -d "$2" ] || make_folder "$@" ;;
  run) run_inside "$@" ;;
  *) echo "usage: bare_debian.sh make SUITE FOLDER [PACKAGE...] | run [--offline] FOLDER COMMAND..." >&2; exit 2 ;;
esac
