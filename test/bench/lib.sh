# shellcheck shell=bash disable=SC2034 # the scripts that source it use more of it than it does itself
# Sourced by the scripts beside it. Starts servers on free ports of loopback, remembers their process ids, and ends only
# those. Everything that is written lies below PERF and SCRATCH.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PERF=${PERF:-${TMPDIR:-/tmp}/levee-bench-$(id -u)}
SCRATCH=${SCRATCH:-$PERF}          # on the device that is to be measured
BIN=$PERF/bin                      # programs that build.sh makes
DATA=$SCRATCH/levee-bench-data     # what the servers keep; removed at the end
OUT=${OUT:-$PERF/out.jsonl}        # rows are appended
SECS=${SECS:-1.5}                  # seconds a run
(umask 077 && mkdir -p "$PERF" "$SCRATCH")
# The default is a name that anybody can guess, in a folder where anybody may write.
[ -O "$PERF" ] || { echo "$PERF belongs to somebody else: set PERF" >&2; exit 2; }
mkdir -p "$BIN" "$DATA" "$(dirname "$OUT")"

# Runs shorter than a second only show that everything works; what is counted and not timed is small then, too.
if awk -v s="$SECS" 'BEGIN { exit !(s < 1) }'; then
  SMOKE=1
  MESSAGES=${MESSAGES:-20000} IDLE=${IDLE:-100} IDLE_MANY=${IDLE_MANY:-200} STORE=${STORE:-20000} PHYS_BYTES=${PHYS_BYTES:-33554432}
else
  SMOKE=0
  MESSAGES=${MESSAGES:-1000000} # to consume and to fan out, at most
  IDLE=${IDLE:-10000}           # idle streams
  IDLE_MANY=${IDLE_MANY:-100000}
  STORE=${STORE:-1700000}       # messages of 1 KiB to recover
  PHYS_BYTES=${PHYS_BYTES:-536870912}
fi

PIDS=() # servers that are running
FAILED=0
SRV='' PORT='' ADDR='' TARGET='' LABEL=''

# forget PID: it is no longer running.
forget() {
  local kept=() p
  for p in "${PIDS[@]}"; do [ "$p" = "$1" ] || kept+=("$p"); done
  PIDS=("${kept[@]}")
}

# stop PID: TERM, and KILL after ten seconds.
stop() {
  if kill -TERM "$1" 2>/dev/null; then
    for _ in $(seq 100); do
      kill -0 "$1" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$1" 2>/dev/null || true
  fi
  wait "$1" 2>/dev/null || true
  forget "$1"
}

# crash PID: the process dies, what it gave the system stays.
crash() {
  kill -KILL "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
  forget "$1"
}

cleanup() {
  local p
  for p in "${PIDS[@]}"; do stop "$p"; done
  rm -rf "$DATA"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# have PROGRAM: whether a peer is there. Its runs are left out otherwise.
have() { [ -x "$BIN/$1" ]; }

# build_broker builds this checkout's, and notes of which commit.
build_broker() {
  (cd "$HERE/../.." && CGO_ENABLED=0 go build -trimpath -o "$BIN/levee" ./cmd/levee)
  git -C "$HERE" describe --always --dirty >"$BIN/commit" 2>/dev/null || echo unknown >"$BIN/commit"
}
commit() { cat "$BIN/commit" 2>/dev/null || echo unknown; }

freeport() { "$BIN/peerbench" -freeport; }

waitport() { # port [tenths of a second]
  for _ in $(seq "${2:-200}"); do
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return 0
    kill -0 "$SRV" 2>/dev/null || break
    sleep 0.1
  done
  echo "nothing listens on port $1; the server's last lines:" >&2
  tail -n 5 "$PERF/server.log" >&2
  return 1
}

# launch COMMAND...: starts a server as SRV and does not wait for it.
launch() {
  "$@" >"$PERF/server.log" 2>&1 &
  SRV=$!
  PIDS+=("$SRV")
}

on() { # target label: what pb measures from now on
  TARGET=$1 LABEL=$2
}

newport() {
  PORT=$(freeport)
  ADDR=127.0.0.1:$PORT
}

nats_run() { launch "$BIN/nats-server" -c "$DATA/nats.conf"; } # on what is there
nats_start() {                                                 # sync_interval: default, always, 2s, ...
  rm -rf "$DATA/nats"
  mkdir -p "$DATA/nats"
  newport
  {
    echo "listen: \"$ADDR\""
    echo "jetstream { store_dir: \"$DATA/nats\", max_mem: 2GB, max_file: 40GB"
    [ "$1" = default ] || echo "  sync_interval: $1"
    echo '}'
  } >"$DATA/nats.conf"
  nats_run
  waitport "$PORT"
}

redis_run() { # appendfsync
  launch "$BIN/redis-server" --bind 127.0.0.1 --port "$PORT" --dir "$DATA/redis" --appendonly yes --appendfsync "$1" --save '' \
    --auto-aof-rewrite-percentage 0 --daemonize no --maxmemory 10gb
}
redis_start() { # appendfsync: always, everysec or no
  rm -rf "$DATA/redis"
  mkdir -p "$DATA/redis"
  newport
  redis_run "$1"
  waitport "$PORT"
}

nsqd_start() { # more flags
  rm -rf "$DATA/nsq"
  mkdir -p "$DATA/nsq"
  newport
  launch "$BIN/nsqd" -tcp-address "$ADDR" -http-address 127.0.0.1:0 -broadcast-address 127.0.0.1 -data-path "$DATA/nsq" -log-level=error "$@"
  waitport "$PORT"
}

kfake_run() { launch "$BIN/kfakeserver" -port "$PORT" "$@"; }
kfake_start() { # flags
  rm -rf "$DATA/kfake"
  newport
  kfake_run "$@"
  waitport "$PORT"
}

# Environment variables before the call reach the broker: LEVEE_STORAGE_VERIFY_ALL_ON_OPEN=true levee_run.
levee_run() { launch "$BIN/levee" server --data-dir "$DATA/levee" --grpc "$ADDR" --http "${HTTP:-127.0.0.1:0}"; }
levee_start() {
  rm -rf "$DATA/levee"
  newport
  levee_run
  waitport "$PORT"
}

# attend COMMAND...: runs it so that a signal ends it and this script at once; bash would wait for it before its traps.
attend() {
  local pid status=0
  "$@" &
  pid=$!
  PIDS+=("$pid")
  wait "$pid" || status=$?
  forget "$pid"
  return "$status"
}

# pb FLAGS...: one run of peerbench against the server that runs. A later flag wins over those here.
pb() {
  attend "$BIN/peerbench" -target "$TARGET" -addr "$ADDR" -label "$LABEL" -pid "$SRV" -secs "$SECS" "$@" >>"$OUT" || {
    FAILED=$((FAILED + 1))
    echo "FAILED: $TARGET $LABEL $*" >&2
  }
}

# background FLAGS...: load whose row nobody wants, as process LOAD.
background() {
  "$BIN/peerbench" -target "$TARGET" -addr "$ADDR" -pid "$SRV" "$@" >/dev/null 2>&1 &
  LOAD=$!
  PIDS+=("$LOAD")
}

# A flush of 4 KiB, beside the peers: rows of one run compare only where these agree.
fsyncref() { "$BIN/phys" -dir "$DATA/probe" -label fsync-ref -secs "$(half)" -only fsyncref >>"$OUT"; }

half() { awk -v s="$SECS" 'BEGIN { print s / 2 }'; }

table() { "$BIN/peerbench" -table <"$OUT"; }

# finish: the last line of a script. It fails where a run did.
finish() {
  [ "$FAILED" = 0 ] || { echo "$FAILED runs failed" >&2; exit 1; }
}
