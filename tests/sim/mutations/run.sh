#!/usr/bin/env bash
# Takes back one mend after the other, in a copy of the tree. The simulator must find each fault.
#   tests/sim/mutations/run.sh [NAME..]    only these patches, e.g. 06-frozen-coordinator
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
patches=$PWD/tests/sim/mutations
work=$PWD/build/mutations
mkdir -p "$work/tree"
git ls-files | while read -r file; do  # a file that has not changed keeps its time, so it is not compiled again
  cmp -s "$file" "$work/tree/$file" || install -D "$file" "$work/tree/$file"
done
cd "$work/tree"
cmake --preset dev >/dev/null

names=("$@")
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(cd "$patches" && basename -s .patch -- *.patch)
missed=0
for name in "${names[@]}"; do
  patch -s -p1 <"$patches/$name.patch"
  cmake --build --preset dev --target thinpipe-sim >/dev/null
  if found=$(build/dev/tests/sim/thinpipe-sim --from 1 --count 5000 --first); then
    echo "$name: NOT FOUND"
    missed=1
  else
    echo "$name: $(head -n 1 <<<"$found")"
  fi
  patch -s -R -p1 <"$patches/$name.patch"
done
exit $missed
