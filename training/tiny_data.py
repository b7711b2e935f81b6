#!/usr/bin/env python3
"""A small data folder for rehearsals and tests, from text made here: tiny_data.py OUT_DIR [vocabulary]"""
import json
import lzma
import os
import random
import sys

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from prepare_data import SPECIALS

SYLLABLES = ['ba', 'con', 'di', 'fer', 'gu', 'la', 'men', 'no', 'pra', 'ri', 'su', 'ta', 'vel', 'wo', 'zi']


def write(out, vocabulary):
    os.makedirs(out, exist_ok=True)
    rng = random.Random(3)
    words = sorted({''.join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(900)})
    text = [' '.join(rng.choices(words, k=rng.randint(30, 90))).capitalize() + '.\nThe code is %d.\n' % rng.randint(0, 999)
            for _ in range(1200)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(out + '/tokenizer.json')
    ids = np.concatenate([np.array(e.ids + [0], np.uint16) for e in tokenizer.encode_batch(text, add_special_tokens=False)])
    held = len(ids) * 4 // 5
    for name, part in (('train', ids[:held]), ('held_out', ids[held:]), ('held_out_seen', np.zeros(len(ids) - held, np.uint8))):
        with open('%s/%s.xz' % (out, name), 'wb') as file:
            file.write(lzma.compress(part.tobytes(), preset=1))
    keys = [e.ids for e in tokenizer.encode_batch([' ' + w for w in words], add_special_tokens=False)]
    with open(out + '/words.json', 'w') as file:
        json.dump(dict(train=keys[100:], held_out=keys[:100]), file)
    count = len(ids) - held
    with open(out + '/data.json', 'w') as file:
        json.dump(dict(packages={}, domains=[dict(package='tiny', kind='prose', begin=0, end=count // 2),
                                             dict(package='tiny', kind='code', begin=count // 2, end=count)]), file)


if __name__ == '__main__':
    write(sys.argv[1], int((sys.argv[2:] or [384])[0]))
