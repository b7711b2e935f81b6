#!/usr/bin/env python3
"""Debian packages -> documents -> a byte-level BPE of 8,192 -> token streams, held-out text and needle words.

  apt-get download $(cut -d' ' -f1 packages.txt)          (in DEB_DIR; bookworm)
  python3 prepare_data.py DEB_DIR WORK_DIR OUT_DIR

OUT_DIR receives train.xz and held_out.xz (uint16 tokens, documents end with token 0), held_out_seen.xz (one byte a
token: 1 where the token lies in a 13-gram that the training text has too), tokenizer.json, words.json (needle keys,
training and held-out ones) and data.json (packages with versions, counts, domains). No text is kept.
"""
import glob
import hashlib
import json
import lzma
import os
import random
import re
import subprocess
import sys
import time

import numpy as np

from text_cleaning import documents_of

NGRAM = 13
HELD_OUT_SHARE = 8 / 256          # of the documents, by hash of their beginning
LARGEST_HELD_OUT = 2_000_000      # characters; one giant document would be the whole held-out set
MOST_SEEN = 0.25                  # a held-out document with more of its 13-grams in the training text is dropped
TOKENIZER_TEXT = 60_000_000       # characters the BPE is trained on
RUN_LENGTH = 200_000              # characters of neighbouring documents kept together when the stream is shuffled
DEFAULT_CAP = 40                  # MB of text of one package
CAPS = {'golang-1.19-src': 62, 'libboost1.81-doc': 14, 'wordnet-base': 12, 'llvm-14-doc': 14, 'rust-src': 40,
        'erlang-doc': 24, 'python-scipy-doc': 16, 'python-pandas-doc': 12, 'ruby3.1-doc': 8}
CODE_PACKAGES = ('golang', 'rust-src', 'libpython', 'perl-modules', 'python3-')
SPECIALS = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|pad|>'] + ['<|reserved%d|>' % i for i in range(4, 16)]
STARTED = time.time()


def say(*what):
    print('%5.0f s' % (time.time() - STARTED), *what, flush=True)


def unpack(archive, folder):
    if not os.path.isdir(folder):
        subprocess.run(['dpkg', '-x', archive, folder], check=True)


def collect(deb_dir, work):
    """All documents as (package, text); exact duplicates (by their first letters and digits) are dropped."""
    texts, packages, seen = [], {}, set()
    for archive in sorted(glob.glob(deb_dir + '/*.deb')):
        package, version = os.path.basename(archive).split('_')[:2]
        version = version.replace('%3a', ':')
        if package == 'wamerican':
            packages[package] = dict(version=version, use='words of the needle keys')
            continue
        unpack(archive, work + '/' + package)
        kept = size = duplicates = 0
        for text in documents_of(package, work + '/' + package):
            key = hashlib.md5(re.sub(r'\W+', '', text[:4000]).encode()).digest()
            if key in seen:
                duplicates += 1
                continue
            seen.add(key)
            texts.append((package, text))
            kept += 1
            size += len(text)
            if size > CAPS.get(package, DEFAULT_CAP) * 1e6:
                break
        packages[package] = dict(version=version, documents=kept, megabytes=round(size / 1e6, 2))
        say(package, version, kept, 'documents', round(size / 1e6, 1), 'MB', duplicates, 'duplicates')
    return texts, packages


def train_tokenizer(texts, path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    # 'smollm': every digit alone (so that numbers are copied digit by digit), then GPT-2's pattern.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    chosen, size = [], 0
    for text in texts:
        chosen.append(text[:300_000])
        size += len(chosen[-1])
        if size > TOKENIZER_TEXT:
            break
    tokenizer.train_from_iterator(chosen, trainers.BpeTrainer(
        vocab_size=8192, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(path)
    return tokenizer


def encode(tokenizer, documents):
    """Per document one array of tokens with the separator 0 at its end."""
    out = []
    for i in range(0, len(documents), 512):
        batch = [text for _, text in documents[i:i + 512]]
        out += [np.array(e.ids + [0], np.uint16) for e in tokenizer.encode_batch(batch, add_special_tokens=False)]
    return out


def ngram_hashes(tokens):
    value = np.zeros(max(0, len(tokens) - NGRAM + 1), np.uint64)
    for i in range(NGRAM):
        value = value * np.uint64(0x9E3779B97F4A7C15) + tokens[i:i + len(value)].astype(np.uint64) + np.uint64(1)
    return value


def mark_seen(held_out, train):
    """For every held-out document a byte a token: 1 if a 13-gram of the training stream covers the token."""
    hashes = [ngram_hashes(document) for document in held_out]
    wanted = np.unique(np.concatenate(hashes))
    found = np.zeros(len(wanted), bool)
    for start in range(0, len(train), 4_000_000):
        part = ngram_hashes(train[start:start + 4_000_000 + NGRAM - 1])
        at = np.minimum(np.searchsorted(wanted, part), len(wanted) - 1)
        found[at[wanted[at] == part]] = True
    marks, shares = [], []
    for document, value in zip(held_out, hashes):
        hit = found[np.searchsorted(wanted, value)] if len(value) else np.zeros(0, bool)
        mark = np.zeros(len(document), np.uint8)
        for i in range(NGRAM):
            mark[i:i + len(hit)] |= hit
        marks.append(mark)
        shares.append(float(hit.mean()) if len(hit) else 1.0)
    return marks, shares


def write_words(tokenizer, deb_dir, work, path, rng):
    """Words of needle keys: 1 to 3 tokens with a leading space; a tenth of them never appears in a training needle."""
    for archive in glob.glob(deb_dir + '/wamerican_*.deb'):
        unpack(archive, work + '/wamerican')
    with open(glob.glob(work + '/wamerican/usr/share/dict/american-english')[0], encoding='utf8') as file:
        words = [w for w in file.read().split('\n') if re.fullmatch(r'[a-z]{3,10}', w)]
    encoded = [e.ids for e in tokenizer.encode_batch([' ' + w for w in words], add_special_tokens=False)]
    usable = [ids for ids in encoded if len(ids) <= 3]
    rng.shuffle(usable)
    usable = usable[:14_000]
    with open(path, 'w') as file:
        json.dump(dict(train=usable[1400:], held_out=usable[:1400]), file, separators=(',', ':'))
    return len(usable)


def write_xz(path, array):
    with open(path, 'wb') as file:
        file.write(lzma.compress(array.tobytes(), preset=6))


def main():
    deb_dir, work, out = sys.argv[1:4]
    os.makedirs(out, exist_ok=True)
    os.makedirs(work, exist_ok=True)
    texts, packages = collect(deb_dir, work)
    rng = random.Random(1)
    held_out, train = [], []
    for package, text in texts:
        chosen = hashlib.md5(text[:2000].encode()).digest()[0] < HELD_OUT_SHARE * 256 and len(text) < LARGEST_HELD_OUT
        (held_out if chosen else train).append((package, text))
    say(len(train), 'training documents', sum(len(t) for _, t in train) / 1e6, 'MB;', len(held_out), 'held-out candidates')
    sample = [text for _, text in train]
    rng.shuffle(sample)
    tokenizer = train_tokenizer(sample, out + '/tokenizer.json')
    say('tokenizer', tokenizer.get_vocab_size())
    words = write_words(tokenizer, deb_dir, work, out + '/words.json', rng)

    runs, current, size = [], [], 0
    for document in train:  # shuffle runs of neighbours: regions mix, a long row still meets related files
        if current and (current[-1][0] != document[0] or size > RUN_LENGTH):
            runs.append(current)
            current, size = [], 0
        current.append(document)
        size += len(document[1])
    runs.append(current)
    rng.shuffle(runs)
    train = [document for run in runs for document in run]
    train_bytes = sum(len(text.encode()) for _, text in train)
    stream = np.concatenate(encode(tokenizer, train))
    say('training tokens', len(stream), 'bytes', train_bytes)

    held_out.sort(key=lambda document: document[0])
    tokens = encode(tokenizer, held_out)
    marks, shares = mark_seen(tokens, stream)
    kept = [i for i, share in enumerate(shares) if share <= MOST_SEEN]
    dropped = len(tokens) - len(kept)
    all_tokens, all_marks, domains = [], [], []
    at = 0
    for i in kept:
        package = held_out[i][0]
        kind = 'code' if package.startswith(CODE_PACKAGES) else 'prose'
        if domains and domains[-1]['kind'] == kind and domains[-1]['package'] == package:
            domains[-1]['end'] = at + len(tokens[i])
        else:
            domains.append(dict(package=package, kind=kind, begin=at, end=at + len(tokens[i])))
        all_tokens.append(tokens[i])
        all_marks.append(marks[i])
        at += len(tokens[i])
    held_stream, mark_stream = np.concatenate(all_tokens), np.concatenate(all_marks)
    say('held out', len(held_stream), 'tokens in', len(kept), 'documents;', dropped, 'dropped; in seen 13-grams',
        round(float(mark_stream.mean()), 4))
    write_xz(out + '/held_out.xz', held_stream)
    write_xz(out + '/held_out_seen.xz', mark_stream)
    np.save(work + '/train.npy', stream)
    with open(out + '/data.json', 'w') as file:
        json.dump(dict(packages=packages, train_tokens=len(stream), train_bytes=train_bytes, held_out_tokens=len(held_stream),
                       held_out_documents=len(kept), held_out_dropped=dropped, seen_share=float(mark_stream.mean()),
                       words=words, domains=domains), file, indent=1)
    write_xz(out + '/train.xz', stream)
    say('done', {name: os.path.getsize(out + '/' + name) for name in sorted(os.listdir(out))})


if __name__ == '__main__':
    main()
