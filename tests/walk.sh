#!/usr/bin/env bash
# Walks through thinpipe as three people who use it for the first time: one alone, an organiser, and a friend who joins.
# They type into terminals of tmux; what these show goes to docs/walk.md, between "<!-- screen: NAME -->" and
# "<!-- end -->". Every wait is for what a screen shows, and has a limit. What belongs to this machine (paths, names,
# addresses, invites, the dashboard's token) is replaced by neutral text of the same length.
#
#   tests/walk.sh [PROGRAM]     default: build/release/apps/thinpipe
#   WALK_ONLY=alone tests/walk.sh     one part: alone, together; the other screens of the page stay
#   WALK_SHOW=1 tests/walk.sh         also prints every screen
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${1:-build/release/apps/thinpipe}")
page=docs/walk.md
patience=${WALK_PATIENCE:-1}  # waits this many times as long, for a busy machine
socket="walk-$$"
# Nine characters each, like /home/you and /home/ann, so that lines wrap as they would there.
you=$(mktemp -d /tmp/XXXX) && ann=$(mktemp -d /tmp/XXXX)
screens=$(mktemp -d)
host_names=homeserverofyours
host=${host_names:0:$(hostname | tr -d '\n' | wc -c)}

mux() { tmux -L "$socket" -f /dev/null "$@"; }
finish() {
  local status=$?
  trap - EXIT
  local pids
  pids=$(mux list-panes -a -F '#{pane_pid}' 2>/dev/null || true)
  mux kill-server 2>/dev/null || true  # a closed terminal ends what runs in it
  for pid in $pids; do timeout 30 tail --pid="$pid" -f /dev/null || true; done
  rm -rf "$you" "$ann" "$screens"
  exit "$status"
}
trap finish EXIT

# open SESSION HOME [COLUMNS ROWS]: a terminal in which somebody sits.
open() {
  mux new-session -d -s "$1" -x "${3:-80}" -y "${4:-24}" \
    "cd $2 && exec env -i HOME=$2 PATH=$2/bin:/usr/bin:/bin TERM=screen LANG=C.UTF-8 PS1='\$ ' bash --norc --noprofile"
  mux set-option -t "$1" status off
  await "$1" '^\$ *$'
}
keys() { mux send-keys -t "$1" "${@:2}"; }
text() { mux capture-pane -p -t "$1"; }

# await SESSION PATTERN [SECONDS]: until a line of its screen matches the extended regular expression.
await() {
  local deadline=$((SECONDS + ${3:-60} * patience))
  until text "$1" | grep -Eq -- "$2"; do
    if ((SECONDS > deadline)); then
      echo "walk: '$2' did not appear on the screen of $1:" >&2
      text "$1" >&2
      exit 1
    fi
    sleep 0.1
  done
}
# say SESSION COMMAND: types it on an empty screen. A moment later the line is there, so that a prompt is a new one.
say() {
  mux send-keys -t "$1" -R
  mux clear-history -t "$1"
  keys "$1" C-l
  add "$@"
}
# add SESSION COMMAND: types it below what is there.
add() {
  await "$1" '^(\$|>) *$'
  keys "$1" -l "$2"
  await "$1" "^(\\$|>) $(printf %s "${2:0:40}" | sed 's/[][().*+?^$|{}\\]/\\&/g')"
  keys "$1" Enter
}
# done_with SESSION [SECONDS]: until the last line is the shell's prompt again.
done_with() {
  local deadline=$((SECONDS + ${2:-60} * patience))
  until [[ $(text "$1" | sed '/^ *$/d' | tail -1) =~ ^\$\ *$ ]]; do
    if ((SECONDS > deadline)); then
      echo "walk: still no prompt on the screen of $1:" >&2
      text "$1" >&2
      exit 1
    fi
    sleep 0.1
  done
}
do_it() { say "$1" "$2" && done_with "$1" "${3:-60}"; }

# Neutral text of the same length instead of what belongs to this machine. Letters and digits of an invite, which covers
# several rows, become x.
neutral() {
  sed -E -e "s#$you#/home/you#g; s#$ann#/home/ann#g; s#$(hostname)-#$host-#g" \
    -e 's#(127.0.0.1:[0-9]+/\#)[0-9a-f]+#\1xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx#' \
    -e 's#(^|[^0-9.])(192|172|10)\.[0-9]+\.[0-9]+\.[0-9]+:#\1192.0.2.2:#g' | awk '
    /thinpipe-v1-/ { at = index($0, "thinpipe-v1-") + 12
                     head = substr($0, 1, at - 1); rest = substr($0, at); gsub(/[0-9A-Za-z]/, "x", rest)
                     print head rest; inside = length($0) >= 79; next }
    inside && /^[0-9A-Za-z_-]+$/ { inside = length($0) >= 79; gsub(/[0-9A-Za-z]/, "x"); print; next }
    { inside = 0; print }'
}
# keep NAME SESSION: this screen is for the page. Without the prompt at its end.
keep() {
  text "$2" | neutral | sed -e 's/ *$//' | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' | sed '${/^\$$/d}' >"$screens/$1"
  if [[ -n ${WALK_SHOW:-} ]]; then echo "==== $1"; cat "$screens/$1"; fi
}

write_page() {
  awk -v folder="$screens" '
    /^<!-- screen: / { print; name = $3; file = folder "/" name
                       if ((getline line < file) > 0) {
                         print "```text"
                         do print line; while ((getline line < file) > 0)
                         print "```"
                         skipping = 1
                       }
                       next }
    /^<!-- end -->/ { skipping = 0 }
    !skipping { print }' "$page" >"$screens/page" && cp "$screens/page" "$page"
}

for home in "$you" "$ann"; do mkdir "$home/bin" && ln -s "$program" "$home/bin/thinpipe"; done
bible -f 'Gen1:1-Gen50:26' </dev/null | sed 's/^[^ ]* //' >"$you/book.txt"

small="--set model.d=64 --set model.heads=2 --set train.seq_len=64 --set train.microbatch=2"

# The answers to the five questions of `init`.
answer() {
  await "$1" '\] *$' 60
  keys "$1" -l "$2"
  keys "$1" Enter
}

alone() {
  open you "$you"
  do_it you 'thinpipe'
  keep bare you
  say you 'thinpipe init'
  for one in book.txt 2 10mbit 20min export; do answer you "$one"; done
  done_with you 180
  keep init you
  do_it you 'thinpipe train book.txt --stpes 60'
  keep typo you
  say you "thinpipe train book.txt --name first --steps 60 $small"
  await you '^step +1[0-9]/60' 180
  keep train you
  keys you C-c
  done_with you 120
  keep stopped you
  say you 'thinpipe train --resume'
  done_with you 240
  keep resumed you
  mux send-keys -t you -R
  do_it you 'thinpipe runs'
  add you 'thinpipe show'
  done_with you
  keep show you
  do_it you 'thinpipe status'
  keep status you
  say you 'thinpipe generate --max-tokens 30'
  await you '^> *$' 60
  keys you -l 'In the begining'
  keys you Left Left Left n
  await you '^> In the beginning'
  keep typing you
  keys you Enter
  await you 'tokens/s' 60
  await you '^> *$'
  keep generate you
  keys you -l /quit
  keys you Enter
  done_with you
  do_it you 'thinpipe eval'
  add you 'thinpipe config optim.lr'
  done_with you
  add you 'thinpipe export --format gguf'
  done_with you
  keep use you
  mux resize-window -t you -x 120 -y 40
  do_it you 'thinpipe runs'
  add you "thinpipe train book.txt --steps 10 --name wide $small"
  done_with you 180
  keep wide you
  mux kill-session -t you
}

club_config() {
  printf '%s\n' '[data]' 'corpus = "book.txt"' 'vocab = 1000' '[model]' 'd = 64' 'heads = 2' '[pipeline]' 'stages = 2' \
    '[train]' 'steps = 120' 'seq_len = 64' 'microbatch = 2' '[link]' 'delay = "30ms"' '[checkpoint]' 'every = 5'
}

together() {
  club_config >"$you/club.toml"
  open org "$you"
  open you "$you"
  open ann "$ann"
  say org 'thinpipe serve club.toml --join --name club'
  await org '^1 of 2 machines' 120
  keep serve org
  do_it you 'thinpipe invite'
  keep invite you
  # Not from the screen, where it is broken into lines.
  HOME=$you THINPIPE_DATA_DIR=$you/.local/share/thinpipe "$program" invite club >"$ann/invite.txt"
  do_it you 'thinpipe status'
  keep waiting you
  say ann 'thinpipe join - --name attic <invite.txt'
  await ann '^step +[3-9]/' 120
  keep joined ann
  await org '^step ' 60
  keep training org
  do_it you 'thinpipe status'
  keep running you
  do_it you 'thinpipe pause'
  await ann 'the run is paused' 60
  add you 'thinpipe resume'
  done_with you
  await ann 'the run goes on' 60
  keep pause you
  keep paused ann
  open bob "$ann"
  do_it bob 'thinpipe join - <invite.txt'
  keep second bob
  do_it you 'thinpipe kick at'
  done_with ann 60
  keep kicked ann
  add you 'thinpipe unkick at'
  done_with you
  keep kick you
  say ann 'thinpipe join - --name attic <invite.txt'
  await ann '^step ' 120
  keep back ann
  keys org C-c
  done_with org 120
  keep stopping org
  await ann 'has not answered for' 60
  keep patient ann
  say org 'thinpipe serve --run club --join'
  await ann 'the coordinator answers again' 120
  await ann '^step ' 120
  keep again ann
  keys ann C-c
  done_with ann 120
  keep left ann
  say ann 'thinpipe join - <invite.txt'
  done_with ann 300
  keep end ann
  done_with org 120
  keep complete org
  do_it ann 'thinpipe runs'
  keep joined-runs ann
}

# Read as a whole, so that the script may be edited while it runs.
{
  if [[ -z ${WALK_ONLY:-} || $WALK_ONLY == alone ]]; then alone; fi
  if [[ -z ${WALK_ONLY:-} || $WALK_ONLY == together ]]; then together; fi
  write_page
  exit
}
