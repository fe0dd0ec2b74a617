"""Flower: federated averaging in its simulation on Ray, one actor with all threads or one a thread.

    python flower_peer.py FOLDER [--repeats 5] [--threads 2]
"""

import functools
import itertools
import logging
import math
import os
import sys
import time
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
# Actors import this folder's files.
os.environ["PYTHONPATH"] = str(Path(__file__).parent)

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from torch_peer import cached_loop
from workloads import LONG_S, REPEAT_S, Work, arguments, said, tell, trial_clients

PEER = "Flower"


class Timed(FedAvg):
    """Averages, selects the workload's cohorts, and records the end of each round."""

    def __init__(self, cohorts: list[list[int]]):
        super().__init__(fraction_evaluate=0.0)
        self.cohorts, self.ends, self.losses = cohorts, [], []

    def configure_train(self, server_round, arrays, config, grid):
        nodes = list(grid.get_node_ids())
        cohort = self.cohorts[(server_round - 1) % len(self.cohorts)]
        # Any node can train any client, so there are only as many as train in a round.
        return [
            Message(
                content=RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})}),
                message_type=MessageType.TRAIN,
                dst_node_id=node,
            )
            for client, node in zip(cohort, nodes, strict=True)
        ]

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(str(reply.error))
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.ends.append(time.perf_counter())
        self.losses.append(metrics["loss"])
        return arrays, metrics


def client_app(folder: Path, threads: int, channels_last: bool) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        loop = cached_loop(folder, threads, channels_last)
        arrays = message.content["arrays"].to_numpy_ndarrays()
        model = loop.native(np.concatenate([array.ravel() for array in arrays]))
        trained, loss = loop.train(model, [message.content["config"]["client"]])
        content = {
            "arrays": ArrayRecord([weight.numpy() for weight in trained]),
            "metrics": MetricRecord({"loss": loss, "num-examples": loop.work.samples}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def run(work: Work, clients: int, actors: int, threads: int, channels_last: bool, rounds: int) -> Timed:
    """Rounds with the first clients of each cohort."""
    strategy = Timed([cohort[:clients] for cohort in work.cohorts])
    loop = cached_loop(work.folder, threads, channels_last)
    initial = ArrayRecord([weight.numpy() for weight in loop.native(work.initial)])
    app, failed = ServerApp(), []

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        # The default polls for replies only ten times a second.
        grid.pull_interval = 0.002
        while len(list(grid.get_node_ids())) < clients:
            time.sleep(0.1)
        try:
            strategy.start(grid, initial, num_rounds=rounds)
        except Exception as error:
            failed.append(error)

    share = threads if actors == 1 else 1
    resources = {"num_cpus": share, "num_gpus": 0.0}
    init = {"num_cpus": share * actors, "log_to_driver": False, "logging_level": logging.ERROR}
    config = {"client_resources": resources, "init_args": init}
    run_simulation(app, client_app(work.folder, threads, channels_last), clients, backend_config=config)
    if failed:
        raise failed[0]
    return strategy


def main() -> None:
    given = arguments()
    work = Work.read(given.folder)
    cohort, trial = len(work.cohorts[0]), len(trial_clients(work, given.threads))
    fastest, best_s = None, math.inf
    for actors, channels_last in itertools.product((given.threads, 1), (False, True)):
        if channels_last and not work.convolves:
            continue
        name = f"{actors} actor" + ("s" if actors > 1 else "") + (", channels last" if channels_last else "")
        variant = (actors, given.threads // actors, channels_last)
        try:
            ends = run(work, trial, *variant, rounds=2).ends
        except Exception as error:
            tell(PEER, name, error=said(error))
            continue
        seconds = (ends[1] - ends[0]) * cohort / trial
        tell(PEER, name, trial=1.0 / seconds)
        if seconds < best_s:
            fastest, best_s = (name, variant), seconds
    if fastest is None:
        sys.exit("no variant ran")
    name, variant = fastest
    repeats = given.repeats if best_s <= LONG_S else min(given.repeats, 2)
    count = max(1, round(REPEAT_S / best_s))
    # The first round also starts the actors.
    done = run(work, cohort, *variant, rounds=1 + repeats * count)
    marks = done.ends[::count]
    per_second = [count / (end - began) for began, end in zip(marks, marks[1:])]
    tell(PEER, name, per_second=per_second, losses=done.losses[:2])


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    main()
