"""`numerics explain`: what a preset or a reduction computes, as words and as the additions themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from numerics.cli import words
from numerics.cli.additions import MEAN, MEAN_WORDS, SQUARE_WORDS, brief, drawing, program, steps
from numerics.cli.render import grid, heading, indented, table
from numerics.errors import ConfigurationError, nearest
from numerics.presets import properties
from numerics.presets.file import Catalog
from numerics.presets.order import Order
from numerics.presets.schema import DeclaredReduction
from numerics.presets.vocabulary import OPEN_REDUCTION

if TYPE_CHECKING:
    from rich.console import RenderableType

OPEN_SUMMARY = (
    "Triton's own tl.sum. Triton promises no order, and its versions and GPUs differ, so the order is left open; "
    "its reference is torch's float32 sum."
)
USUAL_WIDTH = 128  # the head dimension of most models in presets.toml


def explained(catalog: Catalog, name: str, width: int | None, rows: int | None) -> dict[str, Any]:
    """Everything about a preset and its reduction, or about a reduction, as JSON values.

    Raises ConfigurationError for an unknown name, and for a width or rows where the declaration does not hold.
    """
    preset = catalog.presets.get(name)
    known = {*catalog.reductions, OPEN_REDUCTION}
    if preset is None and name not in known:
        if name in {*catalog.model_names(), *catalog.classes()}:
            cure = f"`numerics show --model {name}` prints the presets of a model"
            raise ConfigurationError(f"{name!r}: a model, and neither a preset nor a reduction; {cure}")
        raise ConfigurationError(f"{name!r}: no such preset or reduction{nearest(name, {*catalog.presets, *known})}")
    names = [name] if preset is None else [preset.knobs["rms_norm_reduction"]]
    if preset is not None and name in known and name not in names:
        names.append(name)  # a reduction that is called like the preset and is not the preset's own
    return {
        "preset": None if preset is None else preset_values(catalog, name),
        "reductions": [reduction_values(catalog, each, width, rows) for each in names],
    }


def preset_values(catalog: Catalog, name: str) -> dict[str, Any]:
    """What is declared about a preset, and what follows."""
    preset = catalog.presets[name]
    numerics = preset.numerics(catalog.reductions)
    reference = preset.reference
    return {
        "name": name,
        "summary": preset.summary,
        "origin": preset.origin,
        "extends": preset.extends,
        "numerics": {knob: list(given) if isinstance(given, tuple) else given for knob, given in preset.knobs.items()},
        "reference": reference and reference.model_dump(mode="json"),
        "verified": bool(reference and reference.verified_on),
        "requires": preset.requires.model_dump(mode="json", exclude_defaults=True),
        "exact": numerics.is_exact,
        "fingerprint": numerics.fingerprint,
    }


def reduction_values(catalog: Catalog, name: str, width: int | None, rows: int | None) -> dict[str, Any]:
    """What is declared about a reduction, its additions at one width, and what follows."""
    used_by = [preset.name for preset in catalog.presets.values() if preset.knobs["rms_norm_reduction"] == name]
    if name == OPEN_REDUCTION:
        return {"name": name, "summary": OPEN_SUMMARY, "order": None, "used_by": used_by}
    reduction = catalog.reductions[name]
    width = usual_width(name, reduction) if width is None else width
    try:
        start, order = properties.rows_from(reduction, width, rows)
    except ValueError as error:
        raise ConfigurationError(f"reduction {name!r} at width {width}: {error}") from None
    checked = reduction.model_dump(mode="json", exclude_defaults=True)
    return {
        "name": name,
        "summary": reduction.summary,
        "origin": catalog.origin("reductions", name),
        "source": checked.pop("source", None),
        "declaration": {field: given for field, given in checked.items() if field != "summary"},
        "order": asdict(order),
        "rows": words.rows(reduction, width, start),
        "asked_rows": rows,
        "program": program(order),
        "properties": {
            "row_changes": {at: list(properties.row_changes(reduction, at)) for at in _widths(reduction, width)},
            "pieces": {at: list(words.always_pieces(reduction, at)) for at in _widths(reduction, width)},
            "same_mean": [
                other for other in properties.equals(order, catalog.reductions, rows or start) if other != name
            ],
        },
        "used_by": used_by,
        "verified_by": [each for each in used_by if (of := catalog.presets[each].reference) and of.verified_on],
    }


def usual_width(name: str, reduction: DeclaredReduction) -> int:
    """The width that is explained where none is asked for: 128 if the declaration holds there."""
    widths = properties.widths(reduction)
    if not widths:
        legal = "any width" if reduction.width is None else f"rows of {words.span(reduction.width)} elements"
        raise ConfigurationError(f"reduction {name!r} is declared for {legal}; give one with --width")
    return USUAL_WIDTH if USUAL_WIDTH in widths else widths[0]


def _widths(reduction: DeclaredReduction, width: int) -> list[int]:
    return sorted({width, *properties.widths(reduction)})


# --- As a page --------------------------------------------------------------------------------------------------------


def page(catalog: Catalog, found: dict[str, Any]) -> Iterator[RenderableType]:
    """What `explained` found, for people."""
    if found["preset"]:
        yield from _preset_page(catalog, found["preset"]["name"])
    for reduction in found["reductions"]:
        if found["preset"]:
            yield ""
        yield heading(f"reduction {reduction['name']}", f": {reduction['summary']}")
        if reduction["order"] is None:
            yield grid([("order", words.LEFT_OPEN), ("presets", words.listed(reduction["used_by"]))])
        else:
            yield from _reduction_page(catalog, reduction)


def _preset_page(catalog: Catalog, name: str) -> Iterator[RenderableType]:
    preset = catalog.presets[name]
    knobs, numerics = preset.knobs, preset.numerics(catalog.reductions)
    fusion = "the compiler chooses what to contract" if knobs["enable_fp_fusion"] else "nothing is contracted"
    yield heading(f"preset {name}", f": {preset.summary}")
    yield grid(
        [
            ("reference", words.claim(preset.reference)),
            ("bytes", words.evidence(preset.reference)),
            ("exactness", words.exactness(numerics)),
            ("requires", "\n".join(words.conditions(preset.requires)) or "nothing"),
            ("declared by", preset.origin + (f", extends {preset.extends}" if preset.extends else "")),
            ("rms_norm_reduction", f"{knobs['rms_norm_reduction']}: see below"),
            ("enable_fp_fusion", f"{words.value(knobs['enable_fp_fusion'])}: {fusion}"),
            ("rope_rotation", f"{knobs['rope_rotation']}: {words.ROTATIONS[knobs['rope_rotation']]}"),
            ("rounding_points", words.listed(knobs["rounding_points"])),
        ]
    )
    yield ""
    yield heading("Rounding points", ": what is rounded to the activation dtype; the rest stays in float32")
    rows = [(f"  {point}", *rest) for point, *rest in words.point_rows(knobs["rounding_points"])]
    yield table(["  point", "here", "what", "ops"], rows, whole=["  point"])


def _reduction_page(catalog: Catalog, found: dict[str, Any]) -> Iterator[RenderableType]:
    reduction = catalog.reductions[found["name"]]
    order = Order(**found["order"])
    if source := found["source"]:
        whose = f"{source['provider']} {source['versions']}"
        yield grid([("source", ", ".join(filter(None, (whose, source.get("location")))))])
    yield ""
    yield heading(f"Order of additions, a row of {order.width} elements", f", {found['rows']}")
    yield from _steps(order)
    yield ""
    yield heading("What follows")
    cut = words.listed(properties.pieces(order))
    whole = f"a row of {order.width} cannot be cut without another order"
    same = [_alike(catalog, reduction, name) for name in found["properties"]["same_mean"]]
    yield grid(
        [
            ("batch", words.batch(reduction)),
            ("sharding", f"a row of {order.width} may be cut into {cut} equal pieces" if cut != "none" else whole),
            ("same mean", f"at width {order.width}: {words.listed(same)}"),
            ("bytes", f"verified by {words.listed(found['verified_by'])}" if found["verified_by"] else words.DECLARED),
            ("presets", words.listed(found["used_by"])),
        ]
    )
    yield ""
    yield _widths_table(reduction, found)


def _alike(catalog: Catalog, reduction: DeclaredReduction, name: str) -> str:
    squares_alike = catalog.reductions[name].square == reduction.square
    return name if squares_alike else f"{name} (not of float32 inputs)"


def _steps(order: Order) -> Iterator[RenderableType]:
    owned = f"thread t owns vectors t, t + {order.threads}, ..." if order.passes > 1 else "thread t owns vector t"
    yield from _step("Squares", SQUARE_WORDS[order.square])
    yield from _step("Vectors", f"{order.vectors} vectors of {order.vector} contiguous elements; {owned}")
    for step in steps(order):
        yield from _step(step.title, step.words, brief(step.sums))
        if step.title == "Lanes" and order.threads > 1:
            yield indented("\n".join(["", *drawing(step.sums[0][1])]), 4)
    means = [f"mean = {MEAN[order.mean].format(width=order.width)}", "rstd = rsqrt(mean + eps)"]
    yield from _step("Mean", MEAN_WORDS[order.mean], means)


def _step(title: str, text: str, sums: Sequence[str] = ()) -> Iterator[RenderableType]:
    if title != "Squares":
        yield ""
    yield indented(f"{title}: {text}")
    for line in sums:
        yield indented(line, 4)


def _widths_table(reduction: DeclaredReduction, found: dict[str, Any]) -> RenderableType:
    rows = []
    for width, changes in found["properties"]["row_changes"].items():
        _, order = properties.rows_from(reduction, width, found["asked_rows"])
        rows.append(
            (
                f"  {width}",
                f"{order.threads} x {order.vector}",
                str(order.passes),
                f"at {words.listed(changes)} rows" if changes else "never",
                words.listed(found["properties"]["pieces"][width]),
            )
        )
    return table(["  width", "threads x vector", "passes", "changes", "pieces"], rows, whole=["  width"])
