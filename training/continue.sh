#!/bin/bash
# Further runs of the shipped models, and the dense twin, each on one GPU (several may share one).
#   continue.sh second nsa|infllm DATA_DIR INIT OUT_DIR SECONDS   from the first run's weights: all lengths mixed
#   continue.sh third nsa|infllm DATA_DIR INIT OUT_DIR MTOKENS    from the second's: mostly long rows, half of them with a start needle
#   continue.sh fourth nsa|infllm DATA_DIR INIT OUT_DIR SECONDS   from the third's: two thirds of the tokens in rows of 32K and 64K
#   continue.sh twin DATA_DIR OUT_DIR                             a dense model of nsa-35m's size on the first run's rows
#   continue.sh short DATA_DIR OUT_DIR                            nsa-35m on the rows of at most 8K that an earlier twin had
# INIT: a GGUF file, or a prefix of int8 parts. Short and long rows alternate, because a model that saw only long rows at
# the end forgets contexts of 1K; needles at the start are asked for by name, since by chance a row has none there. The
# fourth run asks half of them from the last quarter of the row: what fails last is the greatest distance. LENGTHS and
# STARTS are evaluate.py's: the greatest trained length first, in case the time ends.
# DRAFT: the drafter whose acceptance is measured (a GGUF file).
set -u
RUN=$1
cd "$(dirname "$0")"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
WORKERS=${WORKERS:-4} LIMIT=${LIMIT:-400} LENGTHS=${LENGTHS:-32768:200,16384:200,8192:200,65536:40,1024:200,4096:200}
STARTS=${STARTS-1024:100} DRAFT=${DRAFT:-../models/draft-5m.gguf}

if [ "$RUN" = twin ] || [ "$RUN" = short ]; then
  DATA=$2 OUT=$3
  mkdir -p "$OUT"
  if [ "$RUN" = twin ]; then
    # nsa-35m's first run by tokens, row for row; its learning rate fell over the last 157 s, which began at 182 M tokens
    SETTINGS=(--model draft --config '{"d_model":512,"ff":1600,"L":10,"H":8,"HKV":2}' --cooldown 0.225 --phases '[[18.35,512,256,0.5,"dense"],
      [74.71,2048,64,0.35,"dense"],[46.66,8192,16,0.45,"dense"],[43.65,16384,8,0.5,"dense"],[39.45,32768,4,0.6,"dense"],[12.19,65536,2,0.6,"dense"]]')
  else
    SETTINGS=(--model nsa --phases '[[18.35,512,256,0.5,"sparse"],[74.71,2048,64,0.35,"sparse"],[141.95,8192,16,0.45,"sparse"]]')
  fi
  python3 train.py "${SETTINGS[@]}" --data "$DATA" --out "$OUT/$RUN" --unit tokens --workers "$WORKERS" --resume > "$OUT/$RUN.txt" 2>&1
  python3 evaluate.py --weights "$OUT/$RUN/final.int8" --data "$DATA" --out "$OUT/$RUN.json" --lengths 8192:100 \
    --bpb 2048,8192,32768 --limit 60 > "$OUT/$RUN.eval.txt" 2>&1
  touch "$OUT/$RUN.finished"
  exit
fi
NAME=$2 DATA=$3 INIT=$4 OUT=$5 AMOUNT=$6
mkdir -p "$OUT"
if [ "$RUN" = second ]; then
  MIX='[[1024,0.16],[2048,0.14],[4096,0.1],[8192,0.15],[16384,0.16],[32768,0.2],[65536,0.09]]'
  SETTINGS=(--seed 1 --muon 0.012 --adam 0.0015 --cooldown 0.7 --first-share 0.3 --phases "[[$AMOUNT,$MIX,131072,0.5,\"sparse\"]]")
elif [ "$RUN" = third ]; then
  MIX='[[1024,0.08],[2048,0.06],[4096,0.06],[8192,0.12],[16384,0.22],[32768,0.32],[65536,0.14]]'
  SETTINGS=(--seed 2 --muon 0.008 --adam 0.001 --cooldown 0.8 --first-share 0.5 --unit tokens
            --phases "[[$AMOUNT,$MIX,131072,0.55,\"sparse\"]]")
else
  MIX='[[1024,0.06],[2048,0.05],[4096,0.05],[8192,0.07],[16384,0.13],[32768,0.36],[65536,0.28]]'
  SETTINGS=(--seed 3 --muon 0.008 --adam 0.001 --cooldown 0.8 --first-share 0.7 --far-share 0.5 --start-weight 8
            --phases "[[$AMOUNT,$MIX,131072,0.6,\"sparse\"]]")
fi
python3 train.py --model "$NAME" --init "$INIT" --data "$DATA" --out "$OUT/$NAME" "${SETTINGS[@]}" --warm 60 \
  --workers "$WORKERS" --resume > "$OUT/$NAME.txt" 2>&1
python3 evaluate.py --weights "$OUT/$NAME/final.int8" --full "$OUT/$NAME/last.pt" --draft "$DRAFT" --data "$DATA" \
  --out "$OUT/$NAME.json" --lengths "$LENGTHS" --starts "$STARTS" --limit "$LIMIT" > "$OUT/$NAME.eval.txt" 2>&1
touch "$OUT/$NAME.finished"
