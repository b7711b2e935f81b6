#!/usr/bin/env python3
"""Writes models/NAME.md and the picture of the needle grid from results/: make_cards.py"""
import json
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


def card(name):
    title, about = ABOUT[name]
    log, data = lines_of('%s/results/%s.log.jsonl' % (HERE, name)), json.load(open(HERE + '/results/data.json'))
    result = json.load(open('%s/results/%s.json' % (HERE, name)))
    start, done = next(r for r in log if r.get('event') == 'start'), next(r for r in log if r.get('event') == 'done')
    first_steps = sum(r['seconds'] for r in log if r.get('event') == 'first_step')
    a = start['arguments']
    out = ['# ' + title, '', about + ' Trained by this project; licence of the weights: Apache-2.0.', '',
           'The file format and the exact maths are in [docs/gguf-architectures.md](../docs/gguf-architectures.md), the trainer in '
           '[training/](../training/README.md). It finds facts in long text; it is far too small to know any.', '',
           '## Training', '',
           '%.2f M parameters. %.1f M tokens in %d steps of 131,072 (about %.1f passes over the text), %d s of steps and %d s of '
           'compiling on one NVIDIA H200 (driver 580.159.04, PyTorch %s); bf16 products over f32 weights. Seed %d (rows are built by '
           'parallel processes, so a rerun is close but not identical).' % (
               start['parameters'] / 1e6, done['tokens'] / 1e6, done['step'], done['tokens'] / data['train_tokens'], done['elapsed'],
               first_steps, start['torch'], a['seed']), '',
           'Command: `training/train_all.sh DATA OUT`. KL weight %s, Muon %s, AdamW %s, weight decay %s, linear cooldown over the last '
           '%d %% of the time. Phases `[seconds, context, rows, share of retrieval rows, attention]`: `%s`' % (
               a['kl'], a['muon'], a['adam'], a['decay'], 100 * a['cooldown'], a['phases']), '',
           '| step | context | tokens, M | loss of text, nats | needle accuracy | copy | list | tokens/s |', '| --- | --- | --- | --- | --- | --- | --- | --- |']
    points = [r for r in log if 'text' in r]
    for r in points[::max(1, len(points) // 14)] + points[-1:]:
        out.append('| %d | %d | %.0f | %.3f | %s | %s | %s | %d |' % (r['step'], r['T'], r['tokens'] / 1e6, r['text'], *(
            r[k].split('/')[0] for k in ('needle', 'copy', 'list')), r['tokens_per_s']))
    out += ['', '## Needles', '', 'A statement "The code for <three words> is <7 digits>." in held-out documents with held-out words. '
            '*completion* repeats the statement up to the digits; *question* is a chat turn, and the whole answering sentence and the end '
            'of the turn must be right. Exact match, n a depth, Wilson 95 %% intervals in brackets. Trained up to %d tokens.'
            % max(p[1] for p in json.loads(a['phases'])), '', '| context | form | n | ' + ' | '.join('%d %%' % (100 * d) for d in (0, .25, .5, .75, .95))
            + ' |', '| --- | --- | --- | --- | --- | --- | --- | --- |']
    cells = []
    for key, r in result.items():
        if key.startswith('needle'):
            out.append('| %d | %s | %d | %s |' % (r['T'], r['form'], r['n'], ' | '.join(
                '%.1f [%.1f, %.1f]' % (100 * v, 100 * lo, 100 * hi) for v, (lo, hi) in zip(r['exact'], r['interval']))))
            if r['form'] == 'question':
                cells.append(r)
    picture(cells, '%s/../models/%s-needles.svg' % (HERE, title))
    out += ['', '![needle grid, question form](%s-needles.svg)' % title, '']
    controls = [(k, r) for k, r in result.items() if k.startswith(('control', 'n 16')) or k.startswith('dense ')]
    if controls:
        out += ['Controls (completion form, n 40 a depth):', '', '| control | exact match by depth, % |', '| --- | --- |']
        out += ['| %s | %s |' % (k, ' '.join('%.1f' % (100 * v) for v in r['exact'])) for k, r in controls] + ['']
    out += ['## Bits per byte', '', 'Held-out documents (%d of %d tokens; documents with more than a quarter of their 13-grams in the training '
            'text were dropped). *novel* counts only tokens outside 13-grams of the training text.' % (
                data['held_out_documents'], data['held_out_tokens']), '', '| text | context | all | novel | novel, by position |',
            '| --- | --- | --- | --- | --- |']
    for key, r in result.items():
        if key.startswith('bpb'):
            out.append('| %s | %d | %.4f | %.4f | %s |' % (key.split(' ', 1)[1].rsplit(' ', 1)[0], r['T'], r['all'], r['novel'], ', '.join(
                '%s: %.3f' % item for item in r['by_position'].items())))
    drafts = [r for k, r in result.items() if k.startswith('draft ')]
    if drafts:
        out += ['', '## draft-5m as its drafter', '', 'Greedy continuations (96 tokens after up to 416) of this model, greedy drafts, chains of 4. '
                'Greedy text of small models repeats itself, which makes it easy to guess: sampled text would be accepted less.', '',
                '| prompts | acceptance of a token | tokens a verification |', '| --- | --- | --- |']
        out += ['| %s (%d) | %.3f | %.2f |' % (r['kind'], r['prompts'], r['acceptance'], r['tokens_per_step']) for r in drafts]
    out += ['', open('%s/results/notes-%s.md' % (HERE, name)).read().strip(), '', '## Text', '',
            'Debian bookworm packages (name, version, MB of text after cleaning): ' + ', '.join('%s %s (%.1f)' % (
                k, v['version'], v['megabytes']) for k, v in sorted(data['packages'].items()) if v.get('megabytes', 0) > 0) +
            '; needle words from wamerican. %.1f M training tokens, %.1f MB.' % (data['train_tokens'] / 1e6, data['train_bytes'] / 1e6), '',
            '## Twenty unselected samples', '', 'Temperature 0.8, seed 1, the first run.', '']
    for text in result.get('samples', []):
        out += ['```text', text.replace('```', "'''").replace('\ufffd', '?'), '```']
    with open('%s/../models/%s.md' % (HERE, title), 'w') as file:
        file.write('\n'.join(out) + '\n')


for model in ABOUT:
    card(model)
