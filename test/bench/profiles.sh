#!/usr/bin/env bash
# Where the broker's CPU time goes: each of the main loads on a fresh broker, a profile of it, what go tool pprof says is
# on top, and a flame graph; and a page that links them. Loads are those of peers.sh.
# usage: profiles.sh [CASE...]; environment: TO (folder, default docs/performance), PROFILE_SECS
. "$(dirname "$0")/lib.sh"
TO=${TO:-$HERE/../../docs/performance}
PROFILE_SECS=${PROFILE_SECS:-8}
export GOTOOLCHAIN=${GOTOOLCHAIN:-go1.27.3} PPROF_TMPDIR=$DATA
[ $# -gt 0 ] || set -- on_commit-sync-64 on_commit-async periodic-async-1KiB consume
mkdir -p "$TO"
build_broker
(cd "$HERE/../.." && go build -o "$BIN/flame" ./test/bench/flame)
PAGE="# Profiles

CPU profiles of the broker under the main loads, made by \`test/bench/profiles.sh\` on $(date -u +%Y-%m-%d) of commit $(commit):
$(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(uname -sr); the load generator ran on the same machine. In a graph the callers are
below; a frame is as wide as its share of the CPU time, with what it called (orange: Levee, blue: gRPC, red: system calls,
grey: Go's runtime).

| load | | | for \`go tool pprof\` | profiled |
|---|---|---|---|---|
"

# profile NAME WORDS FLAGS...: of the broker that runs, under a load.
profile() {
  local name=$1 words=$2 load
  shift 2
  background "$@" -secs "$((PROFILE_SECS + 3))"
  load=$LOAD
  sleep 1 # connections are there, and the page cache is warm
  attend go tool pprof -proto -seconds "$PROFILE_SECS" -output "$TO/$name.pb.gz" "http://$HTTP/debug/pprof/profile" >>"$PERF/profiles.log" 2>&1
  wait "$load" || { echo "FAILED: the load of $name" >&2; FAILED=$((FAILED + 1)); }
  forget "$load"
  go tool pprof -top -nodecount 40 "$TO/$name.pb.gz" 2>/dev/null >"$TO/$name.top.txt"
  go tool pprof -traces -unit ms "$TO/$name.pb.gz" 2>/dev/null | "$BIN/flame" -title "$words" >"$TO/$name.svg"
  local took
  took=$(sed -n 's/^Duration: //p' "$TO/$name.top.txt")
  echo "$name: $took" >&2
  PAGE+="| $words | [flame graph]($name.svg) | [top]($name.top.txt) | [profile]($name.pb.gz) | $took |"$'\n'
}

for what in "$@"; do
  HTTP=127.0.0.1:$(freeport)
  levee_start
  on levee "profile:$what"
  case $what in
  on_commit-sync-64) profile "$what" 'on_commit, 64 publishers of 128 B that wait for each answer' -fsync on_commit -style sync -size 128 -conc 64 ;;
  on_commit-async) profile "$what" 'on_commit, 1 asynchronous publisher of 128 B' -fsync on_commit -style async -size 128 -window 1024 ;;
  periodic-async-1KiB) profile "$what" 'periodic, 1 asynchronous publisher of 1 KiB' -fsync periodic -style async -size 1024 -window 1024 ;;
  consume)
    background -fsync periodic -style batch -size 128 -batch 256 -window 16 -most "$((MESSAGES * 2))" -secs 30
    wait "$LOAD"
    forget "$LOAD"
    profile "$what" '1 consumer of 128 B from the beginning, again and again' -mode consume -style batch -size 128 -n "$((MESSAGES * 2))" -again
    ;;
  *) echo "there is no $what here" >&2; exit 2 ;;
  esac
  stop "$SRV"
done
printf '%s' "$PAGE" >"$TO/README.md"
finish
