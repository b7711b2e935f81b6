#!/bin/sh
# What drafts bring on four kinds of text: speculation_bench.sh MODEL LENGTH THREADS [FOLDER]
#
# Text that quotes itself, prose and code are cut from data/ and from this repository's sources; FOLDER adds prose.txt and
# code.txt, such as scripts/quality_texts.py makes of documents that the models never saw. The fourth kind is random
# tokens with an answer drawn at temperature 1. Plain decoding and `auto` take turns, three rounds of 400 tokens each.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 scripts/greedy_drafts.py "$work" --prompts 6 --lengths "$2"
set -- "$@" "$work"/*.quotes.*.txt "$work"/*.prose.*.txt "$work"/*.code.*.txt
model=$1 length=$2 threads=$3
shift 3
if [ -d "$1" ]; then
  folder=$1
  shift
  set -- "$@" "$folder/prose.txt" "$folder/code.txt"
fi
"$build/bin/bench_speculation" "$model" - "$threads" "$length" 400 3 auto "$@" random
