#!/usr/bin/env bash
# The peers' own load generators, to see that peerbench does them no injustice: where the two differ, goals.py compares
# with the higher figure. Prints what they print, and appends a row each to OUT, with label native-PEER and the fields of
# peerbench's rows. How many messages a run sends is chosen so that it takes about a second here.
# usage: native.sh; environment: SCALE (of those numbers) OUT
. "$(dirname "$0")/lib.sh"
SCALE=${SCALE:-$( ((SMOKE)) && echo 0.05 || echo 1)}
export NATS_CONTEXT='' XDG_CONFIG_HOME=$PERF/xdg

# one LABEL STYLE SIZE CONC WINDOW BATCH MESSAGES COMMAND...: runs it and takes the rate from its last line with one.
one() {
  local label=$1 style=$2 size=$3 conc=$4 window=$5 batch=$6 n=$7 mode=pub text rate
  shift 7
  [ "$style" != ordered ] || mode=consume
  echo "\$ $*" | sed 's/x\{40,\}/<payload>/'
  if ! text=$(attend timeout --foreground 120 "$@" 2>&1 | tr '\r' '\n'); then
    echo "FAILED: $*: $(tail -n 3 <<<"$text")" >&2
    FAILED=$((FAILED + 1))
    return 0
  fi
  text=$(grep -E 'msgs/sec|requests per second|ops/s' <<<"$text" | grep -vE '^ *\[[0-9]+\]' | sed 's/x\{40,\}/<payload>/' | tail -n 1 || true)
  echo "$text"
  rate=$(grep -oE '[0-9][0-9,.]* *(msgs/sec|requests per second|ops/s)' <<<"$text" | head -n 1 | grep -oE '^[0-9,.]+' | tr -d , || true)
  if [ -z "$rate" ]; then
    echo "FAILED: no rate from: $*" >&2
    FAILED=$((FAILED + 1))
    return 0
  fi
  printf '{"Label":"native-%s","Target":"%s","Mode":"%s","Style":"%s","Size":%d,"Conc":%d,"Window":%d,"Batch":%d,"Msgs":%d,"MsgsPerS":%s}\n' \
    "$label" "${label%%:*}" "$mode" "$style" "$size" "$conc" "$window" "$batch" "$n" "$rate" >>"$OUT"
}

# messages N: so many, by SCALE; a multiple of 64, as nats bench divides them among clients.
messages() { awk -v n="$1" -v s="$SCALE" 'BEGIN { n = int(n * s / 64) * 64; print n < 64 ? 64 : n }'; }

# nats_bench STYLE SIZE CONC BATCH MESSAGES WORDS...
nats_bench() {
  local style=$1 size=$2 conc=$3 batch=$4 n
  n=$(messages "$5")
  shift 5
  one "jetstream:$MODE" "$style" "$size" "$conc" 0 "$batch" "$n" "$BIN/nats" -s "nats://$ADDR" bench js "$@" --no-progress --msgs "$n" --clients "$conc"
}

nats_default() {
  local s to
  for s in 128 1024; do
    to=(js.bench --purge --size "$s")
    nats_bench sync "$s" 1 0 7000 pub sync --create "${to[@]}"
    nats_bench sync "$s" 64 0 30000 pub sync "${to[@]}"
    nats_bench async "$s" 1 500 100000 pub async --batch 500 "${to[@]}"
    nats_bench fast "$s" 1 0 150000 pub fast "${to[@]}"
    nats_bench ordered "$s" 1 0 150000 ordered
  done
}

nats_always() {
  local s to
  for s in 128 1024; do
    to=(js.bench --purge --size "$s")
    nats_bench sync "$s" 1 0 2000 pub sync --create "${to[@]}"
    nats_bench sync "$s" 64 0 4000 pub sync "${to[@]}"
    nats_bench async "$s" 1 500 4000 pub async --batch 500 "${to[@]}"
  done
}

for MODE in default always; do
  nats_start "$MODE"
  echo "== nats-server, sync_interval $MODE"
  "nats_$MODE"
  stop "$SRV"
done

# redis_bench SIZE CONC PIPELINE MESSAGES
redis_bench() {
  local size=$1 conc=$2 pipeline=$3 style=batch n value
  n=$(messages "$4")
  [ "$pipeline" != 1 ] || style=sync
  value=$(head -c "$size" /dev/zero | tr '\0' x)
  one "redis-streams:$MODE" "$style" "$size" "$conc" 0 "$pipeline" "$n" redis-benchmark -h 127.0.0.1 -p "$PORT" -n "$n" -c "$conc" -P "$pipeline" -q \
    XADD "s:$size" '*' d "$value"
}

if have redis-server && command -v redis-benchmark >/dev/null; then
  MODE=always
  redis_start "$MODE"
  echo "== redis, appendfsync $MODE"
  redis_bench 128 1 1 3000
  redis_bench 128 64 1 40000
  redis_bench 128 1 64 80000
  redis_bench 128 64 16 150000
  redis_bench 1024 64 1 40000
  redis_bench 1024 1 64 30000
  stop "$SRV"
  MODE=everysec
  redis_start "$MODE"
  echo "== redis, appendfsync $MODE"
  redis_bench 128 64 1 50000
  redis_bench 128 1 64 200000
  stop "$SRV"
fi

if have nsqd && have bench_writer; then
  nsqd_start -mem-queue-size 10000000
  echo '== nsqd, in memory'
  for s in 128 1024; do
    one nsqd:memory batch "$s" 2 0 200 0 "$BIN/bench_writer" -nsqd-tcp-address "$ADDR" -runfor "${SECS}s" -size "$s" -batch-size 200 -topic "b$s"
  done
  stop "$SRV"
fi
finish
