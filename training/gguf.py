"""GGUF version 3, written and read back: metadata, tensors, F32 and Q8_0. Layout: docs/gguf-architectures.md."""
import json
import struct

import numpy as np

ALIGNMENT = 32
F32, Q8_0 = 0, 8
Q8_BLOCK = 32
U32, I32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def quantise_q8_0(matrix):
    """Blocks of 32 along the rows: an f16 scale (largest magnitude / 127), then 32 int8."""
    blocks = np.ascontiguousarray(matrix, np.float32).reshape(-1, Q8_BLOCK)
    scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    divisor = scale.astype(np.float32)
    inverse = np.divide(1.0, divisor, out=np.zeros_like(divisor), where=divisor > 0)
    quants = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.int8)
    out = np.empty((len(blocks), 2 + Q8_BLOCK), np.uint8)
    out[:, :2] = scale.view(np.uint8)
    out[:, 2:] = quants.view(np.uint8)
    return out.tobytes()


def dequantise_q8_0(data, shape):
    raw = np.frombuffer(data, np.uint8).reshape(-1, 2 + Q8_BLOCK)
    scale = np.ascontiguousarray(raw[:, :2]).view(np.float16).astype(np.float32)
    return (np.ascontiguousarray(raw[:, 2:]).view(np.int8).astype(np.float32) * scale).reshape(shape)


def _string(text):
    data = text.encode('utf8')
    return struct.pack('<Q', len(data)) + data


def _value(value):
    """(type, bytes) of a metadata value; integers are u32, floats f32, lists take their first element's type."""
    if isinstance(value, bool):
        return BOOL, struct.pack('<B', value)
    if isinstance(value, int):
        return U32, struct.pack('<I', value)
    if isinstance(value, float):
        return FLOAT32, struct.pack('<f', value)
    if isinstance(value, str):
        return STRING, _string(value)
    if isinstance(value, list):
        kind = I32 if isinstance(value[0], int) else _value(value[0])[0]
        items = b''.join(struct.pack('<i', v) if kind == I32 else _value(v)[1] for v in value)
        return ARRAY, struct.pack('<IQ', kind, len(value)) + items
    raise TypeError('no GGUF type for %r' % type(value))


def write(path, metadata, tensors, quantise=True):
    """tensors: name -> (numpy array [out, in] or vector, may be Q8_0). Dimensions are stored innermost first."""
    head = [struct.pack('<4sIQQ', b'GGUF', 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        kind, data = _value(value)
        head.append(_string(key) + struct.pack('<I', kind) + data)
    payload, offset = [], 0
    for name, (array, is_matrix) in tensors.items():
        packed = quantise and is_matrix and array.shape[-1] % Q8_BLOCK == 0
        data = quantise_q8_0(array) if packed else np.ascontiguousarray(array, np.float32).tobytes()
        dims = array.shape[::-1]
        head.append(_string(name) + struct.pack('<I%dQIQ' % len(dims), len(dims), *dims, Q8_0 if packed else F32, offset))
        data += b'\0' * (-len(data) % ALIGNMENT)
        payload.append(data)
        offset += len(data)
    head = b''.join(head)
    with open(path, 'wb') as file:
        file.write(head + b'\0' * (-len(head) % ALIGNMENT))
        for data in payload:
            file.write(data)


def read(path):
    """(metadata, tensors as float32 arrays) of a file that `write` made."""
    with open(path, 'rb') as file:
        data = file.read()
    at = 0

    def take(fmt):
        nonlocal at
        out = struct.unpack_from('<' + fmt, data, at)
        at += struct.calcsize('<' + fmt)
        return out if len(out) > 1 else out[0]

    def text():
        nonlocal at
        size = take('Q')
        at += size
        return data[at - size:at].decode('utf8')

    def value(kind):
        if kind == STRING:
            return text()
        if kind == ARRAY:
            inner, count = take('IQ')
            return [value(inner) for _ in range(count)]
        return bool(take('B')) if kind == BOOL else take({U32: 'I', I32: 'i', FLOAT32: 'f'}[kind])

    magic, version, tensor_count, value_count = take('4sIQQ')
    if magic != b'GGUF' or version != 3:
        raise ValueError(path + ' is not a GGUF file of version 3')
    metadata = {}
    for _ in range(value_count):
        key = text()
        metadata[key] = value(take('I'))
    infos = []
    for _ in range(tensor_count):
        name, count = text(), take('I')
        dims = take('%dQ' % count)
        dims = dims if count > 1 else (dims,)
        infos.append((name, dims[::-1], *take('IQ')))
    start = at + -at % ALIGNMENT
    tensors = {}
    for name, shape, kind, offset in infos:
        count = int(np.prod(shape))
        size = count * 4 if kind == F32 else count // Q8_BLOCK * (2 + Q8_BLOCK)
        part = data[start + offset:start + offset + size]
        tensors[name] = np.frombuffer(part, np.float32).reshape(shape) if kind == F32 else dequantise_q8_0(part, shape)
    return metadata, tensors


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def tokenizer_metadata(path):
    """The keys of a tokenizers-library BPE file with 16 specials first."""
    with open(path, encoding='utf8') as file:
        stored = json.load(file)
    vocabulary = stored['model']['vocab']
    tokens = [token for token, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    special = {token['content'] for token in stored['added_tokens']}
    merges = [m if isinstance(m, str) else ' '.join(m) for m in stored['model']['merges']]
    return {
        'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'smollm', 'tokenizer.ggml.tokens': tokens,
        'tokenizer.ggml.token_type': [3 if token in special else 1 for token in tokens],
        'tokenizer.ggml.merges': merges, 'tokenizer.ggml.bos_token_id': 0, 'tokenizer.ggml.eos_token_id': 0,
        'tokenizer.ggml.eot_token_id': 2, 'tokenizer.ggml.padding_token_id': 3, 'tokenizer.ggml.add_bos_token': False,
        'tokenizer.chat_template': CHAT_TEMPLATE,
    }
