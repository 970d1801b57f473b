#!/usr/bin/env bash
# How much faster is our store than Apache RocketMQ's, on this machine, in this hour?
#
# Runs both in turn and prints for each load the medians and their ratio. Needs Java and `make jars`.
#   ROUNDS=5 DIRECTORY=DIR benches/peers/store.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
ROUNDS=${ROUNDS:-5}
DIRECTORY=${DIRECTORY:-$(mktemp -d)}
CACHE=.cache
trap 'rm -rf "$DIRECTORY"' EXIT

cargo build --release --locked --quiet --package ferromq-store --example measure
OURS=${CARGO_TARGET_DIR:-target}/release/examples/measure
mkdir -p "$CACHE/classes"
javac -cp "$CACHE/jars/*" -d "$CACHE/classes" benches/peers/java/StorePeer.java

ours() { "$OURS" put "$DIRECTORY/ours" "$@"; }
# Its logging set-up talks on standard output.
theirs() {
  java -Duser.home="$DIRECTORY" -Xms3g -Xmx3g -cp "$CACHE/jars/*:$CACHE/classes" StorePeer "$DIRECTORY/theirs" "$@" \
    2>>"$DIRECTORY/java.log" | grep '^java-store'
}

# threads, body, mode, count
LOADS=("1 1024 async 700000" "4 1024 async 700000" "1 1024 sync 1500" "64 1024 sync 40000")
for load in "${LOADS[@]}"; do
  for _ in $(seq "$ROUNDS"); do
    # shellcheck disable=SC2086
    ours $load
    # shellcheck disable=SC2086
    theirs $load
  done
done | tee /dev/stderr | python3 benches/peers/ratio.py
