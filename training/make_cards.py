#!/usr/bin/env python3
"""Writes models/NAME.md and the picture of the needle grid from results/: make_cards.py"""
import json
import math
import os

HERE = os.path.dirname(os.path.abspath(__file__))
ABOUT = {
    'nsa': ('nsa-35m', 'A language model with NSA attention (arXiv 2502.11089): compressed, selected and window branches, gates, '
            'three sets of keys and values.'),
    'infllm': ('infllm-32m', "A language model with InfLLM-v2 style block-sparse attention (arXiv 2509.24663) and MiniCPM's scales; "
               'trained densely first, then sparsely. Scores are un-rotated (use_nope).'),
    'draft': ('draft-5m', 'A small dense Llama-like drafter with the tokenizer of nsa-35m and infllm-32m.'),
}


def lines_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def picture(cells, path):
    """Lengths across, depths down; the number is the percentage of exact answers."""
    w, h, left, top = 62, 30, 60, 40
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">'
           % (left + w * len(cells) + 10, top + h * 5 + 10), '<text x="4" y="16">exact answers, % (depth down, context across)</text>']
    for x, cell in enumerate(cells):
        out.append('<text x="%d" y="%d" text-anchor="middle">%dK</text>' % (left + w * x + w // 2, top - 6, cell['T'] // 1024))
        for y, value in enumerate(cell['exact']):
            hue = int(120 * value)
            out.append('<rect x="%d" y="%d" width="%d" height="%d" fill="hsl(%d,65%%,72%%)" stroke="white"/>'
                       % (left + w * x, top + h * y, w, h, hue))
            out.append('<text x="%d" y="%d" text-anchor="middle">%.1f</text>' % (left + w * x + w // 2, top + h * y + 20, 100 * value))
    for y, depth in enumerate(cells[0]['depths']):
        out.append('<text x="6" y="%d">%d %%</text>' % (top + h * y + 20, round(100 * depth)))
    with open(path, 'w') as file:
        file.write('\n'.join(out) + '\n</svg>\n')


def read_json(path):
    with open(path) as file:
        return json.load(file)


def training_of(name, number, log, data):
    """One run: what it saw, its command and its curve."""
    start, done = next(r for r in log if r.get('event') == 'start'), next(r for r in log if r.get('event') == 'done')
    first_steps = sum(r['seconds'] for r in log if r.get('event') == 'first_step')
    a = start['arguments']
    amount = json.loads(a['phases'])[0][0]
    title, script, beside = {
        1: ('', 'train_all.sh DATA OUT', ''),
        2: ('Second run, from the Q8_0 weights of the first, every length in turn. ', 'continue.sh second %s DATA INIT OUT %d' % (name, amount),
            ' shared with another training process'),
        3: ('Third run, from the Q8_0 weights of the second, mostly long rows, more needles at the start. ',
            'continue.sh third %s DATA INIT OUT %d' % (name, amount), ' shared with two other training processes'),
        4: ('Fourth run, from the Q8_0 weights of the third, two thirds of the tokens in rows of 32K and 64K, needles at the start asked from '
            'the far end. ', 'continue.sh fourth %s DATA INIT OUT %d' % (name, amount), '')}[number]
    out = ['%s%.2f M parameters. %.1f M tokens in %d steps of 131,072 (about %.1f passes over the text), %d s of steps and %d s of '
           'compiling on one NVIDIA H200%s (driver 580.159.04, PyTorch %s); bf16 products over f32 weights. Seed %d (rows are built by '
           'parallel processes, so a rerun is close but not identical).' % (
               title, start['parameters'] / 1e6, done['tokens'] / 1e6, done['step'], done['tokens'] / data['train_tokens'], done['elapsed'],
               first_steps, beside, start['torch'], a['seed']), '',
           'Command: `training/%s`. KL weight %s, Muon %s, AdamW %s, weight decay %s, linear cooldown over the last %d %% of the time. Phases '
           '`[%s, context, rows, share of retrieval rows, attention]`%s: `%s`' % (
               script, a['kl'], a['muon'], a['adam'], a['decay'], 100 * a['cooldown'],
               'seconds' if a.get('unit', 'seconds') == 'seconds' else 'millions of tokens',
               ' (a mixture: `[[context, share of the tokens], ...]` and the tokens of a step)' if number > 1 else '', a['phases']), '',
           '| step | context | tokens, M | loss of text, nats | needle accuracy | stated at the start | copy | list | tokens/s |',
           '| --- | --- | --- | --- | --- | --- | --- | --- | --- |']
    points = [r for r in log if 'text' in r]
    step = max(1, len(points) // 14)
    for r in points[::step] + (points[-1:] if (len(points) - 1) % step else []):
        out.append('| %d | %s | %.0f | %.3f | %s | %d |' % (r['step'], r['T'], r['tokens'] / 1e6, r['text'], ' | '.join(
            r[k].split('/')[0] if k in r else '-' for k in ('needle', 'start', 'copy', 'list')), r['tokens_per_s']))
    return out + ['']


def goals_of(name, result):
    """What was asked for, what was measured: the worst cell decides."""
    out = ['## Goals', '', '| goal | measured | met |', '| --- | --- | --- |']

    def line(goal, measured, met):
        out.append('| %s | %s | %s |' % (goal, measured, 'not known' if met is None else 'yes' if met else 'no'))

    needles = [r for key, r in result.items() if key.startswith('needle')]
    for form in ('completion', 'question'):
        for low, high, goal in ((0, 16384, 0.98), (16385, 32768, 0.95)):
            cells = [(v, r['T'], d) for r in needles if r['form'] == form and low <= r['T'] <= high for v, d in zip(r['exact'], r['depths'])]
            if cells:
                value, T, depth = min(cells)
                line('needles, %s, %s: at least %d %% at every depth' % (form, 'up to 16K' if high == 16384 else '32K', 100 * goal),
                     '%d of %d cells; lowest %.1f %% (%d tokens, depth %d %%), mean %.1f %%' % (
                         sum(v >= goal for v, _, _ in cells), len(cells), 100 * value, T, round(100 * depth), 100 * sum(v for v, _, _ in cells) / len(cells)),
                     value >= goal)
    # The same weights with more samples at 32K, where the forms are close.
    told, least = [], []
    for where, rows in (('up to 16K', [r for r in needles if r['T'] <= 16384]), ('32K', read_json('%s/results/%s.32k.json' % (HERE, name)).values())):
        asked = {f: sum(r['n'] * len(r['depths']) for r in rows if r['form'] == f) for f in ('question', 'completion')}
        right = {f: sum(r['n'] * sum(r['exact']) for r in rows if r['form'] == f) / asked[f] for f in asked}
        difference = right['question'] - right['completion']
        margin = 1.96 * math.sqrt(sum(right[f] * (1 - right[f]) / asked[f] for f in asked))
        told.append('%s: %.2f and %.2f %% of %d each, the difference between %.2f and %.2f' % (
            where, 100 * right['question'], 100 * right['completion'], asked['question'], 100 * (difference - margin), 100 * (difference + margin)))
        least.append(difference + margin)
    line('question form at least as good as completion (beyond what chance can make)', '; '.join(told), min(least) >= 0)
    off = [r for key, r in result.items() if key.startswith(('control selected off', 'control forced'))]
    if not off:
        line('without free selection nothing beyond the window is found', 'not measured on these weights', None)
    else:
        worst = max(v for r in off for v, d in zip(r['exact'], r['depths']) if d > 0 or name == 'nsa')
        line('without free selection nothing beyond the window is found', 'at most %.1f %%' % (100 * worst), worst <= 0.02)
    for kind in ('prose', 'code'):
        at = [result['bpb %s %d' % (kind, T)]['novel'] for T in (2048, 8192, 32768)]
        line('bits per byte of %s no worse at 8K and 32K than at 2K' % kind, '%.4f, %.4f, %.4f' % tuple(at), max(at[1:]) <= at[0])
    same = [(result['bpb %s %d' % (kind, T)]['novel'], result['bpb dense %s %d' % (kind, T)]['novel'], kind, T) for kind in ('prose', 'code')
            for T in (2048, 8192) if 'bpb dense %s %d' % (kind, T) in result]
    if same:
        line('within 0.03 bits per byte of the same weights attending densely', '; '.join(
            '%s %d: %.4f against %.4f' % (kind, T, mine, other) for mine, other, kind, T in same), max(s[0] - s[1] for s in same) <= 0.03)
    deltas = [abs(result['bpb %s %d' % (r['kind'], r['T'])]['all'] - r['all']) for key, r in result.items() if key.startswith('unquantised')]
    if deltas:
        line('Q8_0 within 0.002 bits per byte of the unquantised weights (same bf16 products)', 'largest difference %.4f' % max(deltas), max(deltas) <= 0.002)
    else:
        line('Q8_0 within 0.002 bits per byte of the unquantised weights', 'not measured: see below', None)
    # Each pair read the same kinds of rows: the first run's, of up to 64K, and rows of at most 8K.
    pairs = [(mine, twin) for mine, twin in (('nsa.1', 'twin'), ('nsa.short', 'twin.short')) if name == 'nsa']
    for mine, twin in pairs:
        mine, twin = (read_json('%s/results/%s.json' % (HERE, run)) for run in (mine, twin))
        gaps = [(mine[key]['novel'] - r['novel'], mine[key]['novel'], r['novel'], key[4:]) for key, r in twin.items() if key.startswith('bpb')]
        line('within 0.03 bits per byte of a dense twin on equal tokens, rows of at most %s' % ('8K' if len(gaps) == 4 else '64K'), '; '.join(
            '%s: %.4f against %.4f' % (key, mine, other) for _, mine, other, key in gaps), max(gap[0] for gap in gaps) <= 0.03)
    return out + ['']


def first_run_of(name, result):
    """What only the first run's weights were measured for."""
    path = '%s/results/%s.1.json' % (HERE, name)
    return {key: r for key, r in read_json(path).items() if key not in result} if os.path.exists(path) else {}


def needles_of(result, first, title, longest):
    out = ['## Needles', '', 'A statement "The code for <three words> is <7 digits>." in held-out documents with held-out words. '
           '*completion* repeats the statement up to the digits; *question* is a chat turn, and the whole answering sentence and the end '
           'of the turn must be right. Exact match, n a depth, Wilson 95 %% intervals in brackets. Trained up to %d tokens.' % longest, '',
           '| context | form | n | ' + ' | '.join('%d %%' % (100 * d) for d in (0, .25, .5, .75, .95)) + ' |',
           '| --- | --- | --- | --- | --- | --- | --- | --- |']
    cells = []
    measured = [(key, r) for key, r in list(result.items()) + list(first.items()) if key.startswith('needle')]
    for key, r in sorted(measured, key=lambda entry: entry[1]['T']):
        out.append('| %d | %s%s | %d | %s |' % (
            r['T'], r['form'], ' (first run\'s weights)' if key in first else '', r['n'], ' | '.join(
                '%.1f [%.1f, %.1f]' % (100 * v, 100 * lo, 100 * hi) for v, (lo, hi) in zip(r['exact'], r['interval']))))
        if r['form'] == 'question' and key in result:
            cells.append(r)
    picture(cells, '%s/../models/%s-needles.svg' % (HERE, title))
    out += ['', '![needle grid, question form](%s-needles.svg)' % title, '']
    starts = [('these', key, r) for key, r in result.items() if key.startswith('start ')]
    before = HERE + '/results/%s.starts.json' % title.split('-')[0]
    if os.path.exists(before):
        starts += [('first run', key, r) for key, r in read_json(before).items() if key.startswith('start ')]
    if starts:
        out += ['Near the start of the context, by the number of tokens before the statement (a query before token %d sees no compressed '
                'window):' % 31, '', '| weights | context | form | n | ' + ' | '.join(str(d) for d in starts[0][2]['depths']) + ' |',
                '| --- | --- | --- | --- |' + ' --- |' * len(starts[0][2]['depths'])]
        out += ['| %s | %d | %s | %d | %s |' % (which, r['T'], r['form'], r['n'], ' | '.join('%.1f' % (100 * v) for v in r['exact']))
                for which, _, r in starts] + ['']
    for values, whose in ((result, 'these weights'), (first, "the first run's weights")):
        controls = [(k, r) for k, r in values.items() if k.startswith(('control', 'n 16', 'dense '))]
        if controls:
            out += ['Controls on %s (completion form, depths %s %%):' % (whose, ', '.join('%d' % (100 * d) for d in controls[0][1]['depths'])),
                    '', '| control | n a depth | exact match by depth, % |', '| --- | --- | --- |']
            out += ['| %s | %d | %s |' % (k, r['n'], ' '.join('%.1f' % (100 * v) for v in r['exact'])) for k, r in controls] + ['']
    return out


def card(name):
    title, about = ABOUT[name]
    data, result = read_json(HERE + '/results/data.json'), read_json('%s/results/%s.json' % (HERE, name))
    logs = [lines_of(path) for path in ('%s/results/%s%s.log.jsonl' % (HERE, name, part) for part in ('', '.2', '.3', '.4')) if os.path.exists(path)]
    phases = [p for log in logs for r in log if r.get('event') == 'start' for p in json.loads(r['arguments']['phases'])]
    longest = max(p[1] if isinstance(p[1], int) else max(T for T, _ in p[1]) for p in phases)
    out = ['# ' + title, '', about + ' Trained by this project; licence of the weights: Apache-2.0.', '',
           'The file format and the exact maths are in [docs/gguf-architectures.md](../docs/gguf-architectures.md), the trainer in '
           '[training/](../training/README.md). It finds facts in long text; it is far too small to know any.', '']
    out += goals_of(name, result) if name != 'draft' else []
    out += ['## Training', '']
    for i, log in enumerate(logs):
        out += training_of(name, i + 1, log, data)
    first = first_run_of(name, result)
    out += needles_of(result, first, title, longest)
    out += ['## Bits per byte', '', 'Held-out documents (%d of %d tokens; documents with more than a quarter of their 13-grams in the training '
            'text were dropped). *novel* counts only tokens outside 13-grams of the training text.' % (
                data['held_out_documents'], data['held_out_tokens']), '', '| text | context | all | novel | novel, by position |',
            '| --- | --- | --- | --- | --- |']
    for key, r in result.items():
        if key.startswith('bpb'):
            out.append('| %s | %d | %.4f | %.4f | %s |' % (key.split(' ', 1)[1].rsplit(' ', 1)[0], r['T'], r['all'], r['novel'], ', '.join(
                '%s: %.3f' % item for item in r['by_position'].items())))
    drafts = [r for k, r in list(result.items()) + list(first.items()) if k.startswith('draft ')]
    if drafts:
        out += ['', '## draft-5m as its drafter', '', 'Greedy continuations (96 tokens after up to 416) of this model%s, greedy drafts, chains of 4. '
                'Greedy text of small models repeats itself, which makes it easy to guess: sampled text would be accepted less.' % (
                    '' if 'draft prose' in result else " (with the first run's weights)"), '',
                '| prompts | acceptance of a token | tokens a verification |', '| --- | --- | --- |']
        out += ['| %s (%d) | %.3f | %.2f |' % (r['kind'], r['prompts'], r['acceptance'], r['tokens_per_step']) for r in drafts]
    out += ['', open('%s/results/notes-%s.md' % (HERE, name)).read().strip(), '', '## Text', '',
            'Debian bookworm packages (name, version, MB of text after cleaning): ' + ', '.join('%s %s (%.1f)' % (
                k, v['version'], v['megabytes']) for k, v in sorted(data['packages'].items()) if v.get('megabytes', 0) > 0) +
            '; needle words from wamerican. %.1f M training tokens, %.1f MB.' % (data['train_tokens'] / 1e6, data['train_bytes'] / 1e6), '',
            '## Twenty unselected samples', '', 'Temperature 0.8, seed 1, drawn once with the trainer.', '']
    for text in result.get('samples', []):
        out += ['```text', text.replace('```', "'''").replace('\ufffd', '?'), '```']
    with open('%s/../models/%s.md' % (HERE, title), 'w') as file:
        file.write('\n'.join(out) + '\n')


for model in ABOUT:
    card(model)
