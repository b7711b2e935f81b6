#!/usr/bin/env python3
"""Speed beside other engines: every row of a table, each program in turn, medians over rounds.

    bench/compare_peers.py --model M.gguf --nsa NSA.gguf --farsight build/release/bin/farsight \
        --peer llama.cpp=PATH/llama-bench --peer ik_llama.cpp=PATH/llama-bench \
        [--rows pp512,tg256] [--rounds 3] [--markdown table.md] [--out samples.csv]

Rounds go over all programs before the next begins, so that a drift of the machine meets them all. A row's ratio is to
its fastest peer, or to the row of ours that it names: several sequences to one, a long context to a short one. The share
is of the read bandwidth that each of our runs measures beside itself. Nothing else may run on the machine; a whole round
takes about five minutes on two cores. The table goes to stdout, and to --markdown, after every round; every sample is
appended to --out. Without --nsa the rows of that model are left out.
"""
import argparse
import json
import statistics
import subprocess
import sys
from typing import NamedTuple


class Row(NamedTuple):
    work: str
    prompt: int
    generated: int
    depth: int
    policy: str = "dense"
    sequences: int = 1
    nsa: bool = False  # another model, which peers cannot run
    to: str = ""  # the row of ours that this one is compared with, instead of peers

    def sizes(self):
        return self.prompt, self.generated, self.depth


ROWS = {
    "pp512": Row("prompt of 512", 512, 0, 0),
    "pp4096": Row("prompt of 4,096, dense", 4096, 0, 0),
    "pp4096-infllm2": Row("prompt of 4,096, InfLLM-v2, 24 blocks", 4096, 0, 0, "infllm2"),
    "tg256": Row("decode, empty context", 0, 256, 0),
    "tg64@7000": Row("decode at depth 7,000, dense", 0, 64, 7000),
    "tg64@7000-sketch": Row("decode at depth 7,000, `sketch`, 24 blocks", 0, 64, 7000, "sketch"),
    "tg64@2000": Row("decode at depth 2,000", 0, 64, 2000),
    "tg64@2000x4": Row("4 sequences at depth 2,000, to our own one", 0, 64, 2000, sequences=4, to="tg64@2000"),
    "nsa@1024": Row("nsa-35m, decode at depth 1,024", 0, 256, 1024, "nsa", nsa=True),
    "nsa@16000": Row("nsa-35m, decode at depth 16,000, to 1,024", 0, 256, 16000, "nsa", nsa=True, to="nsa@1024"),
}


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def ours(program, model, threads, row):
    command = [program, "bench", "-m", model, "-t", str(threads), "-r", "1", "-o", "json", "-p", str(row.prompt), "-n",
               str(row.generated), "-d", str(row.depth), "--attention", row.policy, "--parallel", str(row.sequences)]
    if row.policy in ("infllm2", "sketch"):
        command += ["--top-k-blocks", "24"]
    if row.policy == "infllm2":
        command += ["--sparse-phase", "all"]
    return run(command)[0]


def peer(program, model, threads, row):
    command = [program, "-m", model, "-t", str(threads), "-r", "1", "-o", "json", "-fa", "1"]
    options = subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
    if row.prompt >= 4096:  # minutes of warming up would change nothing
        command += ["--no-warmup"] if "--no-warmup" in options else ["-w", "0"]
    if row.depth == 0:
        command += ["-p", str(row.prompt), "-n", str(row.generated)]
    elif "--n-depth" in options:
        command += ["-p", "0", "-n", str(row.generated), "-d", str(row.depth)]
    else:  # ik_llama.cpp
        command += ["-p", "0", "-n", "0", "-gp", f"{row.depth},{row.generated}"]
    return run(command)[-1]["avg_ts"]


def table(rows, peers, samples, shares):
    medians = {key: statistics.median(values) for key, values in samples.items()}
    lines = ["| work | farsight | " + " | ".join([*peers, "ratio", "share of the limit"]) + " |",
             "| --- |" + " ---: |" * (len(peers) + 2) + " --- |"]
    for name in rows:
        row = ROWS[name]
        speed = medians[(name, "farsight")]
        cells = [f"{medians[(name, p)]:,.0f}" if (name, p) in medians else "" for p in peers]
        base = medians.get((row.to, "farsight"), 0)
        if not row.to:
            base = max((medians[(name, p)] for p in peers if (name, p) in medians), default=0)
        share = ""
        if shares.get(name):
            bytes_read = statistics.median(b for b, _ in shares[name]) * row.sequences / 1e6
            share = f"{100 * statistics.median(s for _, s in shares[name]):.0f} % of reading {bytes_read:.0f} MB"
            share += " a step" if row.sequences > 1 else ""
        ratio = f"{speed / base:.2f}" if base > 0 else ""
        lines.append(f"| {row.work} | {speed:,.0f} | " + " | ".join([*cells, ratio, share]) + " |")
    return "\n".join(lines) + "\n"


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--model", required=True)
    args.add_argument("--nsa")
    args.add_argument("--farsight", required=True)
    args.add_argument("--peer", action="append", default=[], metavar="NAME=LLAMA_BENCH")
    args.add_argument("--rows", default=",".join(ROWS))
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--markdown")
    args.add_argument("--out")
    a = args.parse_args()
    unknown = [r for r in a.rows.split(",") if r not in ROWS]
    if unknown:
        args.error(f"unknown row '{unknown[0]}': expected some of {', '.join(ROWS)}")
    rows = [r for r in a.rows.split(",") if a.nsa or not ROWS[r].nsa]
    if not rows:
        args.error("the rows asked for need --nsa")
    peers = dict(p.split("=", 1) for p in a.peer)
    samples = {}
    shares = {}  # of our rows that generate: bytes a token, share of the bandwidth
    for _ in range(a.rounds):
        dense = {}  # a peer's speed in this round by sizes: our policies share it
        for name in rows:
            row = ROWS[name]
            mine = ours(a.farsight, a.nsa if row.nsa else a.model, a.threads, row)
            new = {"farsight": mine["avg_ts"]}
            if mine["read_bandwidth"] > 0 and row.generated > 0:
                share = mine["bytes_token"] * mine["avg_ts"] / mine["read_bandwidth"]
                shares.setdefault(name, []).append((mine["bytes_token"], share))
            for other, program in peers.items():
                if row.to or row.nsa:
                    continue
                key = (other, row.sizes())
                if key not in dense:
                    dense[key] = peer(program, a.model, a.threads, row)
                new[other] = dense[key]
            for who, speed in new.items():
                samples.setdefault((name, who), []).append(speed)
                if a.out:
                    with open(a.out, "a", encoding="utf-8") as f:
                        f.write(f"{name},{who},{speed:.2f}\n")
        text = table(rows, peers, samples, shares)
        print(text, flush=True)
        if a.markdown:
            with open(a.markdown, "w", encoding="utf-8") as f:
                f.write(text)


if __name__ == "__main__":
    main()
