"""The orders that are declared for some widths and rows, with equal trees merged; and what to paste for one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from numerics.measure.identify_trees import Tree
from numerics.ops.reduction import row_sum
from numerics.presets.file import Catalog
from numerics.presets.order import Order
from numerics.presets.properties import holds, scaling
from numerics.presets.toml import table
from numerics.presets.vocabulary import ROUNDING_POINTS

NAME: Final = "identified"
CHAIN_POINTS: Final = ("norm", "qk_norm")  # what a norm of its own rounds when it stores


@dataclass
class Class:
    """Orders that are one tree at a width, and the reductions that declare it at each number of rows."""

    name: str
    order: Order
    reductions: dict[int, list[str]] = field(default_factory=dict)

    def declared(self, catalog: Catalog, mean: str, rows: int | None = None) -> list[str]:
        """The reductions that make this mean of it; at a number of rows, or at any that was asked about."""
        lists = self.reductions.values() if rows is None else [self.reductions.get(rows, [])]
        names = dict.fromkeys(name for names in lists for name in names)
        exact = scaling(self.order) == "power_of_two"
        return [name for name in names if exact or catalog.reductions[name].mean == mean]


def classes(catalog: Catalog, width: int, rows: Sequence[int], dtype: torch.dtype) -> dict[str, Class]:
    """Every declared order of a row of this width at one of these numbers of rows, by the name of its class.

    Whether squares are contracted into the sum matters for float32 alone: the squares of 16-bit numbers are exact.
    """
    found: dict[tuple[int, str], Class] = {}
    for name, reduction in catalog.reductions.items():
        for number in rows:
            if not holds(reduction, width, number):
                continue
            order = reduction.order(width, number)
            key = Tree.of(order).key, order.square if dtype == torch.float32 else ""
            if key not in found:
                taken = {each.name for each in found.values()}
                found[key] = Class(f"{name} at {number} rows" if name in taken else name, order)
            found[key].reductions.setdefault(number, []).append(name)
    return {each.name: each for each in found.values()}


def sums(x: Tensor, known: Mapping[str, Class]) -> dict[str, Tensor]:
    """[rows, N] float32 -> [rows] for each class."""
    return {name: row_sum(x, each.order) for name, each in known.items()}


# --- TOML -------------------------------------------------------------------------------------------------------------


def preset_table(reduction: str, rounding: str, subject: str, name: str = NAME) -> str:
    """A `[presets.NAME]` for an unfused chain that runs this norm."""
    points = [point for point in ROUNDING_POINTS if point in CHAIN_POINTS or (point, rounding) == ("normalized", "two")]
    return table(
        f"presets.{name}",
        {
            "summary": f"The norm of {subject}",
            "rms_norm_reduction": reduction,
            "enable_fp_fusion": False,
            "rounding_points": points,
        },
        comment="the points of other steps of the chain are not known from its norm",
    )


def reduction_table(fields: Mapping[str, Any], subject: str, name: str = NAME) -> str:
    """A `[reductions.NAME]`."""
    return table(f"reductions.{name}", {"summary": f"The norm of {subject}", **fields})


def with_mean(catalog: Catalog, name: str, mean: str) -> dict[str, Any]:
    """The fields of a declared reduction, with another mean."""
    fields = catalog.reductions[name].bits.model_dump(mode="json", exclude_defaults=True)
    return {**fields, "mean": mean}
