"""JAX: scan over steps under jit, clients one by one or by vmap, convolution as a matrix product.

    python jax_peer.py FOLDER [--repeats 5] [--threads 2]
"""

import os

# Only the CPU is measured, and the search for accelerators takes time.
os.environ["JAX_PLATFORMS"] = "cpu"

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from workloads import Variant, Work, compete

Weights = list[jax.Array]


def shapes(work: Work) -> list[tuple[str, tuple[int, ...]]]:
    """Every parameter in PyTorch's order: its layer's kind, and its shape there."""
    height, width, channels = work.input if work.image else (1, 1, work.input[0])
    found: list[tuple[str, tuple[int, ...]]] = []
    for layer in work.layers:
        kind = layer["kind"]
        if kind == "conv":
            kernel, out = layer["kernel"], layer["channels"]
            assert layer["stride"] == 1, "no workload has strides"
            found += [("conv", (out, channels, kernel, kernel)), ("bias", (out,))]
            height, width = (side + 2 * layer["padding"] - kernel + 1 for side in (height, width))
            channels = out
        elif kind == "max-pool":
            height, width = height // layer["size"], width // layer["size"]
        elif kind == "dense":
            found += [("dense", (layer["units"], channels, height, width)), ("bias", (layer["units"],))]
            height, width, channels = 1, 1, layer["units"]
        elif kind == "embedding":
            found.append(("embedding", (layer["symbols"], layer["units"])))
            channels = layer["units"]
        elif kind == "lstm":
            for _ in range(layer["layers"]):
                gates = 4 * layer["units"]
                found += [("gates", (gates, channels)), ("gates", (gates, layer["units"]))]
                found += [("bias", (gates,)), ("bias", (gates,))]
                channels = layer["units"]
    return found


def inward(kind: str, weight: np.ndarray) -> np.ndarray:
    """A parameter in the layout used here: channels last, and weights on the right of products."""
    if kind == "conv":
        return weight.transpose(2, 3, 1, 0)
    if kind == "dense":
        return weight.transpose(2, 3, 1, 0).reshape(-1, weight.shape[0])
    return weight.T if kind == "gates" else weight


def outward(kind: str, shape: tuple[int, ...], weight: np.ndarray) -> np.ndarray:
    if kind == "conv":
        return weight.transpose(3, 2, 0, 1)
    if kind == "dense":
        units, channels, height, width = shape
        return weight.reshape(height, width, channels, units).transpose(3, 2, 0, 1)
    return weight.T if kind == "gates" else weight


def conv_by_product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """A matrix of all windows, times the filters: several times as fast here as XLA's own convolution."""
    kernel, _, _, out = weight.shape
    rows, columns = x.shape[1] - kernel + 1, x.shape[2] - kernel + 1
    windows = [x[:, i : i + rows, j : j + columns] for i in range(kernel) for j in range(kernel)]
    return jnp.concatenate(windows, -1) @ weight.reshape(-1, out)


def lstm(x: jax.Array, weights: Weights) -> jax.Array:
    """One layer over all steps; input and output have time first."""
    into, back, bias, bias_too = weights
    units = back.shape[0]
    # The inputs' part of the gates does not depend on earlier steps: one product for all.
    ready = x @ into + (bias + bias_too)

    def step(state: tuple[jax.Array, jax.Array], ready: jax.Array) -> Any:
        hidden, cell = state
        gates = ready + hidden @ back
        take, keep, new, show = jnp.split(gates, 4, -1)
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(show) * jnp.tanh(cell)
        return (hidden, cell), hidden

    zeros = jnp.zeros((x.shape[1], units), x.dtype)
    return lax.scan(step, (zeros, zeros), ready)[1]


def scores(work: Work, conv: Any, weights: Weights, x: jax.Array, key: jax.Array) -> jax.Array:
    left = iter(weights)
    for at, layer in enumerate(work.layers):
        kind = layer["kind"]
        if kind == "conv":
            if layer["padding"]:
                side = (layer["padding"],) * 2
                x = jnp.pad(x, ((0, 0), side, side, (0, 0)))
            x = conv(x, next(left)) + next(left)
        elif kind == "max-pool":
            size = layer["size"]
            rows, columns = x.shape[1] // size, x.shape[2] // size
            x = x[:, : rows * size, : columns * size]
            # Gradients of a reshaped maximum are cheaper than those of a sliding window.
            x = x.reshape(-1, rows, size, columns, size, x.shape[-1]).max((2, 4))
        elif kind == "relu":
            x = jax.nn.relu(x)
        elif kind == "dropout":
            # One random byte is precise enough for the workloads' probabilities.
            kept = jax.random.bits(jax.random.fold_in(key, at), x.shape, "uint8") >= int(256 * layer["chance"])
            x = jnp.where(kept, x / (1.0 - layer["chance"]), 0.0)
        elif kind == "dense":
            x = x.reshape(x.shape[0], -1) @ next(left) + next(left)
        elif kind == "embedding":
            x = next(left)[x].swapaxes(0, 1)
        elif kind == "lstm":
            for _ in range(layer["layers"]):
                x = lstm(x, [next(left) for _ in range(4)])
            x = x[-1]
    return x


class Compiled:
    """Clients under jit: all at once by vmap, or one call for each."""

    def __init__(self, work: Work, threads: int, conv: Any = conv_by_product, together: bool = False, unroll: int = 1):
        self.work, self.unroll, self.conv = work, unroll, conv
        self.shapes = shapes(work)
        self.rows = jnp.asarray(work.rows.astype(np.int32) if work.symbols else work.rows)
        self.labels = jnp.asarray(work.labels.astype(np.int32))
        self.random = np.random.default_rng()
        self.together = together
        self.drops = any(layer["kind"] == "dropout" for layer in work.layers)
        self.all_at_once = jax.jit(self.several)
        self.one = jax.jit(self.added, donate_argnums=1)

    def native(self, flat: np.ndarray) -> Weights:
        sizes = np.cumsum([np.prod(shape) for _, shape in self.shapes])[:-1]
        parts = zip(self.shapes, np.split(flat, sizes))
        return [jnp.asarray(np.ascontiguousarray(inward(kind, part.reshape(shape)))) for (kind, shape), part in parts]

    def flat(self, model: Weights) -> np.ndarray:
        parts = zip(self.shapes, model)
        return np.concatenate([outward(kind, shape, np.asarray(part)).ravel() for (kind, shape), part in parts])

    def train(self, model: Weights, clients: list[int]) -> tuple[Weights, float]:
        work = self.work
        every = np.arange(work.samples, dtype=np.int32)
        order = np.broadcast_to(every, (len(clients), work.epochs, work.samples))
        order = self.random.permuted(order, axis=2)
        seeds = self.random.integers(0, 2**31, len(clients), np.uint32)
        if self.together:
            model, loss = self.all_at_once(model, self.rows, self.labels, np.array(clients, np.int32), order, seeds)
            return model, float(loss)
        total = ([jnp.zeros_like(weight) for weight in model], jnp.zeros(()))
        for at, client in enumerate(clients):
            total = self.one(model, total, self.rows, self.labels, np.int32(client), order[at], seeds[at])
        return [weight / len(clients) for weight in total[0]], float(total[1]) / len(clients)

    def several(self, model, rows, labels, clients, order, seeds):
        trained, loss = jax.vmap(partial(self.client, model, rows, labels))(clients, order, seeds)
        return [weight.mean(0) for weight in trained], loss.mean()

    def added(self, model, total, rows, labels, client, order, seed):
        trained, loss = self.client(model, rows, labels, client, order, seed)
        return [sum_ + weight for sum_, weight in zip(total[0], trained)], total[1] + loss

    def client(self, model, rows, labels, client, order, seed):
        """A client's model after its epochs, and the mean loss of its steps."""
        work = self.work
        # Philox is faster on this processor than the default generator.
        key = jax.random.key(seed, impl="rbg") if self.drops else None
        rows, labels = rows[client], labels[client]
        whole = work.samples // work.batch
        tail = work.samples % work.batch

        def loss_of(weights, idxs, step):
            drawn = jax.random.fold_in(key, step) if self.drops else None
            logits = scores(work, self.conv, weights, rows[idxs], drawn)
            right = jnp.take_along_axis(logits, labels[idxs][:, None], 1)[:, 0]
            return (jax.nn.logsumexp(logits, 1) - right).mean()

        def step(state, idxs):
            weights, momenta, number = state
            loss, gradients = jax.value_and_grad(loss_of)(weights, idxs, number)
            if work.momentum:
                momenta = [work.momentum * old + new for old, new in zip(momenta, gradients)]
                gradients = momenta
            weights = [weight - work.rate * change for weight, change in zip(weights, gradients)]
            return (weights, momenta, number + 1), loss

        def epoch(state, order):
            batches = order[: whole * work.batch].reshape(whole, work.batch)
            state, losses = lax.scan(step, state, batches, unroll=min(self.unroll, whole))
            loss = losses.sum()
            if tail:
                # The last batch is smaller, and a step of its own.
                state, last = step(state, order[whole * work.batch :])
                loss += last
            return state, loss

        momenta = [jnp.zeros_like(weight) for weight in model] if work.momentum else []
        (weights, _, _), losses = lax.scan(epoch, (model, momenta, 0), order)
        return weights, losses.sum() / (work.epochs * (whole + (tail > 0)))


def variants(work: Work, threads: int) -> list[Variant]:
    parts = f"{threads} processes"
    each = partial(Variant, processes=threads, at_once=True)
    if not work.convolves:
        all_of = [each(parts, Compiled)]
        if not work.symbols:
            together = partial(Compiled, together=True)
            all_of += [
                each(f"vmap, {parts}", together),
                each(f"vmap, unrolled, {parts}", partial(together, unroll=5)),
                Variant("vmap", together, at_once=True),
                Variant("vmap, unrolled", partial(together, unroll=5), at_once=True),
            ]
        else:
            all_of.append(Variant("loop", Compiled, at_once=True))
        return all_of
    return [
        each(f"im2col, {parts}", Compiled),
        each(f"im2col, vmap, {parts}", partial(Compiled, together=True)),
        Variant("im2col, vmap", partial(Compiled, together=True), at_once=True),
    ]


if __name__ == "__main__":
    compete("JAX", variants)
