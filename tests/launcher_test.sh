#!/usr/bin/env bash
# The launcher's progress, and what it says where packages are missing, with stand-ins for cmake, dpkg-query and apt-get:
# nothing is installed or built.
#   tests/launcher_test.sh ROOT
set -euo pipefail
root=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/tree/build/release/apps"
cp "$root/thinpipe" "$work/tree/thinpipe"
printf '#!/bin/sh\necho installed\n' >"$work/bin/dpkg-query"
printf '#!/bin/sh\necho ran "$@"\n' >"$work/tree/build/release/apps/thinpipe"
cat >"$work/bin/cmake" <<'CMAKE'
#!/bin/sh
case "$*" in
  --preset*) [ -z "$LACKS" ] || { echo "CMake Error: Could not find $LACKS"; exit 1; } ;;
  *-n) echo "work to do" ;;
  *--build*)
    for i in $(seq 1 20); do echo "[$i/20] Building $i.cc"; done
    [ -z "$BREAK" ] || { echo "FAILED: 20.cc"; seq -f 'error line %g' 1 100; exit 1; } ;;
esac
CMAKE
chmod +x "$work"/bin/* "$work/tree/build/release/apps/thinpipe"
export PATH=$work/bin:$PATH BREAK= LACKS=

# expect WHAT GOT WANTED
expect() { [ "$2" = "$3" ] || { printf '%s:\n%s\nwanted:\n%s\n' "$1" "$2" "$3"; exit 1; }; }

said=$("$work/tree/thinpipe" plan 2>&1 >"$work/out" | grep building:)
expect "lines in a file" "$(wc -l <<<"$said")" 10
expect "first line" "$(head -n 1 <<<"$said")" "thinpipe: building: 2 of 20 files"
expect "the program runs" "$(cat "$work/out")" "ran plan"

said=$(BREAK=1 "$work/tree/thinpipe" plan 2>&1 || true)
expect "lines of the compiler" "$(grep -c '^error line' <<<"$said")" 100
expect "last line" "$(tail -n 1 <<<"$said")" "thinpipe: the build failed"

if said=$(script -qec "$work/tree/thinpipe plan" /dev/null 2>/dev/null); then
  expect "rewritten on a terminal" "$(grep -o $'\r\033\\[Kthinpipe: building: [0-9]* of 20 files' <<<"$said" | wc -l)" 20
fi

eval "$(sed -n '/^time_left()/,/^}/p' "$root/thinpipe")"
expect "minutes" "$(time_left 120 182 240)" ", about 2 min left"
expect "seconds" "$(time_left 10 20 30)" ", about 30 s left"
expect "too soon" "$(time_left 10 20 2)" ""
expect "at the end" "$(time_left 20 20 30)" ""

# elsewhere TOOL...: the launcher, where only these stand-ins and a few of the system's tools are to be found.
elsewhere() {
  local tool
  rm -rf "$work/few"
  mkdir "$work/few"
  for tool in bash cat cut dirname env grep head id mkdir mktemp readlink rm sed seq sh tail tee; do
    ln -s "$(command -v $tool)" "$work/few/$tool"
  done
  for tool in "$@"; do cp "$work/bin/cmake" "$work/few/$tool"; done
  PATH=$work/few "$work/tree/thinpipe" plan 2>&1 || echo "exit code $?"
}

expect "another distribution" "$(elsewhere g++ cmake protoc)" \
  "thinpipe: needs ninja grpc_cpp_plugin and cannot install them: this machine has no apt-get (docs/installing.md)
exit code 2"
expect "another distribution with the tools" "$(elsewhere g++ cmake ninja protoc grpc_cpp_plugin | tail -n 1)" "ran plan"
said=$(LACKS=libtorch elsewhere g++ cmake ninja protoc grpc_cpp_plugin)
expect "a library is missing there" "$(sed -E 's/(packages of Debian have: g\+\+ ).*(libtorch-dev)$/\1\2/' <<<"$said")" \
  "thinpipe: configuring build/release
CMake Error: Could not find libtorch
thinpipe: configuring failed; it needs what these packages of Debian have: g++ libtorch-dev
exit code 1"

printf '#!/bin/sh\nexit 1\n' >"$work/bin/dpkg-query"
printf '#!/bin/sh\necho "E: Unable to locate package libtorch-dev"\nexit 100\n' >"$work/bin/apt-get"
printf '#!/bin/sh\nif [ "$1" = -n ]; then shift; fi\nexec "$@"\n' >"$work/bin/sudo"
chmod +x "$work/bin/apt-get" "$work/bin/sudo"
said=$(TMPDIR=$work "$work/tree/thinpipe" plan 2>&1 || echo "exit code $?")
expect "a package that apt-get does not know" "$(sed -n 's/.*libtorch-dev: E:\(.*\) (full log.*/\1/p; $p' <<<"$said")" \
  " Unable to locate package libtorch-dev
exit code 2"
