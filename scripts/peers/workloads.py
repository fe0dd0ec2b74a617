"""Shared by the peers: the workload that xtask wrote, and the competition between variants of a peer.

A peer is a program that takes the folder of a workload, tries its variants on a part of a round, measures the
fastest on whole rounds and prints one JSON object a line. A variant is a `Trainer`: in this process, or in
several processes of one thread each.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Protocol

import numpy as np

# A round that takes longer is repeated less often.
LONG_S = 20.0
# A repeat is as many rounds as fill this time, because a clock resolves a millisecond badly.
REPEAT_S = 0.5
# A variant is tried on as many clients as make this much work.
TRIAL_GFLOP = 30.0


@dataclass
class Work:
    """A workload: cohorts, data, model and training settings."""

    name: str
    folder: Path
    input: list[int]
    layers: list[dict]
    samples: int
    batch: int
    epochs: int
    rate: float
    momentum: float
    cohorts: list[list[int]]
    gflop: float
    rows: np.ndarray  # clients x samples x input; images with their channels last
    labels: np.ndarray  # clients x samples
    initial: np.ndarray  # all parameters in PyTorch's order

    @staticmethod
    def read(folder: Path) -> "Work":
        about = json.loads((folder / "workload.json").read_text())
        rows = np.fromfile(folder / "rows.f32", np.float32)
        labels = np.fromfile(folder / "labels.u32", np.uint32).astype(np.int64)
        labels = labels.reshape(-1, about["samples"])
        return Work(
            folder=folder,
            layers=pooled_first(about.pop("layers")),
            rows=rows.reshape(*labels.shape, *about["input"]),
            labels=labels,
            initial=np.fromfile(folder / "initial.f32", np.float32),
            **about,
        )

    @property
    def image(self) -> bool:
        return len(self.input) == 3

    @property
    def symbols(self) -> bool:
        return self.layers[0]["kind"] == "embedding"

    @property
    def convolves(self) -> bool:
        return any(layer["kind"] == "conv" for layer in self.layers)


def pooled_first(layers: list[dict]) -> list[dict]:
    """ReLU after the pooling instead of before: the same values for a quarter of the work."""
    layers = list(layers)
    for at in range(len(layers) - 1):
        if layers[at]["kind"] == "relu" and layers[at + 1]["kind"] == "max-pool":
            layers[at], layers[at + 1] = layers[at + 1], layers[at]
    return layers


class Trainer(Protocol):
    """Trains clients one after another or at once; each trainer has its own type of models."""

    def native(self, flat: np.ndarray) -> Any: ...
    def flat(self, model: Any) -> np.ndarray: ...
    def train(self, model: Any, clients: list[int]) -> tuple[Any, float]:
        """The means of the clients' models and losses after training."""
        ...


@dataclass
class Variant:
    name: str
    # Makes the trainer with this many threads from the workload alone, because it may be called in another
    # process.
    make: Callable[[Work, int], Trainer]
    processes: int = 1
    # Whether a few clients are not representative: the variant takes all at once, or compiles for their
    # number.
    at_once: bool = False


class Pool:
    """A trainer that gives each process its part of the cohort."""

    def __init__(self, work: Work, variant: Variant):
        context = multiprocessing.get_context("spawn")
        cores = sorted(os.sched_getaffinity(0))
        self.links, self.workers = [], []
        for at in range(variant.processes):
            link, other = context.Pipe()
            arguments = (other, work.folder, variant, cores[at % len(cores)])
            worker = context.Process(target=serve, args=arguments, daemon=True)
            worker.start()
            # Otherwise the death of a worker would go unnoticed.
            other.close()
            self.links.append(link)
            self.workers.append(worker)

    def native(self, flat: np.ndarray) -> np.ndarray:
        return flat

    def flat(self, model: np.ndarray) -> np.ndarray:
        return model

    def train(self, model: np.ndarray, clients: list[int]) -> tuple[np.ndarray, float]:
        parts = [clients[at :: len(self.links)] for at in range(len(self.links))]
        for link, part in zip(self.links, parts):
            link.send((model, part))
        total, loss = np.zeros_like(model), 0.0
        for link, part in zip(self.links, parts):
            answer = link.recv()
            if isinstance(answer, str):
                raise RuntimeError(answer)
            share = len(part) / len(clients)
            total += np.float32(share) * answer[0]
            loss += share * answer[1]
        return total, loss

    def close(self) -> None:
        for link, worker in zip(self.links, self.workers):
            with contextlib.suppress(OSError):
                link.send(None)
            worker.join(10)
            worker.kill()
            worker.join()


def serve(link: Any, folder: Path, variant: Variant, core: int) -> None:
    """One process of a pool, on its own core, so that libraries start one thread."""
    os.sched_setaffinity(0, {core})
    try:
        trainer = variant.make(Work.read(folder), 1)
        while (order := link.recv()) is not None:
            model, clients = order
            trained, loss = trainer.train(trainer.native(model), clients)
            link.send((trainer.flat(trained), loss))
    except Exception as error:
        link.send(said(error))


@contextlib.contextmanager
def started(work: Work, variant: Variant, threads: int) -> Iterator[Trainer]:
    trainer = variant.make(work, threads) if variant.processes == 1 else Pool(work, variant)
    try:
        yield trainer
    finally:
        if isinstance(trainer, Pool):
            trainer.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def trial_clients(work: Work, threads: int) -> list[int]:
    cohort = work.cohorts[0]
    count = math.ceil(TRIAL_GFLOP / max(work.gflop / len(cohort), 1e-9))
    # The same number for each thread, or one of them would wait.
    return cohort[: max(threads, math.ceil(count / threads) * threads)]


def compete(peer: str, variants: Callable[[Work, int], list[Variant]]) -> None:
    """Tries every variant and measures the fastest."""
    given = arguments()
    work = Work.read(given.folder)
    fastest, best_s = None, math.inf
    for variant in variants(work, given.threads):
        try:
            seconds = tried(work, variant, given.threads, best_s)
        except Exception as error:
            tell(peer, variant.name, error=said(error))
            continue
        tell(peer, variant.name, trial=1.0 / seconds)
        if seconds < best_s:
            fastest, best_s = variant, seconds
    if fastest is None:
        sys.exit("no variant ran")
    with started(work, fastest, given.threads) as trainer:
        model = trainer.native(work.initial)
        # Compiles, allocates workspaces and fills caches.
        model, first = trainer.train(model, work.cohorts[0])
        report(peer, fastest.name, best_s, given.repeats, chain(trainer, model, work), [first])


def tried(work: Work, variant: Variant, threads: int, best_s: float) -> float:
    """The seconds of a round of this variant, estimated from the clients of a trial."""
    clients = trial_clients(work, threads)
    parts = len(work.cohorts[0]) / len(clients)
    with started(work, variant, threads) as trainer:
        model = trainer.native(work.initial)
        warmed = clients if variant.at_once else clients[:threads]
        trainer.train(model, warmed)
        began = time.perf_counter()
        trainer.train(model, warmed)
        seconds = time.perf_counter() - began
        # More trials of such a slow variant would only cost time.
        if seconds * len(work.cohorts[0]) / len(warmed) > 3.0 * best_s:
            return seconds * len(work.cohorts[0]) / len(warmed)
        seconds = []
        while len(seconds) < 3 and sum(seconds) < 1.0:
            began = time.perf_counter()
            trainer.train(model, clients)
            seconds.append(time.perf_counter() - began)
        return min(seconds) * parts


def chain(trainer: Trainer, model: Any, work: Work) -> Iterator[float]:
    """The losses of successive rounds, from the second on."""
    number = 0
    while True:
        number += 1
        model, loss = trainer.train(model, work.cohorts[number % len(work.cohorts)])
        yield loss


def report(
    peer: str, name: str, round_s: float, repeats: int, rounds: Iterator[float], losses: list[float]
) -> None:
    """Measures rounds and prints the rounds per second of each repeat."""
    if round_s > LONG_S:
        repeats = min(repeats, 2)
    per_second = []
    count = max(1, math.ceil(REPEAT_S / round_s))
    for _ in range(repeats):
        began = time.perf_counter()
        done = [next(rounds) for _ in range(count)]
        per_second.append(count / (time.perf_counter() - began))
        losses += done
    tell(peer, name, per_second=per_second, losses=losses[:2])


def tell(peer: str, variant: str, **facts: Any) -> None:
    # JSON has no NaN: such a loss must not hide the other values.
    if "losses" in facts:
        facts["losses"] = [loss if math.isfinite(loss) else None for loss in facts["losses"]]
    print(json.dumps({"peer": peer, "variant": variant, **facts}, allow_nan=False), flush=True)


def said(error: Exception) -> str:
    """The most informative line of an exception, short enough for a table."""
    lines = str(error).strip().splitlines() or [""]
    names = [line.strip() for line in lines if re.search(r"\w(Error|Exception): ", line)]
    return f"{type(error).__name__}: {(names or lines)[-1][:200]}"
