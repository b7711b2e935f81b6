"""Weights on disk. `last.pt`: everything a resumed run needs. `NAME.int8.partN`: int8 with an f16 scale per 32 inputs
(the numbers of Q8_0), in parts of 14 MiB, small enough to carry over slow or limited links."""
import glob
import io
import os

import torch

PART_BYTES = 14 << 20


def save_int8(config, state, prefix):
    packed = {}
    for name, value in state.items():
        value = value.detach().float().cpu()
        if value.ndim >= 2 and value.shape[-1] % 32 == 0 and name in ('emb', 'wq', 'wk', 'wv', 'wo', 'wi', 'wd'):
            blocks = value.reshape(-1, 32)
            scale = (blocks.abs().amax(1, keepdim=True) / 127).half()
            quants = (blocks / scale.float().clamp(min=1e-8)).round().clamp(-127, 127).to(torch.int8)
            packed[name] = (quants, scale, tuple(value.shape))
        else:
            packed[name] = value
    buffer = io.BytesIO()
    torch.save(dict(config=config, weights=packed), buffer)
    data = buffer.getvalue()
    for old in glob.glob(prefix + '.part*'):
        os.remove(old)
    for i in range(0, len(data), PART_BYTES):
        with open('%s.part%d' % (prefix, i // PART_BYTES), 'wb') as file:
            file.write(data[i:i + PART_BYTES])


def load(path):
    """(config, state in f32) of last.pt, of an int8 prefix or of a GGUF file that export.py wrote."""
    if path.endswith('.gguf'):
        from export import read_model
        return read_model(path)
    if path.endswith('.pt'):
        stored = torch.load(path, map_location='cpu', weights_only=False)
        return stored['config'], {k: v.float() for k, v in stored['model'].items()}
    parts = sorted(glob.glob(path + '.part*'), key=lambda name: int(name.rsplit('part', 1)[1]))
    if not parts:
        raise FileNotFoundError(path + '.part*')
    stored = torch.load(io.BytesIO(b''.join(open(p, 'rb').read() for p in parts)), map_location='cpu', weights_only=False)
    config, weights = stored.get('config') or stored['cfg'], stored.get('weights') or stored['q']
    return config, {k: (v[0].float() * v[1].float()).reshape(v[2]) if isinstance(v, tuple) else v for k, v in weights.items()}
