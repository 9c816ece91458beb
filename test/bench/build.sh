#!/usr/bin/env bash
# Builds the broker of this checkout, the programs of this directory and the peers into BIN. Wants Go, and what Go
# fetches; redis-server from the system, or by apt-get.
. "$(dirname "$0")/lib.sh"

export GOTOOLCHAIN=${GOTOOLCHAIN:-go1.27.3}
NATS_SERVER=github.com/nats-io/nats-server/v2@v2.15.3
NATS_CLI=github.com/nats-io/natscli/nats@v0.5.1
NSQ=v1.3.0
VERSITYGW=github.com/versity/versitygw/cmd/versitygw@$(sed -n 's/^VERSITYGW *:= *//p' "$HERE/../../Makefile")

# Peers stay built until another version is wanted.
pins="$NATS_SERVER $NATS_CLI $NSQ $VERSITYGW"
if [ "$(cat "$BIN/pins" 2>/dev/null)" != "$pins" ]; then
  rm -f "$BIN/nats-server" "$BIN/nats" "$BIN/nsqd" "$BIN/bench_writer" "$BIN/versitygw"
fi

build_broker
(cd "$HERE/../.." && go build -o "$BIN/engine" ./test/bench/engine)
for program in phys grpcbench peerbench walbench kfakeserver; do
  (cd "$HERE/$program" && go build -o "$BIN/$program" .)
done
have nats-server || GOBIN=$BIN go install "$NATS_SERVER"
have versitygw || (cd / && GOBIN=$BIN go install "$VERSITYGW")
have nats || GOBIN=$BIN go install "$NATS_CLI"

# nsq's own go.mod replaces a module, which go install does not do for others: a module around it.
if ! have nsqd || ! have bench_writer; then
  src=$PERF/src/nsq
  mkdir -p "$src"
  cat >"$src/go.mod" <<'MOD'
module nsqpeer

go 1.26

replace github.com/judwhite/go-svc => github.com/mreiferson/go-svc v1.2.2-0.20210815184239-7a96e00010f6
MOD
  cat >"$src/tools.go" <<'GO'
//go:build tools

package tools

import (
	_ "github.com/nsqio/nsq/apps/nsqd"
	_ "github.com/nsqio/nsq/bench/bench_writer"
)
GO
  (cd "$src" && go get "github.com/nsqio/nsq@$NSQ" && go mod tidy &&
    go build -o "$BIN/nsqd" github.com/nsqio/nsq/apps/nsqd && go build -o "$BIN/bench_writer" github.com/nsqio/nsq/bench/bench_writer)
fi

# Debian's redis-tools holds the server under another name, and starts nothing when it is installed.
if ! have redis-server; then
  if ! command -v redis-server >/dev/null && ! command -v redis-check-rdb >/dev/null && command -v apt-get >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-tools ||
      echo "redis could not be installed" >&2
  fi
  if redis=$(command -v redis-server || command -v redis-check-rdb); then
    ln -sf "$redis" "$BIN/redis-server"
  else
    echo "there is no redis-server here: its runs are left out" >&2
  fi
fi

echo "$pins" >"$BIN/pins"
"$BIN/levee" version
"$BIN/nats-server" --version
"$BIN/nats" --version
"$BIN/nsqd" -version
! have redis-server || "$BIN/redis-server" --version
