#!/bin/bash
# The second run of the shipped models, and the dense twin, each on one GPU (several may share one).
#   continue.sh nsa|infllm DATA_DIR FIRST_DIR OUT_DIR SECONDS    from FIRST_DIR/NAME.int8: all lengths mixed, then evaluated
#   continue.sh twin DATA_DIR - OUT_DIR                          a dense model of nsa-35m's size on the first run's tokens
# Short and long rows alternate, because a model that saw only long rows at the end forgets contexts of 1K; a quarter of the
# rows has a needle at the start, which training by chance never has.
set -u
NAME=$1 DATA=$2 FIRST=$3 OUT=$4 SECONDS_OF_STEPS=${5:-0}
cd "$(dirname "$0")"
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
WORKERS=${WORKERS:-4} LIMIT=${LIMIT:-400}
MIX='[[1024,0.16],[2048,0.14],[4096,0.1],[8192,0.15],[16384,0.16],[32768,0.2],[65536,0.09]]'

if [ "$NAME" = twin ]; then
  # nsa-35m's first run by tokens; its rows of 16K and more are replaced by rows of 8K, which dense attention can afford
  python3 train.py --model draft --config '{"d_model":512,"ff":1600,"L":10,"H":8,"HKV":2}' --data "$DATA" --out "$OUT/twin" \
    --unit tokens --phases '[[18.35,512,256,0.5,"dense"],[74.71,2048,64,0.35,"dense"],[141.95,8192,16,0.45,"dense"]]' \
    --workers "$WORKERS" --resume > "$OUT/twin.txt" 2>&1
  python3 evaluate.py --weights "$OUT/twin/final.int8" --data "$DATA" --out "$OUT/twin.json" --lengths 1024:100,4096:100,8192:100 \
    --bpb 2048,8192 --limit 60 > "$OUT/twin.eval.txt" 2>&1
else
  python3 train.py --model "$NAME" --init "$FIRST/$NAME.int8" --data "$DATA" --out "$OUT/$NAME" --seed 1 --muon 0.012 --adam 0.0015 \
    --cooldown 0.7 --warm 60 --first-share 0.3 --phases "[[$SECONDS_OF_STEPS,$MIX,131072,0.5,\"sparse\"]]" \
    --workers "$WORKERS" --resume > "$OUT/$NAME.txt" 2>&1
  python3 evaluate.py --weights "$OUT/$NAME/final.int8" --full "$OUT/$NAME/last.pt" --draft "$FIRST/draft.int8" --data "$DATA" \
    --out "$OUT/$NAME.json" --starts 1024:100 --limit "$LIMIT" > "$OUT/$NAME.eval.txt" 2>&1
fi
touch "$OUT/$NAME.finished"
