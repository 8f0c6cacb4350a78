#!/usr/bin/env bash
# House rules no compiler checks. Prints file:line: fault for each breach and fails if there was one.
#   tests/lint.sh [ROOT]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"
export LC_ALL=C.UTF-8  # so that columns are characters
[[ -d src && -d apps && -d tests ]] || { echo "$PWD:1: not the root of the repository"; exit 1; }

sources() { find "$@" \( -name '*.h' -o -name '*.cc' \) -type f | sort; }

# search PATTERN TEXT FILES...: "file:line: TEXT" for every match.
search() {
  local pattern=$1 text=$2
  shift 2
  { grep -anEH -- "$pattern" "$@" /dev/null || true; } | sed -E "s|^([^:]*:[0-9]+):.*|\1: $text|"
}

# Tensors live on any device: what only holds on a CPU stays behind the kernels' dispatch and at the edges of the program.
check_devices() {
  mapfile -t files < <(sources src bench lab apps | grep -vE '/kernels/|^src/model/fill\.cc$|^src/pipeline/tensor_file\.cc$')
  search 'kCPU|data_ptr|is_cpu' 'CPU-only code (kCPU, data_ptr, is_cpu) belongs in a kernels folder' "${files[@]}"
}

# A .cc beside a .h of its name may leave it to the header to say what they are for.
check_files() {
  local file lines
  while read -r file; do
    if [[ $(head -n 1 "$file") != //* && ! ($file == *.cc && -f ${file%.cc}.h) ]]; then
      echo "$file:1: needs an opening comment that says what the file is for"
    fi
    lines=$(wc -l <"$file")
    [ "$lines" -le 800 ] || echo "$file:801: has $lines lines; split what is over 800"
  done < <(sources src bench lab apps)
}

# The body of a function has at most 60 lines. Read as clang-format lays code out: a statement with a parenthesis whose last
# line ends in { opens one, and the next } below the first column of that statement closes it.
check_functions() {
  mapfile -t files < <(sources src bench lab apps)
  awk -v limit=60 '
    FNR == 1 { open = 0; fresh = 1 }
    open {
      if (index($0, closing) == 1) {
        if (FNR - open - 1 > limit) {
          printf "%s:%d: a function of %d lines; split what is over %d\n", FILENAME, open, FNR - open - 1, limit
        }
        open = 0
        fresh = 1
      }
      next
    }
    /^ *(\/\/|#|$)/ { fresh = 1; next }
    {
      if (fresh) { match($0, /^ */); closing = substr($0, 1, RLENGTH) "}"; text = "" }
      text = text $0
      fresh = /[;{}:]( *\/\/.*)?$/
      if (/\{$/ && !/= \{$/ && text ~ /\(/ && text !~ /^ *(class|struct|enum|union|namespace|extern) /) open = FNR
    }
  ' "${files[@]}"
}

check_sleeps() {
  mapfile -t files < <(sources tests)
  search 'sleep_for|sleep_until|usleep|nanosleep' 'a test must not sleep; pass the clock in, or wait for the event' \
    "${files[@]}"
}

check_columns() {
  mapfile -t files < <(sources src bench lab apps tests)
  search '^.{121}' 'longer than 120 columns; run clang-format -i' "${files[@]}"
}

faults=$(check_devices && check_files && check_functions && check_sleeps && check_columns)
if [ -n "$faults" ]; then
  printf '%s\n' "$faults"
  exit 1
fi
