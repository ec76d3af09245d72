"""What show, list, explain and diff say about settings and orders, in one wording."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from numerics.presets import properties
from numerics.presets.schema import Numerics, Reduction, Reference, Requires, Span
from numerics.presets.vocabulary import FAMILIES, OPEN_REDUCTION, ROUNDING_POINTS, Family, RoundingPoint

DECLARED: Final = "declared, not verified"
LEFT_OPEN: Final = "left open"
NOWHERE: Final = "not looked at: it holds at none of the usual widths"
NO_CLAIM: Final = "no reference claimed"

ROTATIONS: Final = {
    "separate": "products rounded to float32, then added",
    "complex": "fma(a, c, -round(b * s)) and fma(a, s, round(b * c))",
}


def listed(values: Iterable[object]) -> str:
    """`a, b, c`, or `none`."""
    return ", ".join(str(value) for value in values) or "none"


def value(given: Any) -> str:
    """A value as a presets file writes it."""
    if given is None:
        return "-"
    if isinstance(given, dict):
        return " ".join(str(each) for each in given.values()) or "-"
    if isinstance(given, bool):
        return str(given).lower()
    return listed(given) if isinstance(given, list | tuple) else str(given)


def claim(reference: Reference | None) -> str:
    """Whose bytes, in which versions: `vllm_c >=0.20,<0.34`."""
    return NO_CLAIM if reference is None else f"{reference.provider} {reference.versions}"


def evidence(reference: Reference | None) -> str:
    """Where the bytes were compared with the provider's, or that they never were."""
    if reference is None:
        return NO_CLAIM
    return f"verified on {'; '.join(reference.verified_on)}" if reference.verified_on else DECLARED


def exactness(numerics: Numerics) -> str:
    """Whether kernel and references return the same bytes, or what is left open."""
    left_open = []
    if numerics.rms_norm_reduction == OPEN_REDUCTION:
        left_open.append(f"order of additions (reduction {OPEN_REDUCTION})")
    if numerics.enable_fp_fusion:
        left_open.append("contraction of products and sums (enable_fp_fusion)")
    if not left_open:
        return "exact: kernel and references return the same bytes"
    return f"left open: {' and '.join(left_open)}; kernel and references may differ"


def conditions(requires: Requires) -> list[str]:
    """One line for each condition of a preset."""
    found = []
    if requires.dtype:
        found.append(f"dtype {' or '.join(requires.dtype)}")
    if requires.rope_table_dtype:
        same = "that of the activations" if requires.rope_table_dtype == "activation" else requires.rope_table_dtype
        found.append(f"rope_table_dtype {same}")
    found += [f"{name} {span(given)}" for name in ("width", "rows") if (given := getattr(requires, name)) is not None]
    found += [
        f"{name} {given}" for name in ("capability", "backend", "torch", "triton") if (given := getattr(requires, name))
    ]
    return found + [f"{name} unset or {given}" for name, given in requires.env.items()]


def span(given: Span) -> str:
    """`128` or `64 to 256`."""
    return f"{given[0]} to {given[1]}" if isinstance(given, tuple) else str(given)


def points(given: Iterable[RoundingPoint], family: Family) -> list[str]:
    """The rounding points in force; then those of the family that are not, and those in force that it does not have."""
    given = tuple(given)
    lines = [listed(point for point in given if point in FAMILIES[family])]
    if kept := [point for point in FAMILIES[family] if point not in given]:
        lines.append(f"kept in float32: {listed(kept)}")
    if elsewhere := [point for point in given if point not in FAMILIES[family]]:
        lines.append(f"not applicable here: {listed(elsewhere)}")
    return lines


def families_with(point: RoundingPoint) -> list[Family]:
    """The families whose bytes a rounding point can change."""
    return [family for family, here in FAMILIES.items() if point in here]


def batch(reduction: Reduction | str) -> str:
    """Whether the number of rows can change the additions of a row, and where."""
    if isinstance(reduction, str):
        return LEFT_OPEN
    changes: dict[tuple[int, ...], list[int]] = {}
    for width in properties.widths(reduction):
        changes.setdefault(properties.row_changes(reduction, width), []).append(width)
    never = changes.pop((), [])
    if not changes:
        return f"invariant at {widths(never)}" if never else NOWHERE
    parts = [f"changes at {listed(rows)} rows at {widths(at)}" for rows, at in changes.items()]
    return "; ".join(["not invariant: " + parts[0], *parts[1:], *([f"never at {widths(never)}"] if never else [])])


def sharding(reduction: Reduction | str) -> str:
    """Into how many equal pieces a row may be cut, width by width."""
    if isinstance(reduction, str):
        return LEFT_OPEN
    found: dict[tuple[int, ...], list[int]] = {}
    for width in properties.widths(reduction):
        found.setdefault(always_pieces(reduction, width), []).append(width)
    whole = found.pop((), [])
    if not found:
        return f"not invariant at {widths(whole)}" if whole else NOWHERE
    parts = [f"{listed(cut)} pieces at {widths(at)}" for cut, at in found.items()]
    return "; ".join(["invariant: " + parts[0], *parts[1:], *([f"not at {widths(whole)}"] if whole else [])])


def always_pieces(reduction: Reduction, width: int) -> tuple[int, ...]:
    """The pieces into which a row may be cut whatever the number of rows."""
    sets = [set(properties.pieces(order)) for _, order in properties.regimes(reduction, width)]
    return tuple(sorted(set.intersection(*sets)))


def rows(reduction: Reduction, width: int, start: int) -> str:
    """The rows of the regime that begins at `start`: `any number of rows`, `1 to 255 rows`, `256 rows or more`."""
    _, last = properties.row_span(reduction)
    end = min([change - 1 for change in properties.row_changes(reduction, width) if change > start], default=last)
    if end == math.inf:
        return f"{start} rows or more" if start > 1 else "any number of rows"
    return f"{start} to {end} rows" if start < end else f"{start} {'row' if start == 1 else 'rows'}"


def widths(at: Sequence[int]) -> str:
    """`width 128` or `widths 64, 128`."""
    return f"width{'s' if len(at) > 1 else ''} {listed(at)}"


def point_rows(given: Iterable[RoundingPoint]) -> list[tuple[str, str, str, str]]:
    """Every rounding point, whether it is in force, what is rounded there, and in which families."""
    given = tuple(given)
    return [
        (
            point,
            "rounded" if point in given else "-",
            what,
            listed(family.removeprefix("fused_") for family in families_with(point)),
        )
        for point, what in ROUNDING_POINTS.items()
    ]
