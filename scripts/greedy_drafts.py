#!/usr/bin/env python3
"""Greedy text with every drafter, order of rows and group must be that of plain decoding, token for token.

  scripts/greedy_drafts.py FOLDER [--prompts 100] [--lengths 256,8000,16000]    writes prompts
  bench_speculation MODEL DRAFT_MODEL|- 1 LENGTH 64 1 all FOLDER/*.LENGTH.txt   tries all ways, exit code 1 where any differs

Prompts are cut from data/esther.txt (prose), from this repository's sources (code), and from text that repeats itself
(quotes): FOLDER/NUMBER.KIND.LENGTH.txt, each a little longer than its length in tokens.
"""
import argparse
import glob
import os
import random

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def texts():
    prose = open(os.path.join(ROOT, "data/esther.txt"), encoding="utf-8").read()
    code = "".join(open(p, encoding="utf-8").read() for p in sorted(glob.glob(os.path.join(ROOT, "src/*/*.cc"))))
    return {"prose": prose, "code": code}


def prompt_of(kind, rng, chars, sources):
    if kind != "quotes":
        source = sources[kind]
        while len(source) < chars:
            source += source
        at = rng.randrange(len(source) - chars + 1)
        return source[at:at + chars]
    source = sources[rng.choice(["prose", "code"])]
    at = rng.randrange(max(1, len(source) - 400))
    passage = source[at:at + 400]
    out = ""
    while len(out) < chars:
        other = rng.randrange(max(1, len(source) - 200))
        out += passage + source[other:other + 200]
    return out[-chars:] + passage[:150]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--prompts", type=int, default=100)
    p.add_argument("--lengths", default="256,8000,16000", help="in tokens")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    rng = random.Random(args.seed)
    sources = texts()
    lengths = [int(n) for n in args.lengths.split(",")]
    for i in range(args.prompts):
        kind = ("prose", "code", "quotes")[i % 3]
        length = lengths[i // 3 % len(lengths)]
        with open(os.path.join(args.folder, f"{i:03}.{kind}.{length}.txt"), "w", encoding="utf-8") as f:
            f.write(prompt_of(kind, rng, int(length * 4), sources))


if __name__ == "__main__":
    main()
