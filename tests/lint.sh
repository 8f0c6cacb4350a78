#!/usr/bin/env bash
# House rules that no compiler checks. Prints file:line: fault for each violation; fails if there is one.
#   tests/lint.sh [ROOT]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"
export LC_ALL=C.UTF-8  # so that columns are characters
[[ -d src && -d apps && -d tests ]] || { echo "$PWD:1: not the root of the repository"; exit 1; }

sources() { find "$@" \( -name '*.h' -o -name '*.cc' \) -type f | sort; }

# search PATTERN TEXT FILES...: prints "file:line: TEXT" for every match.
search() {
  local pattern=$1 text=$2
  shift 2
  { grep -anEH -- "$pattern" "$@" /dev/null || true; } | sed -E "s|^([^:]*:[0-9]+):.*|\1: $text|"
}

# Tensors may be on any device: code that works only on a CPU belongs in the kernels and at the edges of the program.
check_devices() {
  mapfile -t files < <(sources src bench lab apps | grep -vE '/kernels/|^src/model/fill\.cc$|^src/pipeline/tensor_file\.cc$')
  search 'kCPU|data_ptr|is_cpu' 'CPU-only code (kCPU, data_ptr, is_cpu) belongs in a kernels folder' "${files[@]}"
}

# A tensor is made with the options of an input, or of its stage, so that it is on their device. Options made from nothing
# name a device. A comment "on the CPU: REASON" on the line, or the one above, excuses what belongs there.
check_creations() {
  mapfile -t files < <(sources src)
  awk '
    BEGIN {
      names = "empty|zeros|ones|full|arange|range|eye|linspace|logspace|rand|randn|randint|randperm|tensor"
      names = names "|scalar_tensor|from_blob|empty_strided|tril_indices|triu_indices"
      call = "at::(" names ")\\(|at::TensorOptions\\(\\)"
    }
    # The length of `text` up to the parenthesis that closes its first one; 0 if it is on a later line.
    function closed(text,    i, depth, c) {
      for (i = 1; i <= length(text); ++i) {
        c = substr(text, i, 1)
        if (c == "(") ++depth
        if (c == ")" && --depth == 0) return i
      }
      return 0
    }
    FNR == 1 { text = ""; excused_before = 0 }
    {
      excused = /\/\/.*on the CPU: ./
      code = $0
      sub(/\/\/.*/, "", code)
      if (text == "") { start = FNR; passes = excused || excused_before }
      text = text code
      while (match(text, call)) {
        if (RSTART > 1) { text = substr(text, RSTART); start = FNR; passes = excused || excused_before }
        made = substr(text, 1, index(text, "("))
        end = closed(text)
        if (!end) break
        rest = substr(text, end + 1)
        if (made ~ /TensorOptions/) {
          if (!passes && rest !~ /^(\.dtype\([^)]*\)*)?\.device\(/)
            printf "%s:%d: options without a device; take those of an input\n", FILENAME, start
        } else if (!passes && substr(text, 1, end) !~ /[oO]ptions/) {
          printf "%s:%d: a tensor off the device of its inputs; pass the options of one\n", FILENAME, start
        }
        text = substr(text, length(made) + 1)  # a call may hold another
        start = FNR
      }
      if (!match(text, call)) text = ""
      excused_before = excused
    }
  ' "${files[@]}"
}

# A .cc needs no opening comment if a .h of the same name has one.
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

# Every operation of the model has a twin in tensor algebra, and a test compares the two.
check_kernel_tests() {
  local header=src/model/kernels/ops.h test=tests/model/kernels_test.cc name
  while read -r name; do
    for call in "ops::$name(" "aten_ops::$name("; do
      grep -qF -- "$call" "$test" || echo "$header:1: $test does not call $call)"
    done
  done < <(awk '/^namespace ops/ { inside = 1 } /^}  \/\/ namespace ops/ { inside = 0 }
                inside && match($0, /^[A-Za-z:]+ [a-z_]+\(/) { sub(/^[A-Za-z:]+ /, ""); sub(/\(.*/, ""); print }' "$header" |
           grep -vx fused)
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

faults=$(check_devices && check_creations && check_kernel_tests && check_files && check_functions && check_sleeps && check_columns)
if [ -n "$faults" ]; then
  printf '%s\n' "$faults"
  exit 1
fi
