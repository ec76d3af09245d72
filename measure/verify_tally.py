"""How bytes differ: counted, how far, in which direction, and where first."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from numerics.measure.arms import INTEGERS
from numerics.measure.metrics import json_number, places

Results = Mapping[str, Tensor]


@dataclass
class Tally:
    """Of all calls of one case.

    bias_ulp: mean over all elements of (computed - expected) in units in the last place, counted away from zero where
    what is expected is negative: below zero, numbers shrink, as they do when digits are cut off instead of rounded.
    Elements of different sign add nothing: beside all the numbers between them nothing else would show.
    An element that is NaN on one side alone differs and has no distance.
    """

    elements: int = 0
    differing: int = 0
    max_ulp: int = 0
    one_sided_nan: int = 0
    total_ulp: int = 0
    first: dict[str, Any] | None = field(default=None)

    @property
    def bias_ulp(self) -> float:
        """The signed bias."""
        return self.total_ulp / self.elements if self.elements else 0.0

    def compare(self, computed: Results, expected: Results, copied: tuple[str, ...] = ()) -> None:
        """Add what two calls returned, by the names of the results. copied: results whose NaN keep their bits."""
        for name, wanted in expected.items():
            self._compare(name, computed[name], wanted, bits_of_nan=name in copied)

    def add(self, other: "Tally") -> None:
        """Add what another one counted."""
        self.elements += other.elements
        self.differing += other.differing
        self.max_ulp = max(self.max_ulp, other.max_ulp)
        self.one_sided_nan += other.one_sided_nan
        self.total_ulp += other.total_ulp
        self.first = self.first or other.first

    def _compare(self, name: str, computed: Tensor, expected: Tensor, *, bits_of_nan: bool) -> None:
        self.elements += expected.numel()
        if (computed.shape, computed.dtype) != (expected.shape, expected.dtype):
            self.differing += expected.numel()
            what = [f"{list(x.shape)} {x.dtype}" for x in (expected, computed)]
            self._note(name, [], *what)
            return
        unlike = unequal(computed, expected, bits_of_nan=bits_of_nan)
        count = int(unlike.sum())
        if not count:
            return
        self.differing += count
        at = unlike.nonzero()
        a, b = computed[unlike], expected[unlike]
        numbers = ~(a.isnan() | b.isnan())
        self.one_sided_nan += int((~numbers).sum())
        distance = places(a[numbers]) - places(b[numbers])
        if distance.numel():
            self.max_ulp = max(self.max_ulp, int(distance.abs().max()))
            negative = b[numbers].signbit()
            outwards = torch.where(negative, -distance, distance)
            self.total_ulp += int(outwards[negative == a[numbers].signbit()].sum())
        self._note(name, at[0].tolist(), json_number(b[0].item()), json_number(a[0].item()))

    def _note(self, output: str, index: list[int], reference: Any, computed: Any) -> None:
        if self.first is None:
            self.first = {"output": output, "index": index, "reference": reference, "computed": computed}


def unequal(a: Tensor, b: Tensor, *, bits_of_nan: bool = False) -> Tensor:
    """Where bits are not the same. Two computed NaNs are; zeros of different sign are not."""
    integers = INTEGERS[a.element_size()]
    unlike = a.contiguous().view(integers) != b.contiguous().view(integers)
    return unlike if bits_of_nan else unlike & ~(a.isnan() & b.isnan())
