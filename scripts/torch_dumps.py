"""Writes PyTorch's results for our networks, with which crates/ebb-train/tests/torch.rs compares ours.

    python scripts/torch_dumps.py crates/ebb-train/tests/torch

Parameters, samples and labels follow from a formula on both sides, so the files hold only results: the
loss before the first step, and some of the parameters after one plain step and after fifty with momentum.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

N_ROWS = 8
SHOWN = 64


def number(stream, count):
    """Numbers in [-1, 1), by their index and the number of their stream."""
    at = torch.arange(count, dtype=torch.int64) + 1_000_003 * stream
    mixed = (at * 2_654_435_761) % 4_294_967_296
    mixed = (mixed ^ (mixed >> 15)) * 2_246_822_519 % 4_294_967_296
    mixed = mixed ^ (mixed >> 13)
    return (mixed.to(torch.float64) / 2_147_483_648.0 - 1.0).to(torch.float32)


def conv(into, out, kernel, padding=0):
    return nn.Conv2d(into, out, kernel, padding=padding)


def flat(*dense):
    layers = [nn.Flatten()]
    for at, (into, out) in enumerate(zip(dense, dense[1:])):
        layers += [nn.Linear(into, out)] + ([nn.ReLU()] if at + 2 < len(dense) else [])
    return layers


def pooled(*layers):
    return [*layers, nn.ReLU(), nn.MaxPool2d(2)]


class CharLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.fc = nn.Linear(256, 80)

    def forward(self, symbols):
        return self.fc(self.lstm(self.embedding(symbols))[0][:, -1])


class RowsLstm(nn.Module):
    """Each row of an image is a time step, and the outputs of all steps are used."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(28, 12, batch_first=True)
        self.fc = nn.Linear(28 * 12, 10)

    def forward(self, images):
        return self.fc(self.lstm(images[:, 0])[0].flatten(1))


def squared(scores, labels):
    return F.mse_loss(scores, F.one_hot(labels, scores.shape[1]).float())


def networks():
    mnist, cifar = (1, 28, 28), (3, 32, 32)
    yield "logistic", (60, 1, 1), 10, flat(60, 10)
    yield "mlp", mnist, 10, flat(784, 200, 200, 10)
    yield "mnist-cnn", mnist, 10, pooled(conv(1, 10, 5)) + pooled(conv(10, 20, 5)) + flat(320, 50, 10)
    yield "lenet", cifar, 10, pooled(conv(3, 6, 5)) + pooled(conv(6, 16, 5)) + flat(400, 120, 84, 10)
    yield "e3cs-emnist-cnn", mnist, 26, pooled(conv(1, 10, 5)) + pooled(conv(10, 10, 5)) + flat(160, 1280, 256, 26)
    yield "e3cs-cifar-cnn", cifar, 10, pooled(conv(3, 64, 5)) + pooled(conv(64, 64, 5)) + flat(1600, 384, 192, 10)
    yield "mcmahan-cnn", mnist, 10, pooled(conv(1, 32, 5, 2)) + pooled(conv(32, 64, 5, 2)) + flat(3136, 512, 10)
    yield "fast-fashion-cnn", mnist, 62, [conv(1, 32, 3), nn.ReLU()] + pooled(conv(32, 64, 3)) + flat(9216, 128, 62)
    yield "fast-cifar-cnn", cifar, 10, (
        pooled(conv(3, 16, 3, 1)) + pooled(conv(16, 32, 3, 1)) + pooled(conv(32, 64, 3, 1)) + flat(1024, 500, 10)
    )
    yield "char-lstm", 20, 80, [CharLstm()]
    yield "rows-lstm", mnist, 10, [RowsLstm()]
    yield "symbols-squared", 20, 10, [nn.Embedding(80, 6), nn.Tanh(), nn.Flatten(), nn.Linear(120, 10)]
    yield "fmnist-cnn", mnist, 10, (
        pooled(conv(1, 16, 5, 2), nn.BatchNorm2d(16)) + pooled(conv(16, 32, 5, 2), nn.BatchNorm2d(32)) + flat(1568, 10)
    )


def start(model):
    """Sets the parameters in order, with absolute values below `1 / sqrt(inputs of a unit)`."""
    bound = 0.0
    for stream, (name, tensor) in enumerate(tensors(model)):
        with torch.no_grad():
            if tensor.dim() > 1:
                bound = tensor[0].numel() ** -0.5
                tensor.copy_((bound * number(stream, tensor.numel())).reshape(tensor.shape))
            elif "running_var" in name or ("weight" in name):
                tensor.fill_(1.0)
                bound = 0.0
            elif "running_mean" in name:
                tensor.zero_()
            else:
                tensor.copy_(bound * number(stream, tensor.numel()))


def tensors(model):
    return [(name, tensor) for name, tensor in model.state_dict().items() if "num_batches" not in name]


def shown(model):
    """At most SHOWN numbers of every tensor, evenly spaced."""
    values = []
    for _, tensor in tensors(model):
        flat_tensor = tensor.reshape(-1)
        step = max(1, flat_tensor.numel() // SHOWN)
        values.append([float(value) for value in flat_tensor[::step][:SHOWN]])
    return values


def sgd(rate, **settings):
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, **settings)


def train(layers, samples, labels, steps, optimiser, clip=None, loss_of=F.cross_entropy):
    model = nn.Sequential(*layers)
    start(model)
    model.train()
    optimiser = optimiser(model.parameters())
    first = None
    for _ in range(steps):
        optimiser.zero_grad()
        loss = loss_of(model(samples), labels)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        first = float(loss.detach()) if first is None else first
    return first, shown(model)


def main():
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, shape, n_classes, layers in networks():
        if isinstance(shape, int):
            samples = ((number(999, N_ROWS * shape) + 1) * 40).long().reshape(N_ROWS, shape)
        else:
            channels, height, width = shape
            count = N_ROWS * channels * height * width
            # Samples are made in our order: pixel by pixel, channels last.
            samples = number(999, count).reshape(N_ROWS, height, width, channels).permute(0, 3, 1, 2).contiguous()
        labels = (torch.arange(N_ROWS) * 7) % n_classes
        loss_of = squared if name.endswith("squared") else F.cross_entropy
        loss, one = train(layers, samples, labels, 1, sgd(0.1), loss_of=loss_of)
        _, fifty = train(layers, samples, labels, 50, sgd(0.01, momentum=0.9), loss_of=loss_of)
        result = {"torch": torch.__version__, "loss": loss, "one_step": one, "fifty_steps": fifty}
        if name == "mnist-cnn":
            nesterov = sgd(0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
            _, result["nesterov"] = train(layers, samples, labels, 5, nesterov)
            adam = lambda parameters: torch.optim.Adam(parameters, lr=0.001, weight_decay=0.01)
            _, result["adam"] = train(layers, samples, labels, 5, adam)
            _, result["clipped"] = train(layers, samples, labels, 5, sgd(0.5), clip=0.1)
        (folder / f"{name}.json").write_text(json.dumps(result) + "\n")
        print(name, loss)


main()
