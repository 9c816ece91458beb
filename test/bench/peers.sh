#!/usr/bin/env bash
# Levee and its peers in turns: each round visits every broker once. Appends rows to OUT and prints their medians.
# usage: peers.sh [ROUNDS]; environment: SECS OUT, ONLY (what to visit)
. "$(dirname "$0")/lib.sh"
ROUNDS=${1:-3}
ONLY=${ONLY:-"levee jsalways jsdefault core redisalways rediseverysec nsqmem nsqdisk"}
SIZES='128 1024'

want() { [[ " $ONLY " == *" $1 "* ]]; }

levee() {
  levee_start
  on levee levee:idle
  pb -mode rss
  local fsync s
  for fsync in on_commit periodic; do
    on levee "levee:$fsync"
    for s in $SIZES; do
      pb -fsync "$fsync" -style sync -size "$s" -conc 1
      pb -fsync "$fsync" -style sync -size "$s" -conc 64
      pb -fsync "$fsync" -label "levee-shared:$fsync" -share -style sync -size "$s" -conc 64
      pb -fsync "$fsync" -style async -size "$s" -conc 1 -window 1024
      pb -fsync "$fsync" -style async -size "$s" -conc 64 -window 64
      pb -fsync "$fsync" -style batch -size "$s" -conc 1 -batch 256 -window 1
      # The shape of bare gRPC's runs, and many publishers with batches.
      pb -fsync "$fsync" -label "levee-pipe:$fsync" -style batch -size "$s" -conc 1 -batch 256 -window 16
      pb -fsync "$fsync" -label "levee-many:$fsync" -style batch -size "$s" -conc 64 -batch 64 -window 1
      if [ "$fsync" = periodic ]; then
        pb -fsync "$fsync" -label preload -style batch -size "$s" -conc 1 -batch 256 -window 16 -most "$((MESSAGES * 2))" -secs 5 -stream "c$s"
        pb -mode consume -style batch -size "$s" -n "$((MESSAGES * 2))" -stream "c$s"
      fi
      pb -fsync "$fsync" -mode e2e -size "$s" -rate 2000
    done
  done
  for s in $SIZES; do
    on levee levee:nonreliable
    pb -dispatch non_reliable -style async -size "$s" -conc 1
    pb -dispatch non_reliable -style async -size "$s" -conc 64
    pb -dispatch non_reliable -label levee:nonreliable-fanout1 -mode fanout -size "$s" -n "$MESSAGES" -subs 1
    pb -dispatch non_reliable -label levee:nonreliable-fanout10 -mode fanout -size "$s" -n "$((MESSAGES / 5))" -subs 10
    pb -dispatch non_reliable -mode e2e -size "$s" -rate 2000
  done
  stop "$SRV"
}

jetstream() { # sync_interval
  local mode=$1 s
  nats_start "$mode"
  on nats-js "jetstream:$mode"
  for s in $SIZES; do
    pb -style sync -size "$s" -conc 1
    pb -style sync -size "$s" -conc 64
    pb -label "jetstream-shared:$mode" -share -style sync -size "$s" -conc 64
    if [ "$mode" = always ]; then
      # It answers hardly more with more in flight, and the run would last longer.
      pb -style async -size "$s" -conc 1 -window 256
      pb -style async -size "$s" -conc 64 -window 8
      pb -style batch -size "$s" -conc 1 -batch 256
      pb -style fast -size "$s" -conc 1 -batch 500
      pb -mode e2e -size "$s" -rate 300
      continue
    fi
    pb -style async -size "$s" -conc 1 -window 1024
    pb -style async -size "$s" -conc 64 -window 64
    pb -style batch -size "$s" -conc 1 -batch 256
    pb -style fast -size "$s" -conc 1 -batch 5000
    pb -label preload -style fast -size "$s" -conc 1 -batch 5000 -stream "c$s"
    pb -mode consume -style ordered -size "$s" -batch 5000 -n "$((MESSAGES * 2 / 5))" -stream "c$s"
    pb -mode consume -style fetch -size "$s" -batch 500 -n "$((MESSAGES / 5))" -stream "c$s"
    pb -mode e2e -size "$s" -rate 2000
  done
  stop "$SRV"
}

core() {
  local s
  nats_start default
  on nats-core nats-core
  for s in $SIZES; do
    pb -style async -size "$s" -conc 1
    pb -style async -size "$s" -conc 64
    pb -label nats-core:fanout1 -mode fanout -size "$s" -n "$MESSAGES" -subs 1
    pb -label nats-core:fanout10 -mode fanout -size "$s" -n "$((MESSAGES / 5))" -subs 10
    pb -mode e2e -size "$s" -rate 2000
  done
  stop "$SRV"
}

redis() { # appendfsync
  local mode=$1 s
  have redis-server || return 0
  redis_start "$mode"
  on redis "redis-streams:$mode"
  for s in $SIZES; do
    pb -style sync -size "$s" -conc 1
    pb -style sync -size "$s" -conc 64
    pb -style batch -size "$s" -conc 1 -batch 64
    pb -style async -size "$s" -conc 1 -window 1024
    pb -style async -size "$s" -conc 64 -window 256
    if [ "$mode" = everysec ]; then pb -mode consume -style batch -size "$s" -batch 1000 -n "$((MESSAGES / 2))"; fi
    pb -mode e2e -size "$s" -rate 2000
  done
  stop "$SRV"
}

nsq() { # name flags...
  local name=$1 s
  shift
  have nsqd || return 0
  nsqd_start "$@"
  on nsq "nsqd:$name"
  for s in $SIZES; do
    pb -style sync -size "$s" -conc 1 -stream "t$s"
    pb -style sync -size "$s" -conc 64 -stream "t$s"
    pb -style batch -size "$s" -conc 1 -batch 200 -stream "t$s"
    if [ "$name" = memory ]; then pb -mode consume -style batch -size "$s" -n "$((MESSAGES * 2 / 5))" -stream "t$s"; fi
  done
  stop "$SRV"
}

for ((round = 1; round <= ROUNDS; round++)); do
  fsyncref
  if want levee; then levee; fi
  if want jsalways; then jetstream always; fi
  if want jsdefault; then jetstream default; fi
  if want core; then core; fi
  fsyncref
  if want redisalways; then redis always; fi
  if want rediseverysec; then redis everysec; fi
  if want nsqmem; then nsq memory -mem-queue-size 10000000; fi
  if want nsqdisk; then nsq disk,sync-every=1 -mem-queue-size 0 -sync-every 1; fi
done
table
finish
