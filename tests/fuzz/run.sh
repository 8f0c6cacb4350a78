#!/usr/bin/env bash
# Runs every fuzz target for a while: tests/fuzz/run.sh SECONDS_PER_TARGET [BUILD_DIR [SEED]]
# Starts from the seeds in tests/fuzz/corpus/TARGET/, keeps new inputs and failures in BUILD_DIR/fuzz/, prints one line
# per target, and exits with 1 if a target crashed, hung or used too much memory.
set -euo pipefail

seconds=${1:?usage: tests/fuzz/run.sh SECONDS_PER_TARGET [BUILD_DIR [SEED]]}
here=$(cd "$(dirname "$0")" && pwd)
build=${2:-$here/../../build/fuzz}
seed=${3:-0}  # 0: a different one each time

shopt -s nullglob
programs=()
for program in "$build"/tests/fuzz/fuzz_*; do
  if [[ -f $program && -x $program ]]; then programs+=("$program"); fi
done
if ((${#programs[@]} == 0)); then
  echo "no fuzz targets in $build: cmake --preset fuzz && cmake --build --preset fuzz" >&2
  exit 2
fi

run_target() {
  local program=$1 seconds=$2 build=$3 seeds=$4 seed=$5
  local target=${program##*/fuzz_}
  local work=$build/fuzz/$target
  local inputs=("$work/corpus")
  if [[ -d $seeds/$target ]]; then inputs+=("$seeds/$target"); fi
  mkdir -p "$work/corpus" "$work/artifacts"
  if "$program" -max_total_time="$seconds" -seed="$seed" -timeout=60 -rss_limit_mb=1024 -malloc_limit_mb=512 -max_len=4096 \
    -print_final_stats=1 -artifact_prefix="$work/artifacts/" "${inputs[@]}" >"$work/log" 2>&1; then
    echo "$target: ok, $(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log") inputs in ${seconds}s"
  else
    echo "$target: FAILED, see $work/log and $work/artifacts/"
    return 1
  fi
}
export -f run_target

# One per core. xargs continues after a failure and reports it at the end.
printf '%s\0' "${programs[@]}" |
  xargs -0 -I{} -P "$(nproc)" bash -c 'run_target "$@"' _ {} "$seconds" "$build" "$here/corpus" "$seed" || exit 1
