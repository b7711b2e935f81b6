#!/usr/bin/env python3
"""Writes tests/parity/data: tiny random checkpoints of every family, and golden logits of some texts.

    pip install -r tests/parity/requirements.txt
    tests/parity/make_checkpoints.py [OUT]

Llama, Qwen2 and Qwen3 logits come from transformers, loaded from the written files as a user would load them, and their
token ids from the written tokenizer.json. transformers has no MiniCPM4, so that family's forward is written out below in
plain PyTorch from its published formulas; with its scales set to one it must equal the Llama of transformers with
LongRoPE, which is checked on every run.

Every directory holds config.json, tokenizer.json, tokenizer_config.json, the weights (one file or shards with an index)
and golden.json: texts, their ids, some positions of each and the logits there, computed in f64 where the reference
lets it (transformers rotates, normalises and takes softmax in f32).
"""
import json
import math
import pathlib
import shutil
import sys

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from torch.nn import functional as F

SHORT = "Hello, world! It's 2026."
LONG = (
    "The engine reads a long text and answers. In the beginning there was a small file of 1,024 tokens; "
    "then it grew, and grew again, until 65,536 of them lay in blocks of sixty-four. "
    "Nobody reads all of it twice: caf\u00e9 na\u00efve \u2014 \u03b1\u03b2\u03b3 \U0001f642, don't stop."
)
WORDS = ["the", "engine"]

LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPLIT = LLAMA_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
SPACE = "\u2581"


# --- tokenizers ----------------------------------------------------------------------------------------------------------


def byte_alphabet():
    """GPT-2's printable stand-ins of the 256 bytes, in its order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(others))]


def merges_of(words, mark):
    """Merges that build each word, with and without the mark of a space before it, from the left."""
    merges = []
    for word in words:
        for text in (word, mark + word):
            for i in range(1, len(text)):
                if (text[:i], text[i]) not in merges:
                    merges.append((text[:i], text[i]))
    return merges


def byte_level(kind, specials):
    """A byte-level BPE tokenizer as the families ship it: kind is smollm, llama3 or qwen2."""
    merges = merges_of(WORDS, "\u0120")
    tokens = byte_alphabet()
    for left, right in merges:
        if left + right not in tokens:
            tokens.append(left + right)
    vocab = {t: i for i, t in enumerate(tokens)}
    t = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=kind == "llama3"))
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "smollm")
    if kind == "smollm":
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_only])
    else:
        split = pre_tokenizers.Split(Regex(LLAMA_SPLIT if kind == "llama3" else QWEN_SPLIT), "isolated")
        t.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    if kind == "qwen2":
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([tokenizers.AddedToken(s, normalized=False) for s in specials])
    if kind == "llama3":
        t.post_processor = processors.TemplateProcessing(
            single=f"{specials[0]} $A", special_tokens=[(specials[0], t.token_to_id(specials[0]))]
        )
    return t


def sentencepiece():
    """A BPE tokenizer with space marks and byte fallback, as MiniCPM ships it."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tokens += [SPACE] + [chr(c) for c in range(ord("a"), ord("z") + 1)] + list(",.")
    merges = merges_of(["the"], SPACE)
    for left, right in merges:
        if left + right not in tokens:
            tokens.append(left + right)
    vocab = {t: i for i, t in enumerate(tokens)}
    t = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    t.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_special_tokens([tokenizers.AddedToken(s, normalized=False) for s in ("<unk>", "<s>", "</s>", "<|im_end|>")])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


# --- weights -------------------------------------------------------------------------------------------------------------


def tensors(shape, seed):
    """Random weights by name. Scaled so that attention is neither flat nor a single token and logits spread over a few
    units. `shape`: layers, hidden, ffn, heads, kv_heads, head_dim, vocab, tied, bias (names), qk_norm, embedding."""
    rng = torch.Generator().manual_seed(seed)
    s = shape
    out = {}

    def linear(name, rows, cols, gain=1.0):
        out[name + ".weight"] = torch.randn(rows, cols, generator=rng) * gain / math.sqrt(cols)
        if name.rsplit(".", 1)[-1] in s.get("bias", ()):
            out[name + ".bias"] = torch.randn(rows, generator=rng) * 0.3

    def norm(name, n):
        out[name + ".weight"] = 1 + 0.25 * torch.randn(n, generator=rng)

    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    out["model.embed_tokens.weight"] = torch.randn(s["vocab"], s["hidden"], generator=rng) * s.get("embedding", 0.5)
    for i in range(s["layers"]):
        layer = f"model.layers.{i}."
        norm(layer + "input_layernorm", s["hidden"])
        linear(layer + "self_attn.q_proj", q, s["hidden"], 1.5)
        linear(layer + "self_attn.k_proj", kv, s["hidden"], 1.5)
        linear(layer + "self_attn.v_proj", kv, s["hidden"])
        linear(layer + "self_attn.o_proj", s["hidden"], q)
        if s.get("qk_norm"):
            norm(layer + "self_attn.q_norm", s["head_dim"])
            norm(layer + "self_attn.k_norm", s["head_dim"])
        norm(layer + "post_attention_layernorm", s["hidden"])
        linear(layer + "mlp.gate_proj", s["ffn"], s["hidden"])
        linear(layer + "mlp.up_proj", s["ffn"], s["hidden"])
        linear(layer + "mlp.down_proj", s["hidden"], s["ffn"])
    norm("model.norm", s["hidden"])
    if not s["tied"]:
        linear("lm_head", s["vocab"], s["hidden"], 2.0)
    return out


def write_weights(directory, weights, dtype, shards):
    weights = {name: t.to(dtype).contiguous() for name, t in weights.items()}
    if shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    index = {"metadata": {"total_size": sum(t.nbytes for t in weights.values())}, "weight_map": {}}
    names = list(weights)
    for n in range(shards):
        part = names[n * len(names) // shards : (n + 1) * len(names) // shards]
        file = f"model-{n + 1:05}-of-{shards:05}.safetensors"
        save_file({name: weights[name] for name in part}, directory / file, metadata={"format": "pt"})
        index["weight_map"].update({name: file for name in part})
    write_json(directory / "model.safetensors.index.json", index)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=True) + "\n")


# --- MiniCPM4 ------------------------------------------------------------------------------------------------------------


def minicpm_rope(config, context):
    """Frequencies and the factor of cos and sin: the long list for an engine of more than the original context."""
    d = config["hidden_size"] // config["num_attention_heads"]
    scaling = config["rope_scaling"]
    original = scaling["original_max_position_embeddings"]
    factors = scaling["long_factor" if context > original else "short_factor"]
    i = torch.arange(0, d, 2, dtype=torch.float64)
    frequencies = config["rope_theta"] ** (-i / d) / torch.tensor(factors, dtype=torch.float64)
    stretch = config["max_position_embeddings"] / original
    return frequencies, math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0


def selected_blocks(q, k, sparse):
    """InfLLM-v2: which blocks each row and KV head attends, [Hkv, T, blocks], and the smallest gap of scores near the
    border between blocks taken and left out. q [Hkv, G, T, D] and k [Hkv, T, D] are rotated. Neighbours may tie exactly,
    as they share a window; the lower id goes first."""
    heads, _, rows, d = q.shape
    block, kernel, stride = sparse["block_size"], sparse["kernel_size"], sparse["kernel_stride"]
    budget = sparse["topk"] + sparse["window_size"] // block
    per = block // stride
    windows = k.unfold(1, kernel, stride).mean(-1)  # [Hkv, windows, D]
    n = windows.shape[1]
    position = torch.arange(rows)
    visible = stride * torch.arange(n)[None] + kernel - 1 <= position[:, None]
    z = torch.einsum("hgtd,hnd->hgtn", q, windows) / math.sqrt(d)
    scores = z.masked_fill(~visible, -math.inf).softmax(-1).nan_to_num(0.0).sum(1)  # [Hkv, T, windows]
    blocks = (rows + block - 1) // block
    pooled = torch.full((heads, rows, blocks), -math.inf, dtype=q.dtype)
    for b in range(blocks):
        covered = [j for j in range(per * b - 1, per * b + per) if 0 <= j < n]
        if covered:
            pooled[:, :, b] = scores[:, :, covered].amax(-1)
    own, ids = position[:, None] // block, torch.arange(blocks)[None]
    forced = (ids < sparse["init_blocks"]) | (own - ids <= sparse["window_size"] // block)
    pooled = pooled.masked_fill(forced, math.inf).masked_fill(ids > own, -math.inf)
    order = pooled.sort(dim=-1, descending=True, stable=True)
    chosen = torch.zeros_like(pooled, dtype=torch.bool).scatter(-1, order.indices[..., :budget], True) & (ids <= own)
    near = order.values[:, own[:, 0] > budget, budget - 2 : budget + 2]  # rows that see two blocks more than they take
    gaps = (near[..., :-1] - near[..., 1:]).flatten()
    gaps = gaps[gaps > 0]
    return chosen, float(gaps.min()) if len(gaps) else math.inf


def minicpm_logits(config, weights, ids, context):
    """Logits [T, vocabulary] in f64, and the smallest margin of any block selection."""
    w = {name: t.double() for name, t in weights.items()}
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    d, group, rows = hidden // heads, heads // kv, len(ids)
    residual = config["scale_depth"] / math.sqrt(layers)
    frequencies, magnitude = minicpm_rope(config, context)
    angles = torch.outer(torch.arange(rows, dtype=torch.float64), frequencies)
    cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
    causal = torch.ones(rows, rows, dtype=torch.bool).tril()
    margin = math.inf

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * w[name + ".weight"]

    def rotate(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][torch.tensor(ids)] * config["scale_emb"]
    for i in range(layers):
        layer = f"model.layers.{i}."

        def linear(name, y):
            return y @ w[layer + name + ".weight"].T

        h = norm(x, layer + "input_layernorm")
        q = rotate(linear("self_attn.q_proj", h).view(rows, heads, d).transpose(0, 1)).view(kv, group, rows, d)
        k = rotate(linear("self_attn.k_proj", h).view(rows, kv, d).transpose(0, 1))
        v = linear("self_attn.v_proj", h).view(rows, kv, d).transpose(0, 1)
        mask = causal.expand(kv, rows, rows)
        sparse = config.get("sparse_config")
        if sparse and rows > sparse["dense_len"]:
            chosen, smallest = selected_blocks(q, k, sparse)
            margin = min(margin, smallest)
            mask = mask & chosen.repeat_interleave(sparse["block_size"], -1)[..., :rows]
        z = torch.einsum("hgtd,hsd->hgts", q, k) / math.sqrt(d)
        p = z.masked_fill(~mask[:, None], -math.inf).softmax(-1)
        o = torch.einsum("hgts,hsd->thgd", p, v).reshape(rows, hidden)
        x = x + linear("self_attn.o_proj", o) * residual
        h = norm(x, layer + "post_attention_layernorm")
        h = linear("mlp.down_proj", F.silu(linear("mlp.gate_proj", h)) * linear("mlp.up_proj", h))
        x = x + h * residual
    x = norm(x, "model.norm") / (hidden / config["dim_model_base"])
    return x @ w["lm_head.weight"].T, margin


def check_minicpm_against_llama():
    """With scales of one the forward above is a Llama with LongRoPE, which transformers has."""
    shape = dict(layers=2, hidden=48, ffn=80, heads=6, kv_heads=2, head_dim=8, vocab=100, tied=False)
    weights = tensors(shape, 1)
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 32, "factor": 4.0,
               "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.0, 3.0, 3.9]}  # fmt: skip
    ours = {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48, "num_hidden_layers": 2,
            "max_position_embeddings": 128, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "rope_scaling": scaling,
            "scale_emb": 1.0, "scale_depth": math.sqrt(2), "dim_model_base": 48}  # fmt: skip
    config = transformers.LlamaConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, intermediate_size=80,
        vocab_size=100, max_position_embeddings=128, rms_norm_eps=1e-5, attn_implementation="eager",
        rope_parameters={"rope_theta": 10000.0, **scaling})  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(weights)
    for rows in (20, 90):
        ids = [(7 * i * i + 3) % 100 for i in range(rows)]
        with torch.no_grad():
            theirs = model(torch.tensor([ids])).logits[0]
        mine, _ = minicpm_logits(ours, weights, ids, rows)
        error = float((mine - theirs).abs().max() / theirs.abs().max())
        assert error < 1e-5, f"the MiniCPM forward differs from transformers' Llama by {error} over {rows} positions"


# --- checkpoints ---------------------------------------------------------------------------------------------------------


def base_config(model_type, name, shape, **more):
    s = shape
    return {
        "architectures": [name], "model_type": model_type, "hidden_size": s["hidden"], "hidden_act": "silu",
        "intermediate_size": s["ffn"], "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"], "vocab_size": s["vocab"], "initializer_range": 0.02, "use_cache": True,
        "tie_word_embeddings": s["tied"], **more}  # fmt: skip


def dtype_name(dtype):
    return {torch.float32: "float32", torch.bfloat16: "bfloat16"}[dtype]


def positions_of(n):
    return sorted({0, 1, n // 3, 2 * n // 3, n - 2, n - 1})


def golden(tokenizer, end_tokens, made_by, cases, logits_of):
    out = {"made_by": made_by, "end_tokens": end_tokens, "cases": []}
    for text, context in cases:
        ids = tokenizer.encode(text).ids
        logits = logits_of(ids, context)
        positions = positions_of(len(ids))
        rows = [[float(f"{v:.7g}") for v in logits[p].tolist()] for p in positions]
        out["cases"].append({"text": text, "ids": ids, "context": context, "positions": positions, "logits": rows})
    return out


def write_golden(directory, value):
    """Compact, but a line a row of logits."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    (directory / "golden.json").write_text(text.replace('"cases":[', '"cases":[\n').replace("],[", "],\n[") + "\n")


class Maker:
    def __init__(self, out):
        self.out = out

    def begin(self, name, tokenizer, config, token_config):
        directory = self.out / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        assert tokenizer.get_vocab_size() <= config["vocab_size"], name
        tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
        write_json(directory / "tokenizer_config.json", token_config)
        write_json(directory / "config.json", config)
        return directory

    def with_transformers(self, name, tokenizer, config, token_config, shape, cases, seed, end_tokens,
                          dtype=torch.float32, shards=1, generation=None, rewrite=False):  # fmt: skip
        directory = self.begin(name, tokenizer, config, token_config)
        weights = tensors(shape, seed)
        write_weights(directory, weights, dtype, shards)
        if generation is not None:
            write_json(directory / "generation_config.json", generation)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        stored = {n: t.to(dtype).float() for n, t in weights.items()}
        for n, t in model.state_dict().items():
            if n in stored:
                assert torch.equal(t, stored[n]), f"{name}: transformers loaded another {n}"
        if rewrite:  # config.json as this version of transformers writes it
            model.config.save_pretrained(directory)
        model = model.double()

        def logits_of(ids, context):
            with torch.no_grad():
                return model(torch.tensor([ids])).logits[0]

        made_by = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"
        write_golden(directory, golden(tokenizer, end_tokens, made_by, cases, logits_of))

    def with_formula(self, name, tokenizer, config, token_config, shape, cases, seed, end_tokens):
        directory = self.begin(name, tokenizer, config, token_config)
        weights = tensors(shape, seed)
        write_weights(directory, weights, torch.float32, 1)
        stored = load_file(directory / "model.safetensors")
        margins = []

        def logits_of(ids, context):
            logits, margin = minicpm_logits(config, stored, ids, context)
            margins.append(margin)
            return logits

        made_by = f"the formula in make_checkpoints.py, torch {torch.__version__.split('+')[0]}"
        write_golden(directory, golden(tokenizer, end_tokens, made_by, cases, logits_of))
        # A closer call than this could go the other way in another arithmetic.
        assert min(margins) > 1e-6, f"{name}: two blocks score within {min(margins)}; take another seed"


def make_llama(maker):
    # SmolLM2's dressing: tied, group of three, single digits, no BOS; as new transformers writes config.json; shards.
    shape = dict(layers=2, hidden=48, ffn=80, heads=6, kv_heads=2, head_dim=8, vocab=280, tied=True)
    t = byte_level("smollm", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    eos = t.token_to_id("<|im_end|>")
    config = base_config("llama", "LlamaForCausalLM", shape, rms_norm_eps=1e-5, rope_theta=100000.0,
                         max_position_embeddings=512, eos_token_id=eos)  # fmt: skip
    maker.with_transformers("llama", t, config, {"eos_token": "<|im_end|>"}, shape, [(SHORT, 0), (LONG, 0)], 11,
                            [eos], shards=2, rewrite=True)  # fmt: skip

    # Llama 3's: untied, its RoPE scaling, heads wider than hidden / heads, BOS, several end tokens in
    # generation_config.json, one of which nothing else names.
    shape = dict(layers=2, hidden=48, ffn=80, heads=4, kv_heads=2, head_dim=16, vocab=280, tied=False)
    t = byte_level("llama3", ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"])
    ends = [t.token_to_id(s) for s in ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")]
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
               "rope_type": "llama3"}  # fmt: skip
    config = base_config("llama", "LlamaForCausalLM", shape, rms_norm_eps=1e-5, rope_theta=500000.0, head_dim=16,
                         max_position_embeddings=512, rope_scaling=scaling, bos_token_id=t.token_to_id("<|begin_of_text|>"),
                         eos_token_id=ends)  # fmt: skip
    tokens = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    maker.with_transformers("llama3", t, config, tokens, shape, [(SHORT, 0), (LONG, 0)], 12, ends,
                            generation={"do_sample": True, "eos_token_id": ends})  # fmt: skip

    # Biases everywhere, linear RoPE scaling, BF16.
    shape = dict(layers=2, hidden=40, ffn=72, heads=5, kv_heads=1, head_dim=8, vocab=280, tied=False,
                 bias=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))  # fmt: skip
    t = byte_level("smollm", ["<|endoftext|>"])
    eos = t.token_to_id("<|endoftext|>")
    config = base_config("llama", "LlamaForCausalLM", shape, rms_norm_eps=1e-6, rope_theta=10000.0,
                         max_position_embeddings=512, rope_scaling={"type": "linear", "factor": 4.0}, attention_bias=True,
                         mlp_bias=True, torch_dtype="bfloat16", eos_token_id=eos)  # fmt: skip
    maker.with_transformers("llama-bias", t, config, {"eos_token": "<|endoftext|>"}, shape, [(SHORT, 0), (LONG, 0)], 13,
                            [eos], dtype=torch.bfloat16)  # fmt: skip


def make_qwen(maker):
    t = byte_level("qwen2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    ends = [t.token_to_id("<|im_end|>"), t.token_to_id("<|endoftext|>")]
    tokens = {"eos_token": "<|im_end|>", "bos_token": None}
    shape = dict(layers=2, hidden=48, ffn=80, heads=6, kv_heads=2, head_dim=8, vocab=288, tied=True,
                 bias=("q_proj", "k_proj", "v_proj"))  # fmt: skip
    yarn = {"factor": 4.0, "original_max_position_embeddings": 64, "type": "yarn"}
    config = base_config("qwen2", "Qwen2ForCausalLM", shape, rms_norm_eps=1e-6, rope_theta=1000000.0,
                         max_position_embeddings=64, rope_scaling=yarn, use_sliding_window=False, sliding_window=32,
                         max_window_layers=2, eos_token_id=ends[0])  # fmt: skip
    generation = {"eos_token_id": ends, "pad_token_id": ends[1], "repetition_penalty": 1.1}
    maker.with_transformers("qwen2", t, config, tokens, shape, [(SHORT, 256), (LONG, 256)], 21, ends, generation=generation)

    shape = dict(layers=2, hidden=40, ffn=72, heads=4, kv_heads=1, head_dim=16, vocab=280, tied=False, qk_norm=True)
    config = base_config("qwen3", "Qwen3ForCausalLM", shape, rms_norm_eps=1e-6, rope_theta=1000000.0, head_dim=16,
                         max_position_embeddings=512, rope_scaling=None, attention_bias=False, use_sliding_window=False,
                         sliding_window=None, max_window_layers=2, eos_token_id=ends[0])  # fmt: skip
    maker.with_transformers("qwen3", t, config, tokens, shape, [(SHORT, 0), (LONG, 0)], 22, ends, generation=generation)


def make_minicpm(maker):
    shape = dict(layers=2, hidden=48, ffn=80, heads=6, kv_heads=2, head_dim=8, vocab=304, tied=False, embedding=0.05)
    t = sentencepiece()
    ends = [2, t.token_to_id("<|im_end|>")]
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 64,
               "short_factor": [0.998, 1.02, 1.1, 1.4], "long_factor": [1.0, 1.9, 3.1, 3.9]}  # fmt: skip
    config = base_config("minicpm", "MiniCPMForCausalLM", shape, rms_norm_eps=1e-6, rope_theta=10000.0, scale_emb=12,
                         scale_depth=1.4, dim_model_base=16, max_position_embeddings=512, rope_scaling=scaling,
                         bos_token_id=1, eos_token_id=ends)  # fmt: skip
    # The list of factors follows the engine's context: short, then long, for the same text.
    maker.with_formula("minicpm4", t, config, tokens, shape, [(SHORT, 64), (SHORT, 512), (LONG, 512)], 31, ends)

    sparse = {"kernel_size": 8, "kernel_stride": 4, "init_blocks": 1, "block_size": 16, "window_size": 32, "topk": 4,
              "use_nope": False, "dense_len": 0}  # fmt: skip
    config = {**config, "sparse_config": sparse}
    maker.with_formula("minicpm4-sparse", t, config, tokens, shape, [(SHORT, 512), (LONG, 512)], 32, ends)


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "data"
    torch.set_num_threads(1)
    check_minicpm_against_llama()
    maker = Maker(out)
    make_llama(maker)
    make_qwen(maker)
    make_minicpm(maker)
    print(f"{sum(f.stat().st_size for f in out.rglob('*') if f.is_file())} bytes in {out}")


if __name__ == "__main__":
    main()
