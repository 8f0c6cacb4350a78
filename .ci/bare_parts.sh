# shellcheck shell=bash
# For scripts that work in a bare Debian (packaging/bare_debian.sh): named parts, whose time is printed, and commands in
# there. A script sources this and sets $work, a folder for the log, and $root, the folder of the bare Debian.

# part NAME COMMAND...: prints the output only if the command fails, and then exits with $on_failure, or 1. It runs in the
# background, because bash would not stop at a failed line of a function whose status is tested.
part() {
  local name=$1 start=${EPOCHREALTIME/./} log=$work/log tenths
  shift
  "$@" >"$log" 2>&1 &
  if ! wait $!; then
    tail -n 40 "$log" >&2
    echo "${0##*/}: failed: $name" >&2
    exit "${on_failure:-1}"
  fi
  tenths=$(((${EPOCHREALTIME/./} - start) / 100000))
  printf '%4d.%d s  %s\n' $((tenths / 10)) $((tenths % 10)) "$name"
}

need_root() { [ "$(id -u)" -eq 0 ] || { echo "${0##*/}: needs root, to set up a chroot: sudo .ci/${0##*/}" >&2; exit 2; }; }

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"; }

# Installs those of the given packages that are missing here, and tests what the rest depends on: mounts, and that apt
# knows its sources.
install_tools() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ] || [ -z "$(apt-get indextargets "Created-By: Packages" "Origin: Debian")" ]; then
    apt_get update
    [ ${#missing[@]} -eq 0 ] || apt_get install -y --no-install-recommends "${missing[@]}"
  fi
  unshare --mount --propagation private true
}

# make_root SUITE FOLDER
make_root() { packaging/bare_debian.sh make "$@"; }

# copy_root FROM TO: unless it is there.
copy_root() {
  [ ! -d "$2" ] || return 0
  rm -rf --one-file-system "$2.part"
  cp -a --reflink=auto "$1" "$2.part"
  mv "$2.part" "$2"
}

# inside COMMAND...: runs it in $root. offline COMMAND...: the same without a network, except loopback.
inside() { packaging/bare_debian.sh run "$root" "$@"; }
offline() { packaging/bare_debian.sh run --offline "$root" "$@"; }

# After an interrupt or at the end: every part is a process group (set -m), which ends as a whole.
end_parts() {
  local job
  for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; done
  wait
}

# The suite of this machine, bookworm or trixie.
own_suite() { sed -n 's/^VERSION_CODENAME=//p' /etc/os-release; }

# clone_into ROOT: what is committed here, without the build folder.
clone_into() {
  rm -rf --one-file-system "$1/root/thinpipe"
  git clone --quiet . "$1/root/thinpipe"
}
