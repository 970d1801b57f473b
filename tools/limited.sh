#!/usr/bin/env bash
# Runs a program of Rust tests, and ends it when it takes longer than FERROMQ_TEST_LIMIT seconds: a test in it hangs.
limit=${FERROMQ_TEST_LIMIT:-300}
timeout "$limit" "$@"
code=$?
if [ $code -eq 124 ]; then
  echo "$(basename "$1") was ended after $limit s; 'running for over 60 seconds' above names the test that hangs" >&2
fi
exit $code
