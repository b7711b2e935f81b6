#!/usr/bin/env python3
"""Fails unless a GGUF file read back computes what the trained weights compute.

  verify_export.py WEIGHTS MODEL.gguf LENGTH TOLERANCE        random tokens; logits within TOLERANCE, the same block lists
"""
import sys

import torch

import checkpoint
import gguf
import model
from reference import Reference


@torch.no_grad()
def main():
    weights, path, T, tolerance = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    config, state = checkpoint.load(weights)
    net = model.Net(model.Config(**config))
    net.load_state_dict(state)
    if config['arch'] == 'draft':  # the llama convention: undo the permutation and compare the rows
        _, tensors = gguf.read(path)
        for i in range(config['L']):
            stored = torch.from_numpy(tensors['blk.%d.attn_q.weight' % i].copy())
            back = stored.view(config['H'], config['D'] // 2, 2, -1).transpose(1, 2).reshape(stored.shape)
            worst = (back - state['wq'][i]).abs().max().item()
            assert worst < tolerance, 'layer %d: rows of q differ by %g' % (i, worst)
        print(path, 'rows agree')
        return
    torch.manual_seed(5)
    tokens = torch.randint(16, config['V'], (T,))
    kept = []
    mine = net(tokens[None], keep=kept).float()
    logits, lists = Reference(path).forward(tokens.tolist())
    worst = (mine - logits).abs().max().item()
    same = [float((entry[0].transpose(1, 2).bool() == flags).all(-1).float().mean()) for entry, flags in zip(kept, lists)]
    print(path, 'largest difference of a logit %.2e, queries with equal block lists' % worst, [round(s, 4) for s in same])
    assert worst < tolerance, 'the exported model computes other logits'
    assert min(same) > 0.995, 'the exported model selects other blocks'


if __name__ == '__main__':
    main()
