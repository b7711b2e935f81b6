#!/usr/bin/env python3
"""Writes golden.json: losses of the Forecast and their gradients by PyTorch's automatic differentiation, in double.

Written from the formulas of docs/train-forecast.md, not from the C++; needs only PyTorch. All data are hashed, so the
tests make the same tensors themselves.    python3 make_golden.py > golden.json
"""
import json
import math

import torch

torch.set_default_dtype(torch.float64)
MASK = 0xFFFFFFFF


def hash01(i, s):
    x = (i * 2654435761 + s * 40503 + 12345) & MASK
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK
    x ^= x >> 15
    x = x * 0x846CA68B & MASK
    x ^= x >> 16
    return x / 2**32 - 0.5


def tensor(shape, s, scale):
    n = math.prod(shape)
    return torch.tensor([scale * hash01(i, s) for i in range(n)]).reshape(shape)


def pooled(k, kernel, stride):
    return k.unfold(0, kernel, stride).mean(-1)  # [n, Hkv, D]


def sketched(k, block, bits):
    # In single precision, as the engine stores it.
    step_of = {1: 1.5958, 2: 0.9957, 4: 0.3352}
    x = (k - k[1:block].mean(0)).to(torch.float32)
    rms = torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1])
    step = torch.tensor(step_of[bits], dtype=torch.float32) * rms
    half = 0.5 * (2**bits - 1)
    code = torch.clamp(torch.floor(x / step + half + 0.5), 0, 2**bits - 1)
    return (step * (code - half)).to(torch.float64)


def probabilities(q, keys, visible):
    z = keys[:visible] @ q / math.sqrt(q.shape[-1])
    return torch.cat([torch.softmax(z, 0), torch.zeros(len(keys) - visible)])


def block_scores(c, units, blocks):
    """Best window that touches each block."""
    per, before = c["block"] // c["stride"], c["kernel"] // c["stride"] - 1
    return [max([float(units[j]) for j in range(max(per * b - before, 0), min(per * (b + 1), len(units)))] + [0.0])
            for b in range(blocks)]


def pick(c, position, scores):
    own = position // c["block"]
    forced = [b < c["init"] or b <= own <= b + c["local"] for b in range(own + 1)]
    order = sorted(range(own + 1), key=lambda b: (not forced[b], -scores[b], b))
    return sorted(order[:c["top_k"]])


def row_loss(c, q, k, forecast, position, head):
    """q [L, Hq, D], k [L, Hkv, D], forecast [D]: loss of one row and KV head, and the teacher's list."""
    length, group = len(k), q.shape[1] // k.shape[1]
    is_pooled, fine = c["keys"] == "pooled", c["teacher"] == "fine"
    student_keys = (pooled(k, c["kernel"], c["stride"]) if is_pooled else sketched(k, c["block"], c["bits"]))[:, head]
    units = len(student_keys)
    if not is_pooled:
        visible = position + 1
    elif fine:
        visible = min(units, position // c["stride"] + 1)
    else:
        visible = min(units, max(0, (position + 1 - c["kernel"]) // c["stride"] + 1))
    if not fine:
        teacher_keys, teacher_visible = student_keys, visible
    elif is_pooled:
        teacher_keys = (k[:-1, head] + k[1:, head]) / 2
        teacher_visible = min(length - 1, position + 1)
    else:
        teacher_keys, teacher_visible = k[:, head], position + 1
    mass = sum(probabilities(q[position, head * group + g], teacher_keys, teacher_visible) for g in range(group))
    own = position // c["block"]
    if not is_pooled:
        mass = torch.stack([mass[b * c["block"]:(b + 1) * c["block"]].sum() for b in range(own + 1)])
        ids = pick(c, position, mass.tolist())
    else:
        if fine:
            s = c["stride"]
            mass = torch.stack([mass[max(s * m - 1, 0):s * m + s].max() for m in range(units)])
        ids = pick(c, position, block_scores(c, mass, own + 1))
    p = probabilities(forecast, student_keys, visible)
    t = mass / (mass.sum() + 1e-8)
    y = p / (p.sum() + 1e-8)
    free = [b for b in ids if b >= c["init"] and not max(own - c["local"], 0) <= b <= own]
    if is_pooled:
        per = c["block"] // c["stride"]
        index = [min(per * b + r, units - 1) for b in free for r in range(per)]
        of_t, of_y, slots = t[index], y[index], per * c["top_k"]
    else:
        of_t = t[free]
        of_y = torch.stack([y[b * c["block"]:(b + 1) * c["block"]].sum() for b in free]) if free else y[:0]
        slots = c["top_k"]

    def entries(v, whole):
        padded = torch.cat([v, torch.zeros(slots - len(v)), torch.clamp(whole.sum() - v.sum(), min=0).reshape(1)])
        padded = torch.clamp(padded, min=1e-8)
        return padded / padded.sum()

    u, w = entries(of_t, t), entries(of_y, y)
    return (u * torch.log(u / w)).sum(), ids


def rope(x, positions, theta):
    half = x.shape[-1] // 2
    angle = positions[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def base(**changes):
    c = {"keys": "pooled", "teacher": "fine", "block": 64, "kernel": 32, "stride": 16, "bits": 2, "init": 1, "local": 4,
         "top_k": 14, "length": 1200, "scale": 2.0, "positions": [500, 1100, 1199]}
    return {**c, **changes}


CASES = [
    base(),
    base(teacher="model"),
    base(keys="sketch"),
    base(keys="sketch", teacher="model", bits=1),
    base(keys="sketch", bits=4, local=0, top_k=4, positions=[700, 1199]),
    # The newest chosen block may end in the last window; sharp scores reach the floor of the entries.
    base(local=0, init=0, top_k=13, length=1090, scale=9.0, positions=[64, 700, 1089]),
    base(teacher="model", kernel=64, stride=32, block=128, local=1, top_k=5, positions=[900, 1199]),
]


def main():
    out = {"hash": {"k": 1, "q": 3, "forecast": 4, "hidden": 6, "weight": 7}, "cases": []}
    for c in CASES:
        k, q = tensor((c["length"], 2, 8), 1, c["scale"]), tensor((c["length"], 8, 8), 3, c["scale"])
        f = tensor((c["length"], 2, 8), 4, c["scale"])
        rows = []
        for p in c["positions"]:
            for h in range(2):
                x = f[p, h].clone().requires_grad_(True)
                loss, ids = row_loss(c, q, k, x, p, h)
                (grad,) = torch.autograd.grad(loss, x)
                rows.append({"position": p, "head": h, "loss": loss.item(), "ids": ids, "gradient": grad.tolist()})
        out["cases"].append({**c, "rows": rows})

    # The whole chain: a layer's input, a projection, RoPE, the loss; the gradient of the mean over all rows.
    c = base(length=500, top_k=5, local=1)
    where = torch.arange(500)
    k, q = rope(tensor((500, 2, 8), 1, 2), where, 100.0), rope(tensor((500, 8, 8), 3, 2), where, 100.0)
    hidden, weight = tensor((500, 6), 6, 2), tensor((16, 6), 7, 1).requires_grad_(True)
    f = rope((hidden @ weight.T).reshape(-1, 2, 8), where, 100.0)
    loss = sum(row_loss(c, q, k, f[p, h], p, h)[0] for p in range(500) for h in range(2)) / 1000
    (grad,) = torch.autograd.grad(loss, weight)
    out["chain"] = {**c, "theta": 100.0, "loss": loss.item(), "gradient": grad.flatten().tolist()}

    # Four steps of AdamW on two tensors whose gradients are clipped together.
    tensors = [tensor((5,), 31, 2).requires_grad_(True), tensor((3,), 32, 2).requires_grad_(True)]
    optimiser = torch.optim.AdamW(tensors, lr=0.1, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.01)
    norms = []
    for step in range(4):
        for i, t in enumerate(tensors):
            t.grad = tensor((len(t),), 40 + 2 * step + i, 0.2 + step)
        norms.append(float(torch.nn.utils.clip_grad_norm_(tensors, 0.5)))
        optimiser.step()
    out["adamw"] = {"norms": norms, "weights": [t.tolist() for t in tensors]}
    print(json.dumps(out, indent=1))


main()
