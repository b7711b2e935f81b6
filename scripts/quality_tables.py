#!/usr/bin/env python3
"""Adds up JSON results of `farsight eval` over seeds and prints markdown tables. A seed counts once.

    quality_tables.py FOLDER            needle and other retrieval grids, comparisons with dense and bits per byte
    quality_tables.py FOLDER --csv      the summed cells, one a line
    quality_tables.py FOLDER --svg OUT  pictures OUT/MODEL-needles.svg of the needle grids in question form

Intervals are Wilson's at 95 %. "kept" is the share of the samples answered right under dense attention that the policy
answers right too; it needs cells of one sample a file (--samples 1), where samples can be paired. What follows "±" is the
standard error between windows.
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
    cells, likelihood, paired = collections.defaultdict(lambda: [0, 0, 0.0, 0, 0]), [], {}
    for row in distinct(folder, likelihood):
        key = tuple(row[k] for k in KEY)
        sums = cells[key]
        for i, name in enumerate(("n", "right", "answer_share", "blocks_read", "blocks_held")):
            sums[i] += row[name] * (row["n"] if name == "answer_share" else 1)
        if row["n"] == 1:
            sample = (row["model"], row["task"], row["form"], row["length"], row["axis"], row["seed"])
            paired.setdefault(sample, {})[key[3:6]] = row["right"]
    return cells, likelihood, paired


def distinct(folder, likelihood):
    """Rows of retrieval tasks; of a cell that several files hold for one seed, the one with the most samples."""
    best = {}
    for path in sorted(pathlib.Path(folder).glob("**/*.json")):
        text = path.read_text()
        if not text.strip():
            continue
        for row in json.loads(text):
            if "kl_mean" in row or "bits_per_byte" in row:
                likelihood.append({"file": path.stem, **row})
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


def mean(values):
    """Mean and its standard error; the error of one value is not known."""
    m = sum(values) / len(values)
    if len(values) < 2:
        return m, None
    return m, math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - 1) / len(values))


def plus_minus(values, digits, scale=1):
    m, error = mean([scale * v for v in values])
    return f"{m:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def compare(rows):
    """A window a row of the results; the windows of a policy are averaged, and their spread gives the error."""
    groups = collections.defaultdict(list)
    for r in (r for r in rows if "kl_mean" in r):
        groups[r["prefix"], r["attention"], r["top_k_blocks"], r["sketch_bits"]].append(r)
    if not groups:
        return
    print("\n| after | attention | windows | tokens | KL to dense | p99 of a window | same top token % | perplexity | "
          "of dense | change % |\n|" + " --- |" * 10)
    for key in sorted(groups, key=lambda k: (k[0], k[1] != "sketch", k[3], k[2])):
        mine = groups[key]
        log = {name: [math.log(r[name]) for r in mine] for name in ("perplexity", "perplexity_dense")}
        change = [100 * (math.exp(a - b) - 1) for a, b in zip(log["perplexity"], log["perplexity_dense"])]
        print(f"| {key[0]} | {label(*key[1:])} | {len(mine)} | {sum(r['tokens'] for r in mine)} | "
              f"{plus_minus([r['kl_mean'] for r in mine], 5)} | {mean([r['kl_p99'] for r in mine])[0]:.4f} | "
              f"{plus_minus([r['top1'] for r in mine], 2)} | {math.exp(mean(log['perplexity'])[0]):.3f} | "
              f"{math.exp(mean(log['perplexity_dense'])[0]):.3f} | {plus_minus(change, 2)} |")


def bits_per_byte(rows):
    """A file a text and context, named MODEL.bpb.TEXT.CONTEXT; its first row is the whole, the others are positions."""
    files = collections.defaultdict(list)
    for r in (r for r in rows if "bits_per_byte" in r):
        files[r["file"]].append(r)
    if not files:
        return
    print("\n| model | text | context | tokens | bits per byte | by position |\n|" + " --- |" * 6)
    for name, mine in sorted(files.items(), key=lambda f: (f[0].rsplit(".", 1)[0], f[1][0]["context"])):
        whole, *parts = mine
        model, _, text, *_ = name.split(".") + ["", ""]
        places = ", ".join(f"{p['positions']}: {p['bits_per_byte']:.3f}" for p in parts)
        print(f"| {model} | {text} | {whole['context']} | {whole['tokens']} | {whole['bits_per_byte']:.4f} | {places} |")


def draw(cells, folder):
    """Lengths across, depths down; the number is the percentage of right answers."""
    grids = collections.defaultdict(dict)
    for (model, task, form, attention, _, _, length, depth), (n, right, *_) in cells.items():
        if (task, form, attention) == ("needle", "question", "model") and n:
            grids[model][length, depth] = right / n
    width, height, left, top = 62, 24, 60, 40
    for model, grid in grids.items():
        lengths, depths = sorted({k[0] for k in grid}), sorted({k[1] for k in grid})
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width * len(lengths) + 10}" '
               f'height="{top + height * len(depths) + 10}" font-family="sans-serif" font-size="12">',
               f'<text x="4" y="16">{model}: right answers, % (depth down, context across)</text>']
        for x, length in enumerate(lengths):
            middle = left + width * x + width // 2
            out.append(f'<text x="{middle}" y="{top - 6}" text-anchor="middle">{length // 1024}K</text>')
            for y, depth in enumerate(depths):
                if (length, depth) not in grid:
                    continue
                share, at = grid[length, depth], top + height * y
                out.append(f'<rect x="{left + width * x}" y="{at}" width="{width}" height="{height}" '
                           f'fill="hsl({int(120 * share)},65%,72%)" stroke="white"/>')
                out.append(f'<text x="{middle}" y="{at + 16}" text-anchor="middle">{100 * share:.0f}</text>')
        out += [f'<text x="6" y="{top + height * y + 16}">{depth} %</text>' for y, depth in enumerate(depths)]
        (pathlib.Path(folder) / f"{model}-needles.svg").write_text("\n".join(out) + "\n</svg>\n")


def main():
    cells, likelihood, paired = load(sys.argv[1])
    if "--svg" in sys.argv:
        draw(cells, sys.argv[sys.argv.index("--svg") + 1])
        return
    if "--csv" in sys.argv:
        print(",".join(KEY) + ",n,right,blocks_read,blocks_held")
        for key in sorted(cells, key=str):
            n, right, _, read, held = cells[key]
            print(",".join(str(k) for k in key) + f",{n},{right},{read},{held}")
        return
    retrieval(cells, paired)
    compare(likelihood)
    bits_per_byte(likelihood)


if __name__ == "__main__":
    main()
