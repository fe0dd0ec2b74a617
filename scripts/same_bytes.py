"""Compares two builds: the same configurations must leave the same bytes.

    python scripts/same_bytes.py OLD NEW [--files EXPERIMENTS] [--new-files EXPERIMENTS] [--keep FOLDER]

OLD and NEW are two `ebbflow` programs. Each runs twenty configurations of experiments/, shortened. Every file of their
folders is compared byte for byte, but for seconds of real time. Where RENAMED says that a name changed, a file that
differs is compared again with new names in place of old ones. Then OLD begins runs and is killed, and NEW resumes
them; NEW shows, reports and compares what OLD left, and recomputes a run that OLD served.

Both run the files of --files, else of this checkout. Where its keys are newer than OLD, --files names the experiments
folder of an older one, so old keys are tried with NEW too; with --new-files NEW runs the files of another folder.
EBBFLOW_DATA must name the folder that holds mnist/, fashion-mnist/ and traces/. Only the standard library is needed.
"""

import argparse
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Old name to new name. Paths of settings are without indices: "world.availability.classes.chance". A path that begins
# with "*." is any path that ends so, and counts where no whole path does. A path that ends with ".*" is a table.
RENAMED = {
    "settings": {
        "local.rate": "local.learning_rate",
        "local.batch": "local.batch_size",
        "local.clip_norm": "local.max_grad_norm",
        "local.mu": "local.proximal_mu",
        "server.rate": "server.learning_rate",
        "select.rate": "select.learning_rate",
        "select.batch": "select.batch_size",
        "select.chance": "select.probability",
        "select.over": "select.over_selection",
        "select.around.rate": "select.around.learning_rate",
        "select.around.batch": "select.around.batch_size",
        "select.around.chance": "select.around.probability",
        "select.around.over": "select.around.over_selection",
        "select.around.around.rate": "select.around.around.learning_rate",
        "select.around.around.batch": "select.around.around.batch_size",
        "select.around.around.chance": "select.around.around.probability",
        "select.around.around.over": "select.around.around.over_selection",
        "world.availability.chance": "world.availability.probability",
        "world.availability.deviation": "world.availability.std",
        "world.availability.law": "world.availability.distribution",
        "world.availability.comes": "world.availability.down_to_up",
        "world.availability.goes": "world.availability.up_to_down",
        "world.availability.least": "world.availability.min_probability",
        "world.availability.classes.chance": "world.availability.classes.probability",
        "world.availability.by_labels.law": "world.availability.by_labels.distribution",
        "world.availability.by_labels.least": "world.availability.by_labels.min_probability",
        "world.work.least": "world.work.min_epochs",
        "data.judge_on": "data.test_on",
        "data.values": "data.targets",
        "data.sizes.least": "data.sizes.min_samples",
        "data.sizes.most": "data.sizes.max_samples",
        "data.sizes.log_deviation": "data.sizes.log_std",
        "data.split.least": "data.split.min_samples",
        "data.encoding.columns.deviation": "data.encoding.columns.std",
        "model.layers.chance": "model.layers.probability",
        "clip.beside": "clip.side_vectors",
        "guard.most_void": "guard.max_void",
        "guard.stated_quantile": "guard.reported_quantile",
        "serve.judged_by": "serve.evaluated_by",
        "serve.least_up": "serve.min_up",
        "serve.most_clients": "serve.max_clients",
        "serve.most_samples": "serve.max_samples",
        "serve.most_samples_times": "serve.max_samples_times",
        "serve.any_samples": "serve.unbounded_samples",
        "aggregate.chances": "aggregate.probabilities",
        "aggregate.mu": "aggregate.proximal_mu",
        "grid.also": "grid.extra_columns",
        "swarm.*": "chaos.*",
    },
    # Keys of rows, summary.json and run.json at any depth, and columns of CSV files.
    "columns": {
        "rate": "learning_rate",
        "chance": "inclusion_probability",
        "chances": "inclusion_probabilities",
        "chances_approximate": "probabilities_approximate",
        "judged": "decisions",
        "verdict": "decision",
        "figures": "metrics",
        "oracle_client_deviation": "oracle_client_std",
        "oracle_silent": "oracle_absent_if_selected",
        "never_heard": "never_responded",
        "memory_shelf_bytes": "memory_spilled_bytes",
        "note_memory_shelf_bytes": "note_memory_spilled_bytes",
        "chances_unknown": "probabilities_unknown",
        "note_chances_unknown": "note_probabilities_unknown",
    },
    # Folders and files of a run, by name.
    "files": {},
    # Versions of formats in run.json: {"1": "2"}.
    "versions": {"1": "2"},
}

HERE = Path(__file__).resolve().parent.parent / "experiments"
TIMEOUT_S = 300
# Measured seconds, files that are not compared, and plots and pages, whose texts are prose.
NOT_COMPARED = re.compile(r"^(wall\.jsonl|lock|.*\.(svg|png|html))$")
# The file, its number of rounds, and the most runs of a grid.
CONFIGURATIONS = [
    ("by-hand/fedstale", None, None),
    ("by-hand/mifa-wait", None, None),
    ("by-hand/fl-fdms", None, None),
    ("by-hand/deadline", None, None),
    ("by-hand/fedbuff", None, None),
    ("by-hand/stale-update", None, None),
    ("by-hand/scaffold", None, None),
    ("demo", 3, None),
    ("report", 4, None),
    ("synthetic", 10, None),
    ("classes", 60, None),
    ("e3cs/fashion", 2, 6),
    ("e3cs/selection", 50, None),
    ("fdms/mnist", 3, 5),
    ("flex/churn", 10, None),
    ("flex/schemes-synthetic", 10, 6),
    ("flex/departures-1", 10, 4),
    ("fast/bases", 3, 6),
    ("fast/gamma", 3, 3),
    ("field/synthetic-flash-tuned", 8, None),
]
# Runs that OLD begins and NEW finishes: the file, and changes to it.
INTERRUPTED = [
    ("classes", []),
    ("classes", ['recipe="fedvarp"', 'world.after_deadline="late"']),
    ("classes", ['recipe="fl-fdms"', 'select.kind="everyone"']),
]
INTERRUPTED_AFTER = 25


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", type=Path, metavar="OLD", help="program before")
    parser.add_argument("new", type=Path, metavar="NEW", help="program after")
    parser.add_argument("--files", type=Path, default=HERE, metavar="EXPERIMENTS", help="what both run")
    parser.add_argument("--new-files", type=Path, metavar="EXPERIMENTS", help="what NEW runs instead")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="new folder for the records, which stay")
    args = parser.parse_args()
    if not os.environ.get("EBBFLOW_DATA"):
        parser.error("EBBFLOW_DATA must name the folder that holds mnist/, fashion-mnist/ and traces/")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        place = args.keep or Path(scratch)
        place.mkdir(parents=True, exist_ok=args.keep is None)
        old = Build(args.old, args.files, place.resolve() / "old")
        new = Build(args.new, args.new_files or args.files, place.resolve() / "new")
        results = [
            *(configuration(old, new, *one) for one in CONFIGURATIONS),
            *(interrupted(old, new, number, *one) for number, one in enumerate(INTERRUPTED)),
            *read_by_new(old, new),
            served(old, new),
        ]
    failed = results.count(False)
    print(f"{len(results) - failed} the same, {failed} different, {time.monotonic() - began:.0f} s")
    sys.exit(1 if failed else 0)


class Build:
    def __init__(self, program, files, place):
        self.program, self.files, self.place = program.resolve(), files.resolve(), place
        place.mkdir()

    def start(self, words, **more):
        return subprocess.Popen([str(word) for word in [self.program, *words]], stderr=subprocess.PIPE, **more)

    def run(self, words):
        """The error output; empty if the program succeeded."""
        child = self.start(words, stdout=subprocess.DEVNULL)
        try:
            _, error = child.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return f"{words[0]} took more than {TIMEOUT_S} s"
        return "" if child.returncode == 0 else error.decode() or f"{words[0]} ended with {child.returncode}"

    def file(self, name, of=None):
        """A copy of a configuration, because a grid writes its table next to it. `of`: another build whose file is used."""
        copy = self.place / name.replace("/", "-") / "file.toml"
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile((of or self).files / f"{name}.toml", copy)
        return copy


def configuration(old, new, name, rounds, at_most):
    began = time.monotonic()

    def run(build):
        file = build.file(name)
        text = file.read_text()
        is_grid = re.search(r"^\[grid\]$", text, re.MULTILINE)
        sets = [] if rounds is None else [f"run.rounds={rounds}"]
        if is_grid:
            sets += ["grid.seeds=[1]", *(['grid.csv="results.csv"'] if re.search(r"^csv = ", text, re.MULTILINE) else [])]
        command = "selection" if name.endswith("/selection") else "compare" if is_grid else "run"
        words = [command, file, *options(sets), "--threads", 1, "--quiet", "--out", file.parent / "out"]
        return build.run(words + ([] if at_most is None else ["--at-most", at_most]))

    # In parallel, for a machine of two cores.
    with ThreadPoolExecutor() as pool:
        errors = list(pool.map(run, [old, new]))
    folder = name.replace("/", "-")
    return print_result(name, compared(old, new, errors, old.place / folder, new.place / folder), began)


def interrupted(old, new, number, name, changes):
    """OLD is killed in the middle of a run, NEW resumes it: the result must be that of a run by NEW alone."""
    began = time.monotonic()
    shown = " ".join(["resumed:", name, *changes])
    sets = options(["run.rounds=100", "run.checkpoint_every=10", *changes])
    whole, killed = (build.place / f"interrupted-{number}" for build in (new, old))
    error = new.run(["run", new.file(name, old), *sets, "--quiet", "--out", whole])
    words = ["run", old.file(name), *sets, "--threads", 1, "--json", "--out", killed]
    for _ in range(5):
        shutil.rmtree(killed, ignore_errors=True)
        child = old.start(words, stdout=subprocess.PIPE)
        for _ in range(INTERRUPTED_AFTER):
            child.stdout.readline()
        # SIGKILL.
        child.kill()
        child.communicate()
        if child.returncode != 0:
            break
    if (killed / "summary.json").exists() or not list(killed.glob("checkpoint-*")):
        return print_result(shown, ["OLD could not be killed between a checkpoint and the end"], began)
    errors = [error, new.run(["resume", killed, "--quiet"])]
    return print_result(shown, compared(old, new, errors, killed, whole), began)


def read_by_new(old, new):
    """NEW shows, reports and continues what OLD left."""
    run, grid = old.place / "classes" / "out", old.place / "report" / "out"
    for folder in run, grid:
        for command in "show", "report":
            began = time.monotonic()
            words = [command, folder] + (["--out", new.place / f"report-of-{folder.parent.name}"] if command == "report" else [])
            yield print_result(f"{command} by NEW of {folder.parent.name}", [error for error in [new.run(words)] if error], began)
    began = time.monotonic()
    cells = sorted(grid.glob("cells/*"))
    times = [(cell / "summary.json").stat().st_mtime_ns for cell in cells if (cell / "summary.json").exists()]
    sets = options(["run.rounds=4", "grid.seeds=[1]"])
    error = new.run(["compare", grid.parent / "file.toml", *sets, "--quiet", "--out", grid])
    wrong = [error] if error else []
    again = sorted(grid.glob("cells/*"))
    if again != cells or [(cell / "summary.json").stat().st_mtime_ns for cell in again] != times:
        wrong.append("runs that OLD finished were run again")
    yield print_result("compare by NEW of report", wrong, began)


def served(old, new):
    """NEW recomputes a run that OLD served, from the updates that OLD kept."""
    began = time.monotonic()
    sets = options(["run.rounds=8", "data.clients=6", "swarm.clients=6", "swarm.server_kills=1"])
    out = old.place / "served"
    errors = [old.run(["swarm", old.file("chaos"), *sets, "--out", out])]
    if not errors[0]:
        errors = [new.run([command, out / "server"]) for command in ("recompute", "show")]
    return print_result("recomputed by NEW: chaos", [error for error in errors if error], began)


def options(changes):
    return [word for change in changes for word in ("--set", change)]


def print_result(name, wrong, began):
    """Prints a line, and the differences if there are any; returns whether there are none."""
    print(f"{'different' if wrong else 'same':10} {time.monotonic() - began:5.1f} s  {name}", flush=True)
    for line in wrong:
        print("    " + line.strip().replace("\n", "\n    "), flush=True)
    return not wrong


def compared(old, new, errors, old_folder, new_folder):
    """How two folders differ, if both programs succeeded."""
    wrong = [f"{name}: {error}" for name, error in zip(["OLD", "NEW"], errors) if error]
    if wrong:
        return wrong
    before, after = files_of(old_folder, RENAMED["files"]), files_of(new_folder, {})
    wrong += [f"only OLD has {name}" for name in before if name not in after]
    wrong += [f"only NEW has {name}" for name in after if name not in before]
    if not any(name.endswith(("rounds.jsonl", ".csv")) for name in before):
        wrong.append("there is nothing to compare")
    for name in before:
        # The configurations are meant to differ.
        if name not in after or name == "file.toml":
            continue
        one = before[name].read_bytes().replace(bytes(old.place), b"@")
        other = after[name].read_bytes().replace(bytes(new.place), b"@")
        if one == other:
            continue
        if not any(RENAMED.values()) or renamed(name, one) != renamed(name, other):
            wrong.append(f"{name}: {first_difference(one, other)}")
    return wrong


def files_of(folder, names):
    """The files below a folder by their paths, in which names are replaced."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not NOT_COMPARED.match(path.name):
            parts = [names.get(part, part) for part in path.relative_to(folder).parts]
            # The name of a grid's run ends with the digest of its settings, which changes with their keys.
            parts = [re.sub(r"_[0-9a-f]{16}$", "", part) if RENAMED["settings"] else part for part in parts]
            found["/".join(parts)] = path
    return found


def first_difference(one, other):
    if b"\0" in one or b"\0" in other:
        at = next((at for at, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))
        return f"{len(one)} and {len(other)} bytes, different from byte {at}"
    lines = zip([*one.decode().splitlines(), "(the end)"], [*other.decode().splitlines(), "(the end)"])
    number, (old, new) = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
    at = next((at for at, pair in enumerate(zip(old, new)) if pair[0] != pair[1]), min(len(old), len(new)))
    excerpt = slice(max(0, at - 30), at + 40)
    return f"line {number}, column {at + 1}: …{old[excerpt]}… is …{new[excerpt]}…"


def renamed(name, content):
    """The content of a file with new names in place of old ones."""
    name = name.rsplit("/", 1)[-1]
    if name == "settings.toml":
        return renamed_settings(content.decode())
    if name.endswith((".json", ".jsonl")):
        texts = content.decode().splitlines() if name.endswith(".jsonl") else [content.decode()]
        rows = [json.loads(text, parse_float=str, parse_int=str, object_pairs_hook=renamed_keys) for text in texts]
        return [run_identity(row) for row in rows] if name == "run.json" else rows
    if name.endswith(".csv"):
        head, *rows = csv.reader(io.StringIO(content.decode()))
        head = [RENAMED["columns"].get(column) or renamed_path(column) for column in head]
        # The digest of the settings, whose keys changed.
        digest = head.index("settings") if "settings" in head and RENAMED["settings"] else None
        # Columns of metrics are in the order of their names, which changes with a name.
        order = sorted(range(len(head)), key=lambda at: head[at] if head[at].startswith("note_") else "")
        return [[row[at] for at in order if at != digest] for row in [head, *rows]]
    return content


def renamed_keys(pairs):
    """Pairs with new names; pairs in the order of their names stay in that order, as metrics are."""
    names = [key for key, _ in pairs]
    found = [(RENAMED["columns"].get(key, key), value) for key, value in pairs]
    return sorted(found, key=lambda pair: pair[0]) if names == sorted(names) else found


def run_identity(row):
    """run.json without the checksum of settings whose keys changed, and with the new version."""
    version = RENAMED["versions"]
    row = [(key, version.get(value, value) if key == "version" else value) for key, value in row]
    return [(key, value) for key, value in row if key != "settings" or not RENAMED["settings"]]


def renamed_settings(text):
    """Every setting by its path, sorted, because files list keys in alphabetical order."""
    found = []

    def walk(value, path, indices):
        if isinstance(value, dict) and value:
            for key, below in value.items():
                walk(below, [*path, key], indices)
        elif isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value):
            for number, below in enumerate(value):
                walk(below, path, [*indices, number])
        else:
            found.append((renamed_path(".".join(path)), indices, value))

    walk(tomllib.loads(text, parse_float=str), [], [])
    return sorted(found, key=str)


def renamed_path(path):
    names = RENAMED["settings"]
    if path in names:
        return names[path]
    head, dot, last = path.rpartition(".")
    if dot and f"*.{last}" in names:
        return head + dot + names[f"*.{last}"]
    for table, name in names.items():
        if table.endswith(".*") and path.startswith(table[:-1]):
            return name[:-1] + path[len(table) - 1 :]
    return path


if __name__ == "__main__":
    main()
