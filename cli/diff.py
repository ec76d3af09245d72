"""`numerics diff`: what differs between two presets, or between two saved `numerics show --json`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerics.cli import saved, words
from numerics.cli.render import heading, lines, table
from numerics.errors import ConfigurationError, nearest
from numerics.presets import properties
from numerics.presets.file import Catalog
from numerics.presets.schema import Requires
from numerics.presets.vocabulary import FAMILIES, KNOBS, OPEN_REDUCTION, ROUNDING_POINTS, Family

if TYPE_CHECKING:
    from rich.console import RenderableType


def compared(catalog: Catalog, a: str, b: str) -> dict[str, Any]:
    """What differs, as JSON values. Both names are presets, or both are paths of saved settings.

    Raises ConfigurationError if one is neither, or if they are not of one kind.
    """
    if a in catalog.presets and b in catalog.presets:
        return {"a": a, "b": b, "kind": "presets", **_presets(catalog, a, b)}
    strange = [name for name in (a, b) if name not in catalog.presets and not Path(name).exists()]
    if strange:
        known = nearest(strange[0], catalog.presets)
        raise ConfigurationError(f"{strange[0]!r}: no such preset and no such file{known}")
    if preset := next((name for name in (a, b) if name in catalog.presets), None):
        raise ConfigurationError(f"{preset!r} is a preset and the other a file; give two presets or two files")
    differences = saved.differences(saved.read(Path(a)), saved.read(Path(b)))
    return {"a": a, "b": b, "kind": "saved", "differences": differences}


def _presets(catalog: Catalog, a: str, b: str) -> dict[str, Any]:
    left, right = catalog.presets[a], catalog.presets[b]
    found = [
        *_knobs(catalog, left.knobs, right.knobs),
        *_conditions(left.requires, right.requires),
    ]
    claim, other = words.claim(left.reference), words.claim(right.reference)
    if claim != other:
        found.append(_difference("reference", claim, other, [], "whose bytes are claimed"))
    same = left.numerics(catalog.reductions) == right.numerics(catalog.reductions)
    return {"same_bits": same, "differences": found}


def _knobs(catalog: Catalog, a: Any, b: Any) -> Iterator[dict[str, Any]]:
    for knob in KNOBS:
        if a[knob] == b[knob]:
            continue
        if knob == "rounding_points":
            yield from _points(a[knob], b[knob])
        elif knob == "rms_norm_reduction":
            if detail := _reductions(catalog, a[knob], b[knob]):
                yield _difference(knob, a[knob], b[knob], list(FAMILIES), detail)
        else:
            rotation = knob == "rope_rotation"
            families = words.families_with("rope_product") if rotation else list(FAMILIES)
            yield _difference(knob, a[knob], b[knob], families, "")


def _points(a: Any, b: Any) -> Iterator[dict[str, Any]]:
    for point, what in ROUNDING_POINTS.items():
        if (point in a) != (point in b):
            left, right = ("rounded" if point in side else "float32" for side in (a, b))
            yield _difference(f"rounding point {point}", left, right, words.families_with(point), what)


def _reductions(catalog: Catalog, a: str, b: str) -> str:
    """Where two reductions part; empty if one declaration has two names."""
    if OPEN_REDUCTION in (a, b):
        return f"{OPEN_REDUCTION} leaves the order open"
    left, right = catalog.reductions[a].bits, catalog.reductions[b].bits
    if left == right:
        return ""
    both = [width for width in properties.widths(left) if width in properties.widths(right)]
    same = properties.equal_widths(left, right)
    parts = [f"the same mean at {words.widths(same)}"] if same else []
    if other := [width for width in both if width not in same]:
        parts.append(f"another at {words.widths(other)}")
    for name, reduction, peer in ((a, left, right), (b, right, left)):
        if only := [width for width in properties.widths(reduction) if width not in properties.widths(peer)]:
            parts.append(f"only {name} holds at {words.widths(only)}")
    return "; ".join(parts)


def _conditions(a: Requires, b: Requires) -> Iterator[dict[str, Any]]:
    for field in Requires.model_fields:
        left, right = (side.model_dump(mode="json")[field] for side in (a, b))
        if left != right:
            if field == "env":  # by its variables, since their values alone may look alike
                left, right = ([f"{name}={value}" for name, value in side.items()] for side in (left, right))
            yield _difference(f"requires {field}", left, right, [], "where it may run")


def _difference(what: str, a: Any, b: Any, families: list[Family], detail: str) -> dict[str, Any]:
    return {"what": what, "a": a, "b": b, "families": families, "detail": detail}


# --- As a page --------------------------------------------------------------------------------------------------------


def page(found: dict[str, Any]) -> Iterator[RenderableType]:
    """What `compared` found, for people."""
    a, b, differences = found["a"], found["b"], found["differences"]
    if not differences:
        yield f"{a} and {b} do not differ."
    elif found["kind"] == "saved":
        yield heading(f"{a} -> {b}")
        yield from saved.page(differences)
    else:
        yield heading(f"{a} and {b}", ": the same bits, under other conditions" if found["same_bits"] else "")
        yield table(["what", a, b, "matters in"], map(_row, differences), whole=["matters in"])


def _row(each: dict[str, Any]) -> tuple[str | RenderableType, ...]:
    families = "\n".join(family.removeprefix("fused_") for family in each["families"])
    what = lines(each["what"], each["detail"]) if each["detail"] else each["what"]
    return what, words.value(each["a"]), words.value(each["b"]), families or "no bytes"
