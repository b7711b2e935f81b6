#!/usr/bin/env python3
"""Trains one model on one GPU (or, for rehearsals, on a CPU).

  train.py --model nsa --data DIR --out DIR --phases '[[seconds, T, rows, share of retrieval rows, "sparse"], ...]'

A phase lasts its seconds (--unit tokens: its millions of tokens); the first step of a length (compiling) is not counted.
T may be a mixture, [[T, share of the tokens], ...]; then `rows` is the tokens of a step, and every step has one length.
"dense" phases attend to everything, the block scores learn from the KL all the same. --init starts from trained weights.
last.pt is replaced every --save seconds; --resume goes on from it.
"""
import argparse
import json
import os
import time

import numpy as np
import torch

import checkpoint
import model
from feed import Feed
from optimizer import Optimizer
from retrieval import ANSWER, COPY, LIST, LOSS_WEIGHTS, NEEDLE, QUOTE, START, TEXT, VARIABLE, load_tokens

NAMED_CODES = ((NEEDLE, 'needle'), (START, 'start'), (ANSWER, 'answer'), (COPY, 'copy'), (LIST, 'list'), (QUOTE, 'quote'), (VARIABLE, 'variable'))


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument('--model', default='nsa', choices=sorted(model.PRESETS))
    p.add_argument('--data', required=True)
    p.add_argument('--out', required=True)
    p.add_argument('--phases', required=True)
    p.add_argument('--unit', default='seconds', choices=('seconds', 'tokens'))
    p.add_argument('--init', default='', help='weights to start from: a GGUF file, a prefix of int8 parts or last.pt')
    p.add_argument('--config', default='{}', help='JSON over the preset')
    p.add_argument('--kl', type=float, default=0.05, help='weight of the KL summed over layers')
    p.add_argument('--muon', type=float, default=0.02)
    p.add_argument('--adam', type=float, default=3e-3)
    p.add_argument('--decay', type=float, default=0.05)
    p.add_argument('--cooldown', type=float, default=0.35, help='last part of the time, learning rate linear to 0')
    p.add_argument('--warm', type=int, default=100)
    p.add_argument('--first-share', type=float, default=0.1, help='of the retrieval rows have a needle at their start')
    p.add_argument('--far-share', type=float, default=0.0, help='of the questions about it stand in the last quarter')
    p.add_argument('--start-weight', type=float, default=LOSS_WEIGHTS[START], help='of the loss of its digits')
    p.add_argument('--workers', type=int, default=12)
    p.add_argument('--save', type=float, default=60)
    p.add_argument('--log', type=int, default=50)
    p.add_argument('--seed', type=int, default=0)
    p.add_argument('--max-steps', type=int, default=10 ** 9)
    p.add_argument('--resume', action='store_true')
    p.add_argument('--no-compile', action='store_true')
    return p.parse_args()


class Log:
    def __init__(self, path):
        self.file = open(path, 'a', buffering=1)

    def __call__(self, **values):
        line = json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()})
        self.file.write(line + '\n')
        print(line, flush=True)


def sampled_positions(code, T):
    """Queries of the KL: those that predict answers first, the rest at random; fewer in long rows (memory)."""
    count = max(32, T // (8 if T < 16384 else 16 if T < 65536 else 32)) // 32 * 32
    preference = (code >= 2).float() * 2 + torch.rand(code.shape, device=code.device)
    return preference.topk(count, 1).indices.sort(1)[0].int()


class Meter:
    """Sums on the device, read only when a line is logged."""

    def __init__(self, layers, device):
        self.by_code = torch.zeros(len(LOSS_WEIGHTS), 3, device=device)
        self.by_length = {}
        self.kl = torch.zeros(layers, device=device)
        self.norm = torch.zeros((), device=device)
        self.reset()

    def reset(self):
        for t in (self.by_code, self.kl, self.norm, *self.by_length.values()):
            t.zero_()
        self.steps, self.tokens, self.waited, self.since = 0, 0, 0.0, time.time()

    def add(self, code, ce, right, kls, norm):
        length, code = code.shape[1], code.reshape(-1)
        if length not in self.by_length:
            self.by_length[length] = torch.zeros_like(self.by_code)
        for column, values in enumerate((torch.ones_like(ce), ce, right.float())):
            for sums in (self.by_code, self.by_length[length]):
                sums[:, column].scatter_add_(0, code, values)
        if kls is not None:
            self.kl += kls.detach()
        self.norm += norm
        self.steps += 1
        self.tokens += code.numel()

    def line(self):
        rows, seconds = self.by_code.tolist(), time.time() - self.since
        out = dict(text=rows[TEXT][1] / max(1, rows[TEXT][0]), gradient=float(self.norm) / self.steps,
                   kl=[round(v / self.steps, 3) for v in self.kl.tolist()], tokens_per_s=int(self.tokens / seconds),
                   waiting=self.waited / seconds)
        for i, name in NAMED_CODES:
            out[name] = '%.3f/%.2f' % (rows[i][2] / max(1, rows[i][0]), rows[i][1] / max(1, rows[i][0]))
        if len(self.by_length) > 1:  # accuracy of a needle digit, and of those stated at the start
            out['by_length'] = {T: '%.4f %.4f' % tuple(float(sums[i][2] / max(1, sums[i][0])) for i in (NEEDLE, START))
                                for T, sums in sorted(self.by_length.items())}
        return out


def shapes_of(T, rows):
    """[(T, rows, probability of a step)] of a phase; a mixture gives shares of the tokens, and all its steps are equal."""
    if not isinstance(T, list):
        return [(T, rows, 1.0)]
    total = sum(share for _, share in T)
    return [(length, rows // length, share / total) for length, share in T]


def main():
    a = arguments()
    os.makedirs(a.out, exist_ok=True)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    torch.manual_seed(a.seed)
    phases = json.loads(a.phases)
    budget, ends = sum(p[0] for p in phases), np.cumsum([p[0] for p in phases])
    log, path = Log(a.out + '/log.jsonl'), a.out + '/last.pt'
    tokens = load_tokens(a.data + '/train.xz')
    c = model.Config(**{**model.PRESETS[a.model], **json.loads(a.config)})
    net = model.Net(c)
    if a.init:
        net.load_state_dict(checkpoint.load(a.init)[1])
    net = net.to(device)
    optimizer = Optimizer(net, a.muon, a.adam, a.decay)
    state = dict(step=0, tokens=0, elapsed=0.0, phase=-1)
    if a.resume and os.path.exists(path):
        stored = torch.load(path, map_location=device, weights_only=False)
        net.load_state_dict(stored['model'])
        optimizer.load(stored['optimizer'])
        state = stored['state']
    if device == 'cuda' and not a.no_compile:
        model.Pieces.compile()
    weights = torch.tensor(LOSS_WEIGHTS, device=device)
    weights[START] = a.start_weight
    log(event='start', parameters=sum(p.numel() for p in net.parameters()), train_tokens=len(tokens), state=state, arguments=vars(a),
        torch=torch.__version__, device=torch.cuda.get_device_name() if device == 'cuda' else 'cpu')

    def save():
        torch.save(dict(config=c.to_dict(), model=net.state_dict(), optimizer=optimizer.state(), state=state), path + '.new')
        os.replace(path + '.new', path)  # never a half-written file

    def synchronise():
        if device == 'cuda':
            torch.cuda.synchronize()

    meter, feed, known = Meter(c.L, device), None, set()
    before = last_save = time.time()

    def progress():
        return state['elapsed'] if a.unit == 'seconds' else state['tokens'] / 1e6

    while progress() < budget and state['step'] < a.max_steps:
        phase = int(np.searchsorted(ends, progress(), side='right'))
        _, lengths, tokens_or_rows, share, mode = phases[phase]
        if phase != state['phase'] or feed is None:
            if feed:
                feed.close()
            shapes = shapes_of(lengths, tokens_or_rows)
            feed = Feed(tokens, a.data, shapes, share, a.seed * 77 + phase + 1 + state['step'], a.workers, device, a.first_share, a.far_share)
            state['phase'] = phase
            log(event='phase', phase=phase, T=lengths, rows=tokens_or_rows, mode=mode,
                **{k: state[k] for k in ('step', 'tokens', 'elapsed')})
        waiting = time.time()
        x, code = feed.get()
        meter.waited += time.time() - waiting
        x = x.long()
        rows, T = x.shape[0], x.shape[1] - 1
        is_first = (T, mode) not in known
        x, y, code = x[:, :-1].contiguous(), x[:, 1:].contiguous(), code[:, 1:].long().contiguous()
        positions = sampled_positions(code, T) if a.model != 'draft' and a.kl > 0 else None
        loss, kls, ce, best = net(x, y, weights[code], positions, dense=mode == 'dense')
        (loss + (a.kl * kls.sum() if kls is not None else 0.0)).backward()
        for p in net.parameters():
            if p.grad is None:  # gates and compressor of a dense phase
                p.grad = torch.zeros_like(p)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        left = max(0.0, 1 - progress() / budget)
        factor = min(1.0, (state['step'] + 1) / a.warm) * min(1.0, left / a.cooldown)
        optimizer.step(factor, min(0.95, 0.85 + 0.1 * state['step'] / 300))
        net.zero_grad(set_to_none=True)
        with torch.no_grad():
            meter.add(code, ce, best == y.reshape(-1), kls, norm)
        state['step'] += 1
        state['tokens'] += rows * T
        if is_first or state['step'] % 10 == 0:
            synchronise()
        if is_first:
            memory = torch.cuda.max_memory_allocated() / 1e9 if device == 'cuda' else 0.0
            log(event='first_step', T=T, seconds=time.time() - before, memory_gb=memory)
            known.add((T, mode))
            before = time.time()
            if len(known) == 1:
                meter.reset()
        now = time.time()
        state['elapsed'] += now - before
        before = now
        if meter.steps and state['step'] % a.log == 0:
            log(T=T if len(shapes) == 1 else 'mixed', rate=factor, **{k: state[k] for k in ('step', 'tokens', 'elapsed')}, **meter.line())
            meter.reset()
        if time.time() - last_save > a.save:
            save()
            last_save = before = time.time()
    save()
    checkpoint.save_int8(c.to_dict(), net.state_dict(), a.out + '/final.int8')
    if feed:
        feed.close()
    log(event='done', **{k: state[k] for k in ('step', 'tokens', 'elapsed')})


if __name__ == '__main__':
    main()
    os._exit(0)  # the row builders may be blocked on their queue
