"""CPU processes that build training rows ahead of the GPU. They are forked and never touch the GPU."""
import multiprocessing
import os
import queue

import numpy as np
import torch

from retrieval import Generator, Vocabulary


def build_rows(out, tokens, folder, seed, shapes, share, stop, first_share, far_share):
    """shapes: [(T, rows, probability)]; every batch has one of them."""
    torch.set_num_threads(1)
    os.nice(5)
    generator = Generator(tokens, Vocabulary(folder), seed, first_share=first_share, far_share=far_share)
    choice = np.random.default_rng(seed + 1)
    while not stop.is_set():
        T, rows, _ = shapes[int(choice.choice(len(shapes), p=[p for _, _, p in shapes]))]
        x, code = (torch.from_numpy(a) for a in generator.batch(rows, T, share))
        while not stop.is_set():
            try:
                out.put((x, code), timeout=1)
                break
            except queue.Full:
                pass


class Feed:
    def __init__(self, tokens, folder, shapes, share, seed, workers, device, first_share, far_share):
        context = multiprocessing.get_context('fork')
        self.device = device
        self.queue, self.stop = context.Queue(maxsize=3 * workers), context.Event()
        self.processes = [context.Process(target=build_rows, daemon=True, args=(
            self.queue, tokens, folder, seed * 1000 + i, shapes, share, self.stop, first_share, far_share)) for i in range(workers)]
        for process in self.processes:
            process.start()

    def get(self):
        x, code = self.queue.get()
        if self.device == 'cpu':
            return x, code
        return x.pin_memory().to(self.device, non_blocking=True), code.pin_memory().to(self.device, non_blocking=True)

    def close(self):
        self.stop.set()
        for process in self.processes:
            process.terminate()
