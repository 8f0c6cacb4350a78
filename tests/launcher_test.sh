#!/usr/bin/env bash
# The launcher's progress, with stand-ins for cmake and dpkg-query: nothing is installed or built.
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
  *-n) echo "work to do" ;;
  *--build*)
    for i in $(seq 1 20); do echo "[$i/20] Building $i.cc"; done
    [ -z "$BREAK" ] || { echo "FAILED: 20.cc"; seq -f 'error line %g' 1 100; exit 1; } ;;
esac
CMAKE
chmod +x "$work"/bin/* "$work/tree/build/release/apps/thinpipe"
export PATH=$work/bin:$PATH BREAK=

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
