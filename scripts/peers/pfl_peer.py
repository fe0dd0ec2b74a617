"""pfl-research: federated averaging in its simulation, in one process or several.

    python pfl_peer.py FOLDER [--repeats 5] [--threads 2]

The library connects its processes on import, so every variant runs in separate processes of this program,
with the variant as JSON in the environment.
"""

import itertools
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from workloads import LONG_S, REPEAT_S, Work, arguments, said, tell, trial_clients

PEER = "pfl-research"
VARIANT = "PFL_PEER_VARIANT"


def main() -> None:
    given = arguments()
    work = Work.read(given.folder)
    trial = trial_clients(work, given.threads)
    fastest, best_s = None, float("inf")
    for processes, channels_last in itertools.product((given.threads, 1), (False, True)):
        if channels_last and not work.convolves:
            continue
        plural = "es" if processes > 1 else ""
        name = f"{processes} process{plural}" + (", channels last" if channels_last else "")
        about = {
            "processes": processes,
            "threads": given.threads // processes,
            "channels_last": channels_last,
        }
        parts = len(work.cohorts[0]) / len(trial)
        try:
            done = run({**about, "cohort": len(trial), "rounds": 2, "limit_s": 3.0 * best_s / parts})
        except Exception as error:
            tell(PEER, name, error=said(error))
            continue
        seconds = done["seconds"][-1] * parts
        tell(PEER, name, trial=1.0 / seconds)
        if seconds < best_s:
            fastest, best_s = (name, about), seconds
    if fastest is None:
        sys.exit("no variant ran")
    name, about = fastest
    repeats = given.repeats if best_s <= LONG_S else min(given.repeats, 2)
    count = max(1, round(REPEAT_S / best_s))
    done = run({**about, "cohort": len(work.cohorts[0]), "rounds": 1 + repeats * count, "limit_s": None})
    # The first round also allocates workspaces, and evaluates.
    seconds = done["seconds"][1:]
    per_second = [count / sum(seconds[at : at + count]) for at in range(0, len(seconds), count)]
    tell(PEER, name, per_second=per_second, losses=done["losses"][:2])


def run(about: dict) -> dict:
    """The report of a variant on its rounds."""
    command = [sys.executable]
    if about["processes"] > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={about['processes']}"]
    environment = {**os.environ, VARIANT: json.dumps(about), "OMP_NUM_THREADS": str(about["threads"])}
    output = subprocess.run(command + sys.argv, env=environment, capture_output=True, text=True)
    lines = [line for line in output.stdout.splitlines() if line.startswith("{")]
    if output.returncode or not lines:
        raise RuntimeError(output.stderr)
    return json.loads(lines[-1])


def simulate(folder: Path, about: dict) -> None:
    """One process of a variant; the first one prints the time of its rounds."""
    import torch
    import torch.nn.functional as F

    import pfl.internal.ops.pytorch_ops as ops
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from torch_peer import Loop

    logging.disable()
    torch.set_num_threads(about["threads"])
    work = Work.read(folder)
    rank = ops.distributed.global_rank
    loop = Loop(work, about["threads"], about["channels_last"])
    net = loop.net
    torch._foreach_copy_([weight.data for weight in loop.weights], loop.native(work.initial))
    steps: list[torch.Tensor] = []

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = F.cross_entropy(net(x), y)
        steps.append(found.detach())
        return found

    # Metrics are requested in the first round, whatever the frequency.
    net.loss, net.metrics = loss, lambda x, y: {"samples": Weighted(0.0, len(x))}

    class Clock(TrainingProcessCallback):
        def __init__(self):
            self.seconds, self.losses, self.began = [], [], time.perf_counter()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            now = time.perf_counter()
            self.seconds.append(now - self.began)
            # Only now, so that the sum over processes is not timed.
            (sums,) = ops.distributed.all_reduce([torch.tensor([float(sum(steps)), float(len(steps))])])
            self.losses.append(float(sums[0] / sums[1]))
            steps.clear()
            (longest,) = ops.distributed.all_reduce([torch.tensor([self.seconds[-1]])])
            too_long = about["limit_s"] is not None and float(longest) > about["limit_s"] * about["processes"]
            self.began = time.perf_counter()
            return too_long, Metrics()

    # Each process trains its part of the clients named here.
    order = itertools.cycle(client for cohort in work.cohorts for client in cohort[: about["cohort"]])
    users = {
        client: Dataset((loop.rows[client], loop.labels[client]), user_id=str(client))
        for client in range(len(work.labels))
    }
    data = FederatedDataset(lambda client: users[client], lambda: next(order))
    model = PyTorchModel(
        net,
        lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=work.momentum, foreach=True),
        torch.optim.SGD(net.parameters(), lr=1.0),
    )
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=about["rounds"],
            evaluation_frequency=1_000_000_000,
            train_cohort_size=about["cohort"],
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=work.epochs, local_learning_rate=work.rate
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if rank == 0:
        print(json.dumps({"seconds": clock.seconds, "losses": clock.losses}), flush=True)
    if about["processes"] > 1:
        # A process that leaves early looks dead to the others, and the library's threads sometimes abort
        # while the interpreter shuts down.
        torch.distributed.barrier()
        os._exit(0)


if __name__ == "__main__":
    if VARIANT in os.environ:
        simulate(arguments().folder, json.loads(os.environ[VARIANT]))
    else:
        main()
