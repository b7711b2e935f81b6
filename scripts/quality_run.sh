#!/bin/sh
# What training-free policies cost SmolLM2-135M, measured on a machine of many cores: one process a core, one thread a
# process, a result file as soon as a piece is done, the most wanted pieces first. Stop it when you like; run it again
# and it goes on with what is missing. scripts/quality_tables.py OUT sums up what is there.
#
#   quality_run.sh OUT PROCESSES
#
# FARSIGHT (the program), MODEL, TEXTS (folder of *.txt, see quality_texts.py), STEPS (of a round), TOKENS, DEPTHS and
# SEEDS (first and last) can be set from outside; the defaults are those of docs/quality.md.
#
# A program for a machine that has only a C library (2.36 or newer), with the libraries it needs lying beside it:
#
#   cmake -S . -B build/portable -G Ninja -DCMAKE_BUILD_TYPE=Release -DFARSIGHT_TESTS=OFF \
#       -DCMAKE_EXE_LINKER_FLAGS='-Wl,-rpath,$ORIGIN'
#   cmake --build build/portable --target farsight
#   cp $(ldd build/portable/bin/farsight | awk '/lib(fmt|utf8proc|uring|stdc|gcc_s)/ { print $3 }') build/portable/bin/
set -eu
[ $# = 2 ] || { echo "usage: quality_run.sh OUT PROCESSES" >&2; exit 2; }
out=$1 processes=$2
here=$(cd "$(dirname "$0")/.." && pwd)
model=${MODEL:-$here/models/smollm2-135m.gguf}
texts=${TEXTS:-$out/texts}
steps=${STEPS:-needle:7168 needle:4096 compare:6144 needle:2048 compare:3072 needle:1024}
tokens=${TOKENS:-1024} # scored after the prefix of a comparison
depths=${DEPTHS:-10}
seeds=${SEEDS:-1 32}
policies="--attention dense,sketch,infllm2 --top-k-blocks 16,24,32 --sketch-bits 1,2,4"
ls "$texts"/*.txt >/dev/null || { echo "no text in $texts: run scripts/quality_texts.py $texts" >&2; exit 1; }
mkdir -p "$out/windows"
out=$(cd "$out" && pwd)
hay=""
for f in "$texts"/*.txt; do
  hay="$hay -f $f"
  # Windows for the comparisons with dense: long enough for 7,168 tokens of any of the texts.
  [ -e "$out/windows/$(basename "$f" .txt).00" ] || split -C 40000 -d "$f" "$out/windows/$(basename "$f" .txt)."
done

# Rounds of `processes` seeds over all steps; a line is a result's name and its arguments.
plan() {
  seq $seeds | xargs -n "$processes" | while read -r round; do
    for step in $steps; do
      n=${step#*:}
      for seed in $round; do
        case $step in
          needle:*)
            echo "needle.$n.$seed needle --form question --lengths $n --depths $depths --samples 1 --seed $seed -m $model $policies$hay" ;;
          compare:*)
            window=$(ls "$out"/windows/* | awk -v n="$seed" '{ w[NR] = $0 } END { print w[(n - 1) * 7 % NR + 1] }')
            echo "compare.$n.$seed compare --prefix $n --tokens $tokens -m $model $policies -f $window" ;;
        esac
      done
    done
  done
}

plan | "$here/scripts/quality_pieces.sh" "$out" "$processes"
