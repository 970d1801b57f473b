#!/usr/bin/env bash
# How many rows a second does Spark read from ferromq and write to it, against Kafka through Spark's own source, on this machine, in this hour?
#
# Fills a topic of both with the same number of rows of 1 KiB, then reads them by turns in one session. Needs Java 17 or newer, Maven for
# the jars, and 8 GB of disk.
#   ROUNDS=5 ROWS=1000000 DIRECTORY=DIR benches/peers/spark.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
ROUNDS=${ROUNDS:-5}
ROWS=${ROWS:-1000000}
DIRECTORY=${DIRECTORY:-$(mktemp -d)}
LINES=${LINES:-$DIRECTORY/lines}
BIN=$(realpath "${BIN:-.venv/bin}")
KAFKA_JARS=$(realpath "${KAFKA_JARS:-.cache/kafka-jars}")
SPARK_KAFKA_JARS=$(realpath "${SPARK_KAFKA_JARS:-.cache/spark-kafka-jars}")
KAFKA_PORT=${KAFKA_PORT:-29092}
CONTROLLER_PORT=${CONTROLLER_PORT:-29093}
GRPC_PORT=${GRPC_PORT:-28081}
NAMESRV_PORT=${NAMESRV_PORT:-19876}
BROKER_PORT=${BROKER_PORT:-21911}
TOPIC=rows QUEUES=4
. benches/peers/common.sh

kafka_program() { java "-Xms$1" "-Xmx$1" -cp "$KAFKA_JARS/*" "${@:2}"; }

kafka() {
  cat >"$DIRECTORY/kafka.properties" <<CONF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$CONTROLLER_PORT
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT,CONTROLLER://127.0.0.1:$CONTROLLER_PORT
log.dirs=$DIRECTORY/kafka
num.partitions=$QUEUES
offsets.topic.replication.factor=1
CONF
  kafka_program 256m kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$DIRECTORY/kafka.properties" >>"$DIRECTORY/kafka.log" 2>&1
  java -Xms1g -Xmx1g -cp "$KAFKA_JARS/*" kafka.Kafka "$DIRECTORY/kafka.properties" >>"$DIRECTORY/kafka.log" 2>&1 &
  PIDS+=($!)
  answers "$KAFKA_PORT"
  kafka_program 512m org.apache.kafka.tools.ProducerPerformance --topic "$TOPIC" --num-records "$ROWS" --record-size 1024 \
    --throughput -1 --producer-props "bootstrap.servers=127.0.0.1:$KAFKA_PORT" acks=1 linger.ms=10 batch.size=131072 >>"$DIRECTORY/kafka.log" 2>&1
}

ferromq() {
  echo "listenPort=$NAMESRV_PORT" >"$DIRECTORY/namesrv.conf"
  cat >"$DIRECTORY/broker.conf" <<CONF
brokerName=peer
brokerIP1=127.0.0.1
listenPort=$BROKER_PORT
namesrvAddr=127.0.0.1:$NAMESRV_PORT
storePathRootDir=$DIRECTORY/store
mappedFileSizeCommitLog=268435456
CONF
  "$BIN/ferromq" namesrv --config "$DIRECTORY/namesrv.conf" >>"$DIRECTORY/ferromq.log" 2>&1 &
  PIDS+=($!)
  answers "$NAMESRV_PORT"
  FERROMQ_BROKER_GRPC_LISTEN=127.0.0.1:$GRPC_PORT "$BIN/ferromq" broker --config "$DIRECTORY/broker.conf" >>"$DIRECTORY/ferromq.log" 2>&1 &
  PIDS+=($!)
  answers "$GRPC_PORT"
  "$BIN/python" - "127.0.0.1:$NAMESRV_PORT" "127.0.0.1:$GRPC_PORT" "$TOPIC" "$QUEUES" "$ROWS" <<'PYTHON'
import sys

import ferromq

namesrv, endpoint, topic, queues, rows = sys.argv[1:]
with ferromq.Admin(namesrv) as admin:
    admin.create_topic(topic, queues=int(queues))
with ferromq.Producer(endpoint) as producer:
    producer.send_all(topic, (ferromq.Message(b"x" * 1024) for _ in range(int(rows))))
PYTHON
}

kafka
ferromq
"$BIN/python" benches/peers/spark_rows.py "$SPARK_KAFKA_JARS" "127.0.0.1:$KAFKA_PORT" \
  "127.0.0.1:$NAMESRV_PORT" "127.0.0.1:$GRPC_PORT" "$DIRECTORY/store" "$TOPIC" "$ROWS" "$ROUNDS" |
  tee "$LINES" >&2
python3 benches/peers/ratio.py ferromq kafka <"$LINES"
