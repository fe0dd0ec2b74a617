"""Four recipes on MNIST over the network with real dropouts, and simulated: python3 scripts/network_mnist.py PROGRAM FOLDER [NAME...]

Runs what is not in FOLDER yet, writes experiments/network/mnist.csv and docs/results/network.md; with names, only runs these. Seeds were stated here
before anything was run: 1 to 3 over the network, 11 to 20 simulated with the same share of answers, 11 to 15 of half-done work.
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
# So much work that clients on two cores cannot all do it in a round's time, and send what they have; in steps so short that whole work leads as far as above.
HALF_DONE = {"scheme-c, half done": ["recipe=scheme-c", "local.epochs=350", "local.rate=0.00025"]}
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
    """The share of those asked that answered on time, that of them with half-done work, and the accuracy over the last ten rounds, in percent."""
    rows = [json.loads(line) for line in open(os.path.join(record, "rounds.jsonl"))]
    asked = whole = partial = 0
    for row in rows:
        asked, whole, partial = asked + count(row["asked"]), whole + count(row["whole"]), partial + count(row["partial"])
    tail = [row["accuracy"] for row in rows[-10:] if row.get("accuracy") is not None]
    return (whole + partial) / asked, partial / max(1, whole + partial), 100 * statistics.mean(tail)


def count(clients):
    """Clients as the record has them: numbers, and ranges as pairs."""
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
            run(folder, "swarm", CONFIG, *sets(settings), *sets([f"run.seed={seed}", f"swarm.seed={seed}"]), "--out", folder)
            share, partial, accuracy = figures(os.path.join(folder, "server"))
            shares.append(share)
            partials.append(partial)
            rows.append((recipe, "network", seed, share, partial, accuracy))
            replayed = folder + "-replayed"
            run(replayed, "replay", os.path.join(folder, "server"), "--quiet", "--out", replayed)
            rows.append((recipe, "replayed", seed, *figures(replayed)))
        chance, half_done = (round(statistics.mean(values), 4) for values in (shares, partials))
        simulated = [f"world.availability.chance={chance}"]
        if recipe in HALF_DONE:
            simulated.append(f'world.work={{ kind = "stragglers", share = {half_done} }}')
        for seed in SIMULATED if recipe in RECIPES else SIMULATED_HALF_DONE:
            folder = os.path.join(FOLDER, f"{named(recipe)}-simulated-{seed}-{chance}")
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

Written by `scripts/network_mnist.py` from `experiments/network/mnist.csv`, which it makes. MNIST in five clusters of two digits, 20 clients of 200 images, a network of one hidden layer, 60 rounds. Over the network the server and every client
are processes that `ebbflow swarm experiments/network/mnist.toml` kills, stops and cuts off: in every round each client with chance .05, .1 and .15, for .5 to 3 s, and a round closes after 2 s. Seeds 1 to 3.
Simulated: each client is up with the chance with which those that were asked over the network answered; seeds 11 to 20, of half-done work 11 to 15. Accuracy in percent, the mean of the last ten rounds, ± the standard deviation over seeds; the difference with its 95 % interval
(Student, pooled). *Within noise*: the interval has 0 in it. *Replayed*: the same seed and the participation of that very run, by `ebbflow replay`; what is left then is how an answer that came half done, or late, is told apart.

| recipe | answered %, by seed | of these half done % | over the network | simulated | difference | within noise | less replayed, by seed |
|---|---|---|---|---|---|---|---|"""
HALF_DONE_WORDS = """
**Half-done work.** Two passes over 200 images are done long before the deadline, so nobody sends half-done work in the first four rows. In the last, `local.epochs = 350` at a rate of .00025, many of the answers are cut short by the deadline: told to stop, clients send what
they have within .5 s, and Scheme C weighs it by the steps it took. How many that are depends on the machine. Simulated, as large a share of the clients does a part of the work drawn uniformly anew in every round (`stragglers`), which is another law of how much is done than that of two busy
cores; replayed, the steps are those that were done."""
main()

