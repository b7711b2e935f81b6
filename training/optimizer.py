"""Muon for the hidden matrices, AdamW for the rest."""
import torch


def orthogonalise(gradient):
    """Five Newton-Schulz steps towards the nearest orthogonal matrix, in bf16, for a batch of matrices."""
    x = gradient.bfloat16()
    transposed = x.shape[-2] > x.shape[-1]
    x = x.mT if transposed else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        y = x @ x.mT
        x = 3.4445 * x + (-4.7750 * y + 2.0315 * y @ y) @ x
    return x.mT if transposed else x


class Optimizer:
    def __init__(self, net, muon_lr, adam_lr, decay):
        c = net.c
        self.muon_lr, self.adam_lr, self.decay = muon_lr, adam_lr, decay
        # Rows of one matrix: keys and values of every branch, gate and up are orthogonalised on their own.
        self.matrices = [(net.wq, c.H * c.D), (net.wk, c.HKV * c.D), (net.wv, c.HKV * c.D), (net.wo, c.d_model),
                         (net.wi, c.ff), (net.wd, c.d_model)]
        taken = {id(p) for p, _ in self.matrices}
        decayed = [p for name, p in net.named_parameters() if id(p) not in taken and name in ('emb', 'wg')]
        plain = [p for name, p in net.named_parameters() if id(p) not in taken and name not in ('emb', 'wg')]
        self.momentum = [torch.zeros_like(p) for p, _ in self.matrices]
        self.adam = torch.optim.AdamW([dict(params=decayed, weight_decay=0.01), dict(params=plain, weight_decay=0.0)],
                                      lr=adam_lr, betas=(0.9, 0.95), eps=1e-10,
                                      **({'fused': True} if net.emb.is_cuda else {}))  # PyTorch 1.13 has none

    @torch.no_grad()
    def step(self, factor, momentum):
        for group in self.adam.param_groups:
            group['lr'] = self.adam_lr * factor
        self.adam.step()
        for (p, rows), buffer in zip(self.matrices, self.momentum):
            buffer.lerp_(p.grad, 1 - momentum)
            update = p.grad.lerp(buffer, momentum)
            update = orthogonalise(update.reshape(-1, rows, p.shape[-1])).reshape(p.shape).to(p.dtype)
            scale = max(1.0, rows / p.shape[-1]) ** 0.5
            p.mul_(1 - self.muon_lr * factor * self.decay).add_(update, alpha=-self.muon_lr * factor * scale)

    def state(self):
        return dict(adam=self.adam.state_dict(), momentum=self.momentum)

    def load(self, state):
        self.adam.load_state_dict(state['adam'])
        for mine, stored in zip(self.momentum, state['momentum']):
            mine.copy_(stored)
