"""Compares the accuracies of two CSVs, one row a seed, with Welch's test.

    python scripts/welch.py experiments/central/ours-mnist.csv experiments/central/torch-mnist.csv

Needs only the standard library.
"""

import csv
import math
import sys
from statistics import mean, stdev


def within(t, freedom, panels=2000):
    """The probability of |T| <= t for Student's T: Simpson's rule over the angle atan(t / sqrt(freedom))."""
    step = math.atan(t / math.sqrt(freedom)) / panels
    heights = [math.cos(at * step) ** (freedom - 1) for at in range(panels + 1)]
    area = step / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))
    whole = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)) * math.sqrt(math.pi) / 2
    return area / whole


def t95(freedom):
    low, high = 1.9, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < 0.95 else (low, middle)
    return low


def welch(ones, others):
    """The difference of the means, its standard error, t, degrees of freedom and the two-sided p."""
    parts = [stdev(values) ** 2 / len(values) for values in [ones, others]]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, [ones, others]))
    difference = mean(ones) - mean(others)
    t = difference / error
    return difference, error, t, freedom, 1.0 - within(abs(t), freedom)


def read(path):
    with open(path, newline="") as file:
        return [100.0 * float(row["final_accuracy"]) for row in csv.DictReader(file)]


def main():
    # Checked by tables: p is 5 % at these points.
    for t, freedom in [(12.706204736, 1), (2.262157163, 9), (2.100922040, 18)]:
        assert abs(within(t, freedom) - 0.95) < 1e-9
    sides = [read(path) for path in sys.argv[1:3]]
    for path, values in zip(sys.argv[1:3], sides):
        print(f"{path}: {len(values)} seeds, accuracy {mean(values):.3f} ± {stdev(values):.3f} %")
    difference, error, t, freedom, p = welch(*sides)
    half = t95(freedom) * error
    print(f"difference {difference:+.3f} points, 95 % interval {difference - half:+.3f} to {difference + half:+.3f}")
    print(f"Welch's t {t:.3f}, {freedom:.1f} degrees of freedom, p = {p:.3f}")


main()
