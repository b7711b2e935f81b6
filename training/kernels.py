"""Triton kernels of the trainer: one attention family with three masks, block scores, selection, and the teacher of the
block scores. All token tensors are flattened to [N = sequences * T, heads, channels].

A program handles a tile of BQ queries of one KV head with all G query heads of its group: BQ * G rows of one product.
Keys come in pieces of BN (= the selection block). With TRITON_INTERPRET=1 the same kernels run on a CPU, slowly.

Masks (MODE): 0 sliding window, 1 compressed windows, 2 selected blocks.
Names: CL, CD window length and stride of the compressed keys; SL selection flags [BH, block, query]; LST, CNT blocks of
a query tile; LST2, CNT2 the inverse, query tiles of a block; sc2 the score scale times log2(e).
"""

import triton
import triton.language as tl


@triton.jit
def _mask(qi, kk, sv, W, TK, MODE: tl.constexpr, CL: tl.constexpr, CD: tl.constexpr):
    # qi, kk broadcastable index tensors; sv = selection flag of the query for this block
    if MODE == 0:
        ok = (kk <= qi) & (kk > qi - W)
    elif MODE == 1:
        ok = (kk * CD + (CL - 1) <= qi) & (kk < TK)
    else:
        ok = (kk <= qi) & (sv != 0)
    return ok


@triton.jit
def _qrange(
    tile, W, CNT, bhnt, MODE: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr, CL: tl.constexpr, CD: tl.constexpr
):
    q0 = tile * BQ
    qe = q0 + BQ - 1
    lo = 0
    if MODE == 0:
        lo = tl.maximum(q0 - W + 1, 0) // BN
        hi = qe // BN + 1
    elif MODE == 1:
        nv = tl.maximum(qe - (CL - 1) + CD, 0) // CD
        hi = (nv + BN - 1) // BN
    else:
        hi = tl.load(CNT + bhnt)
    return lo, hi


@triton.jit
def fwd_k(
    Q,
    K,
    V,
    O,
    LSE,
    SL,
    LST,
    CNT,
    T,
    TK,
    NB,
    W,
    sc2,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    BQ: tl.constexpr,
    BN: tl.constexpr,
    MODE: tl.constexpr,
    CL: tl.constexpr,
    CD: tl.constexpr,
):
    G: tl.constexpr = H // HKV
    BM: tl.constexpr = BQ * G
    nt = tl.num_programs(0)
    tile = nt - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // HKV
    h = bh % HKV
    r = tl.arange(0, BM)
    d = tl.arange(0, D)
    qi = tile * BQ + r // G
    row = ((b * T + qi) * H + h * G + r % G).to(tl.int64)
    q = tl.load(Q + row[:, None] * D + d[None, :])
    m = tl.full([BM], -1e30, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    lo, hi = _qrange(tile, W, CNT, bh * nt + tile, MODE, BQ, BN, CL, CD)
    for i in range(lo, hi):
        j = i
        sv = qi
        if MODE == 2:
            j = tl.load(LST + (bh * nt + tile) * NB + i)
            sv = tl.load(SL + (bh * NB + j) * T + qi).to(tl.int32)
        kk = j * BN + tl.arange(0, BN)
        off = ((b * TK + kk) * HKV + h).to(tl.int64)
        k = tl.load(K + off[:, None] * D + d[None, :], mask=(kk < TK)[:, None], other=0.0)
        v = tl.load(V + off[:, None] * D + d[None, :], mask=(kk < TK)[:, None], other=0.0)
        ok = _mask(qi[:, None], kk[None, :], sv[:, None], W, TK, MODE, CL, CD)
        s = tl.where(ok, tl.dot(q, tl.trans(k)) * sc2, -1e30)
        mn = tl.maximum(m, tl.max(s, 1))
        p = tl.where(ok, tl.exp2(s - mn[:, None]), 0.0)
        a = tl.exp2(m - mn)
        l = l * a + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * a[:, None])
        m = mn
    tl.store(LSE + row, tl.where(l > 0, m + tl.log2(l), 1e30))
    tl.store(O + row[:, None] * D + d[None, :], (acc / tl.where(l > 0, l, 1.0)[:, None]).to(O.dtype.element_ty))


@triton.jit
def dq_k(
    Q,
    K,
    V,
    DO,
    LSE,
    DL,
    DQ,
    SL,
    LST,
    CNT,
    T,
    TK,
    NB,
    W,
    sc2,
    sc,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    BQ: tl.constexpr,
    BN: tl.constexpr,
    MODE: tl.constexpr,
    CL: tl.constexpr,
    CD: tl.constexpr,
):
    G: tl.constexpr = H // HKV
    BM: tl.constexpr = BQ * G
    nt = tl.num_programs(0)
    tile = nt - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // HKV
    h = bh % HKV
    r = tl.arange(0, BM)
    d = tl.arange(0, D)
    qi = tile * BQ + r // G
    row = ((b * T + qi) * H + h * G + r % G).to(tl.int64)
    q = tl.load(Q + row[:, None] * D + d[None, :])
    do = tl.load(DO + row[:, None] * D + d[None, :])
    lse = tl.load(LSE + row)
    dl = tl.load(DL + row)
    dq = tl.zeros([BM, D], tl.float32)
    lo, hi = _qrange(tile, W, CNT, bh * nt + tile, MODE, BQ, BN, CL, CD)
    for i in range(lo, hi):
        j = i
        sv = qi
        if MODE == 2:
            j = tl.load(LST + (bh * nt + tile) * NB + i)
            sv = tl.load(SL + (bh * NB + j) * T + qi).to(tl.int32)
        kk = j * BN + tl.arange(0, BN)
        off = ((b * TK + kk) * HKV + h).to(tl.int64)
        k = tl.load(K + off[:, None] * D + d[None, :], mask=(kk < TK)[:, None], other=0.0)
        v = tl.load(V + off[:, None] * D + d[None, :], mask=(kk < TK)[:, None], other=0.0)
        ok = _mask(qi[:, None], kk[None, :], sv[:, None], W, TK, MODE, CL, CD)
        p = tl.where(ok, tl.exp2(tl.dot(q, tl.trans(k)) * sc2 - lse[:, None]), 0.0)
        ds = p * (tl.dot(do, tl.trans(v)) - dl[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    tl.store(DQ + row[:, None] * D + d[None, :], (dq * sc).to(DQ.dtype.element_ty))


@triton.jit
def dkv_k(
    Q,
    K,
    V,
    DO,
    LSE,
    DL,
    DK,
    DV,
    SL,
    LST2,
    CNT2,
    T,
    TK,
    NB,
    W,
    sc2,
    sc,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    BQ: tl.constexpr,
    BN: tl.constexpr,
    MODE: tl.constexpr,
    CL: tl.constexpr,
    CD: tl.constexpr,
):
    G: tl.constexpr = H // HKV
    BM: tl.constexpr = BQ * G
    j = tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // HKV
    h = bh % HKV
    nt = T // BQ
    r = tl.arange(0, BM)
    d = tl.arange(0, D)
    kk = j * BN + tl.arange(0, BN)
    off = ((b * TK + kk) * HKV + h).to(tl.int64)
    k = tl.load(K + off[:, None] * D + d[None, :], mask=(kk < TK)[:, None], other=0.0)
    v = tl.load(V + off[:, None] * D + d[None, :], mask=(kk < TK)[:, None], other=0.0)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    lo = 0
    hi = nt
    if MODE == 0:
        lo = (j * BN) // BQ
        hi = tl.minimum((j * BN + BN + W - 2) // BQ + 1, nt)
    elif MODE == 1:
        lo = (j * BN * CD + CL - 1) // BQ
    else:
        hi = tl.load(CNT2 + bh * NB + j)
    for i in range(lo, hi):
        t = i
        if MODE == 2:
            t = tl.load(LST2 + (bh * NB + j) * nt + i)
        qi = t * BQ + r // G
        sv = qi
        if MODE == 2:
            sv = tl.load(SL + (bh * NB + j) * T + qi).to(tl.int32)
        row = ((b * T + qi) * H + h * G + r % G).to(tl.int64)
        q = tl.load(Q + row[:, None] * D + d[None, :])
        do = tl.load(DO + row[:, None] * D + d[None, :])
        lse = tl.load(LSE + row)
        dl = tl.load(DL + row)
        ok = _mask(qi[None, :], kk[:, None], sv[None, :], W, TK, MODE, CL, CD)
        p = tl.where(ok, tl.exp2(tl.dot(k, tl.trans(q)) * sc2 - lse[None, :]), 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv)
        ds = p * (tl.dot(v, tl.trans(do)) - dl[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    tl.store(DK + off[:, None] * D + d[None, :], (dk * sc).to(DK.dtype.element_ty), mask=(kk < TK)[:, None])
    tl.store(DV + off[:, None] * D + d[None, :], dv.to(DV.dtype.element_ty), mask=(kk < TK)[:, None])


@triton.jit
def score_k(
    Q,
    K,
    LSE,
    P,
    T,
    TK,
    sc2,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    BQ: tl.constexpr,
    BN: tl.constexpr,
    CL: tl.constexpr,
    CD: tl.constexpr,
):
    # P[bh, q, c] = sum over the group of softmax over compressed keys (only visible chunks are written)
    G: tl.constexpr = H // HKV
    BM: tl.constexpr = BQ * G
    nt = tl.num_programs(0)
    tile = nt - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // HKV
    h = bh % HKV
    r = tl.arange(0, BM)
    d = tl.arange(0, D)
    qi = tile * BQ + r // G
    q2 = tile * BQ + tl.arange(0, BQ)
    row = ((b * T + qi) * H + h * G + r % G).to(tl.int64)
    q = tl.load(Q + row[:, None] * D + d[None, :])
    lse = tl.load(LSE + row)
    lo, hi = _qrange(tile, 0, P, 0, 1, BQ, BN, CL, CD)
    for i in range(lo, hi):
        kk = i * BN + tl.arange(0, BN)
        off = ((b * TK + kk) * HKV + h).to(tl.int64)
        k = tl.load(K + off[:, None] * D + d[None, :], mask=(kk < TK)[:, None], other=0.0)
        ok = _mask(qi[:, None], kk[None, :], qi[:, None], 0, TK, 1, CL, CD)
        p = tl.where(ok, tl.exp2(tl.dot(q, tl.trans(k)) * sc2 - lse[:, None]), 0.0)
        ps = tl.sum(tl.reshape(p, [BQ, G, BN]), 1)
        tl.store(P + ((bh * T + q2).to(tl.int64) * TK)[:, None] + kk[None, :], ps, mask=(kk < TK)[None, :])


@triton.jit
def select_k(
    P,
    SL,
    HAS,
    LST,
    CNT,
    T,
    TK,
    NB,
    n,
    NBP: tl.constexpr,
    BQ: tl.constexpr,
    CL: tl.constexpr,
    CD: tl.constexpr,
    LB: tl.constexpr,
    NI: tl.constexpr,
    NL: tl.constexpr,
    MAXP: tl.constexpr,
):
    nt = tl.num_programs(0)
    tile = tl.program_id(0)
    bh = tl.program_id(1)
    qi = (tile * BQ + tl.arange(0, BQ))[:, None]
    col = tl.arange(0, NBP)[None, :]
    bq = qi // LB
    base = P + (bh * T + qi).to(tl.int64) * TK
    sc = tl.zeros([BQ, NBP], tl.float32)
    for m in tl.static_range(-(CL // CD - 1), LB // CD):  # c = a*j + m with weight = number of (m', n') pairs
        c = col * (LB // CD) + m
        x = tl.load(base + c, mask=(c >= 0) & (c < TK) & (c * CD + (CL - 1) <= qi) & (col < NB), other=0.0)
        if MAXP:
            sc = tl.maximum(sc, x)
        else:
            sc += x * min(min(m + CL // CD, LB // CD - m), CL // CD)
    vis = (col <= bq) & (col < NB)
    sc = tl.where((col < NI) | (col > bq - NL), 1e9, sc)
    sc = tl.where(vis, sc, -1.0)
    sel = tl.zeros([BQ, NBP], tl.int32)
    for i in range(n):
        mx = tl.max(sc, 1)
        ix = tl.argmax(sc, 1)
        hit = (col == ix[:, None]) & (mx >= 0)[:, None]
        sel = tl.where(hit, 1, sel)
        sc = tl.where(hit, -1.0, sc)
    tl.store(SL + (bh * NB + col) * T + qi, sel.to(tl.uint8), mask=col < NB)
    c1 = tl.arange(0, NBP)
    has = tl.max(sel, 0)
    pos = tl.cumsum(has, 0) - 1
    hb = (bh * nt + tile) * NB
    tl.store(HAS + hb + c1, has.to(tl.uint8), mask=c1 < NB)
    tl.store(LST + hb + pos, c1, mask=(has > 0) & (c1 < NB))
    tl.store(CNT + bh * nt + tile, tl.sum(has, 0))


@triton.jit
def inv_k(HAS, LST2, CNT2, nt, NB, NTP: tl.constexpr):
    j = tl.program_id(0)
    bh = tl.program_id(1)
    t = tl.arange(0, NTP)
    has = tl.load(HAS + (bh * nt + t) * NB + j, mask=t < nt, other=0).to(tl.int32)
    pos = tl.cumsum(has, 0) - 1
    tl.store(LST2 + (bh * NB + j) * nt + pos, t, mask=has > 0)
    tl.store(CNT2 + bh * NB + j, tl.sum(has, 0))


@triton.jit
def teach_k(
    Q,
    K,
    POS,
    TM,
    T,
    S,
    NB,
    sc2,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    BQ: tl.constexpr,
    BN: tl.constexpr,
):
    # TM[bh, s, block] = full causal attention mass of query POS[b, s] per block, summed over the group
    G: tl.constexpr = H // HKV
    BM: tl.constexpr = BQ * G
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // HKV
    h = bh % HKV
    r = tl.arange(0, BM)
    d = tl.arange(0, D)
    s1 = tile * BQ + tl.arange(0, BQ)
    qi = tl.load(POS + b * S + tile * BQ + r // G)
    row = ((b * T + qi) * H + h * G + r % G).to(tl.int64)
    q = tl.load(Q + row[:, None] * D + d[None, :])
    hi = tl.max(qi, 0) // BN + 1
    m = tl.full([BM], -1e30, tl.float32)
    l = tl.zeros([BM], tl.float32)
    for i in range(0, hi):
        kk = i * BN + tl.arange(0, BN)
        off = ((b * T + kk) * HKV + h).to(tl.int64)
        k = tl.load(K + off[:, None] * D + d[None, :])
        ok = kk[None, :] <= qi[:, None]
        s = tl.where(ok, tl.dot(q, tl.trans(k)) * sc2, -1e30)
        mn = tl.maximum(m, tl.max(s, 1))
        l = l * tl.exp2(m - mn) + tl.sum(tl.where(ok, tl.exp2(s - mn[:, None]), 0.0), 1)
        m = mn
    lse = m + tl.log2(l)
    for i in range(0, hi):
        kk = i * BN + tl.arange(0, BN)
        off = ((b * T + kk) * HKV + h).to(tl.int64)
        k = tl.load(K + off[:, None] * D + d[None, :])
        ok = kk[None, :] <= qi[:, None]
        p = tl.sum(tl.where(ok, tl.exp2(tl.dot(q, tl.trans(k)) * sc2 - lse[:, None]), 0.0), 1)
        tl.store(TM + (bh * S + s1).to(tl.int64) * NB + i, tl.sum(tl.reshape(p, [BQ, G]), 1))
