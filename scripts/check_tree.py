#!/usr/bin/env python3
"""Checks the shape of the tree: layers, file lists, file sizes, files that documents name. Prints the include matrix; exits 1 on a fault."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
# A folder may include those of lower layers; of its own layer only itself. The listed exceptions are upward or sideways
# edges that the design allows because the two folders are one layer seen from two sides.
LAYER = {"include": 0, "base": 0, "io": 1, "text": 2, "ops": 2, "ops/ref": 2, "ops/cpu": 2, "kv": 3, "sample": 3,
         "attention": 4, "model": 5, "sched": 6, "spec": 6, "engine": 7, "train": 7, "eval": 8, "cli": 9}
ALLOWED = {("base", "include"), ("ops/ref", "ops"), ("ops/cpu", "ops")}
# Only the files that bind the forward pass to a backend know one.
BACKENDS = {"ops/ref", "ops/cpu"}
BACKEND_USERS = re.compile(r"model/runner_\w+\.cc$|_test\.cc$")
MAX_LINES = 800

faults = []


def folder_of(path):
    parts = path.relative_to(SRC).parts
    return "/".join(parts[:2]) if parts[0] == "ops" and len(parts) > 2 else parts[0]


def target_of(include):
    if include.startswith("farsight/"):
        return "include"
    parts = include.split("/")
    if len(parts) < 2 or not (SRC / include).exists():
        return None
    return "/".join(parts[:2]) if parts[0] == "ops" and len(parts) > 2 else parts[0]


edges = {}
for path in sorted(SRC.rglob("*")):
    if path.suffix not in (".h", ".cc", ".inc"):
        continue
    lines = path.read_text().splitlines()
    name = str(path.relative_to(ROOT))
    if len(lines) > MAX_LINES:
        faults.append(f"{name} has {len(lines)} lines; {MAX_LINES} at most")
    source = folder_of(path)
    for line in lines:
        match = re.match(r'#include "([^"]+)"', line)
        target = target_of(match.group(1)) if match else None
        if target is None or target == source:
            continue
        edges[(source, target)] = edges.get((source, target), 0) + 1
        if name.endswith("_test.cc"):
            continue
        if target in BACKENDS and not BACKEND_USERS.search(name):
            faults.append(f"{name} includes {match.group(1)}: only runners and tests know a backend")
        if LAYER[target] >= LAYER[source] and (source, target) not in ALLOWED:
            faults.append(f"{name} includes {match.group(1)}: {source} may not include {target}")

# Every source and test is named in its folder's CMakeLists.txt.
for path in sorted(list(SRC.rglob("*.cc")) + list((ROOT / "tests").rglob("*.cc"))):
    folder = path.parent
    while not (folder / "CMakeLists.txt").exists() and folder != ROOT:
        folder = folder.parent
    if path.name not in (folder / "CMakeLists.txt").read_text():
        faults.append(f"{path.relative_to(ROOT)} is in no CMakeLists.txt")

# Every file that a document names exists; "a.{h,cc}" names two.
for path in sorted(list(ROOT.glob("*.md")) + list((ROOT / "docs").rglob("*.md"))):
    text = path.read_text()
    named = re.findall(r"`((?:src|include|tests|scripts|bench|tools|fuzz|examples|training)/[\w./{},-]+)[` ]", text)
    for name in named:
        stem, _, ends = name.partition("{")
        for end in ends.rstrip("}").split(","):
            if not (ROOT / (stem + end)).exists():
                faults.append(f"{path.relative_to(ROOT)} names {stem + end}, which does not exist")
    for link in re.findall(r"\]\(([\w./-]+)\)", text):
        if not (path.parent / link).exists():
            faults.append(f"{path.relative_to(ROOT)} links to {link}, which does not exist")

names = list(LAYER)
print("include matrix (row includes column):")
print(f"{'':>10}" + "".join(f"{n:>10}" for n in names))
for a in names:
    print(f"{a:>10}" + "".join(f"{edges.get((a, b), ''):>10}" for b in names))
for fault in faults:
    print(f"fault: {fault}")
sys.exit(1 if faults else 0)
