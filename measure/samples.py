"""Repeated measurements: the order in which arms take turns, and what is kept of their times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

LOW, HIGH = 0.1, 0.9  # quantiles that stand for the spread


@dataclass(frozen=True)
class Samples:
    """Times of one arm, in microseconds a call."""

    times: tuple[float, ...]

    @property
    def median(self) -> float:
        """The time that is reported."""
        return median(self.times)

    @property
    def spread(self) -> tuple[float, float]:
        """The times below which a tenth and nine tenths of the samples lie."""
        ordered = sorted(self.times)
        return tuple(ordered[round(at * (len(ordered) - 1))] for at in (LOW, HIGH))  # type: ignore[return-value]  # two

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a result."""
        return {
            "median": _rounded(self.median),
            "spread": [_rounded(t) for t in self.spread],
            "samples": len(self.times),
        }


def interleave(units: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Samples]:
    """Times of every arm. In each round the arms take turns in their order and in its reverse (A B C C B A).

    A drift of clocks or temperature then meets all of them alike, and none always runs behind the same other.
    """
    times: dict[str, list[float]] = {name: [] for name in units}
    for _ in range(rounds):
        for name in (*units, *reversed(list(units))):
            times[name].append(units[name]())
    return {name: Samples(tuple(taken)) for name, taken in times.items()}


def _rounded(microseconds: float) -> float:
    return round(microseconds, 3)
