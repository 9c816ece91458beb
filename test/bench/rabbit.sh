#!/usr/bin/env bash
# RabbitMQ's quorum queue with publisher confirms, beside nothing: for goal A10. Wants the system's rabbitmq-server.
# usage: rabbit.sh [ROUNDS]; environment: SECS OUT
. "$(dirname "$0")/lib.sh"
ROUNDS=${1:-3}
SERVER=${RABBITMQ_SERVER:-/usr/lib/rabbitmq/bin/rabbitmq-server}
[ -x "$SERVER" ] || { echo "there is no RabbitMQ here ($SERVER); install rabbitmq-server or set RABBITMQ_SERVER" >&2; exit 2; }

rm -rf "$DATA/rabbit"
mkdir -p "$DATA/rabbit"
echo '[].' >"$DATA/rabbit/plugins"
epmd=$(freeport)
dist=$(freeport)
newport
export ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT=$epmd HOME=$DATA/rabbit
export RABBITMQ_NODENAME=bench@localhost RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT=$PORT RABBITMQ_DIST_PORT=$dist
export RABBITMQ_MNESIA_BASE=$DATA/rabbit/mnesia RABBITMQ_LOG_BASE=$DATA/rabbit/log RABBITMQ_ENABLED_PLUGINS_FILE=$DATA/rabbit/plugins
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}"
launch epmd -address 127.0.0.1 -port "$epmd"
waitport "$epmd"
launch "$SERVER"
waitport "$PORT" 600
# What was started is a shell script; the server is the Erlang machine below it.
while ! grep -q beam "/proc/$SRV/comm"; do
  child=$(pgrep -P "$SRV" | head -n 1 || true)
  [ -n "$child" ] || break
  SRV=$child
done
PIDS+=("$SRV")

on amqp rabbitmq-quorum
for ((round = 1; round <= ROUNDS; round++)); do
  fsyncref
  for s in 128 1024; do
    pb -style sync -size "$s" -conc 1
    pb -style sync -size "$s" -conc 64
    pb -style async -size "$s" -conc 1 -window 1024
    pb -mode consume -style batch -size "$s" -n 30000
  done
done
stop "$SRV"
table
finish
