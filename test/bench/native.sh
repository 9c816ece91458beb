#!/usr/bin/env bash
# The peers' own load generators, to see that peerbench does them no injustice: where the two differ, the higher figure is
# the one to compare with. Prints what they print, and appends a row each to OUT, with label native-PEER.
# usage: native.sh; environment: COUNT (messages at most) OUT
. "$(dirname "$0")/lib.sh"
COUNT=${COUNT:-200000}
export NATS_CONTEXT='' XDG_CONFIG_HOME=$PERF/xdg

# one LABEL STYLE SIZE CONC COMMAND...: runs it and takes the rate from its last line with one.
one() {
  local label=$1 style=$2 size=$3 conc=$4 mode=pub text rate
  shift 4
  [ "$style" != ordered ] || mode=consume
  echo "\$ $*" | sed 's/x\{40,\}/<payload>/'
  if ! text=$(timeout 120 "$@" 2>&1 | tr '\r' '\n'); then
    echo "FAILED: $*" >&2
    FAILED=$((FAILED + 1))
    return 0
  fi
  text=$(grep -E 'msgs/sec|requests per second|ops/s' <<<"$text" | grep -vE '^ *\[[0-9]+\]' | sed 's/x\{40,\}/<payload>/' | tail -n 1 || true)
  echo "$text"
  rate=$(grep -oE '[0-9][0-9,.]* *(msgs/sec|requests per second|ops/s)' <<<"$text" | head -n 1 | grep -oE '^[0-9,.]+' | tr -d , || true)
  [ -z "$rate" ] || printf '{"Label":"native-%s","Mode":"%s","Style":"%s","Size":%d,"Conc":%d,"MsgsPerS":%s}\n' \
    "$label" "$mode" "$style" "$size" "$conc" "$rate" >>"$OUT"
}

for mode in default always; do
  nats_start "$mode"
  echo "== nats-server, sync_interval $mode"
  bench=("$BIN/nats" -s "nats://$ADDR" bench)
  n=$COUNT
  [ "$mode" = default ] || n=$((COUNT / 50))
  for s in 128 1024; do
    one "jetstream:$mode" sync "$s" 1 "${bench[@]}" js pub sync js.bench --create --purge --no-progress --size "$s" --msgs "$((n / 8))" --clients 1
    one "jetstream:$mode" sync "$s" 64 "${bench[@]}" js pub sync js.bench --purge --no-progress --size "$s" --msgs "$((n / 2))" --clients 64
    one "jetstream:$mode" async "$s" 1 "${bench[@]}" js pub async js.bench --purge --no-progress --size "$s" --msgs "$n" --clients 1 --batch 500
    one "jetstream:$mode" fast "$s" 1 "${bench[@]}" js pub fast js.bench --purge --no-progress --size "$s" --msgs "$n" --clients 1
    if [ "$mode" = default ]; then
      one "jetstream:$mode" ordered "$s" 1 "${bench[@]}" js ordered --no-progress --msgs "$n"
    fi
  done
  stop "$SRV"
done

if have redis-server && command -v redis-benchmark >/dev/null; then
  for mode in always everysec; do
    redis_start "$mode"
    echo "== redis, appendfsync $mode"
    for s in 128 1024; do
      value=$(head -c "$s" /dev/zero | tr '\0' x)
      for shape in '1 1 sync' '64 1 sync' '1 64 batch' '64 16 batch'; do
        read -r conc pipeline style <<<"$shape"
        n=$COUNT
        [ "$conc$pipeline" != 11 ] || n=$((COUNT / 40))
        one "redis-streams:$mode" "$style" "$s" "$conc" redis-benchmark -h 127.0.0.1 -p "$PORT" -n "$n" -c "$conc" -P "$pipeline" -q XADD "s:$s" '*' d "$value"
      done
    done
    stop "$SRV"
  done
fi

nsqd_start -mem-queue-size 10000000
echo '== nsqd, in memory'
for s in 128 1024; do
  one nsqd:memory batch "$s" 2 "$BIN/bench_writer" -nsqd-tcp-address "$ADDR" -runfor 2s -size "$s" -batch-size 200 -topic "b$s"
done
stop "$SRV"
finish
