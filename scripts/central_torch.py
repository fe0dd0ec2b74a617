"""Trains in PyTorch what experiments/central/*.toml train in Ebbflow: one row of a CSV for each seed.

    python scripts/central_torch.py mnist experiments/central/torch-mnist.csv
    python scripts/central_torch.py cifar experiments/central/torch-cifar.csv

Needs torch, numpy and, for CIFAR-10 as WebP sheets, Pillow. EBBFLOW_DATA names the folder with the images. Seeds that
have a row are not run again, so it can be stopped and started at any time. Seeds named after the file are run alone.
"""

import csv
import gzip
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DATA = Path(os.environ["EBBFLOW_DATA"])
BATCH = 64
COLUMNS = ["seed", "final_accuracy", "final_loss", "torch"]


def idx(path, header):
    return np.frombuffer(gzip.open(path).read(), np.uint8, offset=header)


def mnist(part):
    prefix = {"train": "train", "test": "t10k"}[part]
    images = idx(DATA / f"mnist/{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
    return images, idx(DATA / f"mnist/{prefix}-labels-idx1-ubyte.gz", 8)


def cifar(part):
    names = [f"data_batch_{at}" for at in range(1, 6)] if part == "train" else ["test_batch"]
    for folder in [DATA / "cifar10", DATA / "cifar-10-batches-bin"]:
        if (folder / f"{names[0]}.bin").is_file():
            rows = [np.fromfile(folder / f"{name}.bin", np.uint8).reshape(-1, 3073) for name in names]
            rows = np.concatenate(rows)
            return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]
        if (folder / f"{names[0]}.webp").is_file():
            from PIL import Image

            sheets = [np.asarray(Image.open(folder / f"{name}.webp")) for name in names]
            tiles = [sheet.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3) for sheet in sheets]
            images = np.concatenate([tile.reshape(-1, 3, 32, 32) for tile in tiles])
            return images, idx(folder / f"{part}-labels-idx1-ubyte.gz", 8)
    sys.exit(f"no CIFAR-10 in {DATA}")


def pooled(into, out):
    return [nn.Conv2d(into, out, 5), nn.ReLU(), nn.MaxPool2d(2)]


def mnist_cnn():
    dense = [nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10)]
    return nn.Sequential(*pooled(1, 10), *pooled(10, 20), nn.Flatten(), *dense)


def lenet():
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*pooled(3, 6), *pooled(6, 16), nn.Flatten(), *dense)


# The data, their mean and standard deviation for scaling, the network, the optimiser, epochs and seeds.
STUDIES = {
    "mnist": (mnist, 0.1307, 0.3081, mnist_cnn, {"lr": 0.05}, 5, range(1, 11)),
    "cifar": (cifar, 0.5, 0.5, lenet, {"lr": 0.01, "momentum": 0.9}, 15, range(1, 6)),
}


def scaled(images, labels, mean, deviation):
    pixels = torch.from_numpy(images.astype(np.float32) / 255.0)
    return (pixels - mean) / deviation, torch.from_numpy(labels.astype(np.int64))


def train(model, optimiser, epochs, images, labels):
    optimiser = torch.optim.SGD(model.parameters(), **optimiser)
    for _ in range(epochs):
        # The last batch holds the remaining samples.
        for batch in torch.randperm(len(labels)).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()


@torch.no_grad()
def evaluate(model, images, labels):
    scores = torch.cat([model(some) for some in images.split(1000)])
    right = (scores.argmax(1) == labels).double().mean()
    return float(right), float(F.cross_entropy(scores.double(), labels))


def main():
    read, mean, deviation, network, optimiser, epochs, seeds = STUDIES[sys.argv[1]]
    path = Path(sys.argv[2])
    torch.set_num_threads(1)
    done = {int(row["seed"]) for row in csv.DictReader(path.open())} if path.exists() else set()
    if not done:
        path.write_text(",".join(COLUMNS) + "\n")
    data, tests = (scaled(*read(part), mean, deviation) for part in ["train", "test"])
    wanted = [int(seed) for seed in sys.argv[3:]] or seeds
    for seed in sorted(set(wanted) - done):
        torch.manual_seed(seed)
        model = network()
        train(model, optimiser, epochs, *data)
        accuracy, loss = evaluate(model, *tests)
        with path.open("a") as file:
            file.write(f"{seed},{accuracy:.4f},{loss:.6f},{torch.__version__}\n")
        print(sys.argv[1], "seed", seed, accuracy, loss, flush=True)


main()
