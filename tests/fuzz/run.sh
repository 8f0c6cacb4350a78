#!/usr/bin/env bash
# Runs every fuzz target for a while: tests/fuzz/run.sh SECONDS_PER_TARGET [BUILD_DIR]
# Starts from the seeds in tests/fuzz/corpus/TARGET/, keeps what it learns and what it breaks in BUILD_DIR/fuzz/, prints
# one line per target, and exits 1 if any of them crashed, hung or grew too large.
set -euo pipefail

seconds=${1:?usage: tests/fuzz/run.sh SECONDS_PER_TARGET [BUILD_DIR]}
here=$(cd "$(dirname "$0")" && pwd)
build=${2:-$here/../../build/fuzz}

shopt -s nullglob
programs=()
for program in "$build"/tests/fuzz/fuzz_*; do
  if [[ -f $program && -x $program ]]; then programs+=("$program"); fi
done
if ((${#programs[@]} == 0)); then
  echo "no fuzz targets in $build: cmake --preset fuzz && cmake --build --preset fuzz" >&2
  exit 2
fi

failed=0
for program in "${programs[@]}"; do
  target=${program##*/fuzz_}
  work=$build/fuzz/$target
  mkdir -p "$work/corpus" "$work/artifacts"
  seeds=()
  if [[ -d $here/corpus/$target ]]; then seeds=("$here/corpus/$target"); fi
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=512 -max_len=4096 \
    -print_final_stats=1 -artifact_prefix="$work/artifacts/" "$work/corpus" ${seeds[@]+"${seeds[@]}"} \
    >"$work/log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
    echo "$target: ok, $runs inputs in ${seconds}s"
  else
    failed=1
    echo "$target: FAILED, see $work/log and $work/artifacts/"
  fi
done
exit "$failed"
