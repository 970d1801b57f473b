#!/usr/bin/env bash
# Everything that is measured side by side with others; `make bench-peers` calls it.
set -euo pipefail
cd "$(dirname "$0")"
./store.sh
./remoting.sh
./grpc.sh
./spark.sh
