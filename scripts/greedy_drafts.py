#!/usr/bin/env python3
"""Greedy text with every drafter must be that of plain decoding, token for token: many prompts, lengths and kinds.

  scripts/greedy_drafts.py FARSIGHT MODEL [--draft-model NAME] [--prompts 100] [--lengths 256,8000,16000] [--tokens 64]

Prompts are cut from data/esther.txt (prose), from this repository's sources (code), and from text that repeats itself
(quotes). Prints a line for each prompt that differs, then the counts; exit code 1 where any differs.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

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


def run(args, prompt_file, draft):
    command = [args.farsight, "run", "-m", args.model, "-f", prompt_file, "--no-chat", "--json", "--ignore-eos", "-n",
               str(args.tokens)] + draft
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("farsight")
    p.add_argument("model")
    p.add_argument("--draft-model", default="")
    p.add_argument("--prompts", type=int, default=100)
    p.add_argument("--lengths", default="256,8000,16000", help="of prompts, in tokens, about")
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    ways = {"auto": ["--draft", "auto"], "ngram": ["--draft", "ngram"], "suffix": ["--draft", "suffix"],
            "suffix 32": ["--draft", "suffix", "--draft-max", "32"],
            "suffix tree": ["--draft", "suffix", "--draft-max", "15", "--draft-tree", "3,2,2,1,1"]}
    if args.draft_model:
        ways["model"] = ["--draft", "model:" + args.draft_model, "--draft-max", "4"]
        ways["model tree"] = ["--draft", "model:" + args.draft_model, "--draft-max", "7", "--draft-tree", "2,2,1,1"]
    rng = random.Random(args.seed)
    sources = texts()
    lengths = [int(n) for n in args.lengths.split(",")]
    differ = compared = 0
    kept = {w: [0, 0] for w in ways}
    for i in range(args.prompts):
        kind = ("prose", "code", "quotes")[i % 3]
        length = lengths[i // 3 % len(lengths)]
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
            f.write(prompt_of(kind, rng, int(length * 3.2), sources))
            f.flush()
            plain = run(args, f.name, ["--draft", "off"])
            for way, flags in ways.items():
                got = run(args, f.name, flags)
                compared += 1
                kept[way][0] += got["accepted_tokens"]
                kept[way][1] += got["decode_steps"]
                if got["token_ids"] != plain["token_ids"]:
                    differ += 1
                    print(f"prompt {i} ({kind}, {plain['prompt_tokens']} tokens): {way} differs", flush=True)
    for way, (accepted, steps) in kept.items():
        print(f"{way}: {1 + accepted / max(steps, 1):.2f} tokens a step")
    print(f"{compared} texts compared, {differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
