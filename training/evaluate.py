#!/usr/bin/env python3
"""Measures a model: needle grid (completion and question form), controls, bits per byte, samples, drafter acceptance.

  evaluate.py --weights PREFIX|last.pt --data DIR --out FILE.json [--draft PREFIX]

Needles use held-out words and held-out documents. Intervals are Wilson's at 95 %. The JSON is rewritten after every part,
so a run that is cut short keeps what it has measured.
"""
import argparse
import json
import math
import time

import numpy as np
import torch

import checkpoint
import model
from retrieval import Generator, Vocabulary, load_tokens

QUANTISED = ('emb', 'wq', 'wk', 'wv', 'wo', 'wi', 'wd')
DEPTHS = [0.0, 0.25, 0.5, 0.75, 0.95]
STARTS = [0, 8, 16, 24, 32, 48, 64, 128, 256]  # tokens before the statement
PROMPTS = ['The list of supported options is', 'func (s *Server) ', 'In this chapter we describe how the query planner',
           'And the LORD said unto', 'import os\n\ndef ', 'fn main() {\n    let ', 'To install the package, run',
           'The function returns', '/// Returns the number of', 'SELECT name, count(*) FROM', 'A module is a',
           'class Node:\n    def __init__(self', 'If the connection fails,', 'The following example shows how to',
           'package http\n\nimport (', '#include <vector>\n', 'In mathematics, a matrix', 'Once upon a time', 'Note that the value of',
           'use strict;\nuse warnings;\n']


def wilson(hits, n):
    z, p = 1.96, hits / n
    centre, half = (p + z * z / (2 * n)) / (1 + z * z / n), z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


def rounded_again(value):
    """The values rounded to int8 once more, in blocks shifted by half a block: an error like that of the first rounding."""
    blocks = torch.roll(value, 16, -1).reshape(-1, 32)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).half().float().clamp(min=1e-8)
    return torch.roll(((blocks / scale).round() * scale).reshape(value.shape), -16, -1)


class Evaluation:
    def __init__(self, a):
        self.device = 'cuda' if torch.cuda.is_available() else 'cpu'
        self.a, self.vocabulary = a, Vocabulary(a.data)
        self.net = self.load(a.weights)
        self.held = load_tokens(a.data + '/held_out.xz')
        self.seen = load_tokens(a.data + '/held_out_seen.xz', np.uint8)
        with open(a.data + '/data.json') as file:
            self.domains = json.load(file)['domains']
        self.result, self.started = dict(weights=a.weights, config=self.net.c.to_dict()), time.time()

    def load(self, path, again=False):
        config, state = checkpoint.load(path)
        if again:
            state = {k: rounded_again(v) if v.ndim >= 2 and v.shape[-1] % 32 == 0 and k in QUANTISED else v for k, v in state.items()}
        net = model.Net(model.Config(**config))
        net.load_state_dict(state)
        return net.to(self.device).eval()

    def keep(self, name, value):
        self.result[name] = value
        self.result['seconds'] = round(time.time() - self.started, 1)
        with open(self.a.out, 'w') as file:
            json.dump(self.result, file)
        print(name, json.dumps(value)[:1500], flush=True)

    @torch.no_grad()
    def needles(self, T, form, count, shuffled=False, depths=DEPTHS, **settings):
        """Exact match of every answer token, the model being given the right ones before it (= greedy decoding)."""
        generator = Generator(self.held, self.vocabulary, 1000 + T + len(form), held_out=True)
        out = dict(T=T, form=form, n=count, depths=depths, exact=[], interval=[], shuffled=shuffled,
                   settings={k: str(v) for k, v in settings.items()})
        batch, recall, recalled = max(1, self.a.tokens // T), 0.0, 0
        for depth in depths:
            made = [generator.needle_row(T, depth, form) for _ in range(count)]
            if shuffled:
                for row, _, size in made:
                    row[-7:] = generator.number()
            hits = 0
            for i in range(0, count, batch):
                part = made[i:i + batch]
                x = torch.from_numpy(np.stack([row for row, _, _ in part])).long().to(self.device)
                lists = [] if form == 'completion' and self.net.c.arch != 'draft' and not settings.get('dense') else None
                weight = torch.ones(len(part), T, device=self.device)
                best = self.net(x[:, :-1].contiguous(), x[:, 1:].contiguous(), weight, keep=lists, **settings)[3].view(len(part), T)
                for r, (_, _, size) in enumerate(part):
                    hits += bool((best[r, -size:] == x[r, -size:]).all())
                if lists and 0.2 < depth < 0.8:
                    blocks = torch.tensor([at // self.net.c.lb for _, at, _ in part], device=self.device)
                    flags = torch.stack([entry[0].view(len(part), self.net.c.HKV, -1, T)[torch.arange(len(part)), :, blocks, -7:]
                                         for entry in lists]).float()
                    recall = recall + flags.mean(-1).sum(1)
                    recalled += len(part)
            out['exact'].append(round(hits / count, 4))
            out['interval'].append(wilson(hits, count))
        if recalled:
            out['block_recall'] = [[round(v, 3) for v in layer] for layer in (recall / recalled).tolist()]
        return out

    @torch.no_grad()
    def bits_per_byte(self, T, kind, net=None, **settings):
        """Over the held-out documents of one kind in rows of T. `novel`: only tokens outside 13-grams seen in training."""
        spans = [(d['begin'], d['end']) for d in self.domains if d['kind'] == kind]
        stream = np.concatenate([self.held[b:e] for b, e in spans])
        seen = np.concatenate([self.seen[b:e] for b, e in spans])
        count = min(len(stream) - 1, self.a.bpb_tokens) // T
        if not count:
            return None
        starts = np.linspace(0, len(stream) - 1 - T, count).astype(int)
        sums, batch, buckets = np.zeros(4), max(1, self.a.tokens // T), {}
        for i in range(0, count, batch):
            at = starts[i:i + batch]
            x = torch.from_numpy(np.stack([stream[s:s + T + 1].astype(np.int64) for s in at])).to(self.device)
            y = x[:, 1:].contiguous()
            ce = (net or self.net)(x[:, :-1].contiguous(), y, torch.ones_like(y).float(), **settings)[2].view(y.shape).cpu().numpy()
            size = self.vocabulary.bytes_of[y.cpu().numpy()]
            novel = np.stack([seen[s + 1:s + T + 1] for s in at]) == 0
            ce = ce * (size > 0)
            sums += [ce.sum(), size.sum(), (ce * novel).sum(), (size * novel).sum()]
            edges = [0, 256, 1024, 4096, 8192, 16384, 32768]
            for low, high in zip(edges, edges[1:]):
                if low < T:
                    entry = buckets.setdefault('%d-%d' % (low, min(high, T)), np.zeros(2))
                    entry += [(ce * novel)[:, low:high].sum(), (size * novel)[:, low:high].sum()]
        return dict(T=T, kind=kind, rows=int(count), bytes=int(sums[1]), all=round(sums[0] / sums[1] / math.log(2), 4),
                    novel=round(sums[2] / sums[3] / math.log(2), 4),
                    by_position={k: round(v[0] / v[1] / math.log(2), 4) for k, v in buckets.items()},
                    **{k: str(v) for k, v in settings.items()})

    @torch.no_grad()
    def continue_text(self, prompts, count, T, temperature=0.0):
        """Token lists of prompts with `count` tokens more; whole rows again every step, no cache: short rows only."""
        torch.manual_seed(1)
        x = torch.full((len(prompts), T), 3, device=self.device)
        at = torch.tensor([len(p) for p in prompts], device=self.device)
        for i, p in enumerate(prompts):
            x[i, :len(p)] = torch.tensor(p, device=self.device)
        rows = torch.arange(len(prompts), device=self.device)
        for _ in range(count):
            logits = self.net(x).view(len(prompts), T, -1)[rows, at - 1].float()
            logits[:, 3:16] = -1e9
            x[rows, at] = torch.multinomial((logits / temperature).softmax(-1), 1).squeeze(1) if temperature else logits.argmax(-1)
            at += 1
        return x, at

    def samples(self, count, T):
        prompts = [[0] + self.vocabulary.encode(p) for p in PROMPTS]
        x, at = self.continue_text(prompts, count, T, temperature=0.8)
        return [self.vocabulary.decode(x[i, 1:at[i]]) for i in range(len(prompts))]

    @torch.no_grad()
    def acceptance(self, draft, kind, count, T, new, chain=4):
        """How far greedy drafts of `draft` agree with this model's greedy continuation of held-out text."""
        if kind == 'question':
            generator = Generator(self.held, self.vocabulary, 77, held_out=True)
            made = [generator.needle_row(T - new - 1, 0.5, 'question') for _ in range(count)]
            prompts = [row[:-size].tolist() for row, _, size in made]
        else:
            spans = [(d['begin'], d['end']) for d in self.domains if d['kind'] == kind]
            stream = np.concatenate([self.held[b:e] for b, e in spans])
            prompts = [stream[s:s + T - new].tolist() for s in np.linspace(0, len(stream) - T, count).astype(int)]
        x, at = self.continue_text(prompts, new, T)
        guess = draft(x).view(count, T, -1).argmax(-1)
        agree = torch.stack([guess[i, at[i] - new - 1:at[i] - 1] == x[i, at[i] - new:at[i]] for i in range(count)]).cpu().numpy()
        tokens = steps = 0
        for row in agree:  # one verification takes the accepted prefix of a chain and one token of the target's own
            i = 0
            while i < new:
                run = 0
                while run < chain and i + run < new and row[i + run]:
                    run += 1
                i += run + 1
                tokens += run + 1
                steps += 1
        return dict(kind=kind, prompts=count, context=T - new, tokens=int(agree.size), acceptance=round(float(agree.mean()), 4),
                    chain=chain, tokens_per_step=round(tokens / steps, 3))


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--weights', required=True)
    p.add_argument('--data', required=True)
    p.add_argument('--out', required=True)
    p.add_argument('--draft', default='')
    p.add_argument('--full', default='', help='the weights before quantisation: their bits per byte too')
    p.add_argument('--lengths', default='1024:200,4096:200,8192:200,16384:200,32768:100,65536:40', help='T:n a depth')
    p.add_argument('--again', action='store_true', help='bits per byte after one more rounding, where --full is lost')
    p.add_argument('--starts', default='', help='T:n of needles by their first token, "" for none')
    p.add_argument('--bpb', default='2048,8192,32768')
    p.add_argument('--bpb-tokens', type=int, default=1 << 20)
    p.add_argument('--tokens', type=int, default=131072, help='tokens of a forward pass')
    p.add_argument('--sample-tokens', type=int, default=96)
    p.add_argument('--limit', type=float, default=1e9, help='seconds after which no further part is started')
    a = p.parse_args()
    e = Evaluation(a)
    lengths, starts = ([tuple(int(v) for v in part.split(':')) for part in text.split(',') if part] for text in (a.lengths, a.starts))
    arch = e.net.c.arch
    parts = []
    for kind in ('prose', 'code'):
        for T in (int(v) for v in a.bpb.split(',') if v):
            parts.append(('bpb %s %d' % (kind, T), lambda T=T, kind=kind: e.bits_per_byte(T, kind)))
            if arch == 'infllm':
                parts.append(('bpb dense %s %d' % (kind, T), lambda T=T, kind=kind: e.bits_per_byte(T, kind, dense=True)))
    for T, n in lengths:
        for form in ('completion', 'question'):
            parts.append(('needle %s %d' % (form, T), lambda T=T, n=n, form=form: e.needles(T, form, n)))
    for T, n in starts:
        for form in ('completion', 'question'):
            parts.append(('start %s %d' % (form, T), lambda T=T, n=n, form=form: e.needles(T, form, n, depths=STARTS)))
    if a.full or a.again:
        full, label = (e.load(a.full), 'unquantised') if a.full else (e.load(a.weights, again=True), 'rounded again')
        for kind in ('prose', 'code'):
            for T in [int(v) for v in a.bpb.split(',') if v][:2]:
                parts.append(('%s %s %d' % (label, kind, T), lambda T=T, kind=kind: e.bits_per_byte(T, kind, full)))
    longest = sorted(T for T, _ in lengths if T <= 16384)[-2:]
    if arch in ('nsa', 'infllm'):
        for T in longest:
            n = min(40, dict(lengths)[T])
            parts.append(('control shuffled %d' % T, lambda T=T, n=n: e.needles(T, 'completion', n, shuffled=True)))
            if arch == 'nsa':
                parts.append(('control selected off %d' % T, lambda T=T, n=n: e.needles(T, 'completion', n, off='selected')))
                parts.append(('control compressed off %d' % T, lambda T=T, n=n: e.needles(T, 'completion', n, off='compressed')))
            else:
                parts.append(('control forced blocks only %d' % T,
                              lambda T=T, n=n: e.needles(T, 'completion', n, n=e.net.c.n_init + e.net.c.n_local)))
                parts.append(('dense %d' % T, lambda T=T, n=n: e.needles(T, 'completion', n, dense=True)))
            parts.append(('n 16 %d' % T, lambda T=T, n=n: e.needles(T, 'completion', n, n=16)))
    sample_T = 64 * math.ceil((a.sample_tokens + 40) / 64)
    parts.append(('samples', lambda: e.samples(a.sample_tokens, sample_T)))
    if a.draft:
        draft = e.load(a.draft)
        for kind in ('prose', 'code', 'question'):
            parts.append(('draft ' + kind, lambda kind=kind: e.acceptance(
                draft, kind, min(128, a.tokens // 512), 512, min(96, a.sample_tokens))))
    for name, part in parts:
        if time.time() - e.started > a.limit:
            print('time limit: not measured', name, flush=True)
            continue
        value = part()
        if value is not None:
            e.keep(name, value)


if __name__ == '__main__':
    main()
