#!/bin/bash
# The shipped models on two GPUs: nsa on the first; infllm and the drafter on the second; then the evaluations.
#   train_all.sh DATA_DIR OUT_DIR
set -u
DATA=$1 OUT=$2
cd "$(dirname "$0")"
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4

NSA='[[20,512,256,0.5,"sparse"],[100,2048,64,0.35,"sparse"],[85,8192,16,0.45,"sparse"],[90,16384,8,0.5,"sparse"],[110,32768,4,0.6,"sparse"],[45,65536,2,0.6,"sparse"]]'
INFLLM='[[15,512,256,0.5,"dense"],[85,2048,64,0.35,"dense"],[60,8192,16,0.45,"dense"],[45,8192,16,0.45,"sparse"],[70,16384,8,0.5,"sparse"],[80,32768,4,0.6,"sparse"],[30,65536,2,0.6,"sparse"]]'
DRAFT='[[8,512,512,0.4,"dense"],[35,2048,128,0.4,"dense"],[20,8192,32,0.4,"dense"]]'

first() {
  export CUDA_VISIBLE_DEVICES=0
  python3 train.py --model nsa --data "$DATA" --out "$OUT/nsa" --phases "$NSA" --resume > "$OUT/nsa.txt" 2>&1
  while [ ! -e "$OUT/draft/final.int8.part0" ] && kill -0 "$SECOND" 2> /dev/null; do sleep 1; done
  python3 evaluate.py --weights "$OUT/nsa/final.int8" --draft "$OUT/draft/final.int8" --data "$DATA" --out "$OUT/nsa.json" \
    --limit 230 > "$OUT/nsa.eval.txt" 2>&1
}
second() {
  export CUDA_VISIBLE_DEVICES=1
  python3 train.py --model infllm --data "$DATA" --out "$OUT/infllm" --phases "$INFLLM" --resume > "$OUT/infllm.txt" 2>&1
  python3 train.py --model draft --data "$DATA" --out "$OUT/draft" --phases "$DRAFT" --resume > "$OUT/draft.txt" 2>&1
  python3 evaluate.py --weights "$OUT/infllm/final.int8" --draft "$OUT/draft/final.int8" --data "$DATA" --out "$OUT/infllm.json" \
    --limit 210 > "$OUT/infllm.eval.txt" 2>&1
  python3 evaluate.py --weights "$OUT/draft/final.int8" --data "$DATA" --out "$OUT/draft.json" --lengths 1024:100,4096:100 --bpb 2048,8192 \
    --limit 40 > "$OUT/draft.eval.txt" 2>&1
}
second &
SECOND=$!
first &
wait
touch "$OUT/finished"
