#!/usr/bin/env python3
"""Speed beside other engines: every row of a table, each program in turn, medians over rounds.

    bench/compare_peers.py --model M.gguf --farsight build/release/bin/farsight \
        --peer llama.cpp=PATH/llama-bench --peer ik_llama.cpp=PATH/llama-bench [--rows pp512,tg256] [--rounds 3]

Rounds go over all programs before the next begins, so that a drift of the machine meets them all. Prints a table of
tokens/s with the ratio to the fastest peer of each row, and writes every sample as CSV with --out FILE. Nothing else
may run on the machine.
"""
import argparse
import json
import statistics
import subprocess
import sys

# name: (prompt, generated, depth, our policy, sequences); peers know the dense row of the same sizes.
ROWS = {
    "pp512": (512, 0, 0, "dense", 1),
    "pp4096": (4096, 0, 0, "dense", 1),
    "pp4096-infllm2": (4096, 0, 0, "infllm2", 1),
    "tg256": (0, 256, 0, "dense", 1),
    "tg64@7000": (0, 64, 7000, "dense", 1),
    "tg64@7000-sketch": (0, 64, 7000, "sketch", 1),
    "tg64@2000": (0, 64, 2000, "dense", 1),
    "tg64@2000x4": (0, 64, 2000, "dense", 4),
}


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def ours(program, model, threads, row):
    prompt, generated, depth, policy, sequences = ROWS[row]
    command = [program, "bench", "-m", model, "-t", str(threads), "-r", "1", "-o", "json", "-p", str(prompt), "-n",
               str(generated), "-d", str(depth), "--attention", policy, "--parallel", str(sequences)]
    if policy == "infllm2":
        command += ["--sparse-phase", "all"]
    return run(command)[0]["avg_ts"]


def peer(program, model, threads, row):
    prompt, generated, depth, _, _ = ROWS[row]
    command = [program, "-m", model, "-t", str(threads), "-r", "1", "-o", "json", "-fa", "1"]
    if depth == 0:
        command += ["-p", str(prompt), "-n", str(generated)]
    elif "--n-depth" in subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout:
        command += ["-p", "0", "-n", str(generated), "-d", str(depth)]
    else:  # ik_llama.cpp
        command += ["-p", "0", "-n", "0", "-gp", f"{depth},{generated}"]
    return run(command)[-1]["avg_ts"]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--model", required=True)
    args.add_argument("--farsight", required=True)
    args.add_argument("--peer", action="append", default=[], metavar="NAME=LLAMA_BENCH")
    args.add_argument("--rows", default=",".join(ROWS))
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--out")
    a = args.parse_args()
    rows = a.rows.split(",")
    unknown = [r for r in rows if r not in ROWS]
    if unknown:
        args.error(f"unknown row '{unknown[0]}': expected some of {', '.join(ROWS)}")
    peers = dict(p.split("=", 1) for p in a.peer)
    samples = {}
    dense = {}  # a peer's speed by sizes: our policies share it
    for _ in range(a.rounds):
        for row in rows:
            samples.setdefault((row, "farsight"), []).append(ours(a.farsight, a.model, a.threads, row))
            sizes = ROWS[row][:3]
            first = next(r for r in rows if ROWS[r][:3] == sizes)
            if ROWS[row][4] > 1:
                continue
            for name, program in peers.items():
                if row == first:
                    dense.setdefault((sizes, name), []).append(peer(program, a.model, a.threads, row))
                samples[(row, name)] = dense[(sizes, name)]
    print("| work | " + " | ".join(["farsight", *peers]) + " | to the fastest peer |")
    print("| --- |" + " ---: |" * (len(peers) + 2))
    for row in rows:
        medians = {n: statistics.median(samples[(row, n)]) for n in ["farsight", *peers] if (row, n) in samples}
        cells = [f"{medians[n]:.1f}" if n in medians else "" for n in ["farsight", *peers]]
        best = max((v for n, v in medians.items() if n != "farsight"), default=0)
        ratio = f"{medians['farsight'] / best:.2f}" if best > 0 else ""
        print(f"| {row} | " + " | ".join(cells) + f" | {ratio} |")
    if a.out:
        with open(a.out, "a", encoding="utf-8") as f:
            for (row, name), values in samples.items():
                f.writelines(f"{row},{name},{v:.2f}\n" for v in values)


if __name__ == "__main__":
    main()
