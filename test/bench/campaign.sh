#!/usr/bin/env bash
# What `make bench` runs: ROUNDS rounds of machine, bare gRPC, logs in process, one and many at once, brokers, their own
# load generators, mixed load, subscriptions, Danube's unary calls, idle streams, recovery and the tiers, all in turns, and then the goals. Rows of one campaign compare with each other and with nothing else.
# usage: campaign.sh; environment: ROUNDS SECS PERF SCRATCH, PARTS (which of the parts below), MARKDOWN (a page for the
# table: between its marker comments where it has them, otherwise all of it)
. "$(dirname "$0")/lib.sh"
ROUNDS=${ROUNDS:-3}
PARTS=${PARTS:-"machine grpc logs partitions peers native mixed subscriptions danube idle recovery tiers"}
OUT=$PERF/campaign-$(date -u +%Y%m%dT%H%M%SZ).jsonl
export PERF SCRATCH BIN DATA OUT SECS PHYS_BYTES MESSAGES IDLE IDLE_MANY STORE

part() { [[ " $PARTS " == *" $1 "* ]]; }

bounded() { attend timeout --foreground 1800 "$@"; }

# try COMMAND...: a part that fails does not take the others' results with it.
try() {
  local begun=$SECONDS
  "$@" >>"$PERF/campaign.log" 2>&1 || {
    FAILED=$((FAILED + 1))
    echo "FAILED: $* (see $PERF/campaign.log)" >&2
  }
  local words="${*##*/}"
  echo "  $((SECONDS - begun)) s: ${words#bounded }" >&2
}

# fact NAME VALUE: part of the first row, which says what was measured where.
fact() { printf ',"%s":"%s"' "$1" "$(head -n 1 <<<"$2" | tr -d '"\\')"; }
facts() {
  printf '{"Label":"facts","Mode":"facts"'
  fact Date "$(date -u +%Y-%m-%d)"
  fact Rounds "$ROUNDS of runs of $SECS s"
  fact Commit "$(commit)"
  fact CPU "$(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
  fact Memory "$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
  fact Kernel "$(uname -sr)"
  fact 'File system' "$(findmnt -no FSTYPE,OPTIONS -T "$DATA" | tr -s ' ' || stat -f -c %T "$DATA")"
  fact Levee "$("$BIN/levee" version)"
  if have nats-server; then fact NATS "$("$BIN/nats-server" --version), its tool nats $("$BIN/nats" --version)"; fi
  if have redis-server; then fact Redis "$("$BIN/redis-server" --version | cut -d' ' -f1-3)"; fi
  if have versitygw; then fact 'S3 server' "versitygw $(go version -m "$BIN/versitygw" | awk '$1 == "mod" { print $3 }')"; fi
  if have nsqd; then fact NSQ "$("$BIN/nsqd" -version)"; fi
  fact 'Client libraries' "$(versions peerbench nats.go jetstreamext go-nsq franz-go)"
  fact 'Bare gRPC' "$(versions grpcbench grpc)"
  fact 'Logs in process' "$(versions walbench pebble/v2)"
  printf '}\n'
}

# versions PROGRAM MODULE...: what a program was built with.
versions() {
  local program=$1 m
  shift
  for m; do
    go version -m "$BIN/$program" | awk -v m="/$m" '$1 == "dep" && substr($2, length($2) - length(m) + 1) == m { printf "%s %s ", $2, $3; exit }'
  done
}

machine() { bounded "$BIN/phys" -dir "$DATA/probe" -secs "$SECS" -bytes "$PHYS_BYTES" -only fsync,syncw,read >>"$OUT"; }
grpc() { bounded "$BIN/grpcbench" -secs "$SECS" -only 'bidi,server-stream' >>"$OUT"; }
logs() {
  bounded "$BIN/walbench" -dir "$DATA/probe" -secs "$SECS" -levee "$BIN/engine" -only levee,groupz,direct,pebble >>"$OUT" && noisy
}

# partitions measures logs that are busy at once: in process, beside what the device flushes by itself, and a topic of 16
# partitions over gRPC.
partitions() {
  local shape logs conc n status=0
  bounded "$BIN/phys" -dir "$DATA/probe" -label phys-partitions -secs "$SECS" -only conc >>"$OUT" || status=$?
  for shape in '1 64' '16 64' '256 256'; do
    read -r logs conc <<<"$shape"
    bounded "$BIN/engine" -dir "$DATA/probe" -label engine-partitions -mode on_commit -logs "$logs" -conc "$conc" -secs "$SECS" >>"$OUT" || status=$?
  done
  levee_start || return 1
  on levee levee-partitions:on_commit
  for n in 1 16; do
    pb -fsync on_commit -style sync -conc 64 -partitions "$n"
    pb -fsync on_commit -style async -conc 64 -window 64 -partitions "$n"
  done
  stop "$SRV"
  return "$status"
}

# noisy measures the log beside a neighbour that writes.
noisy() {
  local neighbour status=0
  "$BIN/phys" -dir "$DATA/probe" -noise 200 -secs "$(awk -v s="$SECS" 'BEGIN { print s + 1 }')" &
  neighbour=$!
  PIDS+=("$neighbour")
  sleep 0.5
  bounded "$BIN/engine" -dir "$DATA/probe" -label engine-levee-noise -mode on_commit -batch 1 -conc 1 -secs "$SECS" >>"$OUT" || status=$?
  wait "$neighbour" || status=$?
  forget "$neighbour"
  return "$status"
}

: >"$PERF/campaign.log"
facts >>"$OUT"
for ((round = 1; round <= ROUNDS; round++)); do
  echo "round $round of $ROUNDS, $(date -u +%T) UTC, load $(cut -d' ' -f1-3 /proc/loadavg)" >&2
  if part machine; then try machine; fi
  if part grpc; then try grpc; fi
  if part logs; then try logs; fi
  if part partitions; then try partitions; fi
  if part peers; then try bounded "$HERE/peers.sh" 1; fi
  if part native; then try bounded "$HERE/native.sh"; fi
  if part mixed; then try bounded "$HERE/extras.sh" mixed; fi
  if part subscriptions; then try bounded "$HERE/extras.sh" subscriptions; fi
  if part danube; then try bounded "$HERE/extras.sh" danube; fi
  if part idle; then try bounded "$HERE/extras.sh" idle; fi
  if part recovery; then try bounded "$HERE/extras.sh" recovery; fi
  for what in export valkey takeover cold; do
    if part tiers || part "tiers-$what"; then try bounded env ROUNDS=1 "$HERE/tiers.sh" "$what"; fi
  done
done
table >"$PERF/campaign-table.txt"
if ((SMOKE)); then echo "runs of $SECS s show that everything works; their figures say nothing" >&2; fi
if command -v python3 >/dev/null; then
  if [ -n "${MARKDOWN:-}" ]; then "$HERE/goals.py" --into="$MARKDOWN" "$OUT"; fi
  "$HERE/goals.py" "$OUT"
else
  echo "goals.py wants python3" >&2
fi
echo "rows: $OUT; their medians: $PERF/campaign-table.txt" >&2
finish
