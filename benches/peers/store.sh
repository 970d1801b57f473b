#!/usr/bin/env bash
# How much faster is our store than Apache RocketMQ's, on this machine, in this hour?
#
# Runs both in turn, load by load, and prints a table of medians. Needs Java, `make jars` and 12 GB of disk.
#   ROUNDS=5 DIRECTORY=DIR LOADS="put recover read" benches/peers/store.sh
# GUARD is a command that wraps each measurement, for a shared machine. LINES keeps the single values.
set -euo pipefail
cd "$(dirname "$0")/../.."
ROUNDS=${ROUNDS:-5}
DIRECTORY=${DIRECTORY:-$(mktemp -d)}
LOADS=${LOADS:-put recover read}
# 2.06 GB of records of 1 KiB.
COUNT=${COUNT:-1800000}
GUARD=${GUARD:-}
LINES=${LINES:-$DIRECTORY/lines}
JARS=${JARS:-.cache/jars}
MEASURE=${MEASURE:-}
mkdir -p "$DIRECTORY/classes"
trap 'rm -rf "$DIRECTORY"' EXIT

if [ -z "$MEASURE" ]; then
  cargo build --release --locked --quiet --package ferromq-store --example measure
  MEASURE=${CARGO_TARGET_DIR:-target}/release/examples/measure
fi
javac -cp "$JARS/*" -d "$DIRECTORY/classes" benches/peers/java/StorePeer.java

# shellcheck disable=SC2086
ours() { $GUARD "$MEASURE" "$@" | tee -a "$LINES" >&2; }
# Its logging set-up talks on standard output.
theirs() {
  # shellcheck disable=SC2086
  $GUARD java -Duser.home="$DIRECTORY" -Xms3g -Xmx3g -cp "$JARS/*:$DIRECTORY/classes" StorePeer "$@" \
    2>>"$DIRECTORY/java.log" | { grep '^java-store' || true; } | tee -a "$LINES" >&2
}
both() { for _ in $(seq "$ROUNDS"); do "$@"; done; }

put() {
  ours put "$DIRECTORY/run" "$@"
  theirs put "$DIRECTORY/run" "$@"
}
bare_loop() { ours loop "$DIRECTORY/run" 1000000; }

# What a killed process left behind, as often as wanted: the log is never written by a recovery, so it is linked.
again() {
  rm -rf "$DIRECTORY/run"
  mkdir "$DIRECTORY/run"
  for entry in "$DIRECTORY/$1"/*; do
    case $entry in
    */commitlog) cp -al "$entry" "$DIRECTORY/run/" ;;
    *) cp -a --sparse=always "$entry" "$DIRECTORY/run/" ;;
    esac
  done
}
recover() {
  local how="checkpoint as it was"
  again "$1"
  [ "$2" = all ] && how="all walked" && rm -f "$DIRECTORY/run/checkpoint"
  sync -f "$DIRECTORY"
  "$1" recover "$DIRECTORY/run" "$COUNT" "$how"
}
recoveries() {
  for how in all checkpoint; do
    recover ours "$how"
    recover theirs "$how"
  done
}
# Closed cleanly, with everything in the index: Java drops what its checkpoint does not cover.
settle() {
  again "$1"
  rm -f "$DIRECTORY/run/checkpoint"
  "$1" settle "$DIRECTORY/run"
  mv "$DIRECTORY/run" "$DIRECTORY/$1-settled"
}
reads() {
  for who in ours theirs; do
    again "$who-settled"
    "$who" read "$DIRECTORY/run" "$COUNT"
  done
}

: >"$LINES"
for load in $LOADS; do
  case $load in
  put)
    both bare_loop
    both put 1 1024 async 700000
    both put 4 1024 async 700000
    both put 1 1024 sync 1500
    both put 64 1024 sync 40000
    ;;
  recover | read)
    [ -d "$DIRECTORY/ours" ] || ours fill "$DIRECTORY/ours" "$COUNT"
    [ -d "$DIRECTORY/theirs" ] || theirs fill "$DIRECTORY/theirs" "$COUNT"
    if [ "$load" = recover ]; then
      both recoveries
    else
      for who in ours theirs; do
        [ -d "$DIRECTORY/$who-settled" ] || settle "$who"
      done
      both reads
    fi
    ;;
  esac
done
python3 benches/peers/ratio.py <"$LINES"
