#!/bin/sh
# Runs a broker with every tier on this machine: a Valkey (or Redis) server, a server that speaks S3, and the broker on both,
# everything on loopback with its data below one directory. Ctrl-C ends all three.
#
#   tools/run-tiers.sh DIRECTORY LEVEE VERSITYGW
set -eu

dir=$1 levee=$2 s3=$3
valkey_port=${VALKEY_PORT:-6659} s3_port=${S3_PORT:-7659}

valkey=$(command -v valkey-server || command -v redis-server) || {
	echo "levee: neither valkey-server nor redis-server is in PATH: install one (your system's package valkey or redis-server)" >&2
	exit 1
}
mkdir -p "$dir/valkey" "$dir/s3/levee"
dir=$(cd "$dir" && pwd)

# In sessions of their own, where there are such: Ctrl-C is for the broker, which still needs them to stop in good order.
apart=$(command -v setsid || true)
$apart "$valkey" --port "$valkey_port" --bind 127.0.0.1 --dir "$dir/valkey" --appendonly yes --logfile "$dir/valkey/log" &
servers=$!
ROOT_ACCESS_KEY=levee ROOT_SECRET_KEY=levee-secret $apart "$s3" --port "127.0.0.1:$s3_port" --quiet posix "$dir/s3" &
servers="$servers $!"
trap 'kill $servers 2>/dev/null || true; wait' EXIT
trap : INT TERM

echo "Valkey on 127.0.0.1:$valkey_port, S3 on 127.0.0.1:$s3_port (bucket levee), all data in $dir"
LEVEE_VALKEY_MODE=single LEVEE_VALKEY_ADDRESSES=127.0.0.1:$valkey_port \
LEVEE_STORAGE_MODE=object_store LEVEE_OBJECT_STORE_KIND=s3 LEVEE_OBJECT_STORE_BUCKET=levee \
LEVEE_OBJECT_STORE_ENDPOINT=http://127.0.0.1:$s3_port LEVEE_OBJECT_STORE_REGION=us-east-1 LEVEE_OBJECT_STORE_PATH_STYLE=true \
LEVEE_OBJECT_STORE_ACCESS_KEY=levee LEVEE_OBJECT_STORE_SECRET_KEY=levee-secret \
	"$levee" server --data-dir "$dir/broker" &
broker=$!
trap 'kill -TERM $broker 2>/dev/null || true' INT TERM
status=0
wait $broker || status=$?
# A signal ends the wait before it ends the broker.
while kill -0 $broker 2>/dev/null; do wait $broker && status=0 || status=$?; done
exit $status
