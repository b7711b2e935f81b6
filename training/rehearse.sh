#!/bin/bash
# The whole path on a CPU with tiny models: data, training, an interrupted and resumed run, export, reading back, logits
# against the f32 reference, evaluation, golden files. Fails on the first thing that is wrong.
#   rehearse.sh [PYTHON]          without PYTHON: a virtual environment with the packages of requirements.txt. Debian's
#                                 python3-torch (no CUDA, small) and `tokenizers` from PyPI are enough.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${1:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q -r requirements.txt
  python=$work/venv/bin/python
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} PYTHONUNBUFFERED=1
tiny='{"V":384,"d_model":64,"ff":96,"L":2,"H":4,"HKV":2,"D":16}'
"$python" tiny_data.py "$work/data"
for name in nsa infllm draft; do
  common=(--model "$name" --config "$tiny" --data "$work/data" --out "$work/$name" --workers 1 --log 3 --warm 3)
  # 6 dense steps, killed; resumed from last.pt for 6 sparse ones
  "$python" train.py "${common[@]}" --phases '[[1000,256,2,0.8,"dense"]]' --max-steps 6 > "$work/$name.txt"
  "$python" train.py "${common[@]}" --phases '[[1000,256,2,0.8,"sparse"]]' --max-steps 12 --resume >> "$work/$name.txt"
  "$python" - "$work/$name/log.jsonl" << 'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
losses = [(line['step'], line['text']) for line in lines if 'text' in line]
assert [step for step, _ in losses] == [3, 6, 9, 12], losses
assert [line['state']['step'] for line in lines if line.get('event') == 'start'] == [0, 6], 'the second run did not resume'
assert losses[-1][1] < losses[0][1], 'the loss did not fall: %s' % losses
print(sys.argv[1].split('/')[-2], 'losses', losses)
PYTHON
  "$python" export.py "$work/$name/last.pt" "$work/data/tokenizer.json" "$work/$name.f32.gguf" "$name" --f32
  "$python" verify_export.py "$work/$name/last.pt" "$work/$name.f32.gguf" 256 1e-3
  "$python" export.py "$work/$name/final.int8" "$work/data/tokenizer.json" "$work/$name.gguf" "$name"
  "$python" verify_export.py "$work/$name/final.int8" "$work/$name.gguf" 256 1e-2
  "$python" verify_export.py "$work/$name.gguf" "$work/$name.gguf" 256 1e-2  # a file read back as weights to train on
done
# a second run from the exported numbers: two lengths in turn, counted in tokens, needles at the start
"$python" train.py --model nsa --config "$tiny" --data "$work/data" --out "$work/again" --workers 1 --log 4 --warm 3 --unit tokens \
  --init "$work/nsa.gguf" --first-share 0.3 --far-share 0.5 --start-weight 8 --phases '[[0.004096,[[128,0.5],[256,0.5]],512,0.8,"sparse"]]' > "$work/again.txt"
grep -q '"event": "done", "step": 8, "tokens": 4096' "$work/again.txt"
"$python" evaluate.py --weights "$work/nsa/final.int8" --draft "$work/draft/final.int8" --data "$work/data" --out "$work/nsa.json" \
  --lengths 256:1 --starts 256:1 --full "$work/nsa/last.pt" --bpb 256 --bpb-tokens 512 --tokens 1024 --sample-tokens 1 > "$work/evaluation.txt"
"$python" golden.py "$work/golden"
for file in golden/tiny-*.json; do
  "$python" - "$file" "$work/$file" << 'PYTHON'
import json, sys
committed, made = (json.load(open(path))['cases'] for path in sys.argv[1:3])
for a, b in zip(committed, made):
    assert a['tokens'] == b['tokens'] and a['blocks'] == b['blocks'], 'golden block lists changed'
    worst = max(abs(x - y) for p, q in zip(a['logits'], b['logits']) for x, y in zip(p, q))
    assert worst < 1e-3, 'golden logits changed by %g' % worst
PYTHON
done
"$python" read_back.py golden/tiny-nsa.gguf ../models/nsa-35m.gguf ../models/infllm-32m.gguf ../models/draft-5m.gguf
echo "rehearsal: data, training, resume, export, reference, evaluation and golden files agree"
