#!/usr/bin/env python3
"""Text written with keys and values in a file must be that written with all of them in memory, token for token.

  scripts/tiers_texts.py MODEL TEXT... [--attention infllm2,sparda] [--length 8000] [--seeds 7] [--tokens 300] [--memory 5.2M,MIN]

Each text's beginning is read once for a policy, into a session; from there every seed draws an answer at temperature 1 with all
in memory, with each budget, and with each budget without lookahead. Prints how many tokens were compared; exit code 1 where
any differs. FARSIGHT: the program; MIN among the budgets: the least that the program takes.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.environ.get("FARSIGHT", os.path.join(ROOT, "build/release/bin/farsight"))


def run(args):
    return subprocess.run([PROGRAM, "run", *args], capture_output=True, text=True, check=False)


def least(args):
    """The number of bytes in the sentence that refuses a budget which is too small."""
    refused = run([*args, "--kv-memory", "1K"])
    found = re.search(r"at least (\d+) bytes", refused.stderr)
    if refused.returncode == 0 or not found:
        sys.exit(f"no least budget in: {refused.stderr.strip()}")
    return found.group(1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("texts", nargs="+")
    p.add_argument("--attention", default="infllm2,sparda")
    p.add_argument("--length", type=int, default=8000, help="tokens read, by three characters each")
    p.add_argument("--seeds", type=int, default=7)
    p.add_argument("--tokens", type=int, default=300)
    p.add_argument("--memory", default="5.2M,MIN")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    compared = different = 0
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as work:
        session, part = os.path.join(work, "s.kv"), os.path.join(work, "part.txt")
        for policy in a.attention.split(","):
            for text in a.texts:
                with open(text, encoding="utf-8") as source, open(part, "w", encoding="utf-8") as to:
                    to.write(source.read(3 * a.length))
                common = ["-m", a.model, "-f", part, "--no-chat", "--attention", policy, "-t", str(a.threads), "--draft", "off",
                          "--ignore-eos", "--temp", "1", "--json"]
                if os.path.exists(session):
                    os.remove(session)
                read = run([*common, "-n", "1", "--session", session])
                if read.returncode != 0:
                    sys.exit(read.stderr.strip())
                ways = {"all in memory": []}
                for memory in a.memory.split(","):
                    size = least([*common, "-n", "1", "--session", session]) if memory == "MIN" else memory
                    ways[f"{size} with lookahead"] = ["--kv-memory", size]
                    ways[f"{size} without"] = ["--kv-memory", size, "--no-lookahead"]
                for seed in range(1, a.seeds + 1):
                    want = None
                    for way, options in ways.items():
                        copy = os.path.join(work, "copy.kv")
                        shutil.copyfile(session, copy)
                        done = run([*common, "-n", str(a.tokens), "--seed", str(seed), "--session", copy, *options])
                        if done.returncode != 0:
                            sys.exit(f"{way}: {done.stderr.strip()}")
                        ids = json.loads(done.stdout)["token_ids"]
                        want = want or ids
                        compared += len(ids) if ids is not want else 0
                        if ids != want:
                            different += 1
                            print(f"{policy} {os.path.basename(text)} seed {seed}, {way}: differs from all in memory")
                print(f"{policy} {os.path.basename(text)}: {compared} tokens compared so far, {different} answers differ", flush=True)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
