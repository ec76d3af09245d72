"""The page of `numerics verify`: claims, differences, what was compared beside them, and what was not compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from numerics.cli import words
from numerics.cli.render import heading, indented, table
from numerics.measure.verify_summary import DIFFERS, VERIFIED

if TYPE_CHECKING:
    from rich.console import RenderableType

    from numerics.measure.verify_subject import Record
    from numerics.measure.verify_summary import Found

FEW: Final = 3  # names that are written out
UNSEEABLE: Final = "enable_fp_fusion"  # a CPU contracts nothing, and a preset with a reference never asks for it
BYTES_OF: Final = {"kernel": "kernel", "eager": "reference"}
SHOWS: Final = {
    "claim": "the bytes that the preset claims",
    "steps": "the steps after the norm, which is the eager reference's",
    "kernel": "that the kernel returns what its eager reference does; it proves no claim",
    "declaration": "that the eager reference adds in the declared order; it proves no claim",
}


def page(found: Sequence[Found]) -> Iterator[RenderableType]:
    """Bytes, then differences, then what else was compared, what the bytes can see, and what was only declared."""
    compared = [each for each in found if each["elements"]]
    if compared:
        columns = ["preset", "reference", "cases", "rows", "elements", "differ"]
        yield table(columns, map(_counts, compared), whole=["preset"], right=columns[2:])
    for each in found:
        if each["status"] == DIFFERS:
            yield ""
            yield heading(f"{each['preset']} differs", f" from {_claim(each)}")
            yield from _differences(each)
    yield from _beside(found)
    if good := [each for each in compared if "sees" in each]:
        yield ""
        yield heading("What the golden bytes can see", ": a change of the knob changes at least one of them")
        yield table(["preset", "sees", "does not see"], map(_knobs, good), whole=["preset"])
    yield from _not_told(found)
    yield from _absent(found)
    if rest := [each for each in found if each["status"] not in (VERIFIED, DIFFERS)]:
        yield ""
        yield heading("Not verified", ": nothing that the preset claims was compared")
        yield table(["preset", "reference", ""], [(each["preset"], _claim(each), each["status"]) for each in rest])
    yield ""
    yield _summary(found)


def _summary(found: Sequence[Found]) -> str:
    good, bad = (sum(each["status"] == status for each in found) for status in (VERIFIED, DIFFERS))
    elements, differ = (sum(each[what] for each in found) for what in ("elements", "differing"))
    bytes_differ = f"{differ} of {elements} elements differ"
    return f"{good} verified, {bad} differ, {len(found) - good - bad} not verified; {bytes_differ}"


def _claim(each: Found) -> str:
    reference = each["reference"]
    return f"{reference['provider']} {reference['versions']}" if reference else words.NO_CLAIM


def _counts(each: Found) -> tuple[str, ...]:
    return each["preset"], _claim(each), *(str(each[what]) for what in ("cases", "rows", "elements", "differing"))


def _differences(each: Found) -> Iterator[RenderableType]:
    """The first element of each record, and how far and in which direction all of them are."""
    wrong = [record for record in each["records"] if record["first"]]
    if wrong:
        columns = ["  case", "output", "index", "reference", "computed"]
        yield table(columns, map(_values, wrong))
        yield table(["  case", "beside", "differ", "max ULP", "bias, ULP"], map(_distance, wrong))
    for error in each["errors"]:
        yield indented(f"failed: {error}")


def _values(record: Record) -> tuple[str, ...]:
    first = record["first"]
    index = f"[{', '.join(map(str, first['index']))}]"
    return f"  {record['case']}", first["output"], index, repr(first["reference"]), repr(first["computed"])


def _distance(record: Record) -> tuple[str, ...]:
    share = f"{record['elements_differing']} of {record['elements']}"
    nan = f" and {record['one_sided_nan']} NaN" if record["one_sided_nan"] else ""
    return f"  {record['case']}", _beside_what(record), share, f"{record['max_ulp']}{nan}", f"{record['bias_ulp']:+.2e}"


def _beside_what(record: Record) -> str:
    return f"{record['reference']}, {record['arm']}"


def _beside(found: Sequence[Found]) -> Iterator[RenderableType]:
    """By reference and by what it shows, over all presets, each comparison counted once."""
    totals: dict[tuple[str, str, str], list[Record]] = {}
    for record in _records(found):
        if record["elements"] and not record["same_as"]:
            totals.setdefault((record["shows"], record["reference"], record["arm"]), []).append(record)
    if not totals:
        return
    yield ""
    yield heading("Compared", f" on {found[0]['device']}")
    columns = ["reference", "bytes of", "presets", "ops", "elements", "differ", "max ULP"]
    for shows, text in SHOWS.items():
        rows = [_total(key, records) for key, records in totals.items() if key[0] == shows]
        if rows:
            yield f"shows {text}"
            yield table([f"  {columns[0]}", *columns[1:]], rows, right=columns[2:])


def _total(key: tuple[str, str, str], records: Sequence[Record]) -> tuple[str, ...]:
    presets, ops = (str(len({record[what] for record in records})) for what in ("preset", "op"))
    sums = (str(sum(record[what] for record in records)) for what in ("elements", "elements_differing"))
    farthest = str(max(record["max_ulp"] for record in records))
    return f"  {key[1]}", BYTES_OF[key[2]], presets, ops, *sums, farthest


def _records(found: Sequence[Found]) -> Iterator[Record]:
    for each in found:
        yield from each["records"]


def _not_told(found: Sequence[Found]) -> Iterator[RenderableType]:
    """Searched rows that do not tell a preset from something else. All names are in the JSON."""
    lines: dict[tuple[str, str], tuple[str, ...]] = {}
    for record in _records(found):
        if record["not_told"] and not record["same_as"] and record["op"] == "rms_norm":
            others = [text.replace(", rsqrt: approximate", "") for text in record["not_told"]]
            few = "; ".join(others) if len(others) <= FEW else f"{len(others)} others"
            key = record["preset"], record["case"]
            lines[key] = (*key, str(record["candidates"]), few)
    if lines:
        yield ""
        yield heading("Not told apart", ": none of so many candidate rows shows the difference")
        yield table(["preset", "case", "candidates", "from"], lines.values(), whole=["preset"], right=["candidates"])


def _absent(found: Sequence[Found]) -> Iterator[RenderableType]:
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for record in _records(found):
        why = record["absent"] or (f"not fused: {record['not_fused']}" if record["not_fused"] else None)
        if why and not record["same_as"]:
            reasons.setdefault((record["reference"] or record["op"], why), {})[record["preset"]] = None
    if reasons:
        yield ""
        yield heading("Not compared")
        rows = [(name, why, _presets(presets)) for (name, why), presets in sorted(reasons.items())]
        yield table(["reference", "why", "presets"], rows)


def _presets(presets: Mapping[str, Any]) -> str:
    return words.listed(presets) if len(presets) <= FEW else f"{len(presets)} presets"


def _knobs(each: Found) -> tuple[str, str, str]:
    sees, blind = each["sees"], each["cannot_see"]
    seen, unseen = sees.get("rms_norm_reduction", []), blind.get("rms_norm_reduction", [])
    orders = [f"rms_norm_reduction ({len(seen)} of {len(seen) + len(unseen)} other orders)"] if seen else []
    return (
        each["preset"],
        words.listed([*orders, *_others(sees)]),
        words.listed([*_others(blind), UNSEEABLE, *(f"order {name}" for name in unseen)]),
    )


def _others(side: dict[str, list[str]]) -> Iterator[str]:
    yield from (knob for knob in side if knob == "rope_rotation")
    yield from (change.split()[-1] for change in side.get("rounding_points", []))
