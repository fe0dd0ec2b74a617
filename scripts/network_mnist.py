"""Compares four recipes on MNIST over a network with real dropouts and in simulation.

    python3 scripts/network_mnist.py PROGRAM FOLDER [NAME...]

Runs what is not in FOLDER yet, and writes experiments/network/mnist.csv and docs/results/network.md. With names, only
runs these. Seeds were fixed before anything was run: 1 to 3 over the network, 11 to 20 simulated with the same share
of responses, 11 to 15 for partial work.
"""
import csv, json, os, statistics, subprocess, sys

PROGRAM, FOLDER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CONFIG = os.path.join(HERE, "experiments/network/mnist.toml")
RECIPES = {
    "fl-fdms": ["recipe=fl-fdms"],
    "e3cs": ["recipe=e3cs", "select.cohort=10"],
    "scheme-c": ["recipe=scheme-c"],
    "fast": ["recipe=fast", "select.cohort=10", "select.adaptive=7.0"],
}
# Too much work for clients on two cores to finish by the deadline, so that they send partial updates. Steps
# are so short that whole work leads as far as in the other rows.
HALF_DONE = {"scheme-c, half done": ["recipe=scheme-c", "local.epochs=350", "local.learning_rate=0.00025"]}
NETWORK, SIMULATED, SIMULATED_HALF_DONE = range(1, 4), range(11, 21), range(11, 16)
# Student's 97.5 % point, by degrees of freedom.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201}


def run(folder, *command):
    if not os.path.exists(os.path.join(folder, "done")):
        subprocess.run(["rm", "-rf", folder], check=True)
        with open(folder + ".log", "w") as log:
            subprocess.run([PROGRAM, *command], check=True, stdout=log, stderr=log)
        open(os.path.join(folder, "done"), "w").close()


def figures(record):
    """The share of selected clients that responded in time, the share of partial work among these, and the
    accuracy over the last ten rounds, in percent."""
    rows = [json.loads(line) for line in open(os.path.join(record, "rounds.jsonl"))]
    asked = whole = partial = 0
    for row in rows:
        asked, whole, partial = asked + count(row["asked"]), whole + count(row["whole"]), partial + count(row["partial"])
    tail = [row["accuracy"] for row in rows[-10:] if row.get("accuracy") is not None]
    return (whole + partial) / asked, partial / max(1, whole + partial), 100 * statistics.mean(tail)


def count(clients):
    """The number of clients in a set of the record, which lists numbers and ranges as pairs."""
    return sum(one[1] - one[0] + 1 if isinstance(one, list) else 1 for one in clients)


def named(recipe):
    return recipe.replace(", ", "-").replace(" ", "-")


def sets(values):
    return [word for value in values for word in ("--set", value)]


def main():
    os.makedirs(FOLDER, exist_ok=True)
    rows, wanted = [], sys.argv[3:]
    for recipe, settings in (RECIPES | HALF_DONE).items():
        if wanted and recipe not in wanted:
            continue
        shares, partials = [], []
        for seed in NETWORK:
            folder = os.path.join(FOLDER, f"{named(recipe)}-network-{seed}")
            run(folder, "chaos", CONFIG, *sets(settings), *sets([f"run.seed={seed}", f"chaos.seed={seed}"]), "--out", folder)
            share, partial, accuracy = figures(os.path.join(folder, "server"))
            shares.append(share)
            partials.append(partial)
            rows.append((recipe, "network", seed, share, partial, accuracy))
            replayed = folder + "-replayed"
            run(replayed, "replay", os.path.join(folder, "server"), "--quiet", "--out", replayed)
            rows.append((recipe, "replayed", seed, *figures(replayed)))
        probability, half_done = (round(statistics.mean(values), 4) for values in (shares, partials))
        simulated = [f"world.availability.probability={probability}"]
        if recipe in HALF_DONE:
            simulated.append(f'world.work={{ kind = "stragglers", share = {half_done} }}')
        for seed in SIMULATED if recipe in RECIPES else SIMULATED_HALF_DONE:
            folder = os.path.join(FOLDER, f"{named(recipe)}-simulated-{seed}-{probability}")
            run(folder, "run", CONFIG, *sets(settings), *sets([f"run.seed={seed}", *simulated]), "--quiet", "--out", folder)
            rows.append((recipe, "simulated", seed, *figures(folder)))
    if wanted:
        return
    with open(os.path.join(HERE, "experiments/network/mnist.csv"), "w") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["recipe", "where", "seed", "answered", "half_done", "accuracy_51_60"])
        out.writerows((*row[:3], *(f"{value:.4f}" for value in row[3:])) for row in rows)
    page(rows)


def page(rows):
    of = lambda recipe, where: [row for row in rows if row[:2] == (recipe, where)]
    spread = lambda values: f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
    lines = [INTRODUCTION]
    for recipe in RECIPES | HALF_DONE:
        network, simulated = ([row[5] for row in of(recipe, where)] for where in ("network", "simulated"))
        replayed = [row[5] for row in of(recipe, "replayed")]
        answered = ", ".join(f"{100 * row[3]:.0f}" for row in of(recipe, "network"))
        half = ", ".join(f"{100 * row[4]:.0f}" for row in of(recipe, "network"))
        n, m = len(network), len(simulated)
        pooled = ((n - 1) * statistics.variance(network) + (m - 1) * statistics.variance(simulated)) / (n + m - 2)
        difference, half_width = statistics.mean(network) - statistics.mean(simulated), T[n + m - 2] * (pooled * (1 / n + 1 / m)) ** 0.5
        verdict = "yes" if abs(difference) <= half_width else "no"
        paired = ", ".join(f"{one - other:+.2f}" for one, other in zip(network, replayed))
        lines.append(f"| {recipe} | {answered} | {half} | {spread(network)} | {spread(simulated)} | {difference:+.2f} ± {half_width:.2f} | {verdict} | {paired} |")
    lines.append(HALF_DONE_WORDS)
    with open(os.path.join(HERE, "docs/results/network.md"), "w") as file:
        file.write("\n".join(lines) + "\n")


INTRODUCTION = """# Over a network, and simulated

Written by `scripts/network_mnist.py` from `experiments/network/mnist.csv`, which it also writes. MNIST in five clusters
of two digits, 20 clients of 200 images, a network of one hidden layer, 60 rounds.

*Over the network*: the server and every client are processes. `ebbflow chaos experiments/network/mnist.toml` kills,
stops and disconnects each client with probability .05, .1 and .15 in every round, for .5 to 3 s, and a round closes
after 2 s. Seeds 1 to 3. *Simulated*: each client is up with the probability with which selected clients responded over
the network; seeds 11 to 20, for partial work 11 to 15. *Replayed*: the same seed and the participation of that very
run, by `ebbflow replay`; only the distinction between partial and late updates can still differ.

Accuracy in percent: the mean of the last ten rounds, ± the standard deviation over seeds. The difference has its 95 %
interval (Student, pooled). *Within noise*: the interval contains 0.

| recipe | responded %, by seed | of these partial % | over the network | simulated | difference | within noise | less replayed, by seed |
|---|---|---|---|---|---|---|---|"""
HALF_DONE_WORDS = """
**Partial work.** Two passes over 200 images end long before the deadline, so there is no partial work in the first four
rows. In the last row, with `local.epochs = 350` at a learning rate of .00025, the deadline interrupts many clients.
They send what they have within .5 s, and Scheme C weights it by the number of steps. How many clients are interrupted
depends on the machine. In the simulation, the same share of clients does a part of the work that is drawn uniformly in
every round (`stragglers`), which is another distribution than that of two busy cores. In the replay, the steps are
those that were done."""
main()

