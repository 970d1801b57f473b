#!/usr/bin/env bash
# An operator's day without a JVM: a cluster, a stuck group, a poison message, dead letters, users, a backup and a restart.
#
#   examples/operators_day.sh [DIRECTORY]                  with ferromq's own commands
#   TOOL=mqadmin examples/operators_day.sh [DIRECTORY]     with the names of RocketMQ's tool, where it has the command
#
# It starts its servers on free ports, keeps all files in DIRECTORY (a new one), and stops the servers at its end. It needs
# `ferromq` and `python3` on the PATH, of an environment where ferromq is installed.
set -euo pipefail

day=${1:-$(mktemp -d)}
tool=${TOOL:-ferromq}
mkdir -p "$day"
if [ -n "$(ls -A "$day")" ]; then
  echo "$day has files already; name a new directory" >&2
  exit 2
fi
export FERROMQ_CONTEXTS="$day/contexts.json"
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT

at() { printf '\n--- %s\n' "$*"; }

# Start a server and return once it is ready. Its output is in DIRECTORY/NAME.log.
start() {
  local name=$1
  shift
  : >"$day/$name.log"
  "$@" >>"$day/$name.log" 2>&1 &
  local process=$!
  echo "$process" >"$day/$name.pid"
  if ! grep -q -m1 '^ready' <(tail -n +1 -f --pid="$process" "$day/$name.log"); then
    cat "$day/$name.log" >&2
    exit 1
  fi
}

# An address that a server printed: `printed broker-a "gRPC"`.
printed() { sed -n "s/^$2 *//p" "$day/$1.log" | head -n 1; }

start_broker() {
  start "$1" ferromq broker --name "$1" --store "$day/$1" --namesrv "$namesrv" --listen 127.0.0.1:0 \
    --grpc-listen 127.0.0.1:0 --metrics-listen off --flush group --set fast_listen=off \
    --set authentication_enabled=true --set authorization_enabled=true
}

by_mqadmin() { [ "$tool" = mqadmin ]; }
mqadmin() { ferromq mqadmin "$@" -n "$namesrv"; }

at "A name server and two brokers. The first user is an administrator; her key is in the environment."
FERROMQ_SECRET_KEY=$(python3 -c 'import secrets; print(secrets.token_urlsafe())')
export FERROMQ_ACCESS_KEY=ada FERROMQ_SECRET_KEY
export FERROMQ_BROKER_INITIAL_USER="ada:$FERROMQ_SECRET_KEY"
start namesrv ferromq namesrv --listen 127.0.0.1:0 --metrics-listen off
namesrv=$(printed namesrv "name server")
start_broker broker-a
start_broker broker-b
ferromq context add day --namesrv "$namesrv"
if by_mqadmin; then mqadmin clusterList; else ferromq cluster list; fi

at "A topic, and a group that tries each message twice."
if by_mqadmin; then
  mqadmin updateTopic -c DefaultCluster -t orders -r 2 -w 2
  mqadmin updateSubGroup -c DefaultCluster -g billing -r 1
else
  ferromq topic create orders --queues 2
  ferromq group create billing --retries 1 --retry-delay 1
fi

at "Orders come in. One of them is no JSON."
for number in 1 2 3 4; do printf '{"body": "{\\"order\\": %d}", "keys": ["o-%d"]}\n' "$number" "$number"; done >"$day/orders.jsonl"
echo '{"body": "two teas", "keys": ["o-5"]}' >>"$day/orders.jsonl"
ferromq send orders - --json-lines <"$day/orders.jsonl" | tee "$day/sent"

at "Billing is down: its lag shows."
ferromq group reset billing orders --to begin --yes
ferromq lag billing --queues

at "Billing is back. It bills four orders; what it fails at twice becomes a dead letter."
cat >"$day/billing.py" <<'PYTHON'
import json
import sys

import ferromq

with ferromq.connect(sys.argv[1:]) as mq, mq.consumer("billing", "orders") as consumer:
    for message in consumer.messages(until="end"):
        try:
            json.loads(message.body)
        except ValueError as error:
            if message.delivery_attempt < 2:
                consumer.change_invisible_duration(message, 1)
            else:
                consumer.forward_to_dead_letter(message, str(error))
        else:
            message.ack()
PYTHON
python3 "$day/billing.py" "$(printed broker-a gRPC)" "$(printed broker-b gRPC)"
if by_mqadmin; then mqadmin consumerProgress -g billing; else ferromq lag billing; fi

at "What became of the fifth order?"
poison=$(tail -n 1 "$day/sent")
if by_mqadmin; then mqadmin queryMsgByUniqueKey -t orders -i "$poison" -c DefaultCluster; fi
ferromq explain orders "$poison"
ferromq dlq list billing

at "The order is corrected by hand; the letter is also sent again, to a topic where people look at it."
ferromq send orders '{"order": 5}' --key o-5
if by_mqadmin; then mqadmin updateTopic -c DefaultCluster -t by-hand -r 1 -w 1; else ferromq topic create by-hand --queues 1; fi
ferromq dlq resend billing --all --topic by-hand --yes
ferromq tail by-hand

at "The auditors read the orders again: first what that means, then the move."
ferromq group create audit
ferromq group skip audit --topic orders --yes
ferromq group reset audit orders --to begin --dry-run
if by_mqadmin; then mqadmin resetOffsetByTime -g audit -t orders -s 0; else ferromq group reset audit orders --to begin --yes; fi

at "A clerk may read orders, and send none."
python3 -c 'import secrets; print(secrets.token_urlsafe())' >"$day/clerk.key"
if by_mqadmin; then
  mqadmin createUser -c DefaultCluster -u clerk -p "$(cat "$day/clerk.key")"
  mqadmin createAcl -c DefaultCluster -s User:clerk -r Topic:orders,Group:TOOLS_CONSUMER -a Sub,Get -d Allow
else
  ferromq user create clerk --secret-file "$day/clerk.key"
  ferromq acl create clerk --resource Topic:orders --resource Group:TOOLS_CONSUMER --action sub --action get
fi
export_clerk() { export FERROMQ_ACCESS_KEY=clerk FERROMQ_SECRET_KEY="$(cat "$day/clerk.key")"; }
(export_clerk && ferromq tail orders --count 1)
if (export_clerk && ferromq send orders '{"order": 6}'); then
  echo "the clerk could send" >&2
  exit 1
fi

at "An option changes while the brokers run."
if by_mqadmin; then
  mqadmin updateBrokerConfig -c DefaultCluster -k transactionCheckMax -v 20
else
  ferromq config set transactionCheckMax=20 --broker broker-a --yes
fi

at "broker-a is backed up while it runs; the backup is sound."
ferromq store backup "$day/broker-a" "$day/backup"
ferromq store verify "$day/backup"

at "broker-a is restarted: senders leave it first."
ferromq cluster drain broker-a --quiet 1s --within 10s --yes
wait "$(cat "$day/broker-a.pid")"
ferromq cluster list
ferromq send orders '{"order": 7}' --key o-7
start_broker broker-a
ferromq cluster list

at "Billing bills the rest."
python3 "$day/billing.py" "$(printed broker-a gRPC)" "$(printed broker-b gRPC)"
ferromq lag billing
at "Done. The files are in $day."
