#!/usr/bin/env python3
"""Reads GGUF files whole and prints what they hold; fails if one is not well-formed: read_back.py FILE..."""
import sys

import numpy as np

import gguf

for path in sys.argv[1:]:
    metadata, tensors = gguf.read(path)
    assert all(np.isfinite(array).all() for array in tensors.values()), path + ' holds values that are not finite'
    count = sum(array.size for array in tensors.values())
    print('%-32s %-7s %d tensors, %.2f M parameters' % (path, metadata['general.architecture'], len(tensors), count / 1e6))
