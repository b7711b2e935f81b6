"""The models: `nsa` (three gated branches), `infllm` (block-sparse attention with MiniCPM's scales) and `draft` (a dense
Llama-like drafter). docs/gguf-architectures.md states the maths; reference.py is the same in plain f32.

Tokens are flattened to [N = rows * T, ...], so all but attention is independent of T: one torch.compile serves every
phase as long as the tokens of a step stay constant.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import attention

PRESETS = {
    'nsa': dict(arch='nsa', d_model=512, ff=1408, L=10, H=8, HKV=2, n=8, w=256, n_init=1, n_local=2),
    # n: 1 initial, 5 local (the own block and 256 / 64 before it) and 8 free blocks.
    'infllm': dict(arch='infllm', d_model=512, ff=1408, L=10, H=8, HKV=2, n=14, w=256, n_init=1, n_local=5,
                   scale_emb=12.0, scale_res=1.4 / 10 ** 0.5, scale_logit=2.0),
    'draft': dict(arch='draft', d_model=256, ff=704, L=4, H=4, HKV=2),
}


class Config:
    """V vocabulary, L layers, H and HKV heads of D channels; l, d compressed windows and stride, lb block, n blocks of a
    query, w window; kv_sets 1 or 3; compressor softmax or mean; compress_rope none, post or start; gate sigmoid or
    sigmoid_bias."""
    defaults = dict(arch='nsa', V=8192, d_model=512, ff=1408, L=10, H=8, HKV=2, D=64, l=32, d=16, lb=64, n=8, w=256, n_init=1,
                    n_local=2, theta=5e5, eps=1e-5, kv_sets=3, compressor='softmax', compress_rope='none', gate='sigmoid',
                    scale_emb=1.0, scale_res=1.0, scale_logit=1.0)

    def __init__(self, **values):
        unknown = set(values) - set(self.defaults)
        if unknown:
            raise ValueError('unknown settings: %s' % ', '.join(sorted(unknown)))
        self.__dict__.update(self.defaults)
        self.__dict__.update(values)

    def to_dict(self):
        return dict(self.__dict__)


def rms(x, weight, eps):
    xf = x.float()
    return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rope(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)


def pool(k, logits, l, d):
    """[N, HKV, D] -> [N/d, HKV, D]: entry i covers tokens i*d .. i*d+l-1. The last entries of a row wrap into the next
    row, but no query sees them. logits None: plain mean."""
    count, heads, channels = k.shape
    blocks = k.view(count // d, d, heads, channels).float()
    out = 0
    if logits is None:
        mean = blocks.mean(1) * (d / l)
        for u in range(l // d):
            out = out + torch.roll(mean, -u, 0)
        return out.to(k.dtype)
    weights = logits.float().softmax(1)
    for u in range(l // d):
        part = (blocks * weights[:, u * d:(u + 1) * d].transpose(0, 1)).sum(1)
        out = out + torch.roll(part, -u, 0)
    return out.to(k.dtype)


def before_attention(x, norm, wq, wk, wv, wg, bg, ck, cv, cos, sin, c):
    """-> query of the scores, rotated query, compressed k and v, selected k and v, window k and v, gates"""
    count = x.shape[0]
    y = rms(x, norm, c.eps)
    q0 = (y @ wq.t()).view(count, c.H, c.D)
    k = (y @ wk.t()).view(count, -1, c.HKV, c.D)
    v = (y @ wv.t()).view(count, -1, c.HKV, c.D)
    q = rope(q0, cos, sin)
    raw = k[:, 0]
    key_weights, value_weights = (ck, cv) if c.arch == 'nsa' and c.compressor == 'softmax' else (None, None)
    kc = pool(rope(raw, cos, sin) if c.compress_rope == 'post' else raw, key_weights, c.l, c.d)
    if c.compress_rope == 'start':
        kc = rope(kc, cos[::c.d], sin[::c.d])
    qc = q0 if c.compress_rope == 'none' else q
    if c.arch != 'nsa':
        ks = rope(raw, cos, sin)
        return qc, q, kc, v[:, 0], ks, v[:, 0].contiguous(), ks, v[:, 0], q0
    gates = (y @ wg.t()).float()
    gates = torch.sigmoid(gates if bg is None else gates + bg).to(x.dtype).view(count, 3, c.H)
    vc = pool(v[:, 0], value_weights, c.l, c.d)
    at = (1, 2) if k.shape[1] == 3 else (0, 0)
    return (qc, q, kc, vc, rope(k[:, at[0]], cos, sin), v[:, at[0]].contiguous(), rope(k[:, at[1]], cos, sin),
            v[:, at[1]].contiguous(), gates)


def mix(compressed, selected, window, gates):
    return gates[:, 0, :, None] * compressed + gates[:, 1, :, None] * selected + gates[:, 2, :, None] * window


def after_attention(x, o, wo, norm, wi, wd, scale, eps):
    x = x + scale * (o.reshape(x.shape[0], -1) @ wo.t())
    a, b = (rms(x, norm, eps) @ wi.t()).chunk(2, -1)
    return x + scale * ((F.silu(a) * b) @ wd.t())


def loss_head(x, norm, embedding, target, weight, divisor, eps):
    logits = (rms(x, norm, eps) @ embedding.t()).float() / divisor
    lse = logits.logsumexp(-1)
    ce = lse - logits.gather(-1, target[:, None]).squeeze(-1)
    z_loss = 1e-4 * lse.pow(2).mean()  # keeps the normaliser near 1, so that bf16 logits stay in range
    return (ce * weight).sum() / weight.sum() + z_loss, ce.detach(), logits.detach().argmax(-1)


class Pieces:
    """The parts between attentions, compiled or not."""
    before, mix, after, head = before_attention, mix, after_attention, loss_head

    @classmethod
    def compile(cls):
        for name in ('before', 'mix', 'after', 'head'):
            setattr(cls, name, staticmethod(torch.compile(getattr(cls, name), dynamic=False)))


for _name in ('before', 'mix', 'after', 'head'):
    setattr(Pieces, _name, staticmethod(getattr(Pieces, _name)))


class Net(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        inner, kv = c.H * c.D, (c.kv_sets if c.arch == 'nsa' else 1) * c.HKV * c.D
        std = c.d_model ** -0.5

        def normal(*shape, std):
            return nn.Parameter(torch.randn(*shape) * std)

        def zeros(*shape):
            return nn.Parameter(torch.zeros(*shape))

        self.emb = normal(c.V, c.d_model, std=0.03)
        self.wq, self.wk, self.wv = (normal(c.L, rows, c.d_model, std=std) for rows in (inner, kv, kv))
        self.wo = zeros(c.L, c.d_model, inner)
        self.wi = normal(c.L, 2 * c.ff, c.d_model, std=std)
        self.wd = zeros(c.L, c.d_model, c.ff)
        self.nrm = nn.Parameter(torch.ones(c.L, 2, c.d_model))
        self.nf = nn.Parameter(torch.ones(c.d_model))
        if c.arch == 'nsa':
            self.wg = zeros(c.L, 3 * c.H, c.d_model)
            if c.gate == 'sigmoid_bias':
                self.bg = zeros(c.L, 3 * c.H)
            if c.compressor == 'softmax':
                self.ck, self.cv = zeros(c.L, c.HKV, c.l, c.D), zeros(c.L, c.HKV, c.l, c.D)
        self._tables = {}

    def tables(self, rows, T, device):
        if (rows, T) not in self._tables:
            angle = torch.outer(torch.arange(T, device=device).float(),
                                self.c.theta ** (-torch.arange(0, self.c.D, 2, device=device).float() / self.c.D))
            self._tables[(rows, T)] = (angle.cos().repeat(rows, 1), angle.sin().repeat(rows, 1))
        return self._tables[(rows, T)]

    def forward(self, x, y=None, weight=None, positions=None, n=None, off='', keep=None, dense=False):
        """x [rows, T]. With targets y and weights: (loss, KL of every layer or None, ce, argmax); else logits.
        positions [rows, S]: queries of the KL. off: 'selected' or 'compressed' zeroes that branch. keep: a list that
        receives the selection of every layer. dense: full attention (of the selected branch's keys)."""
        c = self.c
        rows, T = x.shape
        dtype = torch.bfloat16 if x.is_cuda else torch.float32
        cos, sin = self.tables(rows, T, x.device)
        embedding = self.emb.to(dtype)
        h = F.embedding(x.reshape(-1), embedding) * c.scale_emb
        names = ('wq', 'wk', 'wv', 'wo', 'wi', 'wd') + (('wg',) if c.arch == 'nsa' else ())
        w = {name: getattr(self, name).to(dtype).unbind(0) for name in names}
        norms = self.nrm.unbind(0)
        kls = []
        for i in range(c.L):
            small = [getattr(self, name)[i] if hasattr(self, name) else None for name in ('bg', 'ck', 'cv')]
            qc, q, kc, vc, ks, vs, kw, vw, gates = Pieces.before(
                h, norms[i][0], w['wq'][i], w['wk'][i], w['wv'][i], w['wg'][i] if 'wg' in w else None, *small, cos, sin, c)
            if c.arch == 'draft' or dense:
                o = attention.attend(q, ks, vs, T, attention.ALL, c)[0]
            else:
                if c.arch == 'nsa':
                    oc, lse = attention.attend(qc, kc, vc, T, attention.COMPRESSED, c)
                else:
                    with torch.no_grad():
                        lse = attention.attend(qc, kc, kc, T, attention.COMPRESSED, c)[1]
                lists = attention.select(qc.detach(), kc.detach(), lse, T, c, n or c.n)
                if keep is not None:
                    keep.append(lists)
                o = attention.attend(q, ks, vs, T, attention.SELECTED, c, lists)[0]
                if c.arch == 'nsa':
                    o = o * 0 if off == 'selected' else o
                    oc = oc * 0 if off == 'compressed' else oc
                    o = Pieces.mix(oc, o, attention.attend(q, kw, vw, T, attention.WINDOW, c)[0], gates)
            if positions is not None and c.arch != 'draft':
                kls.append(attention.kl_of_block_scores(q.detach(), qc, ks.detach(), kc, positions, T, c))
            h = Pieces.after(h, o, w['wo'][i], norms[i][1], w['wi'][i], w['wd'][i], c.scale_res, c.eps)
        if y is None:
            return rms(h, self.nf, c.eps) @ embedding.t() / c.scale_logit
        loss, ce, best = Pieces.head(h, self.nf, embedding, y.reshape(-1), weight.reshape(-1), c.scale_logit, c.eps)
        return loss, (torch.stack(kls) if kls else None), ce, best
