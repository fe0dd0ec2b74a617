"""Evaluation in PyTorch: how often a second all test images go through a network.

    python torch_eval.py FOLDER [--repeats 5] [--threads 2]
"""

import itertools
from functools import partial

import torch
import torch.nn.functional as F

from torch_peer import Loop
from workloads import Variant, Work, compete


class Judge(Loop):
    """A trainer that only evaluates: it returns the loss and keeps the model."""

    def __init__(self, work: Work, threads: int, batch: int, channels_last: bool, compiled: bool = False):
        super().__init__(work, threads, channels_last)
        self.net.eval()
        self.batch = batch
        self.forward = torch.compile(self.net) if compiled else self.net

    @torch.inference_mode()
    def train(self, model: list[torch.Tensor], clients: list[int]) -> tuple[list[torch.Tensor], float]:
        torch._foreach_copy_([weight.data for weight in self.weights], model)
        # The images are divided among as many clients as there may be processes.
        whole = len(clients) == len(self.rows)
        rows = self.rows.flatten(0, 1) if whole else self.rows[clients[0]]
        labels = self.labels.flatten() if whole else self.labels[clients[0]]
        loss, hits = 0.0, 0
        for x, y in zip(rows.split(self.batch), labels.split(self.batch)):
            if self.channels_last:
                # With one channel both memory layouts look the same unless one is requested.
                x = x.contiguous(memory_format=torch.channels_last)
            scores = self.forward(x)
            loss += float(F.cross_entropy(scores, y, reduction="sum"))
            hits += int((scores.argmax(1) == y).sum())
        return model, loss / len(labels)


def variants(work: Work, threads: int) -> list[Variant]:
    found = []
    for batch, channels_last in itertools.product((10_000, 2_000, 500, 128, 50), (False, True)):
        name = f"batches of {batch}" + (", channels last" if channels_last else "")
        make = partial(Judge, batch=batch, channels_last=channels_last)
        found += [Variant(name, make), Variant(f"{name}, {threads} processes", make, threads)]
    for batch in (2_000, 500, 100):
        name = f"torch.compile, batches of {batch}"
        make = partial(Judge, batch=batch, channels_last=False, compiled=True)
        found.append(Variant(name, make, at_once=True))
    return found


if __name__ == "__main__":
    compete("PyTorch", variants)
