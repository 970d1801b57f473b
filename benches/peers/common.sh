# What the scripts of this folder have in common: servers in the background, stopped at the end. Sourced, with DIRECTORY set.
mkdir -p "$DIRECTORY"
PIDS=()
stop() {
  for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${PIDS[@]}"; do wait "$pid" 2>/dev/null || true; done
  PIDS=()
}
trap 'stop; rm -rf "$DIRECTORY"' EXIT

# Wait until a process listens on a port.
answers() {
  for _ in $(seq 1200); do
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
    read -rt 0.1 <> <(:) || true
  done
  echo "nothing listens on port $1; see $DIRECTORY/*.log" >&2
  tail -5 "$DIRECTORY"/*.log >&2
  return 1
}
