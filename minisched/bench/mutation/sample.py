"""Which mutants are tried, and what their sample tells of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random

from ..rows import Figure
from .diff import Mutant

LAYERS = ("scheduler", "memory", "policy", "relay", "loops")
AIM = 90.0  # percent
Z = 1.96  # 95 of 100 intervals hold the true rate


@dataclass(frozen=True)
class Layer:
    """The mutants of one package: how many there are that matter, were tried, and were killed."""

    name: str
    population: int
    tried: int
    killed: int

    def interval(self) -> tuple[float, float]:
        """Where the rate of all lies, from 0 to 1 (Wilson's interval); one point if all were tried.

        Only what was not tried is uncertain, so it narrows with the share that was.
        """
        count, rate = self.tried, self.killed / self.tried
        if count == self.population:
            return rate, rate
        left = sqrt((self.population - count) / (self.population - 1))
        z = Z * left
        middle = (rate + z * z / (2 * count)) / (1 + z * z / count)
        half = z / (1 + z * z / count)
        half *= sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
        return max(0.0, middle - half), min(1.0, middle + half)


def draw(mutants: Sequence[Mutant], size: int | None, seed: int) -> list[Mutant]:
    """As many of each layer, chosen at random: the same ones for a seed. All, if ``size`` is None.

    A larger sample of the same seed holds the smaller one, so that work on it can go on. A layer
    that has fewer gives all it has; those that are left out by a rule are not drawn.
    """
    by_layer = {layer: of_layer(mutants, layer) for layer in LAYERS}
    wanted = {layer: items for layer, items in by_layer.items() if items}
    chosen: list[Mutant] = []
    left = sum(map(len, wanted.values())) if size is None else size
    for place, layer in enumerate(sorted(wanted, key=lambda name: len(wanted[name]))):
        share = min(len(wanted[layer]), -(-left // (len(wanted) - place)))
        Random(f"{seed} {layer}").shuffle(wanted[layer])
        chosen += wanted[layer][:share]
        left -= share
    return sorted(chosen, key=lambda item: item.name)


def of_layer(mutants: Sequence[Mutant], layer: str) -> list[Mutant]:
    """Those that may be drawn, in an order that does not depend on how they were found."""
    mine = [item for item in mutants if item.layer == layer and not item.left_out]
    return sorted(mine, key=lambda item: item.name)


def layers_of(
    mutants: Sequence[Mutant], tried: Sequence[Mutant], killed: Mapping[str, bool]
) -> list[Layer]:
    """What was found, layer by layer; ``killed`` by mutmut's names."""
    result = []
    for layer in LAYERS:
        mine = [item for item in tried if item.layer == layer]
        if mine:
            dead = sum(killed[item.name] for item in mine)
            result.append(Layer(layer, len(of_layer(mutants, layer)), len(mine), dead))
    return result


def figures(layers: Sequence[Layer]) -> list[Figure]:
    """The rate of each layer, in percent, with the interval as its spread; then that of all."""
    rows = [
        row(f"killed, {item.name}", item.killed / item.tried, *item.interval()) for item in layers
    ]
    if len(layers) > 1:
        rows.append(row("killed, all", *overall(layers)))
    return rows


def overall(layers: Sequence[Layer]) -> tuple[float, float, float]:
    """The rate of all mutants, and its interval: each layer counts as many as it has.

    The variance of a layer is that of two more killed and two more that lived (Agresti and Coull),
    so that a layer without a survivor is not taken for certain.
    """
    total = sum(item.population for item in layers)
    rate = variance = 0.0
    for item in layers:
        weight = item.population / total
        rate += weight * item.killed / item.tried
        near = (item.killed + 2) / (item.tried + 4)
        left = 1 - item.tried / item.population
        variance += weight * weight * near * (1 - near) / (item.tried + 4) * left
    half = Z * sqrt(variance)
    return rate, max(0.0, rate - half), min(1.0, rate + half)


def row(name: str, rate: float, low: float, high: float) -> Figure:
    """A line of the table."""
    return Figure(name, 100 * rate, 100 * low, 100 * high, "%", AIM)
