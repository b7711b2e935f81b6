#!/usr/bin/env python3
"""Adds up JSON results of `farsight eval` over seeds and prints markdown tables. A seed counts once.

    quality_tables.py FOLDER            needle and other retrieval grids, and comparisons with dense, of all *.json files
    quality_tables.py FOLDER --csv      the summed cells, one a line

Intervals are Wilson's at 95 %. "kept" is the share of the samples answered right under dense attention that the policy
answers right too; it needs cells of one sample a file (--samples 1), where samples can be paired.
"""
import collections
import json
import math
import pathlib
import sys

KEY = ("model", "task", "form", "attention", "top_k_blocks", "sketch_bits", "length", "axis")
AXES = ("depth", "keys", "needles", "hops", "gap")


def wilson(hits, n):
    if n == 0:
        return 0.0, 1.0
    z, p = 1.96, hits / n
    scale = 1 / (1 + z * z / n)
    half = z * scale * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    centre = (p + z * z / (2 * n)) * scale
    return max(0.0, centre - half), min(1.0, centre + half)


def load(folder):
    cells, comparisons, paired = collections.defaultdict(lambda: [0, 0, 0.0, 0, 0]), [], {}
    for row in distinct(folder, comparisons):
        key = tuple(row[k] for k in KEY)
        sums = cells[key]
        for i, name in enumerate(("n", "right", "answer_share", "blocks_read", "blocks_held")):
            sums[i] += row[name] * (row["n"] if name == "answer_share" else 1)
        if row["n"] == 1:
            sample = (row["model"], row["task"], row["form"], row["length"], row["axis"], row["seed"])
            paired.setdefault(sample, {})[key[3:6]] = row["right"]
    return cells, comparisons, paired


def distinct(folder, comparisons):
    """Rows of retrieval tasks; of a cell that several files hold for one seed, the one with the most samples."""
    best = {}
    for path in sorted(pathlib.Path(folder).glob("**/*.json")):
        text = path.read_text()
        if not text.strip():
            continue
        for row in json.loads(text):
            if "kl_mean" in row:
                comparisons.append(row)
            if "task" not in row:
                continue
            row["axis"] = next(row[a] for a in AXES if a in row)
            key = tuple(row[k] for k in KEY) + (row["seed"],)
            if key not in best or best[key]["n"] < row["n"]:
                best[key] = row
    return best.values()


def label(attention, blocks, bits):
    parts = [attention] + ([f"{bits} bit" + "s" * (bits > 1)] if bits else []) + ([f"{blocks} blocks"] if blocks else [])
    return ", ".join(parts)


def kept(paired, head, length, variant):
    found = both = 0
    for (model, task, form, at, _, _), answers in paired.items():
        if (model, task, form) == head and at == length and answers.get(("dense", 0, 0)) == 1 and variant in answers:
            found += 1
            both += answers[variant]
    return found, both


def retrieval(cells, paired):
    heads = sorted({key[:3] for key in cells})
    for head in heads:
        mine = {key[3:]: sums for key, sums in cells.items() if key[:3] == head}
        axes = sorted({key[4] for key in mine})
        axis_name = {"needle": "{} %", "multikey": "{} keys", "multineedle": "{} needles", "vartrack": "{} hops",
                     "copy": "gap {}"}[head[1]]
        variants = sorted({key[:3] for key in mine}, key=lambda v: (v[0] != "dense", v[0] != "sketch", v[2], v[1]))
        pairs = any(kept(paired, head, key[3], key[:3])[0] for key in mine if key[0] != "dense")
        print(f"\n{head[0]}, {head[1]}, {head[2]} form\n")
        columns = ["length", "attention", "n", "right %"] + (["kept %"] if pairs else [])
        columns += (["answers %"] if head[1] in ("multineedle", "copy") else []) + ["blocks read %"]
        columns += [axis_name.format(a) for a in axes]
        print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
        for length in sorted({key[3] for key in mine}):
            for variant in variants:
                here = {a: mine[variant + (length, a)] for a in axes if variant + (length, a) in mine}
                n, right = sum(c[0] for c in here.values()), sum(c[1] for c in here.values())
                if n == 0:
                    continue
                low, high = wilson(right, n)
                fields = [str(length), label(*variant), str(n), f"{100 * right / n:.1f} [{100 * low:.1f}, {100 * high:.1f}]"]
                if pairs:
                    found, both = kept(paired, head, length, variant)
                    low, high = wilson(both, found)
                    fields.append("" if variant[0] == "dense" or not found else
                                  f"{100 * both / found:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
                if "answers %" in columns:
                    fields.append(f"{100 * sum(c[2] for c in here.values()) / n:.1f}")
                held = sum(c[4] for c in here.values())
                fields.append(f"{100 * sum(c[3] for c in here.values()) / held:.1f}" if held else "")
                fields += [f"{100 * here[a][1] / here[a][0]:.0f}" if a in here and here[a][0] else "" for a in axes]
                print("| " + " | ".join(fields) + " |")


def compare(rows):
    if not rows:
        return
    print("\n| attention | after | tokens | KL to dense, mean | p99 | same top token % | perplexity | of dense |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for r in rows:
        print(f"| {label(r['attention'], r['top_k_blocks'], r['sketch_bits'])} | {r['prefix']} | {r['tokens']} | "
              f"{r['kl_mean']:.5f} | {r['kl_p99']:.4f} | {r['top1']:.2f} | {r['perplexity']:.3f} | "
              f"{r['perplexity_dense']:.3f} |")


def main():
    cells, comparisons, paired = load(sys.argv[1])
    if "--csv" in sys.argv:
        print(",".join(KEY) + ",n,right,blocks_read,blocks_held")
        for key in sorted(cells, key=str):
            n, right, _, read, held = cells[key]
            print(",".join(str(k) for k in key) + f",{n},{right},{read},{held}")
        return
    retrieval(cells, paired)
    compare(comparisons)


if __name__ == "__main__":
    main()
