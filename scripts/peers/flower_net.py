"""Flower's network deployment on loopback: the time of a round with an empty local step.

    python flower_net.py [--clients 2 10 50] [--rounds 10] [--parameters 100000] [--patience 600]

Runs on Linux. Flower's intervals are its defaults, or those of its environment variables.
"""

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

PYPROJECT = """
[project]
name = "empty-round"
version = "1.0.0"
[tool.flwr.app]
publisher = "ebbflow"
[tool.flwr.app.components]
serverapp = "empty_round.server:app"
clientapp = "empty_round.client:app"
[tool.flwr.app.config]
"""

CLIENT = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)
"""

SERVER = """
import time
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

class Timed(FedAvg):
    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        errors = [str(reply.error) for reply in replies if reply.has_error()]
        if errors or len(replies) != self.min_train_nodes:
            raise RuntimeError(f"{len(replies)} of {self.min_train_nodes} clients answered, with errors: {errors}")
        averaged = super().aggregate_train(server_round, replies)
        print(time.perf_counter(), file=self.ends, flush=True)
        return averaged

@app.main()
def serve(grid, context):
    given = context.run_config
    clients = given["clients"]
    vector = np.random.default_rng(0).standard_normal(given["parameters"], dtype=np.float32)
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    with open(given["ends"], "a") as strategy.ends:
        try:
            strategy.start(grid, ArrayRecord([vector]), num_rounds=given["rounds"])
        except Exception as error:
            print("failed:", " ".join(str(error).split()), file=strategy.ends, flush=True)
            raise
"""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)
RESERVE = 0.3
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def free_ports(count: int) -> list[int]:
    ports: list[int] = []
    # Outgoing connections use higher ports, and could take one before its owner listens.
    candidates = iter(random.sample(range(10_000, 32_000), 22_000))
    while len(ports) < count:
        port = next(candidates)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
    return ports


def descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def end_all() -> None:
    # Some of Flower's processes are in sessions of their own, so no process group holds all of them. They
    # keep no state, and an orderly end of fifty of them would take long.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    while alive := descendants():
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0):
            pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # If memory runs out, these processes are to be killed first.
    Path("/proc/self/oom_score_adj").write_text("1000")


class Deployment:
    """Flower's processes, each with its own folder, because two clients must not unpack apps in the same one."""

    def __init__(self, folder: Path):
        self.folder, self.running = folder, {}

    def start(self, name: str, program: str, *options: str) -> None:
        home, scripts = self.folder / name, sysconfig.get_path("scripts")
        home.mkdir(exist_ok=True)
        more = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        # Flower starts its own programs by name.
        more["PATH"] = scripts + os.pathsep + os.environ.get("PATH", "")
        with open(home / "log", "w") as log:
            self.running[name] = subprocess.Popen(
                [f"{scripts}/{program}", *options],
                env=os.environ | more,
                stdout=log,
                stderr=log,
                # Ctrl-C is for this process, which ends the others. They also end if it is killed.
                start_new_session=True,
                preexec_fn=prepare,
            )

    def check(self, since: float, patience: float) -> None:
        name, why = "superlink", ""
        for started, process in self.running.items():
            # Only the program that submits the run may end, once it has done so.
            if process.poll() is not None and (started, process.returncode) != ("run", 0):
                name, why = started, f"{started} ended with {process.returncode}"
        lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
        memory = {line[0]: int(line[1]) for line in lines}
        # A client that starts late is refused and started again. Such processes pile up, and need memory.
        if not why and memory["MemAvailable:"] < memory["MemTotal:"] * RESERVE:
            why = f"{len(descendants())} processes left less than {RESERVE:.0%} of the memory"
        if not why and time.monotonic() - since > patience:
            why = f"nothing came in {patience:.0f} s"
        if why:
            log = (self.folder / name / "log").read_text(errors="replace").strip()[-2000:]
            raise RuntimeError(f"{why}; the log of {name} closes:\n{log}")

    def listens(self, port: int, patience: float) -> None:
        """Returns when a client connects."""
        since = time.monotonic()
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", port)) != 0:
                self.check(since, patience)
                time.sleep(0.1)

    def run(self, clients: int, rounds: int, app: Path, ends: Path, patience: float) -> None:
        """Returns when all rounds are completed."""
        link, *ports = free_ports(1 + clients)
        address = f"127.0.0.1:{link}"
        # The app needs no installation, for which Flower would use the network.
        alone = "--disable-runtime-dependency-installation"
        self.start("superlink", "flower-superlink", "--insecure", "--port", str(link), alone)
        self.listens(link, patience)
        # One after another: many that start at once on few cores miss each other's deadlines before the
        # measurement.
        for node, port in enumerate(ports):
            options = ("--insecure", "--superlink", address, "--port", str(port))
            self.start(f"supernode-{node}", "flower-supernode", *options)
            self.listens(port, patience)
        since = time.monotonic()
        (self.folder / "run").mkdir()
        here = f'[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        (self.folder / "run" / "config.toml").write_text(here)
        self.start("run", "flwr", "run", str(app), "here")
        seen = 0
        while seen < rounds:
            lines = ends.read_text().splitlines()
            if lines and lines[-1].startswith("failed"):
                raise RuntimeError("the ServerApp " + lines[-1])
            if len(lines) > seen:
                seen, since = len(lines), time.monotonic()
            self.check(since, patience)
            time.sleep(0.5)


def measure(clients: int, rounds: int, parameters: int, patience: float) -> tuple[list[float], str | None]:
    """The seconds of each round after the first, and the reason if there are fewer than requested."""
    with tempfile.TemporaryDirectory(prefix="flower-net-", ignore_cleanup_errors=True) as name:
        folder, stopped = Path(name), None
        ends, app = folder / "ends", folder / "app"
        ends.touch()
        (app / "empty_round").mkdir(parents=True)
        config = {"clients": clients, "rounds": rounds + 1, "parameters": parameters, "ends": str(ends)}
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in config.items()]
        (app / "pyproject.toml").write_text(PYPROJECT + "".join(lines))
        for module, text in (("__init__", ""), ("client", CLIENT), ("server", SERVER)):
            (app / "empty_round" / f"{module}.py").write_text(text)
        try:
            Deployment(folder).run(clients, rounds + 1, app, ends, patience)
        except (OSError, RuntimeError) as error:
            stopped = str(error)
        finally:
            end_all()
        marks = [float(line) for line in ends.read_text().splitlines() if not line.startswith("failed")]
    return [end - began for began, end in zip(marks, marks[1:])], stopped


def main() -> None:
    parser = argparse.ArgumentParser(description="times rounds of Flower's network deployment")
    parser.add_argument("--clients", type=int, nargs="+", default=[2, 10, 50])
    parser.add_argument("--rounds", type=int, default=10, help="rounds to measure, after a first that is not timed")
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for a round")
    given = parser.parse_args()
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        sys.exit("flwr is not installed in this Python; pip install flwr in the version that requirements.txt names")
    for sign in SIGNALS:
        signal.signal(sign, lambda number, frame: sys.exit(128 + number))
    # Orphans of Flower's processes become children of this one, so that they are found at the end.
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    code = 0
    for clients in given.clients:
        seconds, stopped = measure(clients, given.rounds, given.parameters, given.patience)
        told = {"peer": f"Flower {version}", "clients": clients, "parameters": given.parameters, "rounds": len(seconds)}
        told["round_s"] = [round(second, 3) for second in seconds]
        told["median_s"] = round(statistics.median(seconds), 3) if seconds else None
        print(json.dumps(told), flush=True)
        if stopped:
            code = 1
            print(f"{clients} clients, {len(seconds)} of {given.rounds} rounds: {stopped}", file=sys.stderr, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
