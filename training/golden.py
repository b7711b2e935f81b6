#!/usr/bin/env python3
"""Golden files of the engine's parity tests, all from reference.py in f32.   golden.py OUT_DIR [REAL_MODEL.gguf... HELD_OUT.xz]

tiny-*.gguf: random models of 2 layers with small constants, one for every option, F32, with a tiny tokenizer.
tiny-*.json: per length the tokens, logits of chosen positions, and every layer's block lists of chosen positions.
NAME.json (real model): per length the tokens; at eight positions the five largest logits, the block lists, and by how
much the last block of each list was chosen.
"""
import json
import lzma
import os
import sys
import tempfile

import numpy as np
import torch

import export
import model
import tiny_data
from reference import Reference

SMALL = dict(V=384, d_model=64, ff=96, L=2, H=4, HKV=2, D=16, l=8, d=4, lb=16, n=5, w=32, theta=10000.0)
VARIANTS = {
    'nsa': dict(arch='nsa'),
    'nsa-shared': dict(arch='nsa', kv_sets=1, compressor='mean', compress_rope='post'),
    'nsa-start-bias': dict(arch='nsa', compress_rope='start', gate='sigmoid_bias'),
    'infllm': dict(arch='infllm', n=7, n_local=3, w=32, scale_emb=12.0, scale_res=1.4 / 2 ** 0.5, scale_logit=2.0),
    'infllm-roped': dict(arch='infllm', n=7, n_local=3, w=32, scale_emb=12.0, scale_res=1.4 / 2 ** 0.5, scale_logit=2.0,
                         compress_rope='post'),
}
LENGTHS = (5, 40, 200, 700)
REAL_LENGTHS = (64, 2048, 8192)


def random_state(config, seed):
    torch.manual_seed(seed)
    state = model.Net(config).state_dict()
    for name, value in state.items():
        if name in ('nrm', 'nf'):
            state[name] = 1 + 0.1 * torch.randn_like(value)
        elif name == 'emb':
            state[name] = 0.3 * torch.randn_like(value)
        else:  # sharp enough for scores that differ clearly between blocks
            state[name] = torch.randn_like(value) * (1.0 if name in ('ck', 'cv', 'bg') else 1.6 * value.shape[-1] ** -0.5)
    return state


def chosen_positions(T):
    return sorted({p for p in (0, 6, 7, 15, 16, T // 3, T // 2, T - 2, T - 1) if 0 <= p < T})


def block_lists(flags, positions):
    return [[[torch.nonzero(layer[head, p]).flatten().tolist() for head in range(layer.shape[0])] for p in positions] for layer in flags]


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    folder = tempfile.mkdtemp()
    tiny_data.write(folder, SMALL['V'])
    tokenizer = folder + '/tokenizer.json'
    for index, (name, values) in enumerate(VARIANTS.items()):
        config = model.Config(**{**SMALL, **values})
        path = '%s/tiny-%s.gguf' % (out, name)
        export.export(config.to_dict(), random_state(config, 11 + index), tokenizer, path, 'tiny-' + name, context=2048, f32=True)
        reference, cases = Reference(path), []
        for T in LENGTHS:
            tokens = np.random.default_rng(T).integers(0, config.V, T).tolist()
            logits, flags = reference.forward(tokens)
            positions = chosen_positions(T)[-5:]
            cases.append(dict(tokens=tokens, positions=positions, logits=[[round(v, 5) for v in logits[p].tolist()] for p in positions],
                              blocks=block_lists(flags, positions)))
        with open('%s/tiny-%s.json' % (out, name), 'w') as file:
            json.dump(dict(model='tiny-%s.gguf' % name, cases=cases), file, separators=(',', ':'))
    if len(sys.argv) > 3:
        with lzma.open(sys.argv[-1]) as file:
            stream = np.frombuffer(file.read(), np.uint16)
        for path in sys.argv[2:-1]:
            real_model(path, stream, out)


def real_model(path, stream, out):
    reference, cases = Reference(path), []
    for T in REAL_LENGTHS:
        tokens = [int(t) for t in stream[100_000:100_000 + T]]
        margins = []
        logits, flags = reference.forward(tokens, margins)
        positions = list(range(T // 8 - 1, T, T // 8))
        best = [logits[p].topk(5) for p in positions]
        cases.append(dict(tokens=tokens, positions=positions, top=[b.indices.tolist() for b in best],
                          logits=[[round(v, 4) for v in b.values.tolist()] for b in best], blocks=block_lists(flags, positions),
                          margins=[[[round(v, 6) for v in layer[:, p].tolist()] for p in positions] for layer in margins]))
        print(path, T, flush=True)
    with open('%s/%s' % (out, os.path.basename(path).replace('.gguf', '.json')), 'w') as file:
        json.dump(dict(model=os.path.basename(path), cases=cases), file, separators=(',', ':'))


if __name__ == '__main__':
    main()
