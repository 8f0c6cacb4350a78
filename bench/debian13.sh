#!/usr/bin/env bash
# A Debian 13 in a folder of its own, with its PyTorch (2.6), to compare with on any Debian. Needs root.
#   debian13.sh make FOLDER           makes it, unless it is there; debootstrap gets it from the mirror that apt uses
#   debian13.sh run FOLDER SCRIPT ARGUMENT    runs a python script in there, without a network
set -euo pipefail
suite=trixie what=$1 folder=$2
shift 2

# inside FOLDER COMMAND...: with its own processes and mounts, which end with it.
inside() {
  # shellcheck disable=SC2016
  unshare --mount --propagation private --pid --ipc "${isolated[@]}" --fork --kill-child bash -c '
    set -euo pipefail
    root=$1; shift
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
  ' _ "$@"
}

make_folder() {
  local mirror proxy='' part=$folder.part
  # A mirror has every suite of Debian, so the one of this machine's suite will do.
  mirror=$(apt-get indextargets "Created-By: Packages" "Origin: Debian" --format '$(REPO_URI) $(RELEASE)' |
           awk '$2 !~ /-/ && !found++ {print $1}')
  [ -n "$mirror" ] || { echo "apt of this machine knows no mirror of Debian; run: apt-get update"; return 1; }
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  [ -z "$proxy" ] || export http_proxy=${http_proxy:-$proxy}
  rm -rf --one-file-system "$part"
  mkdir -p "$part"
  debootstrap --variant=minbase --include=ca-certificates $suite "$part" "$mirror"
  apt-config dump | grep -E '^Acquire::(https?::Proxy|Check-Valid-Until) ' >"$part/etc/apt/apt.conf.d/90host" || true
  echo force-unsafe-io >"$part/etc/dpkg/dpkg.cfg.d/fast"  # made again after a power cut
  printf '#!/bin/sh\nexit 101\n' >"$part/usr/sbin/policy-rc.d"  # no services are started there
  chmod 755 "$part/usr/sbin/policy-rc.d"
  inside "$part" apt-get update -q
  # OpenBLAS on OpenMP shares PyTorch's threads, as it does for thinpipe.
  inside "$part" apt-get install -y -q --no-install-recommends python3-torch python3-numpy libopenblas0-openmp
  inside "$part" apt-get clean
  mv "$part" "$folder"  # a folder of that name is whole
}

isolated=()
case $what in
  make) [ -d "$folder" ] || make_folder ;;
  run)
    isolated=(--net)
    cp "$1" "$folder/tmp/script.py"
    inside "$folder" python3 /tmp/script.py "$2"
    ;;
esac
