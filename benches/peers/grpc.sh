#!/usr/bin/env bash
# How much faster is our broker than Apache RocketMQ's proxy over gRPC, on this machine, in this hour?
#
# Starts one after the other, drives both with the same clients, and prints a table of medians. The proxy runs as RocketMQ
# ships it for one machine: with the broker in its process. Needs Java, `make jars` and 8 GB of disk.
#   ROUNDS=5 SECONDS_EACH=10 DIRECTORY=DIR LOADS="light clients" benches/peers/grpc.sh
# GUARD is a command that wraps each measurement, for a shared machine. LINES keeps the single values.
set -euo pipefail
cd "$(dirname "$0")/../.."
ROUNDS=${ROUNDS:-5}
SECONDS_EACH=${SECONDS_EACH:-10}
# `light`: our load generator; `clients`: RocketMQ's own Python client.
LOADS=${LOADS:-light clients}
DIRECTORY=${DIRECTORY:-$(mktemp -d)}
GUARD=${GUARD:-}
LINES=${LINES:-$DIRECTORY/lines}
JARS=$(realpath "${JARS:-.cache/jars}")
BIN=$(realpath "${BIN:-.venv/bin}")
LOAD=${LOAD:-}
HEAP=${HEAP:-2g}
NAMESRV_PORT=${NAMESRV_PORT:-19876}
BROKER_PORT=${BROKER_PORT:-21911}
GRPC_PORT=${GRPC_PORT:-28081}
NAMESRV=127.0.0.1:$NAMESRV_PORT
BROKER=127.0.0.1:$BROKER_PORT
ENDPOINT=127.0.0.1:$GRPC_PORT
. benches/peers/common.sh

if [ -z "$LOAD" ]; then
  cargo build --release --locked --quiet --package ferromq-transport --example load
  LOAD=${CARGO_TARGET_DIR:-target}/release/examples/load
fi

# The same options for both.
options() {
  cat >"$DIRECTORY/broker.conf" <<CONF
brokerClusterName=DefaultCluster
brokerName=peer
brokerIP1=127.0.0.1
listenPort=$BROKER_PORT
namesrvAddr=$NAMESRV
flushDiskType=ASYNC_FLUSH
storePathRootDir=$DIRECTORY/store
mappedFileSizeCommitLog=268435456
CONF
  echo "listenPort=$NAMESRV_PORT" >"$DIRECTORY/namesrv.conf"
  cat >"$DIRECTORY/proxy.json" <<JSON
{"rocketMQClusterName": "DefaultCluster", "namesrvAddr": "$NAMESRV", "grpcServerPort": $GRPC_PORT,
 "remotingListenPort": $((GRPC_PORT + 1)), "localServeAddr": "127.0.0.1"}
JSON
}

java_program() {
  ROCKETMQ_HOME=$DIRECTORY exec java -Duser.home="$DIRECTORY" -Drocketmq.home.dir="$DIRECTORY" -Xms"$1" -Xmx"$1" \
    --add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED -cp "$JARS/*" "${@:2}"
}
admin() { (java_program 128m org.apache.rocketmq.tools.command.MQAdminStartup "$@") 2>>"$DIRECTORY/java.log"; }

# A topic and a group; there once the broker has told its name server.
create() {
  admin updateTopic -b "$BROKER" -t load -r 8 -w 8 -a +message.type=NORMAL >>"$DIRECTORY/java.log"
  admin updateSubGroup -b "$BROKER" -g load_group >>"$DIRECTORY/java.log"
  for _ in $(seq 60); do
    if [[ $(admin topicRoute -n "$NAMESRV" -t load) == *"$BROKER"* ]]; then return; fi
  done
  echo "the topic is not there; see $DIRECTORY/*.log" >&2
  return 1
}

servers() {
  options
  rm -rf "$DIRECTORY/store"
  case $1 in
  ours) "$BIN/ferromq" namesrv --config "$DIRECTORY/namesrv.conf" >>"$DIRECTORY/ours.log" 2>&1 & ;;
  theirs)
    java_program 256m org.apache.rocketmq.namesrv.NamesrvStartup -c "$DIRECTORY/namesrv.conf" >>"$DIRECTORY/java.log" 2>&1 &
    ;;
  esac
  PIDS+=($!)
  answers "$NAMESRV_PORT"
  case $1 in
  ours)
    FERROMQ_BROKER_GRPC_LISTEN=$ENDPOINT "$BIN/ferromq" broker --config "$DIRECTORY/broker.conf" >>"$DIRECTORY/ours.log" 2>&1 &
    ;;
  theirs)
    java_program "$HEAP" org.apache.rocketmq.proxy.ProxyStartup -pm local -n "$NAMESRV" -bc "$DIRECTORY/broker.conf" \
      -pc "$DIRECTORY/proxy.json" >>"$DIRECTORY/java.log" 2>&1 &
    ;;
  esac
  SERVER_PID=$!
  PIDS+=("$SERVER_PID")
  answers "$GRPC_PORT"
  create
}

engine() { if [ "$1" = ours ]; then echo ferromq; else echo java; fi; }
line() { printf '%s %s\t%s\t%s\n' "$(engine "$1")" "$2" "$3" "$4" | tee -a "$LINES" >&2; }
value() { python3 -c 'import json, sys; print(json.loads(sys.argv[1])[sys.argv[2]])' "$1" "$2"; }

# Who, what it is called, and the load's arguments.
measure() {
  local who=$1 name=$2 answer
  shift 2
  # shellcheck disable=SC2086
  answer=$($GUARD "$LOAD" --protocol grpc --address "$ENDPOINT" --topic load --warm-up 3 --seconds "$SECONDS_EACH" "$@")
  line "$who" "$name" "$(value "$answer" rate)" msg/s
  line "$who" "$name, p50" "$(value "$answer" p50_us)" us
  line "$who" "$name, p99" "$(value "$answer" p99_us)" us
  line "$who" "$name, refused" "$(value "$answer" refused)" answers
}

# RocketMQ's own Python client: who, and what it is told.
client() {
  # shellcheck disable=SC2086
  $GUARD "$BIN/python" benches/peers/official_load.py "$(engine "$1")" "$ENDPOINT" load "$2" "$3" "$SECONDS_EACH" "$SERVER_PID" | tee -a "$LINES" >&2
}

light() { measure "$1" "grpc: send, 64 in flight" --mode send --connections 8 --in-flight 8; }

clients() {
  client "$1" send 16
  # What was sent before is enough for it: it ends where nothing is left.
  client "$1" receive load_group
}

: >"$LINES"
for _ in $(seq "$ROUNDS"); do
  for who in ours theirs; do
    servers "$who"
    for load in $LOADS; do "$load" "$who"; done
    stop
  done
done
python3 benches/peers/ratio.py ferromq java <"$LINES"
