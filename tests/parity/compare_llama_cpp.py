#!/usr/bin/env python3
"""Compares Farsight with llama.cpp on one GGUF file, and both with Farsight's double-precision reference backend.

    pip install -r tests/parity/requirements.txt llama-cpp-python==0.3.36
    tests/parity/compare_llama_cpp.py --model models/smollm2-135m.gguf --text data/esther.txt \\
        --farsight build/release/bin/farsight --dump-logits build/release/bin/dump_logits --work /tmp/parity

llama.cpp is reached through the Python package's own bindings; LLAMA_CPP_LIB_PATH names another build of libllama.
Prints: token ids and greedy continuations of some prompts; the difference of logits and the share of equal top tokens
over the first positions of the text; and the mean KL divergence of each from the reference on the same positions.
"""
import argparse
import json
import pathlib
import subprocess

import numpy as np

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at a lower temperature on a mountain because",
    "Q: How many days are there in a leap year?\nA:",
    "The three primary colours are",
    "In 1969, the first people to",
    "<|im_start|>user\nName two planets.<|im_end|>\n<|im_start|>assistant\n",
]
GREEDY_TOKENS = 64
BATCH = 512


class LlamaCpp:
    """One model of llama.cpp; every context has its defaults (keys and values in f16, flash attention)."""

    def __init__(self, path, threads):
        import llama_cpp.llama_cpp as api

        self.api = api
        self.threads = threads
        self.log = api.llama_log_callback(lambda level, text, data: None)  # kept: the library holds the pointer
        api.llama_log_set(self.log, None)
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.vocab = api.llama_model_get_vocab(self.model)
        self.size = api.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text):
        data = text.encode()
        ids = (self.api.llama_token * (len(data) + 8))()
        n = self.api.llama_tokenize(self.vocab, data, len(data), ids, len(ids), False, True)
        return list(ids[:n])

    def context(self, tokens):
        params = self.api.llama_context_default_params()
        params.n_ctx = (tokens + 255) // 256 * 256
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = self.threads
        context = self.api.llama_init_from_model(self.model, params)
        if not context:
            raise SystemExit("llama.cpp cannot make a context")
        return context

    def feed(self, context, ids, first):
        """Logits [len(ids), vocabulary] of ids at positions first, first + 1, ..."""
        batch = self.api.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = int(token)
            batch.pos[i] = first + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        if self.api.llama_decode(context, batch) != 0:
            raise SystemExit("llama.cpp cannot decode a batch")
        rows = np.ctypeslib.as_array(self.api.llama_get_logits(context), shape=(len(ids), self.size)).copy()
        self.api.llama_batch_free(batch)
        return rows

    def write_logits(self, ids, out):
        context = self.context(len(ids))
        with open(out, "wb") as file:
            for first in range(0, len(ids), BATCH):
                self.feed(context, ids[first : first + BATCH], first).tofile(file)
        self.api.llama_free(context)

    def greedy(self, ids, n):
        """Greedy tokens, and before each the gap between the two largest logits."""
        context = self.context(len(ids) + n)
        row = self.feed(context, ids, 0)[-1]
        out, gaps = [], []
        while len(out) < n:
            second, first = np.partition(row, -2)[-2:]
            token = int(row.argmax())
            if self.api.llama_vocab_is_eog(self.vocab, token):
                break
            out.append(token)
            gaps.append(float(first - second))
            row = self.feed(context, [token], len(ids) + len(out) - 1)[-1]
        self.api.llama_free(context)
        return out, gaps


def farsight_greedy(args, prompt):
    command = [args.farsight, "run", "-m", args.model, "-t", str(args.threads), "--no-chat", "-p", prompt, "--temp", "0"]
    out = subprocess.run(command + ["-n", str(GREEDY_TOKENS), "--json"], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)["token_ids"]


def farsight_tokens(args, prompt):
    out = subprocess.run([args.farsight, "tokenize", "-m", args.model, "--special", "--ids", "-p", prompt], check=True,
                         capture_output=True, text=True)
    return [int(t) for t in out.stdout.split()]


def compare_greedy(args, llama):
    print("| prompt | ids equal | equal greedy tokens | gap of llama.cpp's two largest logits where they part |")
    print("| --- | --- | --- | --- |")
    for prompt in PROMPTS:
        ids = farsight_tokens(args, prompt)
        same_ids = ids == llama.tokenize(prompt)
        ours = farsight_greedy(args, prompt)
        theirs, gaps = llama.greedy(ids, GREEDY_TOKENS)
        same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        whole = len(ours) == len(theirs) == same
        gap = "" if whole or same >= len(gaps) else f"{gaps[same]:.3f}"
        print(f"| `{json.dumps(prompt)[1:-1]}` | {'yes' if same_ids else 'NO'} | {same} of {max(len(ours), len(theirs))} | {gap} |")
    print()


class Logits:
    """Rows of logits in a file, mapped."""

    def __init__(self, path, vocab):
        self.rows = np.memmap(path, dtype=np.float32, mode="r").reshape(-1, vocab)

    def __len__(self):
        return len(self.rows)


def log_softmax(row):
    row = row.astype(np.float64)
    row -= row.max()
    return row - np.log(np.exp(row).sum())


def compare(truth, other, positions):
    """Of `other` against `truth`: mean KL and its standard error, its 99th percentile, logit differences, top-1."""
    kl, differences, worst, same = [], [], 0.0, 0
    for a, b in zip(truth.rows[:positions], other.rows[:positions]):
        p, q = log_softmax(a), log_softmax(b)
        kl.append(float((np.exp(p) * (p - q)).sum()))
        d = np.abs(a.astype(np.float64) - b)
        differences.append(d.mean())
        worst = max(worst, float(d.max()))
        same += int(a.argmax() == b.argmax())
    kl = np.array(kl)
    return {
        "positions": positions,
        "kl_mean": float(kl.mean()),
        "kl_error": float(kl.std() / np.sqrt(len(kl))),
        "kl_p99": float(np.quantile(kl, 0.99)),
        "kl_each": kl,
        "logit_mean": float(np.mean(differences)),
        "logit_max": worst,
        "top1": 100.0 * same / positions,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--farsight", required=True, help="the program")
    parser.add_argument("--dump-logits", required=True, help="the tool built from tests/parity/dump_logits.cc")
    parser.add_argument("--work", required=True, help="folder for logits: about 200 kB a position and program")
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isas", default="best", help="instruction sets of farsight to compare: best,avx2,...")
    parser.add_argument("--reuse", action="store_true", help="keep logits that are in the folder already")
    parser.add_argument("--skip-greedy", action="store_true")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    work = pathlib.Path(args.work)
    work.mkdir(parents=True, exist_ok=True)

    def farsight(name, backend, kv):
        if not (args.reuse and (work / f"{name}.logits").exists()):
            subprocess.run([args.dump_logits, args.model, args.text, str(work / name), str(args.positions), backend, kv],
                           check=True)
        return np.fromfile(work / f"{name}.ids", dtype=np.int32)

    llama = LlamaCpp(args.model, args.threads)
    if not args.skip_greedy:
        compare_greedy(args, llama)
    ours = [(f"farsight-{isa}-{kv}", isa, kv) for isa in args.isas.split(",") for kv in ("f16", "f32")]
    for name, isa, kv in ours:
        farsight(name, isa, kv)
    ids = farsight("reference", "reference", "f32")
    if not (args.reuse and (work / "llama.cpp-f16.logits").exists()):
        llama.write_logits(ids, work / "llama.cpp-f16.logits")

    names = ["reference", *(name for name, _, _ in ours), "llama.cpp-f16"]
    logits = {name: Logits(work / f"{name}.logits", llama.size) for name in names}
    positions = min(args.positions, *(len(l) for l in logits.values()))
    pairs = [("reference", name) for name in names[1:]] + [("llama.cpp-f16", ours[0][0])]
    rows = [{"from": a, "of": b, **compare(logits[a], logits[b], positions)} for a, b in pairs]
    print("| of | against | positions | mean KL | p99 KL | mean logit difference | max | same top token |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for r in rows:
        print(f"| {r['of']} | {r['from']} | {r['positions']} | {r['kl_mean']:.6f} ± {r['kl_error']:.6f} | {r['kl_p99']:.5f} "
              f"| {r['logit_mean']:.4f} | {r['logit_max']:.3f} | {r['top1']:.2f} % |")
    theirs = next(r for r in rows if r["of"] == "llama.cpp-f16")
    for r in rows[: len(ours)]:
        d = r["kl_each"] - theirs["kl_each"]
        print(f"{r['of']} minus llama.cpp-f16, position by position: {d.mean():+.6f} ± {d.std() / np.sqrt(len(d)):.6f}")
    if args.json:
        for r in rows:
            del r["kl_each"]
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
