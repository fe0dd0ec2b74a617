"""Reads with TensorBoard what `ebbflow export --as tensorboard` wrote, and compares every number with the record.

    ebbflow export RUN --to LOGS --as tensorboard
    python -m venv venv && venv/bin/pip install tensorboard
    venv/bin/python scripts/tensorboard_readback.py LOGS RUN

RUN is the folder of a run or of a grid, or a run's rounds.csv or rounds.jsonl. Fails unless every tag, step, time and
number is present and no others are. Numbers must be equal in single precision, and the text must be the settings. Needs tensorboard;
tried with 2.21.0.
"""

import base64
import csv
import json
import sys
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing import event_accumulator

GROUPS = {
    "train": ["learning_rate", "step_norm"],
    "test": ["loss", "accuracy"],
    "clients": ["inclusion_probability"],
    "spent": ["elapsed_s", "virtual_s", "bytes_down", "bytes_up", "bytes_total"],
}
PREFIXES = {"n_": "clients", "train_": "train", "oracle_": "oracle", "note_": "notes"}
# Names of version 1 of the record, which rows of older runs have.
OLD_NAMES = {
    "rate": "learning_rate",
    "chance": "inclusion_probability",
    "chances_approximate": "probabilities_approximate",
    "oracle_client_deviation": "oracle_client_std",
    "memory_shelf_bytes": "memory_spilled_bytes",
    "chances_unknown": "probabilities_unknown",
    "note_memory_shelf_bytes": "note_memory_spilled_bytes",
    "note_chances_unknown": "note_probabilities_unknown",
}
SETS = ["asked", "whole", "partial", "late", "absent", "refused"]


def tag(column):
    """The tag of a column of rounds.csv, by docs/record.md."""
    for group, columns in GROUPS.items():
        if column in columns:
            return f"{group}/{column}"
    for prefix, group in PREFIXES.items():
        if column.startswith(prefix):
            return f"{group}/{column[len(prefix):]}"
    raise SystemExit(f"{column}: a column without a tag")


def size(row, name):
    """The number of clients in a set of rounds.jsonl."""
    if name in row:
        return len(row[name])
    return sum(byte.bit_count() for byte in base64.b64decode(row[f"{name}_bits"]))


def scalars(row):
    """A line of rounds.jsonl as a row of rounds.csv."""
    found = {f"n_{name}": size(row, name) for name in SETS}
    found |= {"n_stand_ins": row.get("n_stand_ins", 0)}
    found |= {f"note_{OLD_NAMES.get(name, name)}": value for name, value in row.get("notes", {}).items()}
    skipped = {"model", "joined", "left", "probabilities_approximate", "notes", "n_stand_ins"}
    for name, value in row.items():
        name = OLD_NAMES.get(name, name)
        if name not in skipped and not isinstance(value, (list, str)):
            found[name] = value
    # JSON has no NaN or infinity; they are null.
    return {name: np.nan if value is None else float(value) for name, value in found.items()}


def rows(path):
    """The values of each round, by column."""
    with open(path, newline="") as file:
        if path.suffix == ".jsonl":
            yield from map(scalars, map(json.loads, file))
        else:
            for row in csv.DictReader(file):
                yield {OLD_NAMES.get(name, name): float(value) for name, value in row.items() if value != ""}


def expected(path):
    """The expected steps, times and numbers of each tag."""
    series = {}
    for row in rows(path):
        step = int(row.pop("round"))
        for column, value in row.items():
            with np.errstate(over="ignore"):
                event = (step, row["virtual_s"], np.float32(value))
            series.setdefault(tag(column), []).append(event)
    return series


def compare(logs, path):
    """Complaints, and the counts of equal tags and numbers."""
    reader = event_accumulator.EventAccumulator(str(logs), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    complaints, n_tags, n_numbers = [], 0, 0
    wanted = expected(path)
    found = set(reader.Tags()["scalars"])
    complaints += [f"{logs}: no {name}" for name in sorted(wanted.keys() - found)]
    complaints += [f"{logs}: {name}, which the record has not" for name in sorted(found - wanted.keys())]
    for name in sorted(wanted.keys() & found):
        events = [(event.step, event.wall_time, np.float32(event.value)) for event in reader.Scalars(name)]
        wrong = [pair for pair in zip(events, wanted[name]) if not same(*pair)]
        if len(events) != len(wanted[name]):
            complaints.append(f"{logs}: {name}: {len(events)} numbers, not {len(wanted[name])}")
        if wrong:
            complaints.append(f"{logs}: {name}: {wrong[0][0]}, not {wrong[0][1]}")
        n_tags += 1
        n_numbers += min(len(events), len(wanted[name])) - len(wrong)
    settings = path.parent / "settings.toml"
    if settings.exists():
        text = reader.Tensors("settings")[0].tensor_proto.string_val[0].decode()
        if text != "".join(f"    {line}\n" for line in settings.read_text().splitlines()):
            complaints.append(f"{logs}: other settings than {settings}")
    return complaints, n_tags, n_numbers


def same(one, other):
    return one[:2] == other[:2] and np.array_equal(one[2], other[2], equal_nan=True)


def pairs(logs, record):
    """Folders of events, each with the rounds that belong to it."""
    if record.is_file():
        return [(logs, record)]
    if not (record / "cells").is_dir():
        return [(logs, rounds(record))]
    cells = sorted(cell for cell in (record / "cells").iterdir() if not cell.name.startswith("."))
    found = {}
    for cell in cells:
        whole = logs / cell.name
        found[cell] = whole if whole.is_dir() else logs / cell.name.rsplit("_", 1)[0]
    more = {folder for folder in logs.iterdir() if folder.is_dir()} - set(found.values())
    if more or len(set(found.values())) != len(cells):
        raise SystemExit(f"{logs} holds other runs than {record}; export them again")
    return [(folder, rounds(cell)) for cell, folder in found.items()]


def rounds(run):
    table = run / "rounds.csv"
    return table if table.exists() else run / "rounds.jsonl"


def main():
    logs, record = map(Path, sys.argv[1:])
    complaints, n_tags, n_numbers = [], 0, 0
    runs = pairs(logs, record)
    for folder, path in runs:
        wrong, tags, numbers = compare(folder, path)
        complaints, n_tags, n_numbers = complaints + wrong, n_tags + tags, n_numbers + numbers
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    print(f"{n_numbers} numbers of {n_tags} tags in {len(runs)} runs are equal; {len(complaints)} differences")
    if complaints or n_numbers == 0:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
