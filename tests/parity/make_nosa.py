#!/usr/bin/env python3
"""Writes tests/parity/data/nosa: a tiny random NOSA checkpoint with a Forecast, and golden logits of some texts.

    python3 tests/parity/make_nosa.py          (needs numpy alone; the tokenizer is that of tests/parity/data/llama)

No library has this family, so its forward is written out below in double from its published formulas: a Llama whose
tokens have an importance c = A * softplus(delta . v), which is added to their scores in attention, and whose blocks are
chosen by the query up to one quota and by the mean importance of their windows up to the other. With every block chosen
and A = 0 it must equal plain attention, and with A large attention must follow it; both are checked on every run.
"""
import json
import pathlib
import shutil

import numpy as np

DATA = pathlib.Path(__file__).parent / "data"
SHAPE = dict(layers=3, hidden=48, ffn=64, heads=6, kv_heads=2, head_dim=8, vocab=280)
SPARSE = {"kernel_size": 8, "kernel_stride": 4, "init_blocks": 1, "block_size": 16, "window_size": 32, "topk": 5,
          "select_blocks": 2, "use_nope": False, "dense_len": -1}  # fmt: skip
THETA, EPS, CONTEXT = 10000.0, 1e-6, 512


def bf16(x):
    """Rounded to bf16, as f32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, t in tensors.items():
        raw = (np.ascontiguousarray(t, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def make_weights(rng):
    s, w = SHAPE, {}

    def linear(name, rows, cols, gain=1.0):
        w[name + ".weight"] = bf16(rng.standard_normal((rows, cols)) * gain / np.sqrt(cols))

    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    w["model.embed_tokens.weight"] = bf16(rng.standard_normal((s["vocab"], s["hidden"])) * 0.5)
    w["model.norm.weight"] = bf16(1 + 0.25 * rng.standard_normal(s["hidden"]))
    linear("lm_head", s["vocab"], s["hidden"], 2.0)
    for i in range(s["layers"]):
        layer = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[layer + name + ".weight"] = bf16(1 + 0.25 * rng.standard_normal(s["hidden"]))
        linear(layer + "self_attn.q_proj", q, s["hidden"], 1.5)
        linear(layer + "self_attn.k_proj", kv, s["hidden"], 1.5)
        linear(layer + "self_attn.v_proj", kv, s["hidden"])
        linear(layer + "self_attn.o_proj", s["hidden"], q)
        linear(layer + "self_attn.delta", s["kv_heads"], kv, 2.0)
        w[layer + "self_attn.A"] = bf16(rng.standard_normal(s["kv_heads"]))
        if i == 0:  # a bias is optional
            w[layer + "self_attn.delta.bias"] = bf16(rng.standard_normal(s["kv_heads"]) * 0.3)
        linear(layer + "mlp.gate_proj", s["ffn"], s["hidden"])
        linear(layer + "mlp.up_proj", s["ffn"], s["hidden"])
        linear(layer + "mlp.down_proj", s["hidden"], s["ffn"])
    return w


def make_forecast(rng):
    s, w = SHAPE, {}
    names = [f"model.layers.{i}.self_attn.q_future_proj.weight" for i in range(s["layers"])]
    for name in ["model.layers.0.self_attn.q_curr_proj.weight", *names]:  # the last one is never used
        rows = s["kv_heads"] * s["head_dim"]
        w[name] = bf16(rng.standard_normal((rows, s["hidden"])) * 1.5 / np.sqrt(s["hidden"]))
    return w


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def pick(scores, budget):
    """The budget's best, ties to the lower id."""
    order = sorted(range(len(scores)), key=lambda b: (-scores[b], b))
    return [b for b in order[:budget] if scores[b] > -np.inf]


class Chooser:
    """Block lists of one layer: k [T, Hkv, D] rotated, c [T, Hkv]."""

    def __init__(self, k, c):
        self.kernel, self.stride = SPARSE["kernel_size"], SPARSE["kernel_stride"]
        self.block, self.local = SPARSE["block_size"], SPARSE["window_size"] // SPARSE["block_size"]
        starts = range(0, len(k) - self.kernel + 1, self.stride)
        self.keys = np.array([k[i : i + self.kernel].mean(0) for i in starts])
        self.importances = np.array([c[i : i + self.kernel].mean(0) for i in starts])
        self.margin = np.inf

    def pool(self, values, p, budget, forced=()):
        """Blocks by the largest value of their windows; `values` of those that end at p or before."""
        per, own = self.block // self.stride, p // self.block
        scores = np.full(own + 1, -np.inf)
        for b in range(own + 1):
            if b < SPARSE["init_blocks"] or own <= b + self.local or b in forced:
                scores[b] = np.inf
                continue
            touching = values[max(per * b - 1, 0) : per * b + per]
            scores[b] = touching.max() if len(touching) else -np.inf
        chosen = pick(scores, budget)
        if len(scores) > budget:
            out = [scores[b] for b in range(own + 1) if b not in chosen]
            gap = min(scores[b] for b in chosen) - max(out)
            self.margin = min(self.margin, gap if gap > 0 else np.inf)  # neighbours may share their best window
        return chosen

    def blocks(self, p, head, values):
        total = SPARSE["topk"] + self.local
        by_query = self.pool(values, p, SPARSE["init_blocks"] + self.local + SPARSE["select_blocks"])
        seen = len(values)
        return self.pool(self.importances[:seen, head], p, total, forced=by_query)

    def seen(self, p):
        return 0 if p + 1 < self.kernel else (p + 1 - self.kernel) // self.stride + 1

    def of_query(self, q, p, head):  # q [G, D]
        n = self.seen(p)
        z = q @ self.keys[:n, head].T / np.sqrt(q.shape[-1])
        return self.blocks(p, head, softmax(z).sum(0) if n else np.zeros(0))

    def of_forecast(self, f, p, head):  # f [D]
        return self.blocks(p, head, self.keys[: self.seen(p), head] @ f)


def logits(weights, ids, forecast=None, choose=True):
    s, w = SHAPE, {n: t.astype(np.float64) for n, t in weights.items()}
    heads, kv, d, rows = s["heads"], s["kv_heads"], s["head_dim"], len(ids)
    group, margin = heads // kv, np.inf
    angles = np.outer(np.arange(rows), THETA ** (-np.arange(0, d, 2) / d))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w[name + ".weight"]

    def rotate(x):  # [T, heads, D]
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][ids]
    before = None
    for i in range(s["layers"]):
        layer = f"model.layers.{i}."

        def linear(name, y):
            return y @ w[layer + name + ".weight"].T

        h = norm(x, layer + "input_layernorm")
        q = rotate(linear("self_attn.q_proj", h).reshape(rows, heads, d))
        k = rotate(linear("self_attn.k_proj", h).reshape(rows, kv, d))
        v = linear("self_attn.v_proj", h)
        c = w[layer + "self_attn.A"] * np.logaddexp(0, linear("self_attn.delta", v) + w.get(layer + "self_attn.delta.bias", 0))
        v = v.reshape(rows, kv, d)
        chooser = Chooser(k, c)
        if forecast is not None:
            name = f"model.layers.{i - 1}.self_attn.q_future_proj" if i else "model.layers.0.self_attn.q_curr_proj"
            f = rotate(((before if i else h) @ forecast[name + ".weight"].astype(np.float64).T).reshape(rows, kv, d))
        before = h
        o = np.zeros((rows, heads, d))
        for p in range(rows):
            for a in range(kv):
                own = q[p, a * group : (a + 1) * group]
                if not choose:
                    tokens = np.arange(p + 1)
                else:
                    blocks = chooser.of_query(own, p, a) if forecast is None else chooser.of_forecast(f[p, a], p, a)
                    tokens = np.concatenate([np.arange(16 * b, min(16 * b + 16, p + 1)) for b in sorted(blocks)])
                z = own @ k[tokens, a].T / np.sqrt(d) + c[tokens, a]
                o[p, a * group : (a + 1) * group] = softmax(z) @ v[tokens, a]
        margin = min(margin, chooser.margin)
        x = x + linear("self_attn.o_proj", o.reshape(rows, -1))
        h = norm(x, layer + "post_attention_layernorm")
        gate = linear("mlp.gate_proj", h)
        x = x + linear("mlp.down_proj", gate / (1 + np.exp(-gate)) * linear("mlp.up_proj", h))
    return norm(x, "model.norm") @ w["lm_head.weight"].T, margin


def check_formula(weights, ids):
    """Without importances, attention to all is Llama's; a constant importance changes nothing."""
    plain = {n: np.zeros_like(t) if n.endswith(".A") else t for n, t in weights.items()}
    level = {n: np.zeros_like(t) if ".delta." in n else t for n, t in weights.items()}
    a, b = logits(plain, ids, choose=False)[0], logits(level, ids, choose=False)[0]
    assert np.abs(a - b).max() < 1e-9
    assert np.abs(a - logits(weights, ids, choose=False)[0]).max() > 1e-2


def main():
    rng = np.random.default_rng(7)
    weights, forecast = make_weights(rng), make_forecast(rng)
    out = DATA / "nosa"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DATA / "llama" / name, out / name)
    theirs = json.loads((DATA / "llama" / "golden.json").read_text())
    end = theirs["end_tokens"]
    s = SHAPE
    config = {"architectures": ["SparseLlamaForCausalLM"], "model_type": "llama", "hidden_size": s["hidden"],
              "hidden_act": "silu", "intermediate_size": s["ffn"], "num_hidden_layers": s["layers"],
              "num_attention_heads": s["heads"], "num_key_value_heads": s["kv_heads"], "vocab_size": s["vocab"],
              "rms_norm_eps": EPS, "rope_theta": THETA, "max_position_embeddings": CONTEXT, "eos_token_id": end[0],
              "tie_word_embeddings": False, "torch_dtype": "bfloat16", "sparse_config": SPARSE}  # fmt: skip
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_safetensors(out / "model.safetensors", weights, {"format": "pt"})
    settings = {"keys": "pooled", "rotated": "true", "block_size": "16", "kernel_size": "8", "kernel_stride": "4"}
    write_safetensors(out / "nosa.forecast", forecast, settings)
    check_formula(weights, theirs["cases"][1]["ids"][:40])
    golden = {"made_by": "the formula in make_nosa.py, numpy " + np.__version__, "end_tokens": end, "cases": []}
    for case, projections in [(0, None), (1, None), (1, forecast)]:
        text, ids = theirs["cases"][case]["text"], theirs["cases"][case]["ids"]
        values, margin = logits(weights, ids, projections)
        # A closer call than this could go the other way in another arithmetic.
        assert margin > 2e-6, f"two blocks score within {margin}; take another seed"
        positions = theirs["cases"][case]["positions"]
        rows = [[float(f"{v:.7g}") for v in values[p]] for p in positions]
        golden["cases"].append({"text": text, "ids": ids, "context": 0, "positions": positions, "logits": rows,
                                "forecast": projections is not None})  # fmt: skip
    text = json.dumps(golden, separators=(",", ":"))
    (out / "golden.json").write_text(text.replace('"cases":[', '"cases":[\n').replace("],[", "],\n[") + "\n")
    print(f"{sum(f.stat().st_size for f in out.iterdir())} bytes in {out}; smallest margin checked")


if __name__ == "__main__":
    main()
