#!/usr/bin/env python3
"""A trained model -> GGUF.   export.py WEIGHTS TOKENIZER_JSON OUT.gguf NAME [--f32]

WEIGHTS: a folder/prefix written by checkpoint.save_int8, or last.pt. Names and shapes: docs/gguf-architectures.md.
"""
import sys

import numpy as np

import gguf

BRANCHES = ('cmp', 'slc', 'win')


def permute_for_pairs(weight, heads):
    """`llama` files store the rows of q and k for rotation of neighbours (2i, 2i+1); we rotate halves."""
    out_size, in_size = weight.shape
    return weight.reshape(heads, 2, out_size // heads // 2, in_size).swapaxes(1, 2).reshape(out_size, in_size)


def metadata_of(config, name, context):
    a = 'llama' if config['arch'] in ('draft', 'dense') else config['arch']
    out = {
        'general.architecture': a, 'general.name': name, 'general.license': 'apache-2.0', 'general.alignment': 32,
        a + '.block_count': config['L'], a + '.context_length': context, a + '.embedding_length': config['d_model'],
        a + '.feed_forward_length': config['ff'], a + '.vocab_size': config['V'], a + '.attention.head_count': config['H'],
        a + '.attention.head_count_kv': config['HKV'], a + '.attention.key_length': config['D'],
        a + '.attention.value_length': config['D'], a + '.attention.layer_norm_rms_epsilon': float(config['eps']),
        a + '.rope.freq_base': float(config['theta']), a + '.rope.dimension_count': config['D'],
    }
    if a == 'nsa':
        out.update({'nsa.compress_len': config['l'], 'nsa.compress_stride': config['d'], 'nsa.block': config['lb'],
                    'nsa.top_n': config['n'], 'nsa.window': config['w'], 'nsa.init_blocks': config['n_init'],
                    'nsa.local_blocks': config['n_local'], 'nsa.compress_rope': config.get('compress_rope', 'none'),
                    'nsa.kv_sets': config.get('kv_sets', 3), 'nsa.compressor': config.get('compressor', 'softmax'),
                    'nsa.gate': config.get('gate', 'sigmoid')})
    if a == 'infllm':
        out.update({'infllm.embedding_scale': float(config['scale_emb']), 'infllm.residual_scale': float(config['scale_res']),
                    'infllm.logit_scale': float(config['scale_logit']), 'infllm.kernel_size': config['l'],
                    'infllm.kernel_stride': config['d'], 'infllm.block_size': config['lb'],
                    'infllm.init_blocks': config['n_init'], 'infllm.local_window': config['w'],
                    'infllm.top_k_blocks': config['n'], 'infllm.dense_len': 0,
                    'infllm.use_nope': config.get('compress_rope', 'none') == 'none'})
    return out


def tensors_of(config, state):
    """GGUF name -> (array, is a matrix that Q8_0 may pack)."""
    s = {key: np.asarray(value, np.float32) for key, value in state.items()}
    kv = config['HKV'] * config['D']
    is_llama = config['arch'] in ('draft', 'dense')
    out = {'token_embd.weight': (s['emb'], True), 'output_norm.weight': (s['nf'], False)}
    for i in range(config['L']):
        b = 'blk.%d.' % i
        q, keys, values = s['wq'][i], s['wk'][i], s['wv'][i]
        out[b + 'attn_norm.weight'] = (s['nrm'][i, 0], False)
        out[b + 'attn_q.weight'] = (permute_for_pairs(q, config['H']) if is_llama else q, True)
        if keys.shape[0] == 3 * kv:
            for j, branch in enumerate(BRANCHES):
                out[b + 'attn_k_%s.weight' % branch] = (keys[j * kv:(j + 1) * kv], True)
                out[b + 'attn_v_%s.weight' % branch] = (values[j * kv:(j + 1) * kv], True)
        else:
            out[b + 'attn_k.weight'] = (permute_for_pairs(keys, config['HKV']) if is_llama else keys, True)
            out[b + 'attn_v.weight'] = (values, True)
        if config['arch'] == 'nsa':
            out[b + 'attn_gate.weight'] = (s['wg'][i], False)
            if 'bg' in s:
                out[b + 'attn_gate.bias'] = (s['bg'][i], False)
            if config.get('compressor', 'softmax') != 'mean':
                out[b + 'attn_compress_k.weight'] = (s['ck'][i], False)
                out[b + 'attn_compress_v.weight'] = (s['cv'][i], False)
        out[b + 'attn_output.weight'] = (s['wo'][i], True)
        out[b + 'ffn_norm.weight'] = (s['nrm'][i, 1], False)
        out[b + 'ffn_gate.weight'] = (s['wi'][i, :config['ff']], True)
        out[b + 'ffn_up.weight'] = (s['wi'][i, config['ff']:], True)
        out[b + 'ffn_down.weight'] = (s['wd'][i], True)
    return out


def read_model(path):
    """(config, state in f32) of a file that `export` made: training can go on from a shipped model."""
    import torch
    import model
    metadata, tensors = gguf.read(path)
    a = metadata['general.architecture']
    is_llama = a == 'llama'
    config = model.Config(**model.PRESETS['draft' if is_llama else a]).to_dict()
    config.update(L=metadata[a + '.block_count'], d_model=metadata[a + '.embedding_length'], ff=metadata[a + '.feed_forward_length'],
                  V=metadata[a + '.vocab_size'], H=metadata[a + '.attention.head_count'], HKV=metadata[a + '.attention.head_count_kv'],
                  D=metadata[a + '.attention.key_length'])
    for key, value in metadata_of(config, '', 0).items():  # every other setting has to be the preset's
        if key not in ('general.name', a + '.context_length') and metadata.get(key) != (np.float32(value) if isinstance(value, float) else value):
            raise ValueError('%s: %s is %s, not %s' % (path, key, metadata.get(key), value))

    def layers(name):
        return np.stack([tensors['blk.%d.%s' % (i, name)] for i in range(config['L'])])

    def halves(weight, heads):  # undoes permute_for_pairs
        out_size, in_size = weight.shape
        return weight.reshape(heads, out_size // heads // 2, 2, in_size).swapaxes(1, 2).reshape(out_size, in_size)

    def projection(name):
        if a == 'nsa' and config['kv_sets'] == 3:
            return np.concatenate([layers('attn_%s_%s.weight' % (name, branch)) for branch in BRANCHES], 1)
        weights = layers('attn_%s.weight' % name)
        return np.stack([halves(w, config['HKV']) for w in weights]) if is_llama and name == 'k' else weights

    queries = layers('attn_q.weight')
    state = {'emb': tensors['token_embd.weight'], 'nf': tensors['output_norm.weight'],
             'wq': np.stack([halves(w, config['H']) for w in queries]) if is_llama else queries,
             'wk': projection('k'), 'wv': projection('v'), 'wo': layers('attn_output.weight'), 'wd': layers('ffn_down.weight'),
             'wi': np.concatenate([layers('ffn_gate.weight'), layers('ffn_up.weight')], 1),
             'nrm': np.stack([layers('attn_norm.weight'), layers('ffn_norm.weight')], 1)}
    if a == 'nsa':
        state.update(wg=layers('attn_gate.weight'), ck=layers('attn_compress_k.weight'), cv=layers('attn_compress_v.weight'))
    return config, {key: torch.from_numpy(np.array(value)) for key, value in state.items()}


def export(config, state, tokenizer, path, name, context=65536, f32=False):
    metadata = metadata_of(config, name, context)
    metadata['general.file_type'] = 0 if f32 else 7
    metadata['general.quantization_version'] = 2
    if tokenizer:
        metadata.update(gguf.tokenizer_metadata(tokenizer))
    gguf.write(path, metadata, tensors_of(config, state), quantise=not f32)


def main():
    import checkpoint
    arguments = [a for a in sys.argv[1:] if not a.startswith('--')]
    config, state = checkpoint.load(arguments[0])
    context = 8192 if config['arch'] == 'draft' else 65536
    export(config, state, arguments[1], arguments[2], arguments[3], context, '--f32' in sys.argv)


if __name__ == '__main__':
    main()
