"""What kernels.py computes, in plain PyTorch with whole score matrices: for CPUs (rehearsals, tests of the kernels)."""
import torch


def mask(mode, T, TK, c, flags=None, rows=1):
    """[rows * HKV or 1, T, TK] for the modes of attention.py; flags [BH, blocks, T]"""
    q, k = torch.arange(T)[:, None], torch.arange(TK)[None]
    if mode == 0:
        return ((k <= q) & (k > q - c.w))[None]
    if mode == 1:
        return (k * c.d + c.l - 1 <= q)[None]
    if mode == 2:
        return flags.transpose(1, 2).bool().repeat_interleave(c.lb, -1) & (k <= q)
    return (k <= q)[None]


def probabilities(q, k, T, allowed):
    """[BH, G, T, TK]; rows without a key are all zero."""
    N, H, D = q.shape
    HKV, rows = k.shape[1], N // T
    qs = q.view(rows, T, HKV, H // HKV, D).permute(0, 2, 3, 1, 4).reshape(rows * HKV, H // HKV, T, D)
    ks = k.view(rows, -1, HKV, D).transpose(1, 2).reshape(rows * HKV, 1, -1, D)
    s = (qs @ ks.transpose(-1, -2)).float() * D ** -0.5
    allowed = allowed[:, None]
    return s.masked_fill(~allowed, -1e30).softmax(-1) * allowed.any(-1, keepdim=True)


def attend(q, k, v, T, mode, c, lists=None):
    N, H, D = q.shape
    HKV, rows = k.shape[1], N // T
    p = probabilities(q, k, T, mask(mode, T, k.shape[0] // rows, c, lists[0] if lists else None))
    vs = v.view(rows, -1, HKV, D).transpose(1, 2).reshape(rows * HKV, 1, -1, D)
    o = (p @ vs).view(rows, HKV, H // HKV, T, D).permute(0, 3, 1, 2, 4).reshape(N, H, D)
    return o, None


def block_scores(P, c, blocks):
    """[..., TK] group-summed probabilities -> [..., blocks]"""
    a, b = c.lb // c.d, c.l // c.d
    padded = torch.nn.functional.pad(P, (b - 1, blocks * a - P.shape[-1]))
    if c.arch == 'infllm':
        return torch.stack([padded[..., m:m + blocks * a:a] for m in range(a + b - 1)]).amax(0)
    spread = sum(padded[..., b - 1 - x:b - 1 - x + blocks * a] for x in range(b))
    return spread.view(*P.shape[:-1], blocks, a).sum(-1)


def select(q, kc, T, c, n):
    rows = q.shape[0] // T
    TK, blocks = kc.shape[0] // rows, (T + c.lb - 1) // c.lb
    P = probabilities(q, kc, T, mask(1, T, TK, c)).sum(1)
    scores = block_scores(P, c, blocks)
    j, own = torch.arange(blocks)[None], (torch.arange(T) // c.lb)[:, None]
    visible = j <= own
    scores = scores.masked_fill((j < c.n_init) | (j > own - c.n_local), 1e9).masked_fill(~visible, -1.0)
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :min(n, blocks)]  # ties: lower index
    flags = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True) & visible
    return (flags.transpose(1, 2).to(torch.uint8),)


def teacher(q, ks, positions, T, c):
    """Attention over all earlier tokens, summed per block and over the group: [rows, HKV, S, blocks]"""
    rows, HKV = q.shape[0] // T, ks.shape[1]
    p = probabilities(q, ks, T, mask(3, T, T, c)).sum(1).view(rows, HKV, T, T // c.lb, c.lb).sum(-1)
    index = positions.long()[:, None, :, None].expand(rows, HKV, positions.shape[1], T // c.lb)
    return p.gather(2, index)
