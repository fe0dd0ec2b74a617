"""Back-test of `ebbflow replay`: runs logged under uniform selection predict E3CS, and real runs of E3CS say how well.

    python scripts/replay_backtest.py PROGRAM FOLDER

serves experiments/replay/served.toml with each of the seeds, once with uniform selection and once with E3CS, the latter with blows of
another seed; replays each logged run with E3CS under each rule for what the record cannot know; writes experiments/replay/backtest.csv
and prints the tables of docs/results/replay.md. What is in FOLDER already is not run again. Only the standard library is needed.
"""

import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path

SEEDS = [1, 2, 3, 4, 5, 6]
RULES = ["own-rate", "answers", "silent"]
CLASSES = {"reliable": range(0, 4), "middling": range(4, 8), "flaky": range(8, 12)}
# Two-sided 95 % of Student's t, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
HERE = Path(__file__).resolve().parent.parent / "experiments" / "replay"
FIGURES = ["success_ratio", "asked_reliable", "asked_middling", "asked_flaky", "asked_down", "accuracy"]


def run(words):
    print("$", " ".join(map(str, words)), flush=True)
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)


def served(program, folder, recipe, seed, blows):
    out = folder / f"{recipe}-{seed}"
    if not (out / "server" / "summary.json").exists():
        changes = [f'recipe="{recipe}"', f"run.seed={seed}", f"swarm.seed={blows}"]
        words = [word for change in changes for word in ("--set", change)]
        run([program, "swarm", HERE / "served.toml", *words, "--out", out])
    return out / "server"


def replayed(program, folder, record, recipe, seed, rule):
    out = folder / f"{record.parent.name}-{recipe}-{rule}"
    if not (out / "summary.json").exists():
        run([program, "replay", record, "--recipe", recipe, "--seed", seed, "--impute", rule, "--quiet", "--out", out])
    return out


def figures(folder):
    """What a run came to, from its rows."""
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
    # Of those that were up and free, how many answered on time when they were asked.
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
    for seed in SEEDS:
        log = served(program, folder, "fedavg", seed, seed)
        all_figures["logged", seed] = figures(log)
        real = served(program, folder, "e3cs", seed, 100 + seed)
        all_figures["real", seed] = figures(real)
        for rule in RULES:
            all_figures[rule, seed] = figures(replayed(program, folder, log, "e3cs", seed, rule))
        itself = figures(replayed(program, folder, real, "e3cs", seed, "own-rate"))
        assert itself == all_figures["real", seed], f"the real run of seed {seed} is not its own replay"
    with open(HERE / "backtest.csv", "w", newline="") as file:
        names = list(next(iter(all_figures.values())))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["what", "seed", *names])
        for (what, seed), found in all_figures.items():
            writer.writerow([what, seed, *(f"{found[name]:.4f}" for name in names)])

    def of(what, name):
        return [all_figures[what, seed][name] for seed in SEEDS]

    print("\n| figure | logged (uniform) | real E3CS | " + " | ".join(RULES) + " |")
    print("|---|---|---|" + "---|" * len(RULES))
    for name in [*FIGURES, "imputed_share", "down_on_time"]:
        print(f"| {name} | " + " | ".join(told(of(what, name)) for what in ["logged", "real", *RULES]) + " |")
    print("\n| prediction less real | " + " | ".join(RULES) + " |")
    print("|---|" + "---|" * len(RULES))
    for name in FIGURES:
        # Paired by seed: data, start and draws of the selector are those of the seed, though blows are others.
        cells = []
        for rule in RULES:
            off, half = interval([one - other for one, other in zip(of(rule, name), of("real", name))])
            cells.append(f"{off:+.3f} ± {half:.3f}" + (" (off)" if abs(off) > half else ""))
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\n| on time when asked, up and free | " + " | ".join(CLASSES) + " |")
    print("|---|" + "---|" * len(CLASSES))
    for what in ["logged", "real", *RULES]:
        print(f"| {what} | " + " | ".join(told(of(what, f"rate_{name}")) for name in CLASSES) + " |")


if __name__ == "__main__":
    main()
