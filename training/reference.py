#!/usr/bin/env python3
"""Both sparse architectures in plain f32, straight from a GGUF file: the reference of docs/gguf-architectures.md.

  reference.py MODEL.gguf "text"        prints the five most likely next tokens
One sequence of any length; whole masks, so long inputs need memory (T * T * heads floats a layer).
"""
import math
import sys

import torch

import gguf


class Reference:
    def __init__(self, path):
        self.m, tensors = gguf.read(path)
        self.t = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
        self.a = self.m['general.architecture']
        if self.a not in ('nsa', 'infllm'):
            raise ValueError('the reference runs nsa and infllm, not ' + self.a)

        def get(key, default=None):
            return self.m.get('%s.%s' % (self.a, key), default)
        self.layers, self.eps, self.base = get('block_count'), get('attention.layer_norm_rms_epsilon'), get('rope.freq_base')
        self.H, self.K, self.D = get('attention.head_count'), get('attention.head_count_kv'), get('attention.key_length')
        if self.a == 'nsa':
            self.l, self.d, self.block, self.n = (get(k) for k in ('compress_len', 'compress_stride', 'block', 'top_n'))
            self.window, self.init, self.local = get('window'), get('init_blocks'), get('local_blocks')
            self.compress_rope, self.scale = get('compress_rope'), 1.0
        else:
            self.l, self.d, self.block, self.n = (get(k) for k in ('kernel_size', 'kernel_stride', 'block_size', 'top_k_blocks'))
            self.window, self.init = get('local_window'), get('init_blocks')
            self.local = self.window // self.block + 1
            self.compress_rope, self.scale = 'none' if get('use_nope') else 'post', get('residual_scale')

    def weight(self, layer, name):
        return self.t['blk.%d.%s.weight' % (layer, name)]

    def rms(self, x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * w

    def rope(self, x, positions):
        half = self.D // 2
        f = self.base ** (-2.0 * torch.arange(half, dtype=torch.float32) / self.D)
        angle = positions.float()[:, None] * f[None]
        c, s = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def attention(self, q, k, v, allowed):
        """q [T, H, D]; k, v [S, K, D]; allowed [K or 1, T, S] -> output [T, H, D], probabilities [K, G, T, S]"""
        T, G = q.shape[0], self.H // self.K
        s = torch.einsum('tkgd,skd->kgts', q.reshape(T, self.K, G, self.D), k) / math.sqrt(self.D)
        p = s.masked_fill(~allowed[:, None], -1e30).softmax(-1) * allowed[:, None].any(-1, keepdim=True)
        return torch.einsum('kgts,skd->tkgd', p, v).reshape(T, self.H, self.D), p

    def pool(self, x, logits):
        """[T, K, D] -> [windows, K, D]"""
        windows = x.unfold(0, self.l, self.d)  # [n, K, D, l]
        if logits is None:
            return windows.mean(-1)
        return torch.einsum('nkdr,krd->nkd', windows, logits.softmax(1))

    def block_scores(self, P, blocks):
        """[K, T, windows] -> [K, T, blocks]"""
        a, b = self.block // self.d, self.l // self.d
        out = torch.zeros(*P.shape[:2], blocks)
        for j in range(blocks):
            for m in range(-(b - 1), a):
                i = a * j + m
                if 0 <= i < P.shape[-1]:
                    if self.a == 'infllm':
                        out[..., j] = torch.maximum(out[..., j], P[..., i])
                    else:  # number of pairs (m', n') with m' - n' = m
                        out[..., j] += P[..., i] * min(m + b, a - m, b)
        return out

    def select(self, scores, T):
        """-> flags [K, T, blocks]; equal scores: lower index first. self.margins [K, T]: by how much of its score the last
        chosen block beat the first one left out (1: nothing was left out); near 0 rounding decides."""
        blocks = scores.shape[-1]
        j, own = torch.arange(blocks)[None], (torch.arange(T) // self.block)[:, None]
        visible = j <= own
        ranked = scores.masked_fill((j < self.init) | (j > own - self.local), 1e9).masked_fill(~visible, -1.0)
        values, order = torch.sort(ranked, dim=-1, descending=True, stable=True)
        if self.n < blocks:
            last, left_out = values[..., self.n - 1], values[..., self.n].clamp(min=0)
            self.margins = torch.where(values[..., self.n] < 0, torch.ones_like(last), (last - left_out) / last.clamp(min=1e-30))
        else:
            self.margins = torch.ones(ranked.shape[:2])
        order = order[..., :min(self.n, blocks)]
        return torch.zeros_like(ranked, dtype=torch.bool).scatter_(-1, order, True) & visible

    @torch.no_grad()
    def forward(self, tokens, margins=None):
        """logits [T, vocab] and the selection of every layer, flags [K, T, blocks]; margins: a list that receives those of
        every layer, [K, T]"""
        T, H, K, D = len(tokens), self.H, self.K, self.D
        at = torch.arange(T)
        causal = at[None] <= at[:, None]
        blocks = (T + self.block - 1) // self.block
        windows = (T - self.l) // self.d + 1 if T >= self.l else 0
        visible = (torch.arange(windows) * self.d + self.l - 1)[None] <= at[:, None]
        x = self.t['token_embd.weight'][torch.as_tensor(tokens)] * self.m.get(self.a + '.embedding_scale', 1.0)
        lists = []
        for i in range(self.layers):
            y = self.rms(x, self.weight(i, 'attn_norm'))
            q = (y @ self.weight(i, 'attn_q').T).view(T, H, D)
            qr = self.rope(q, at)
            three = self.a == 'nsa' and self.m['nsa.kv_sets'] == 3
            kv = [[(y @ self.weight(i, 'attn_%s%s' % (n, '_' + s if three else '')).T).view(T, K, D) for n in 'kv']
                  for s in ('cmp', 'slc', 'win')]
            (kc, vc), (ks, vs), (kw, vw) = kv
            learned = self.a == 'nsa' and self.m['nsa.compressor'] == 'softmax'
            oc, P = torch.zeros(T, H, D), torch.zeros(K, T, 0)
            if windows:
                pooled = self.pool(self.rope(kc, at) if self.compress_rope == 'post' else kc,
                                   self.weight(i, 'attn_compress_k') if learned else None)
                if self.compress_rope == 'start':
                    pooled = self.rope(pooled, torch.arange(windows) * self.d)
                values = self.pool(vc, self.weight(i, 'attn_compress_v') if learned else None)
                oc, p = self.attention(q if self.compress_rope == 'none' else qr, pooled, values, visible[None])
                P = p.sum(1)
            flags = self.select(self.block_scores(P, blocks), T)
            lists.append(flags)
            if margins is not None:
                margins.append(self.margins)
            allowed = flags.repeat_interleave(self.block, -1)[..., :T] & causal
            o, _ = self.attention(qr, self.rope(ks, at), vs, allowed)
            if self.a == 'nsa':
                near = causal & (at[None] > at[:, None] - self.window)
                ow, _ = self.attention(qr, self.rope(kw, at), vw, near[None])
                g = y @ self.weight(i, 'attn_gate').T
                bias = self.t.get('blk.%d.attn_gate.bias' % i)
                g = torch.sigmoid(g if bias is None else g + bias).view(T, 3, H, 1)
                o = g[:, 0] * oc + g[:, 1] * o + g[:, 2] * ow
            x = x + self.scale * (o.reshape(T, -1) @ self.weight(i, 'attn_output').T)
            y = self.rms(x, self.weight(i, 'ffn_norm'))
            hidden = torch.nn.functional.silu(y @ self.weight(i, 'ffn_gate').T) * (y @ self.weight(i, 'ffn_up').T)
            x = x + self.scale * (hidden @ self.weight(i, 'ffn_down').T)
        logits = self.rms(x, self.t['output_norm.weight']) @ self.t['token_embd.weight'].T
        return logits / self.m.get(self.a + '.logit_scale', 1.0), lists


def main():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    reference = Reference(sys.argv[1])
    tokens = reference.m['tokenizer.ggml.tokens']
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)},
                                     merges=[tuple(m.split(' ')) for m in reference.m['tokenizer.ggml.merges']]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.add_special_tokens(tokens[:16])
    ids = tokenizer.encode(sys.argv[2], add_special_tokens=False).ids
    best = reference.forward(ids)[0][-1].topk(5)
    for value, token in zip(best.values.tolist(), best.indices.tolist()):
        print('%8.4f  %5d  %r' % (value, token, tokenizer.decode([token])))


if __name__ == '__main__':
    main()
