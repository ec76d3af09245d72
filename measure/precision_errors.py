"""Errors against a truth, in float64 on the device of the values: RMSE, the largest, the bias, and who is closer."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from numerics.measure.metrics import json_number

Pair = tuple[str, str]


@dataclass
class Tally:
    """Sums over some numbers."""

    count: int = 0
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    largest: Tensor | float = 0.0

    def add(self, x: Tensor) -> Tensor:
        """Count float64 numbers [N], N > 0, and return them without their signs. Waits for nothing."""
        self.count += len(x)
        self.total += x.sum()
        self.squares += x.dot(x)
        distance = x.abs()
        self.largest = torch.maximum(distance.max(), torch.as_tensor(self.largest, dtype=x.dtype, device=x.device))
        return distance

    @property
    def rms(self) -> float:
        """The root of the mean of the squares."""
        return math.sqrt(float(self.squares) / self.count)

    @property
    def mean(self) -> float:
        """With its sign."""
        return float(self.total) / self.count


@dataclass
class Standings:
    """In how many values the first of a pair is closer to the truth than the second, and in how many further."""

    values: int = 0
    closer: Tensor | int = 0
    further: Tensor | int = 0

    def add(self, first: Tensor, second: Tensor) -> None:
        """Their errors, without signs."""
        self.values += first.numel()
        self.closer += (first < second).sum()
        self.further += (first > second).sum()

    def to_dict(self, *, swapped: bool = False) -> dict[str, int]:
        """As it stands in a record: of the first, or of the second."""
        closer, further = int(self.closer), int(self.further)
        if swapped:
            closer, further = further, closer
        return {"closer": closer, "tied": self.values - closer - further, "further": further}


@dataclass
class Errors:
    """Of several arms in one stage against one truth."""

    pairs: tuple[Pair, ...] = ()
    truth: Tally = field(default_factory=Tally)
    arms: dict[str, Tally] = field(default_factory=dict)
    standings: dict[Pair, Standings] = field(default_factory=dict)

    def add(self, results: Mapping[str, Tensor], expected: Tensor) -> None:
        """What each arm returned, in any dtype, and what it should come to."""
        exact = expected.double().flatten()
        self.truth.add(exact)
        distances = {  # a difference with float64 is one
            name: self.arms.setdefault(name, Tally()).add(result.flatten() - exact) for name, result in results.items()
        }
        for pair in self.pairs:
            if pair[0] in distances and pair[1] in distances:
                self.standings.setdefault(pair, Standings()).add(distances[pair[0]], distances[pair[1]])

    def of(self, name: str, others: Iterable[str]) -> dict[str, Any]:
        """Of one arm, as it stands in a record; others: those that it is compared with, where they were."""
        tally = self.arms[name]
        against = {}
        for other in others:
            for pair in ((name, other), (other, name)):
                if pair in self.standings:
                    against[other] = self.standings[pair].to_dict(swapped=pair[0] != name)
        return {
            "elements": tally.count,
            "rmse": json_number(tally.rms),
            "max_abs": json_number(float(tally.largest)),
            "bias": json_number(tally.mean),
            "rms": json_number(self.truth.rms),
            "against": against,
        }
