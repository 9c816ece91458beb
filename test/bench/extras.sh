#!/usr/bin/env bash
# More than a throughput: load of several kinds at once, subscriptions, Danube's unary calls, idle streams, recovery after
# a crash; and the Kafka protocol's peer. Appends rows to OUT and prints their medians. environment: SECS OUT RUNS
# usage: extras.sh [mixed] [subscriptions] [danube] [idle] [recovery] [kafka]
. "$(dirname "$0")/lib.sh"
[ $# -gt 0 ] || set -- mixed subscriptions danube idle recovery kafka
RUNS=${RUNS:-1}

# mix PUBLISH CONSUME PROBE: one probe while a publisher and a replay run at full speed. Words of flags each.
mix() {
  local publisher consumer length
  length=$(awk -v s="$SECS" 'BEGIN { print s * 2 + 2 }')
  # shellcheck disable=SC2086 # words
  background -secs "$length" $1
  publisher=$LOAD
  # shellcheck disable=SC2086
  background -secs "$length" -again $2
  consumer=$LOAD
  sleep 0.7
  # shellcheck disable=SC2086
  pb -secs "$(awk -v s="$SECS" 'BEGIN { print s * 2 }')" $3
  wait "$publisher" || echo "the publisher beside $LABEL failed" >&2
  forget "$publisher"
  stop "$consumer"
}

mixed() {
  local m f
  for m in on_commit periodic; do
    levee_start
    on levee "levee-mixed:$m"
    f="-fsync $m"
    # shellcheck disable=SC2086
    pb -label preload $f -style batch -size 1024 -batch 256 -window 16 -most "$((MESSAGES / 2))" -secs 3 -stream hist
    mix "$f -style async -window 512 -size 1024 -stream bg" "-mode consume -style batch -n 100000000 -stream hist" "$f -style sync -size 128 -stream probe"
    stop "$SRV"
  done
  for m in default always; do
    nats_start "$m"
    on nats-js "mixed-jetstream:$m"
    pb -label preload -style fast -size 1024 -batch "$([ "$m" = always ] && echo 500 || echo 5000)" -secs 3 -stream hist
    mix "-style async -window $([ "$m" = always ] && echo 32 || echo 512) -size 1024 -stream bg" "-mode consume -style ordered -batch 5000 -n 100000000 -stream hist" "-style sync -size 128 -stream probe"
    stop "$SRV"
  done
  have redis-server || return 0
  for m in everysec always; do
    redis_start "$m"
    on redis "mixed-redis:$m"
    pb -label preload -style batch -size 1024 -batch 64 -secs 3 -stream hist
    mix "-style async -window 512 -size 1024 -stream bg" "-mode consume -style batch -batch 1000 -n 100000000 -stream hist" "-style sync -size 128 -stream probe"
    stop "$SRV"
  done
}

# subscriptions: consumers that acknowledge, beside one that does not and beside JetStream's.
subscriptions() {
  local s fill few=$((MESSAGES * 9 / 10))
  HTTP=127.0.0.1:$(freeport)
  levee_start
  fill='-label preload -fsync periodic -style batch -batch 256 -window 16 -secs 20'
  on levee levee-subscription:periodic
  # shellcheck disable=SC2086 # words
  {
    pb $fill -size 128 -most "$((MESSAGES * 2))" -stream c128
    pb $fill -size 1024 -most "$MESSAGES" -stream c1024
    pb $fill -size 1024 -keys 1000 -most "$MESSAGES" -stream k1024
    pb $fill -size 128 -keys 1000 -most "$MESSAGES" -stream k128
  }
  consuming() { pb -mode consume -metrics "$HTTP" "$@"; }
  consuming -style shared-own -size 128 -n "$MESSAGES" -stream c128
  consuming -label levee-subscription-each:periodic -style shared-each -size 128 -n "$((MESSAGES * 2))" -stream c128
  consuming -label levee-subscription-batched:periodic -style shared -size 128 -n "$((MESSAGES * 2))" -stream c128
  consuming -label levee-plain:periodic -style batch -size 1024 -n "$MESSAGES" -stream c1024
  consuming -label levee-subscription-batched:periodic -style shared -size 1024 -conc 4 -n "$MESSAGES" -stream c1024
  consuming -label levee-subscription-fast:periodic -style shared -size 1024 -conc 3 -n "$few" -stream c1024
  consuming -label levee-subscription-slow:periodic -style shared -size 1024 -conc 4 -slow 1 -n "$few" -stream c1024
  for s in 1024 128; do
    consuming -label levee-subscription-keyed:periodic -style shared -size "$s" -conc 4 -n "$MESSAGES" -stream "k$s"
    consuming -label levee-subscription-keyed:periodic -style keyshared -size "$s" -conc 4 -n "$MESSAGES" -stream "k$s"
  done
  unset HTTP
  stop "$SRV"
  nats_start default
  on nats-js jetstream:default
  pb -label preload -style fast -size 128 -batch 5000 -stream c128
  pb -mode consume -style fetch -size 128 -batch 500 -n "$((MESSAGES / 5))" -stream c128
  stop "$SRV"
}

# danube: unary calls of Danube's API, beside the same calls that nothing is done for.
danube() {
  levee_start
  attend "$BIN/grpcbench" -secs "$SECS" -danube "$ADDR" -pid "$SRV" >>"$OUT"
  stop "$SRV"
}

# idle_levee COUNT: so many topics with one record each, then a crash and a start.
idle_levee() {
  local n=$1
  export LEVEE_LIMITS_PARTITIONS=1000000 # the default is made for fewer
  levee_start
  on levee "idle-levee-$n"
  pb -mode idle -n "$n" -conc 64 -fsync periodic -data "$DATA/levee"
  crash "$SRV"
  levee_run
  on levee "restart-levee-$n"
  pb -mode ready -n 1 -stream "idle$((n - 1))"
  stop "$SRV"
  unset LEVEE_LIMITS_PARTITIONS
}

idle() {
  idle_levee "$IDLE"
  idle_levee "$IDLE_MANY"
  nats_start default
  on nats-js "idle-jetstream-$IDLE"
  pb -mode idle -n "$IDLE" -conc 64 -data "$DATA/nats"
  crash "$SRV"
  nats_run
  on nats-js "restart-jetstream-$IDLE"
  pb -mode ready -n 1 -stream "idle$((IDLE - 1))"
  stop "$SRV"
  if have redis-server; then
    redis_start everysec
    on redis "idle-redis-$IDLE_MANY"
    pb -mode idle -n "$IDLE_MANY" -data "$DATA/redis"
    stop "$SRV"
  fi
  have nsqd || return 0
  nsqd_start -mem-queue-size 10000
  on nsq "idle-nsqd-$((IDLE / 5))"
  pb -mode idle -n "$((IDLE / 5))" -data "$DATA/nsq"
  stop "$SRV"
}

cold() { "$BIN/phys" -dontneed "$1"; }

recovery_levee() {
  local how
  levee_start
  on levee preload
  pb -fsync periodic -style batch -size 1024 -batch 64 -window 64 -secs 60 -most "$STORE" -stream rec
  sleep 0.5 # what was written within the flush interval is not what is measured
  crash "$SRV"
  for how in warm warm-full cold cold-full; do # nothing is cached after cold
    case $how in cold*) cold "$DATA/levee" ;; esac
    # A full check reads every segment; otherwise only the newest is read.
    case $how in *full) export LEVEE_STORAGE_VERIFY_ALL_ON_OPEN=true ;; esac
    levee_run
    on levee "recovery-levee-$how"
    pb -mode ready -n 1 -stream rec -size 1024
    crash "$SRV"
    unset LEVEE_STORAGE_VERIFY_ALL_ON_OPEN
  done
}

recovery_jetstream() {
  local how
  nats_start default
  on nats-js preload
  pb -style fast -size 1024 -batch 5000 -secs "$(awk -v n="$STORE" 'BEGIN { print n / 110000 }')" -stream rec
  sleep 0.5
  crash "$SRV"
  for how in warm cold; do
    if [ "$how" = cold ]; then cold "$DATA/nats"; fi
    nats_run
    on nats-js "recovery-jetstream-$how"
    pb -mode ready -n 1 -stream rec -size 1024
    crash "$SRV"
  done
  rm -rf "$DATA/nats"
}

recovery_redis() {
  redis_start everysec
  on redis preload
  pb -style batch -size 1024 -batch 64 -secs "$(awk -v n="$STORE" 'BEGIN { print n / 160000 }')" -stream rec
  sleep 1.5
  crash "$SRV"
  redis_run everysec
  on redis recovery-redis-warm
  pb -mode ready -n 1 -stream rec -size 1024
  stop "$SRV"
  rm -rf "$DATA/redis"
}

recovery() {
  recovery_levee
  recovery_jetstream
  if have redis-server; then recovery_redis; fi
}

kafka() {
  local m s
  for m in memory disk sync; do
    case $m in
    memory) kfake_start ;;
    disk) kfake_start -dir "$DATA/kfake" ;;
    sync) kfake_start -dir "$DATA/kfake" -sync ;;
    esac
    on kafka "kfake:$m"
    for s in 128 1024; do
      pb -style sync -size "$s" -conc 1
      pb -style sync -size "$s" -conc 64
      pb -style async -size "$s" -conc 1 -window 10000
      pb -mode consume -style batch -size "$s" -n "$((MESSAGES / 2))"
      pb -mode e2e -size "$s" -rate 2000
    done
    stop "$SRV"
  done
}

for ((run = 1; run <= RUNS; run++)); do
  for what in "$@"; do
    case $what in
    mixed | subscriptions | danube | idle | recovery | kafka) "$what" ;;
    *) echo "there is no $what here: mixed, subscriptions, danube, idle, recovery, kafka" >&2; exit 2 ;;
    esac
  done
done
table
finish
