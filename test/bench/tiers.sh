#!/usr/bin/env bash
# The tiers beside the log, each beside what it can be measured by: export beside none, publishing with Valkey beside a
# plain client of it, taking over beside reading what there is to take over, cold reads beside plain GETs. Appends rows to
# OUT and prints their medians.
# usage: tiers.sh [export] [valkey] [takeover] [cold]; environment: ROUNDS SECS OUT, PACED_SECS, OFFERED (messages of 1 KiB a
# second), TAKEOVER and COLD (messages of 1 KiB), PERSISTENCE (of Valkey: none or everysec)
. "$(dirname "$0")/lib.sh"
[ $# -gt 0 ] || set -- export valkey takeover cold
ROUNDS=${ROUNDS:-1}
OFFERED=${OFFERED:-48828} # 50 MB
PERSISTENCE=${PERSISTENCE:-none}
if ((SMOKE)); then
  PACED_SECS=${PACED_SECS:-3} TAKEOVER=${TAKEOVER:-262144} COLD=${COLD:-131072}
else
  PACED_SECS=${PACED_SECS:-12} TAKEOVER=${TAKEOVER:-1048576} COLD=${COLD:-524288}
fi

S3='' VALKEY='' # where they listen

# with NAME=VALUE...: what a broker that is started from now on finds in its environment, and nothing else.
with() {
  local name
  for name in ${!LEVEE_*}; do unset "$name"; done
  for name; do export "LEVEE_${name?}"; done
}

# s3_start: process S3_PID, with an empty bucket.
s3_start() {
  rm -rf "$DATA/s3"
  mkdir -p "$DATA/s3/levee"
  newport
  S3=$ADDR
  ROOT_ACCESS_KEY=levee ROOT_SECRET_KEY=levee-secret launch "$BIN/versitygw" --port "$S3" --quiet posix "$DATA/s3"
  S3_PID=$SRV
  waitport "$PORT"
}

# in_s3 ADDRESS: settings of a broker that copies to the bucket.
in_s3() {
  echo "STORAGE_MODE=object_store OBJECT_STORE_KIND=s3 OBJECT_STORE_BUCKET=levee OBJECT_STORE_ENDPOINT=http://$1" \
    "OBJECT_STORE_REGION=us-east-1 OBJECT_STORE_PATH_STYLE=true OBJECT_STORE_ACCESS_KEY=levee OBJECT_STORE_SECRET_KEY=levee-secret"
}

# valkey_start: process VALKEY_PID, empty. What does not fit is an error, and nothing is evicted.
valkey_start() {
  local log=no
  if [ "$PERSISTENCE" = everysec ]; then log=yes; fi
  rm -rf "$DATA/valkey"
  mkdir -p "$DATA/valkey"
  newport
  VALKEY=$ADDR
  launch "$BIN/redis-server" --bind 127.0.0.1 --port "$PORT" --dir "$DATA/valkey" --appendonly "$log" --appendfsync everysec --save '' \
    --auto-aof-rewrite-percentage 0 --daemonize no --maxmemory 10gb --maxmemory-policy noeviction
  VALKEY_PID=$SRV
  waitport "$PORT"
}

in_valkey() { echo "VALKEY_MODE=single VALKEY_ADDRESSES=$VALKEY"; }

# Segments are small, so that many are sealed within a run; the log keeps a few, so that something is held where export
# does not follow.
paced() { # label settings...
  HTTP=127.0.0.1:$(freeport)
  with STORAGE_SEGMENT_BYTES=32MiB STORAGE_RETENTION_BYTES=128MiB STORAGE_RETENTION_CHECK=200ms "${@:2}"
  levee_start
  if [ "$1" = tiers-export:beside ]; then mirror; fi
  on levee "$1"
  pb -mode paced -style open -fsync on_commit -size 1024 -conc 8 -rate "$OFFERED" -secs "$PACED_SECS" -metrics "$HTTP"
  stop "$SRV"
  unset HTTP
  with
}

# mirror: a plain client does with the bucket what an export would, for as long as the run takes.
mirror() {
  local broker=$SRV address=$ADDR
  # shellcheck disable=SC2046 # words
  with $(in_s3 "$S3")
  on s3 tiers-export:beside
  SRV=$S3_PID ADDR=$S3
  background -mode mirror -bucket levee -rate "$OFFERED" -size 1024 -secs "$PACED_SECS"
  SRV=$broker ADDR=$address
}

export_() {
  paced tiers-export:off
  paced tiers-export:local STORAGE_MODE=local STORAGE_ROOT="$DATA/objects"
  rm -rf "$DATA/objects"
  if have versitygw; then
    s3_start
    # shellcheck disable=SC2046 # words
    paced tiers-export:s3 $(in_s3 "$S3")
    paced tiers-export:beside
    wait "$LOAD" 2>/dev/null || true
    forget "$LOAD"
    stop "$S3_PID"
    rm -rf "$DATA/s3"
  fi
  rm -rf "$DATA/levee"
}

# raw SIZE WINDOW: a client that appends entries of that size.
raw() {
  valkey_start
  on redis tiers-valkey:raw
  pb -style async -size "$1" -window "$2"
  stop "$VALKEY_PID"
}

# buffered SIZE BATCH WINDOW: the broker with Valkey; a batch is an entry.
buffered() {
  valkey_start
  # shellcheck disable=SC2046 # words
  with $(in_valkey)
  levee_start
  on levee tiers-valkey:levee
  pb -fsync periodic -style batch -size "$1" -batch "$2" -window "$3"
  stop "$SRV"
  stop "$VALKEY_PID"
  with
}

valkey() {
  raw 262144 16
  buffered 1024 256 16
  raw 65536 64
  buffered 1024 64 64
  buffered 65536 1 64
  rm -rf "$DATA/levee" "$DATA/valkey"
}

# takeover: a broker is gone with its directory, and the next one has Valkey.
takeover() {
  local n
  valkey_start
  # shellcheck disable=SC2046 # words
  with $(in_valkey)
  levee_start
  on levee preload
  pb -fsync periodic -style batch -size 1024 -batch 64 -window 64 -secs 120 -most "$TAKEOVER" -stream gone
  crash "$SRV"
  rm -rf "$DATA/levee"
  for n in 16 64; do # entries a page: 1 MiB and 4 MiB
    SRV=$VALKEY_PID ADDR=$VALKEY
    on redis tiers-takeover:xrange
    pb -mode consume -style range -batch "$n" -stream '*:s'
  done
  newport
  levee_run
  on levee tiers-takeover:levee
  pb -mode ready -n "$TAKEOVER" -stream gone -size 1024
  stop "$SRV"
  stop "$VALKEY_PID"
  rm -rf "$DATA/levee" "$DATA/valkey"
  with
}

# cold: everything is in the bucket alone, and a new broker has none of it in memory.
cold() {
  local proxy size segments="STORAGE_SEGMENT_BYTES=32MiB STORAGE_SEAL_AGE=1s STORAGE_RETENTION_BYTES=1 STORAGE_RETENTION_CHECK=200ms"
  have versitygw || return 0
  s3_start
  # shellcheck disable=SC2046,SC2086 # words
  with $segments $(in_s3 "$S3")
  levee_start
  on levee preload
  pb -fsync periodic -style batch -size 1024 -batch 64 -window 64 -secs 120 -most "$COLD" -stream cold
  pb -mode copied -stream cold
  stop "$SRV"
  for size in 1048576 8388608; do
    SRV=$S3_PID ADDR=$S3
    on s3 tiers-cold:get
    pb -mode consume -style ranged -size "$size" -bucket levee
  done
  attend "$BIN/engine" -bucket levee -s3 "http://$S3" -label tiers-cold:reader >>"$OUT" || {
    FAILED=$((FAILED + 1))
    echo "FAILED: tiers-cold:reader" >&2
  }
  newport
  levee_run
  waitport "$PORT"
  on levee tiers-cold:levee
  pb -mode consume -style batch -size 1024 -n "$COLD" -stream cold
  stop "$SRV"
  # How often the first read waits for the store. In the middle of a segment, an old one: that takes the most.
  newport
  proxy=$ADDR
  launch "$BIN/peerbench" -proxy "$proxy" -addr "$S3"
  PROXY_PID=$SRV
  waitport "$PORT"
  # shellcheck disable=SC2046,SC2086
  with $segments $(in_s3 "$proxy")
  newport
  levee_run
  waitport "$PORT"
  on levee tiers-cold:first
  pb -mode first -from "$((COLD / 8 + 17))" -stream cold -proxy "$proxy"
  stop "$SRV"
  stop "$PROXY_PID"
  stop "$S3_PID"
  rm -rf "$DATA/levee" "$DATA/s3"
  # The same where the log has it.
  with
  levee_start
  on levee preload
  pb -fsync periodic -style batch -size 1024 -batch 64 -window 64 -secs 120 -most "$COLD" -stream cold
  on levee tiers-cold:local
  pb -mode consume -style batch -size 1024 -n "$COLD" -stream cold
  stop "$SRV"
  rm -rf "$DATA/levee"
}

for ((round = 1; round <= ROUNDS; round++)); do
  for what in "$@"; do
    case $what in
    export) export_ ;;
    valkey | takeover) if have redis-server; then "$what"; fi ;;
    cold) cold ;;
    *) echo "there is no $what here: export, valkey, takeover, cold" >&2; exit 2 ;;
    esac
  done
done
table
finish
