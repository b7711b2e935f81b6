#!/bin/sh
# What this project's own models find and how well they guess held-out text, by the engine; as quality_run.sh, with the
# same ways to stop and go on. scripts/quality_tables.py OUT sums up what is there.
#
#   quality_own.sh OUT PROCESSES
#
# FARSIGHT, MODELS (names or files), TEXTS (folder with prose.txt and code.txt, see quality_texts.py), STEPS (of a round),
# DEPTHS, LENGTH, TOKENS and SEEDS (first and last) can be set from outside; the defaults are those of the model cards.
# `wide` is every task but needles.
set -eu
[ $# = 2 ] || { echo "usage: quality_own.sh OUT PROCESSES" >&2; exit 2; }
out=$1 processes=$2
here=$(cd "$(dirname "$0")/.." && pwd)
models=${MODELS:-$here/models/nsa-35m.gguf $here/models/infllm-32m.gguf}
texts=${TEXTS:-$out/texts}
steps=${STEPS:-needle:16384 wide needle:8192 needle:32768 needle:4096 needle:2048 needle:1024}
depths=${DEPTHS:-10}
length=${LENGTH:-8192} # of the tasks other than needles
tokens=${TOKENS:-131072} # scored for bits per byte
seeds=${SEEDS:-1 20}
hay="-f $texts/prose.txt -f $texts/code.txt"
ls "$texts/prose.txt" "$texts/code.txt" >/dev/null || { echo "run scripts/quality_texts.py $texts DATA" >&2; exit 1; }
mkdir -p "$out"

wide() { # task, name of the axis, its values, other arguments; a piece is one sample of every value
  echo "$name.$1.$seed $1 --$2 $3 --samples 1 --seed $seed -m $model $4 $hay"
}

# Bits per byte need no seeds: in the first round alone, a piece a kind of text and context.
likelihood() {
  for kind in prose code; do
    for context in 2048 8192 32768; do
      echo "$name.bpb.$kind.$context bpb -m $model -f $texts/$kind.txt -c $context --tokens $tokens"
    done
  done
}

# Rounds of `processes` seeds over all steps; a line is a result's name and its arguments.
plan() {
  seq $seeds | xargs -n "$processes" | while read -r round; do
    for step in $steps; do
      for model in $models; do
        name=$(basename "$model" .gguf)
        [ "$step" != wide ] || [ "${round%% *}" != "${seeds% *}" ] || likelihood
        for seed in $round; do
          case $step in
            needle:*)
              n=${step#*:}
              for form in question completion; do
                echo "$name.needle.$form.$n.$seed needle --form $form --lengths $n --depths $depths --samples 1" \
                  "--seed $seed -m $model $hay"
              done ;;
            wide)
              wide multikey keys 2,4,8 "--lengths $length"
              wide multineedle needles 2,4 "--lengths $length"
              wide vartrack hops 0,1,2 "--form completion --lengths $length" # as it was trained
              wide copy gaps 128,1024,$length "" ;;
          esac
        done
      done
    done
  done
}

plan | "$here/scripts/quality_pieces.sh" "$out" "$processes"
