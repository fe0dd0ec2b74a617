"""Back-test of `ebbflow replay`: runs logged under uniform selection predict E3CS, compared with real runs of it.

    python scripts/replay_backtest.py PROGRAM FOLDER

Serves experiments/replay/served.toml with each of the seeds: once with uniform selection, and once with each kind of
E3CS, whose faults have another seed. Replays each logged run with each kind of E3CS, under each rule for unobserved
outcomes. Writes experiments/replay/backtest.csv and prints the tables of docs/results/replay.md. Runs that are in
FOLDER already are kept. Needs only the standard library.
"""

import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path

SEEDS = [1, 2, 3, 4, 5, 6]
RULES = ["own-rate", "answers", "silent"]
# The recipe selects among all enrolled clients; the second kind only among those that are up when a round
# begins.
KINDS = {"e3cs": [], "e3cs-up": ['select.among="up"']}
CLASSES = {"reliable": range(0, 4), "middling": range(4, 8), "flaky": range(8, 12)}
# Two-sided 95 % of Student's t, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
HERE = Path(__file__).resolve().parent.parent / "experiments" / "replay"
FIGURES = ["success_ratio", "asked_reliable", "asked_middling", "asked_flaky", "asked_down", "accuracy"]


def run(words):
    print("$", " ".join(map(str, words)), flush=True)
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)


def served(program, folder, kind, seed, blows):
    out = folder / f"{kind}-{seed}"
    if not (out / "server" / "summary.json").exists():
        recipe = "e3cs" if kind in KINDS else kind
        changes = [f'recipe="{recipe}"', f"run.seed={seed}", f"chaos.seed={blows}", *KINDS.get(kind, [])]
        run([program, "chaos", HERE / "served.toml", *sets(changes), "--out", out])
    return out / "server"


def replayed(program, folder, record, kind, seed, rule):
    out = folder / f"{record.parent.name}-by-{kind}-{rule}"
    if not (out / "summary.json").exists():
        words = ["--recipe", "e3cs", "--seed", seed, "--impute", rule, *sets(KINDS[kind]), "--quiet", "--out", out]
        run([program, "replay", record, *words])
    return out


def sets(changes):
    return [word for change in changes for word in ("--set", change)]


def figures(folder):
    """The metrics of a run, computed from its rows."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    asked = [(client, row) for row in rows for client in row["asked"]]
    on_time = sum(client in row["whole"] or client in row["partial"] for client, row in asked)
    found = {"success_ratio": on_time / len(asked)}
    for name, clients in CLASSES.items():
        found[f"asked_{name}"] = sum(client in clients for client, _ in asked) / len(asked)
    found["asked_down"] = sum(client not in row["up"] for client, row in asked) / len(asked)
    found["down_on_time"] = sum(
        client not in row["up"] and (client in row["whole"] or client in row["partial"]) for client, row in asked
    ) / max(1, sum(client not in row["up"] for client, row in asked))
    found["accuracy"] = rows[-1]["accuracy"]
    found["imputed_share"] = sum(len(row.get("imputed", [])) for row in rows) / len(asked)
    # The share of selected clients that responded on time, among those that were up and free.
    for name, clients in CLASSES.items():
        free = [
            (client, row)
            for client, row in asked
            if client in clients and client in row["up"] and client not in row.get("busy", [])
        ]
        answers = sum(client in row["whole"] or client in row["partial"] for client, row in free)
        found[f"rate_{name}"] = answers / len(free) if free else float("nan")
    return found


def interval(values):
    half = STUDENT[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), half


def told(values):
    mean, half = interval(values)
    return f"{mean:.3f} ± {half:.3f}"


def main():
    program, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    all_figures = {}
    for kind in KINDS:
        for seed in SEEDS:
            log = served(program, folder, "fedavg", seed, seed)
            all_figures["uniform", "logged", seed] = figures(log)
            real = served(program, folder, kind, seed, 100 + seed)
            all_figures[kind, "real", seed] = figures(real)
            for rule in RULES:
                all_figures[kind, rule, seed] = figures(replayed(program, folder, log, kind, seed, rule))
            itself = figures(replayed(program, folder, real, kind, seed, "own-rate"))
            assert itself == all_figures[kind, "real", seed], f"the real run of seed {seed} is not its own replay"
    with open(HERE / "backtest.csv", "w", newline="") as file:
        names = list(next(iter(all_figures.values())))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["selection", "what", "seed", *names])
        for key, found in sorted(all_figures.items()):
            writer.writerow([*key, *(f"{found[name]:.4f}" for name in names)])

    for kind in KINDS:
        tables(kind, all_figures)


def tables(kind, all_figures):
    def of(what, name):
        selection = "uniform" if what == "logged" else kind
        return [all_figures[selection, what, seed][name] for seed in SEEDS]

    print(f"\n{kind}\n\n| | logged (uniform) | real | " + " | ".join(RULES) + " |")
    print("|---|---|---|" + "---|" * len(RULES))
    for name in [*FIGURES, "down_on_time", "imputed_share"]:
        print(f"| `{name}` | " + " | ".join(told(of(what, name)) for what in ["logged", "real", *RULES]) + " |")
    print("\n| prediction less real | " + " | ".join(RULES) + " |")
    print("|---|" + "---|" * len(RULES))
    for name in FIGURES:
        # Paired by seed: data, initial model and the selector's draws are those of the seed, although faults
        # differ.
        cells = []
        for rule in RULES:
            off, half = interval([one - other for one, other in zip(of(rule, name), of("real", name))])
            cells.append(f"{off:+.3f} ± {half:.3f}" + (" *" if abs(off) > half else ""))
        print(f"| `{name}` | " + " | ".join(cells) + " |")
    print("\n| on time when asked, up and free | " + " | ".join(CLASSES) + " |")
    print("|---|" + "---|" * len(CLASSES))
    for what in ["logged", "real", *RULES]:
        print(f"| {what} | " + " | ".join(told(of(what, f"rate_{name}")) for name in CLASSES) + " |")


if __name__ == "__main__":
    main()
