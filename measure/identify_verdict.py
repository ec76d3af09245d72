"""What the cells of an identification say together: one reduction, one rounding, the presets that have both."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from torch import Tensor

from numerics.measure.arms import differing
from numerics.measure.identify import Cell
from numerics.measure.identify_declared import preset_table
from numerics.presets.checks import ResolvedPreset
from numerics.presets.file import Catalog

BLIND: Final = (
    "the square of a 16-bit number is exact, so that whether a product and a sum are contracted into one rounding "
    "cannot be seen; --dtype float32 can"
)


@dataclass(frozen=True)
class Verdict:
    """identified: one declared reduction and one rounding reproduce every byte of every cell."""

    identified: bool
    reductions: list[str]  # which hold in all cells
    rounding: str | None
    presets: list[str]
    batch: dict[int, bool]  # by width: the same bytes of a row at each number of rows that was asked
    toml: str | None
    sees: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(vars(self))


def verdict(catalog: Catalog, subject: str, cells: Sequence[Cell]) -> Verdict:
    """Of all cells."""
    roundings = list(dict.fromkeys(cell.computes.rounding for cell in cells if cell.computes is not None))
    names = [name for name in catalog.reductions if all(name in cell.reductions for cell in cells)]
    sees = []
    fine = all(cell.identified for cell in cells)
    if fine and not names:
        sees.append("each width and number of rows has a declared order, but no declared reduction has all of them")
    if len(roundings) > 1:
        sees.append(f"roundings differ between widths or numbers of rows: {', '.join(roundings)}")
    identified = fine and bool(names) and len(roundings) == 1
    rounding = roundings[0] if len(roundings) == 1 else None
    presets = [
        name
        for name, preset in catalog.presets.items()
        if identified
        and preset.knobs["rms_norm_reduction"] in names
        and ("normalized" in preset.knobs["rounding_points"]) == (rounding == "two")
        and _takes(preset, cells)
    ]
    toml = preset_table(names[0], roundings[0], subject) if identified else None
    return Verdict(identified, names if fine else [], rounding, presets, _batch(cells), toml, sees)


def _takes(preset: ResolvedPreset, cells: Sequence[Cell]) -> bool:
    """Whether the preset holds for the dtypes that were asked about."""
    legal = preset.requires.dtype
    seen = {str(cell.observed.dtype).removeprefix("torch.") for cell in cells if cell.observed is not None}
    return legal is None or seen <= set(legal)


def _batch(cells: Sequence[Cell]) -> dict[int, bool]:
    """Whether a row's bytes are the same at every number of rows, where more than one was observed."""
    seen: dict[int, list[Tensor]] = {}
    for cell in cells:
        if cell.observed is not None:
            seen.setdefault(cell.width, []).append(cell.observed)
    return {
        width: not any(differing((a,), (b,)) for a, b in pairwise(observed))
        for width, observed in seen.items()
        if len(observed) > 1
    }
