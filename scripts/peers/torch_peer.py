"""PyTorch: a loop over clients, processes, vmap over the cohort, channels last.

    python torch_peer.py FOLDER [--repeats 5] [--threads 2]
"""

import functools
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap

from workloads import Variant, Work, compete


class LastStep(nn.Module):
    """Stacked LSTM layers that return the last step."""

    def __init__(self, inputs: int, units: int, layers: int):
        super().__init__()
        self.lstm = nn.LSTM(inputs, units, layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0][:, -1]


def network(work: Work) -> nn.Sequential:
    """The network of a workload; its parameters are in the order of the workload's."""
    height, width, channels = work.input if work.image else (1, 1, work.input[0])
    modules, flat = [], not work.image
    for layer in work.layers:
        kind = layer["kind"]
        if kind == "conv":
            kernel, padding = layer["kernel"], layer["padding"]
            modules.append(nn.Conv2d(channels, layer["channels"], kernel, layer["stride"], padding))
            height, width = ((side + 2 * padding - kernel) // layer["stride"] + 1 for side in (height, width))
            channels = layer["channels"]
        elif kind == "max-pool":
            modules.append(nn.MaxPool2d(layer["size"]))
            height, width = height // layer["size"], width // layer["size"]
        elif kind == "relu":
            modules.append(nn.ReLU())
        elif kind == "dropout":
            modules.append(nn.Dropout(layer["chance"]))
        elif kind == "dense":
            if not flat:
                modules.append(nn.Flatten())
                flat, channels = True, channels * height * width
            modules.append(nn.Linear(channels, layer["units"]))
            channels = layer["units"]
        elif kind == "embedding":
            modules.append(nn.Embedding(layer["symbols"], layer["units"]))
            channels = layer["units"]
        elif kind == "last-step":
            continue  # the LSTM here gives out nothing else
        elif kind == "lstm":
            modules.append(LastStep(channels, layer["units"], layer["layers"]))
            channels = layer["units"]
        else:
            raise ValueError(f"no layer {kind} here")
    return nn.Sequential(*modules)


def tensors(work: Work, channels_last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples in the network's layout, and labels; both by client."""
    rows = torch.from_numpy(work.rows)
    if work.symbols:
        rows = rows.long()
    elif work.image and work.convolves:
        rows = rows.permute(0, 1, 4, 2, 3)
        # Otherwise they are stored with channels last, behind a view.
        rows = rows if channels_last else rows.contiguous()
    elif work.image:
        rows = rows.flatten(2)
    return rows, torch.from_numpy(work.labels)


class Loop:
    """Trains one client after another."""

    def __init__(self, work: Work, threads: int, channels_last: bool = False):
        torch.set_num_threads(threads)
        self.work = work
        self.net = network(work).train()
        self.channels_last = channels_last
        if channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)
        self.weights = list(self.net.parameters())
        self.rows, self.labels = tensors(work, channels_last)

    def native(self, flat: np.ndarray) -> list[torch.Tensor]:
        model = [torch.empty_like(weight) for weight in self.weights]
        sizes = [weight.numel() for weight in model]
        for weight, part in zip(model, torch.from_numpy(flat).split(sizes)):
            weight.copy_(part.view(weight.shape))
        return model

    def flat(self, model: list[torch.Tensor]) -> np.ndarray:
        return torch.cat([weight.reshape(-1) for weight in model]).numpy()

    @torch.no_grad()
    def train(self, model: list[torch.Tensor], clients: list[int]) -> tuple[list[torch.Tensor], float]:
        total = [torch.zeros_like(weight) for weight in model]
        loss = 0.0
        for client in clients:
            torch._foreach_copy_(self.weights, model)
            loss += self.client(client)
            torch._foreach_add_(total, self.weights)
        torch._foreach_div_(total, float(len(clients)))
        return total, loss / len(clients)

    def client(self, client: int) -> float:
        """Trains `self.weights` on a client's samples; returns the mean loss of the steps."""
        work, losses = self.work, []
        momenta = [torch.zeros_like(weight) for weight in self.weights] if work.momentum else None
        for _ in range(work.epochs):
            order = torch.randperm(work.samples)
            rows, labels = self.rows[client, order], self.labels[client, order]
            if self.channels_last:
                rows = rows.contiguous(memory_format=torch.channels_last)
            for x, y in zip(rows.split(work.batch), labels.split(work.batch)):
                with torch.enable_grad():
                    loss = F.cross_entropy(self.net(x), y)
                gradients = torch.autograd.grad(loss, self.weights)
                if momenta is not None:
                    torch._foreach_mul_(momenta, work.momentum)
                    torch._foreach_add_(momenta, gradients)
                    gradients = momenta
                torch._foreach_add_(self.weights, gradients, alpha=-work.rate)
                losses.append(loss.detach())
        return float(torch.stack(losses).mean())


@functools.cache
def cached_loop(folder: Path, threads: int, channels_last: bool) -> Loop:
    """A loop that is built once, for systems that start over with every client."""
    return Loop(Work.read(folder), threads, channels_last)


class Together(Loop):
    """Trains many clients at once, by vmap over their models."""

    def __init__(self, work: Work, threads: int, chunk: int | None = None):
        super().__init__(work, threads)
        self.chunk = chunk
        self.names = [name for name, _ in self.net.named_parameters()]

        def loss(weights: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(functional_call(self.net, dict(zip(self.names, weights)), (x,)), y)

        self.gradients = vmap(grad_and_value(loss), randomness="different")

    @torch.no_grad()
    def train(self, model: list[torch.Tensor], clients: list[int]) -> tuple[list[torch.Tensor], float]:
        total = [torch.zeros_like(weight) for weight in model]
        loss = 0.0
        chunk = self.chunk or len(clients)
        for at in range(0, len(clients), chunk):
            some = clients[at : at + chunk]
            weights = [weight.expand(len(some), *weight.shape).clone() for weight in model]
            loss += self.several(weights, some) * len(some)
            torch._foreach_add_(total, [weight.sum(0) for weight in weights])
        torch._foreach_div_(total, float(len(clients)))
        return total, loss / len(clients)

    def several(self, weights: list[torch.Tensor], clients: list[int]) -> float:
        work, losses = self.work, []
        momenta = [torch.zeros_like(weight) for weight in weights] if work.momentum else None
        who = torch.tensor(clients)[:, None]
        for _ in range(work.epochs):
            order = torch.rand(len(clients), work.samples).argsort(1)
            rows, labels = self.rows[who, order], self.labels[who, order]
            for x, y in zip(rows.split(work.batch, 1), labels.split(work.batch, 1)):
                gradients, loss = self.gradients(weights, x, y)
                if momenta is not None:
                    torch._foreach_mul_(momenta, work.momentum)
                    torch._foreach_add_(momenta, gradients)
                    gradients = momenta
                torch._foreach_add_(weights, list(gradients), alpha=-work.rate)
                losses.append(loss.mean())
        return float(torch.stack(losses).mean())


def variants(work: Work, threads: int) -> list[Variant]:
    all_of = [
        Variant(f"{threads} processes", Loop, threads),
        Variant("loop", Loop),
    ]
    if work.convolves:
        last = partial(Loop, channels_last=True)
        all_of.insert(0, Variant(f"{threads} processes, channels last", last, threads))
        all_of.append(Variant("loop, channels last", last))
    if not work.symbols:
        # vmap does not support LSTMs.
        all_of += [
            Variant("vmap", Together, at_once=True),
            Variant(f"vmap, {threads} processes", Together, threads, at_once=True),
        ]
    return all_of


if __name__ == "__main__":
    compete("PyTorch", variants)
