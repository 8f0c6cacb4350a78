#!/usr/bin/env bash
# How exactly a joined machine keeps to its caps: serves a run of two stages whose data fills any slow line, lets a
# machine with caps and one without join it, each in a network namespace, and counts the bytes on the line between.
#   bench/capped_join.sh UP DOWN SECONDS      as root, from the repository's root; for example 2mbit 3mbit 70
set -euo pipefail
up=$1 down=$2 seconds=$3
program=$PWD/build/release/apps/thinpipe
folder=$(mktemp -d)
here=thinpipe-$$-here there=thinpipe-$$-there
started=()
end() {
  for one in "${started[@]}"; do kill -9 "$one" 2> /dev/null || true; done
  ip netns delete "$here"
  ip netns delete "$there"
  rm -r "$folder"
}
for name in "$here" "$there"; do
  ip netns add "$name"
  ip -n "$name" link set lo up
done
trap end EXIT
ip link add line netns "$here" type veth peer name line netns "$there"
ip -n "$here" address add 10.78.0.1/30 dev line
ip -n "$there" address add 10.78.0.2/30 dev line
# Packets leave one by one, with all of their headers, as on a real line.
for name in "$here" "$there"; do ip -n "$name" link set line gso_max_segs 1 up; done

cat > "$folder/run.toml" << 'END'
[model]
mode = "dense"
d = 128
blocks = 2
heads = 4
[data]
vocab = 512
[train]
steps = 10000
seq_len = 128
microbatch = 1
microbatches = 64
threads = 1
eval_every = 0
sample_every = 0
[pipeline]
stages = 2
[boundary]
pack = "fp32"
END
# start NAMESPACE NAME ARGUMENTS...: in the background, with a data folder of that name
start() {
  local namespace=$1 name=$2
  shift 2
  THINPIPE_DATA_DIR=$folder/$name ip netns exec "$namespace" "$program" "$@" \
    > "$folder/$name.out" 2> "$folder/$name.err" &
  started+=($!)
  disown
}
# wait_until COMMAND...: for at most five minutes
wait_until() {
  for _ in $(seq 600); do
    if "$@" 2> /dev/null; then return; fi
    sleep 0.5
  done
  echo "waited in vain for: $*; what was printed:"
  tail -n 3 "$folder"/*.err
  exit 1
}
steps() { [[ $(wc -l < "$folder/run/metrics.jsonl") -ge 2 ]]; }
start "$here" serve serve "$folder/run.toml" --dashboard off --run-dir "$folder/run"
wait_until grep -q "to let machines join" "$folder/serve.out"
invite=$(THINPIPE_DATA_DIR=$folder/serve ip netns exec "$here" "$program" invite "$folder/run" --uses 2 | head -n 1)
start "$here" neighbour join "$invite" --name neighbour
start "$there" guest join "$invite" --name guest --max-upload "$up" --max-download "$down"
wait_until steps

count() {
  local line
  line=$(ip netns exec "$there" cat /sys/class/net/line/statistics/{tx_bytes,rx_bytes,tx_packets,rx_packets})
  echo "$(date +%s.%N)" $line
}
for _ in $(seq "$seconds"); do
  count
  sleep 1
done > "$folder/counts"
# Without the 14 bytes of each packet that are Ethernet's.
awk -v up="$up" -v down="$down" '
  function bits(rate) { return rate * (rate ~ /mbit/ ? 1e6 : rate ~ /kbit/ ? 1e3 : 0) }
  { t[NR] = $1; sent[NR] = $2 - 14 * $4; got[NR] = $3 - 14 * $5 }
  function report(what, bytes, cap,    i, j, most, mean) {
    j = 1
    for (i = 1; i <= NR; ++i) {
      while (j < NR && t[j] - t[i] < 60) ++j
      if (j == i) continue
      mean = 8 * (bytes[j] - bytes[i]) / (t[j] - t[i])
      if (t[j] - t[i] >= 60 && mean > most) most = mean
    }
    mean = 8 * (bytes[NR] - bytes[1]) / (t[NR] - t[1])
    printf "%s: %d bytes in %.1f s, %.4f Mbit/s", what, bytes[NR] - bytes[1], t[NR] - t[1], mean / 1e6
    if (cap > 0) printf " = %.1f %% of the cap; in the fullest minute %.1f %%", 100 * mean / cap, 100 * most / cap
    printf "\n"
  }
  END { report("sent", sent, bits(up)); report("received", got, bits(down)) }' "$folder/counts"
echo "steps: $(wc -l < "$folder/run/metrics.jsonl")"
