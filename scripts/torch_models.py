"""Exchanges models with PyTorch, for crates/ebbflow/tests/exchange.rs.

    python scripts/torch_models.py write crates/ebbflow/tests/torch
    python scripts/torch_models.py check NETWORK FILE

`write` trains each of the networks below for a few steps and writes it as safetensors, one of them in several
kinds of floats, with the scores that PyTorch gives to fixed samples. `check` loads a file that Ebbflow wrote
into the same network, with no tensor missing and none left over, and compares the scores with those that
Ebbflow gave: the test leaves such files, with a .json each, in target/tmp/exchange.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

N_ROWS = 6
N_CLASSES = 5


def number(stream, count):
    """Numbers in [-1, 1), by their index and the number of their stream, as in torch_dumps.py."""
    at = torch.arange(count, dtype=torch.int64) + 1_000_003 * stream
    mixed = (at * 2_654_435_761) % 4_294_967_296
    mixed = (mixed ^ (mixed >> 15)) * 2_246_822_519 % 4_294_967_296
    mixed = mixed ^ (mixed >> 13)
    return (mixed.to(torch.float64) / 2_147_483_648.0 - 1.0).to(torch.float32)


class Mlp(nn.Module):
    shape = (12, 1, 1)

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 9)
        self.fc2 = nn.Linear(9, N_CLASSES)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Norm(nn.Module):
    """Convolutions of several sizes and batch norms after a convolution and after a dense layer."""

    shape = (2, 9, 8)

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 5, 2, stride=2)
        self.fc1 = nn.Linear(5 * 2 * 2, 7)
        self.bn2 = nn.BatchNorm1d(7)
        self.fc2 = nn.Linear(7, N_CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = torch.tanh(self.conv2(x))
        return self.fc2(F.relu(self.bn2(self.fc1(x.flatten(1)))))


class Chars(nn.Module):
    """An embedding and two stacked LSTMs."""

    steps, symbols = 6, 11

    def __init__(self):
        super().__init__()
        self.embedding1 = nn.Embedding(self.symbols, 3)
        self.lstm1 = nn.LSTM(3, 4, num_layers=2, batch_first=True)
        self.fc1 = nn.Linear(4, N_CLASSES)

    def forward(self, x):
        return self.fc1(self.lstm1(self.embedding1(x))[0][:, -1])


NETWORKS = {"mlp": Mlp, "norm": Norm, "chars": Chars}


def fixed_samples(model):
    labels = torch.arange(N_ROWS) * 3 % N_CLASSES
    if isinstance(model, Chars):
        numbers = number(7, N_ROWS * model.steps).double().reshape(N_ROWS, model.steps)
        return ((numbers + 1) / 2 * model.symbols).long().clamp(max=model.symbols - 1), labels
    channels, height, width = model.shape
    # In our order: pixel by pixel, channels last.
    samples = number(7, N_ROWS * channels * height * width).reshape(N_ROWS, height, width, channels)
    return samples.permute(0, 3, 1, 2).contiguous(), labels


def scored(model):
    samples, labels = fixed_samples(model)
    model.eval()
    with torch.no_grad():
        scores = model(samples)
        loss = F.cross_entropy(scores.double(), labels)
    return {"loss": float(loss), "scores": [float(x) for x in scores.reshape(-1)]}


def trained(network):
    torch.manual_seed(1)
    model = network()
    samples, labels = fixed_samples(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    for step in range(7):
        optimiser.zero_grad()
        # Different samples at each step, so that batch norms differ between steps.
        moved = samples + 0.1 * step if samples.is_floating_point() else samples.roll(step, 1)
        F.cross_entropy(model(moved), labels).backward()
        optimiser.step()
    return model


def variants(name, state):
    yield name, state
    if name == "mlp":
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            kind = str(dtype).removeprefix("torch.")
            yield f"{name}-{kind}", {key: value.to(dtype) for key, value in state.items()}
        # Wide floats come first in a file, so this one has another order of tensors.
        yield f"{name}-mixed", {key: value.double() if "fc2" in key else value.half() for key, value in state.items()}


def write(folder):
    for name, network in NETWORKS.items():
        results = {"torch": torch.__version__}
        for variant, state in variants(name, trained(network).state_dict()):
            file = folder / f"{variant}.safetensors"
            save_file(state, file, metadata={"format": "pt"} if variant == "mlp-mixed" else None)
            file.chmod(0o644)
            model = network()
            model.load_state_dict(state)
            results[variant] = scored(model)
            print(variant, results[variant]["loss"])
        (folder / f"{name}.json").write_text(json.dumps(results) + "\n")


def check(name, file):
    model = NETWORKS[name]()
    print(model.load_state_dict(load_file(file), strict=True))
    expected = json.loads(Path(file).with_suffix(".json").read_text())
    found = scored(model)
    apart = max(abs(one - two) for one, two in zip(found["scores"], expected["scores"], strict=True))
    print(f"{name}: scores {apart:.1e} apart, loss {abs(found['loss'] - expected['loss']):.1e}")
    if not apart < 1e-6:
        sys.exit("the scores differ")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        check(sys.argv[2], sys.argv[3])
