"""Attention with its gradients, block selection and the KL loss on block scores, over the kernels of kernels.py."""
import torch
import torch.nn.functional as F

import plain

try:
    import triton

    import kernels
except ImportError:  # CPU-only installations have no Triton; plain.py serves them
    kernels = None

WINDOW, COMPRESSED, SELECTED, ALL = 0, 1, 2, 3
LOG2E = 1.4426950408889634
TILE = 32  # queries of a program
USE_KERNELS_ON_CPU = False  # set by the kernel test, with TRITON_INTERPRET=1


def on_plain(tensor):
    return not tensor.is_cuda and not USE_KERNELS_ON_CPU


def power_of_two(n):
    return 1 << (n - 1).bit_length()


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, T, mode, c, lists):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        N, H, D = q.shape
        HKV, rows = k.shape[1], N // T
        TK, blocks = k.shape[0] // rows, T // c.lb
        o, lse = torch.empty_like(q), torch.empty(N, H, device=q.device, dtype=torch.float32)
        flags, lst, cnt, lst2, cnt2 = lists or (q, q, q, q, q)  # unused pointers of the other modes
        shape = dict(H=H, HKV=HKV, D=D, BQ=TILE, BN=c.lb, MODE=mode, CL=c.l, CD=c.d)
        kernels.fwd_k[(T // TILE, rows * HKV)](q, k, v, o, lse, flags, lst, cnt, T, TK, blocks, c.w, D ** -0.5 * LOG2E,
                                               num_warps=4, num_stages=3, **shape)
        ctx.save_for_backward(q, k, v, o, lse, flags, lst, cnt, lst2, cnt2)
        ctx.shape = (T, TK, blocks, c, shape)
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    def backward(ctx, do, _):
        q, k, v, o, lse, flags, lst, cnt, lst2, cnt2 = ctx.saved_tensors
        T, TK, blocks, c, shape = ctx.shape
        do = do.contiguous()
        N, H, D = q.shape
        HKV, rows, scale = k.shape[1], N // T, D ** -0.5
        delta = (o.float() * do.float()).sum(-1)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        common = dict(num_warps=4, num_stages=2, **shape)
        kernels.dq_k[(T // TILE, rows * HKV)](q, k, v, do, lse, delta, dq, flags, lst, cnt, T, TK, blocks, c.w,
                                              scale * LOG2E, scale, **common)
        kernels.dkv_k[(triton.cdiv(TK, c.lb), rows * HKV)](q, k, v, do, lse, delta, dk, dv, flags, lst2, cnt2, T, TK, blocks,
                                                           c.w, scale * LOG2E, scale, **common)
        return dq, dk, dv, None, None, None, None


def attend(q, k, v, T, mode, c, lists=None):
    """(output [N, H, D], log2 of the normaliser [N, H]); ALL has no normaliser: nothing asks for it"""
    if on_plain(q):
        return plain.attend(q, k, v, T, mode, c, lists)
    if mode == ALL:
        return attend_all(q, k, v, T), None
    return Attend.apply(q, k, v, T, mode, c, lists)


def attend_all(q, k, v, T):
    """Plain causal attention, by the library's kernels: long dense rows are what they are made for."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # not in the PyTorch that rehearses on a CPU
    q, k, v = (x.view(-1, T, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return o.transpose(1, 2).reshape(-1, *o.shape[1::2])


@torch.no_grad()
def select(q, kc, lse, T, c, n):
    """-> flags [BH, blocks, T] u8, blocks of every query tile and their count, tiles of every block and their count"""
    if on_plain(q):
        return plain.select(q, kc, T, c, n)
    N, H, D = q.shape
    HKV, rows, device = kc.shape[1], N // T, q.device
    TK, blocks, tiles, BH = kc.shape[0] // rows, T // c.lb, T // TILE, N // T * kc.shape[1]
    scores = torch.empty(BH, T, TK, device=device, dtype=torch.float32)
    kernels.score_k[(tiles, BH)](q, kc, lse, scores, T, TK, D ** -0.5 * LOG2E, H=H, HKV=HKV, D=D, BQ=TILE, BN=c.lb, CL=c.l,
                                 CD=c.d, num_warps=4, num_stages=2)
    flags = torch.empty(BH, blocks, T, device=device, dtype=torch.uint8)
    has = torch.empty(BH, tiles, blocks, device=device, dtype=torch.uint8)

    def ints(*shape):
        return torch.empty(*shape, device=device, dtype=torch.int32)

    lst, cnt, lst2, cnt2 = ints(BH, tiles, blocks), ints(BH, tiles), ints(BH, blocks, tiles), ints(BH, blocks)
    kernels.select_k[(tiles, BH)](scores, flags, has, lst, cnt, T, TK, blocks, n, NBP=max(2, power_of_two(blocks)), BQ=TILE,
                                  CL=c.l, CD=c.d, LB=c.lb, NI=c.n_init, NL=c.n_local, MAXP=c.arch == 'infllm', num_warps=8)
    kernels.inv_k[(blocks, BH)](has, lst2, cnt2, tiles, blocks, NTP=max(2, power_of_two(tiles)), num_warps=4)
    return flags, lst, cnt, lst2, cnt2


def kl_of_block_scores(q, qc, ks, kc, positions, T, c):
    """Mean over the sampled queries of KL(teacher || block scores). The teacher is the selected branch's own attention
    over all earlier tokens, summed per block and group, without the forced blocks and weighted by the mass outside them:
    without it the hard selection gives the score keys almost no gradient and retrieval does not form."""
    N, H, D = q.shape
    HKV, G, rows, device = kc.shape[1], H // kc.shape[1], N // T, q.device
    TK, blocks, S = kc.shape[0] // rows, T // c.lb, positions.shape[1]
    with torch.no_grad():
        if on_plain(q):
            teacher = plain.teacher(q, ks, positions, T, c)
        else:
            teacher = torch.zeros(rows * HKV, S, blocks, device=device)
            kernels.teach_k[(S // TILE, rows * HKV)](q, ks, positions, teacher, T, S, blocks, D ** -0.5 * LOG2E, H=H, HKV=HKV,
                                                     D=D, BQ=TILE, BN=c.lb, num_warps=4, num_stages=3)
            teacher = teacher.view(rows, HKV, S, blocks)
        j = torch.arange(blocks, device=device)
        own = (positions // c.lb)[:, None, :, None]
        free = (j <= own) & (j >= c.n_init) & (j <= own - c.n_local)
        teacher = teacher * free
        mass = teacher.sum(-1, keepdim=True)
        target = teacher / (mass + 1e-6)
        visible = (torch.arange(TK, device=device) * c.d + c.l - 1)[None, None, None, None] <= positions[:, None, None, :, None]
    index = positions.long()[:, :, None, None].expand(rows, S, H, D)
    sampled = qc.view(rows, T, H, D).gather(1, index).view(rows, S, HKV, G, D).permute(0, 2, 3, 1, 4).reshape(rows * HKV, G * S, D)
    keys = kc.view(rows, TK, HKV, D).permute(0, 2, 3, 1).reshape(rows * HKV, D, TK)
    logits = torch.bmm(sampled, keys).view(rows, HKV, G, S, TK).float() * D ** -0.5
    P = logits.masked_fill(~visible, -1e9).softmax(-1).sum(2)  # rows without a visible window only meet forced blocks
    a, b = c.lb // c.d, c.l // c.d
    padded = F.pad(P, (b - 1, 0))
    spread = sum(padded[..., b - 1 - x:b - 1 - x + TK] for x in range(b))
    student = spread.view(rows, HKV, S, blocks, a).sum(-1) * free
    student = student / (student.sum(-1, keepdim=True) + 1e-6)
    kl = (target * ((target + 1e-6).log() - (student + 1e-6).log())).sum(-1) * mass.squeeze(-1) / G
    return kl.mean()
