"""The arms of a precision measurement: presets as calls of an op, those that cannot differ in one, and who is compared.

A preset that leaves bits open runs the op itself, on a GPU its kernel: no reference computes what that does. An exact
preset runs its eager reference wherever it is: its kernel returns the same bytes, which `verify` proves, and would
first have to be compiled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Literal

from torch import Tensor

from numerics import ops
from numerics.context import configuration
from numerics.measure.arms import as_tuple, table_dtype_of
from numerics.measure.precision_cases import ACTIVATION, Shape, call, reference_of
from numerics.measure.precision_errors import Pair
from numerics.ops.inputs import word
from numerics.ops.reduction import order_of
from numerics.ops.telemetry import dispatch_counts
from numerics.presets.order import Order
from numerics.presets.properties import same_bytes
from numerics.presets.vocabulary import FAMILIES, OPS
from numerics.resolve import Resolution


def _public(op: str, settings: Resolution, **given: Any) -> tuple[Tensor, ...]:
    if op.endswith("_"):  # it writes into what the other arms read
        given["x"] = given["x"].clone()
    return as_tuple(getattr(ops, op)(**given, numerics=settings))


@dataclass
class Arm:
    """One way to compute an op. Presets that cannot differ there share it."""

    settings: Resolution  # of the first
    presets: dict[str, Resolution]
    computed_by: str = ""

    def __call__(self, op: str, given: Mapping[str, Any], neutral: Sequence[str]) -> tuple[Tensor, ...]:
        """The results of the op, in the activation dtype."""
        if self.settings.numerics.is_exact:
            self.computed_by = "eager reference"
            return call(partial(reference_of(op), numerics=self.settings.numerics), given, neutral)
        before = dispatch_counts()
        found = call(partial(_public, op, self.settings), given, neutral)
        ways = [way for way, count in dispatch_counts().items() if count > before.get(way, 0)]
        self.computed_by = next((f"eager reference: {way.reason}" for way in ways if not way.fused), "kernel")
        return found


@dataclass(frozen=True)
class Bits:
    """All that can change the bytes of an op on a shape."""

    orders: tuple[Order | Literal["triton"], ...]
    others: tuple[Any, ...]

    def same_as(self, other: "Bits") -> bool:
        """Orders may have different names or geometry, and be one tree."""
        return self.others == other.others and all(
            a == b if isinstance(a, str) or isinstance(b, str) else same_bytes(a, b)
            for a, b in zip(self.orders, other.orders, strict=True)
        )


def bits_of(shape: Shape, settings: Resolution, tokens: int) -> Bits:
    """Of a preset. Raises RequirementError where one of its conditions does not hold."""
    width, norms = shape.norms(tokens)
    numerics, table = settings.numerics, word(table_dtype_of(settings)) if shape.rotates else None
    for rows in norms:
        settings.check_call(width=width, rows=rows, dtype=ACTIVATION, rope_table_dtype=table)
    orders = tuple(order_of(numerics, width, rows) for rows in norms if width is not None and rows is not None)
    points = tuple(point for point in FAMILIES[OPS[shape.op]] if point in numerics.rounding_points)
    return Bits(orders, (numerics.enable_fp_fusion, points, table, numerics.rope_rotation if shape.rotates else None))


def pairs_of(arms: Mapping[str, Arm]) -> tuple[Pair, ...]:
    """Which arms are compared value by value: all, but for two that both claim a reference, if one does not."""
    claims = {name: arm.settings.reference is not None for name, arm in arms.items()}
    both = list(combinations(arms, 2))
    return tuple(pair for pair in both if all(claims.values()) or not (claims[pair[0]] and claims[pair[1]]))


def usual() -> tuple[str, ...]:
    """The presets that are measured unless some are named: open ones, and those whose claim was verified."""
    presets = configuration().catalog.presets.values()
    reductions = configuration().catalog.reductions
    return tuple(
        preset.name
        for preset in presets
        if (preset.reference.verified_on if preset.reference else not preset.numerics(reductions).is_exact)
    )
