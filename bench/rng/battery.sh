#!/bin/sh
# The dieharder battery over one kind of stream (stream.cpp), each test from the stream's start:
#   bench/rng/battery.sh KIND fast|philox SEED ["TEST OPTIONS" ...]
# Prints one line per p-value: kind, rng, seed, then dieharder's test | ntup | tsamples | psamples | p
# | assessment; a comment line per test says how many bytes the generator wrote.
set -eu
kind=$1 rng=$2 seed=$3
shift 3
stream=${RNG_STREAM:-build/rng_stream}
[ $# -gt 0 ] || set -- "-d 0" "-d 1" "-d 2 -p 30" "-d 4" "-d 8" "-d 9" "-d 11" "-d 12" "-d 15" "-d 16" \
  "-d 100" "-d 101 -p 30" "-d 102 -p 30" "-d 200 -n 2" "-d 201 -n 2" "-d 202 -n 5" "-d 203 -n 1" \
  "-d 204" "-d 205" "-d 206" "-d 207" "-d 209"
count=$(mktemp)
trap 'rm -f "$count"' EXIT
for test in "$@"; do
  # shellcheck disable=SC2086  # a test is several words
  "$stream" "$kind" "$rng" "$seed" 2>"$count" | dieharder -g 200 $test 2>/dev/null |
    sed -n "/PASSED\|WEAK\|FAILED/s/^/$kind $rng $seed | /p"
  echo "# $test: $(cat "$count")"
done
