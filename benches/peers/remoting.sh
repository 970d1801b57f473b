#!/usr/bin/env bash
# How much faster are our name server and broker than Apache RocketMQ's over remoting, on this machine, in this hour?
#
# Starts one pair after the other, drives both with the same light load, and prints a table of medians. Needs Java,
# `make jars` and 8 GB of disk.
#   ROUNDS=5 SECONDS_EACH=10 DIRECTORY=DIR LOADS="light clients routes" benches/peers/remoting.sh
# GUARD is a command that wraps each measurement, for a shared machine. LINES keeps the single values.
set -euo pipefail
cd "$(dirname "$0")/../.."
ROUNDS=${ROUNDS:-5}
SECONDS_EACH=${SECONDS_EACH:-10}
# `light`: our load generator on the brokers; `clients`: RocketMQ's own client; `routes`: the name servers.
LOADS=${LOADS:-light clients routes}
DIRECTORY=${DIRECTORY:-$(mktemp -d)}
GUARD=${GUARD:-}
LINES=${LINES:-$DIRECTORY/lines}
JARS=$(realpath "${JARS:-.cache/jars}")
BIN=$(realpath "${BIN:-.venv/bin}")
LOAD=${LOAD:-}
NAMESRV_PORT=${NAMESRV_PORT:-19876}
BROKER_PORT=${BROKER_PORT:-21911}
NAMESRV=127.0.0.1:$NAMESRV_PORT
BROKER=127.0.0.1:$BROKER_PORT
. benches/peers/common.sh

if [ -z "$LOAD" ]; then
  cargo build --release --locked --quiet --package ferromq-transport --example load
  LOAD=${CARGO_TARGET_DIR:-target}/release/examples/load
fi

mkdir -p "$DIRECTORY/classes"
javac -nowarn -cp "$JARS/*" -d "$DIRECTORY/classes" benches/peers/java/ClientLoad.java

# The same options for both; Java's send queue would answer "busy" after 200 ms where cores are few.
options() {
  cat >"$DIRECTORY/broker.conf" <<CONF
brokerName=peer
brokerIP1=127.0.0.1
listenPort=$BROKER_PORT
namesrvAddr=$NAMESRV
flushDiskType=ASYNC_FLUSH
storePathRootDir=$DIRECTORY/store
mappedFileSizeCommitLog=268435456
autoCreateTopicEnable=true
CONF
  [ "$1" = ours ] || echo "waitTimeMillsInSendQueue=2000" >>"$DIRECTORY/broker.conf"
  echo "listenPort=$NAMESRV_PORT" >"$DIRECTORY/namesrv.conf"
}

java_server() {
  local heap=$1
  shift
  ROCKETMQ_HOME=$DIRECTORY java -Duser.home="$DIRECTORY" -Drocketmq.home.dir="$DIRECTORY" -Xms"$heap" -Xmx"$heap" \
    --add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED \
    -cp "$JARS/*" "$@" >>"$DIRECTORY/java.log" 2>&1 &
}
namesrv() {
  case $1 in
  ours) "$BIN/ferromq" namesrv --config "$DIRECTORY/namesrv.conf" >>"$DIRECTORY/ours.log" 2>&1 & ;;
  theirs) java_server 512m org.apache.rocketmq.namesrv.NamesrvStartup -c "$DIRECTORY/namesrv.conf" ;;
  esac
  PIDS+=($!)
  answers "$NAMESRV_PORT"
}
broker() {
  rm -rf "$DIRECTORY/store"
  case $1 in
  ours)
    FERROMQ_BROKER_GRPC_LISTEN=127.0.0.1:0 "$BIN/ferromq" broker --config "$DIRECTORY/broker.conf" \
      >>"$DIRECTORY/ours.log" 2>&1 &
    ;;
  theirs) java_server 1g org.apache.rocketmq.broker.BrokerStartup -c "$DIRECTORY/broker.conf" ;;
  esac
  BROKER_PID=$!
  PIDS+=("$BROKER_PID")
  answers "$BROKER_PORT"
}

engine() { if [ "$1" = ours ]; then echo ferromq; else echo java; fi; }
line() { printf '%s %s\t%s\t%s\n' "$(engine "$1")" "$2" "$3" "$4" | tee -a "$LINES" >&2; }
value() { python3 -c 'import json, sys; print(json.loads(sys.argv[1])[sys.argv[2]])' "$1" "$2"; }
# Hundredths of a second of user and system time.
ticks() { awk '{sub(/.*\) /, ""); print $12 + $13}' "/proc/$1/stat"; }

# Who, what it is called, and the load's arguments: its rate, latency, and the server's CPU time for a million messages.
measure() {
  local who=$1 name=$2 before after answer messages
  shift 2
  before=$(ticks "$BROKER_PID")
  # shellcheck disable=SC2086
  answer=$($GUARD "$LOAD" --address "$BROKER" --topic load --warm-up 3 --seconds "$SECONDS_EACH" "$@")
  after=$(ticks "$BROKER_PID")
  messages=$(value "$answer" messages)
  line "$who" "$name" "$(value "$answer" rate)" msg/s
  line "$who" "$name, p50" "$(value "$answer" p50_us)" us
  line "$who" "$name, p99" "$(value "$answer" p99_us)" us
  line "$who" "$name, refused" "$(value "$answer" refused)" answers
  # The warm-up counts on both sides of the fraction, as if it went at the same rate.
  line "$who" "$name, CPU per million" \
    "$(python3 -c 'import sys; t, m, w = map(float, sys.argv[1:]); print(t / 100 / (m * w) * 1e6 if m else 0)' \
      "$((after - before))" "$messages" \
      "$(python3 -c 'import sys; print(1 + 3 / float(sys.argv[1]))' "$SECONDS_EACH")")" s
}

servers() {
  options "$1"
  namesrv "$1"
  broker "$1"
  # The topic comes with the first message; both brokers make it.
  "$LOAD" --address "$BROKER" --topic load --connections 1 --warm-up 0 --seconds 2 >/dev/null
}

light() {
  local who=$1
  servers "$who"
  measure "$who" "send, 1 connection" --mode send --connections 1
  measure "$who" "send, 64 connections" --mode send --connections 64
  measure "$who" "send, 64 connections, binary header" --mode send --connections 64 --header binary
  measure "$who" "send, 8 connections with 8 under way" --mode send --connections 8 --in-flight 8
  measure "$who" "batches of 32, 8 connections" --mode batch --connections 8
  measure "$who" "pull 32 at once, 8 connections" --mode pull --connections 8
  line "$who" "memory without store pages" "$(awk '/RssAnon/ {print $2 / 1024}' "/proc/$BROKER_PID/status")" MiB
  stop
}

# RocketMQ's own client: who, and what it is told.
client() {
  local who=$1
  shift
  # shellcheck disable=SC2086
  $GUARD java -Duser.home="$DIRECTORY" -Xms1g -Xmx1g -cp "$JARS/*:$DIRECTORY/classes" \
    ClientLoad "$(engine "$who")" "$NAMESRV" load "$@" 2>>"$DIRECTORY/java.log" |
    { grep 'java client:' || true; } | tee -a "$LINES" >&2
}

clients() {
  local who=$1
  servers "$who"
  client "$who" send 1 1024 "$SECONDS_EACH"
  client "$who" send 64 1024 "$SECONDS_EACH"
  client "$who" batch 16 1024 "$SECONDS_EACH" 32
  # Fewer than the sends before it stored.
  client "$who" drain 300000
  stop
}

routes() {
  local who=$1
  options "$who"
  namesrv "$who"
  BROKER_PID=${PIDS[-1]}
  coproc REGISTERED { exec "$LOAD" --mode register --address "$NAMESRV" --topics 1000 --topic route; }
  PIDS+=("$REGISTERED_PID")
  read -r _ <&"${REGISTERED[0]}"
  local target=$BROKER
  BROKER=$NAMESRV
  measure "$who" "route of 1 of 1,000 topics, 16 connections" --mode route --connections 16 --topics 1000 --topic route
  BROKER=$target
  stop
}

: >"$LINES"
for _ in $(seq "$ROUNDS"); do
  for load in $LOADS; do
    "$load" ours
    "$load" theirs
  done
done
python3 benches/peers/ratio.py ferromq java <"$LINES"
