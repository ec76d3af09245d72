"""The report's claims: what `numerics verify` compared of each preset, with which reference, and what it did not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from numerics.cli import words
from numerics.cli.report_html import NONE, Cell, Markup, Rows, bullets, code, count, element, joined, table, verdict
from numerics.cli.report_matrix import Counted, Line, matrix
from numerics.cli.report_records import Compared, Difference, Verified

VERIFIED, DIFFERS = "verified", "differs"
CLAIM: Final = "claim"
# What a comparison shows that is not one with the bytes that a preset claims.
INSTEAD: Final = {"steps": "steps after the norm", "kernel": "kernel as its reference", "declaration": "as declared"}
FEW: Final = 4  # presets that are named


def claims(found: Sequence[Verified], name: str, which: str) -> Iterator[Markup]:
    """Status of each preset, every comparison by op and reference, first differences, and what was not compared."""
    columns = ["preset", "whose bytes", "status", "cases", "rows", "elements", "differ", "changes seen"]
    caption = f"What was compared of each claim{which}"
    yield table(name, caption, columns, [Rows([_row(each) for each in found])], numbers=columns[3:])
    if groups := [(code(each.preset), lines) for each in found if (lines := list(_lines(each.records)))]:
        caption = f"Elements that differ, by preset, reference and op{which}"
        yield matrix(f"{name}-references", caption, "preset, reference", groups)
    if first := [(each, difference) for each in found for difference in each.differences]:
        heads = ["preset", "op", "case", "output", "index", "reference", "computed"]
        rows = [_values(each, difference) for each, difference in first]
        yield table(f"{name}-first", f"First elements that differ{which}", heads, [Rows(rows)], numbers=heads[5:])
    yield bullets(f"{each.preset}: {error}" for each in found for error in each.errors)
    if absent := list(_absent(found)):
        yield table(f"{name}-absent", f"Not compared{which}", ["reference", "why", "presets"], [Rows(absent)])


def is_wrong(each: Verified) -> bool:
    """Whether bytes differ, or something failed."""
    return each.status == DIFFERS or bool(each.differing)


def _row(each: Verified) -> list[Cell]:
    counts = each.cases, each.rows, each.elements, each.differing
    return [
        code(each.preset),
        str(each.reference or words.NO_CLAIM),
        verdict(not is_wrong(each), each.status) if each.status in (VERIFIED, DIFFERS) else each.status,
        *(count(value) if each.cases else NONE for value in counts),
        _seen(each),
    ]


def _seen(each: Verified) -> str:
    """Of the changes of knobs that were tried, those that these bytes would show."""
    seen, blind = (sum(map(len, side.values())) for side in (each.sees, each.cannot_see))
    return f"{seen} of {seen + blind}" if seen + blind else NONE


def _lines(records: Sequence[Compared]) -> Iterator[Line]:
    """A row for each reference and arm; comparisons that prove no claim say what they show."""
    found: dict[tuple[str, str, str], dict[str, Counted]] = {}
    for each in records:
        if each.elements:
            cells = found.setdefault((each.reference or "", each.arm or "", each.shows or ""), {})
            counted = Counted(each.elements, each.elements_differing)
            cells[each.op] = cells[each.op] + counted if each.op in cells else counted
    for (reference, arm, shows), cells in found.items():
        note = "" if shows == CLAIM else element("span", f" {INSTEAD.get(shows, shows)}: no claim", class_="note")
        yield Line(joined(f"{reference}, {arm}", note), cells)


def _values(each: Verified, first: Difference) -> list[Cell]:
    index = f"[{', '.join(map(str, first.index))}]"
    values = repr(first.provider), repr(first.computed)
    return [code(each.preset), code(first.op) if first.op else NONE, first.case, first.output, index, *values]


def _absent(found: Sequence[Verified]) -> Iterator[list[Cell]]:
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for each in found:
        for record in each.records:
            why = record.absent or (f"not fused: {record.not_fused}" if record.not_fused else None)
            if why:
                reasons.setdefault((record.reference or record.op, why), {})[each.preset] = None
    for (reference, why), presets in sorted(reasons.items()):
        yield [reference, why, words.listed(presets) if len(presets) <= FEW else f"{len(presets)} presets"]
