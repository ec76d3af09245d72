"""The report's parity: presets against the bytes of their providers, and kernels against whole chains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numerics.cli import words
from numerics.cli.report_files import Given
from numerics.cli.report_html import (
    NONE,
    Cell,
    Markup,
    Rows,
    bullets,
    code,
    count,
    element,
    joined,
    plural,
    table,
    verdict,
)
from numerics.cli.report_records import Parity, Verified
from numerics.cli.report_section import Content, rows_of
from numerics.presets.vocabulary import OPS

VERIFIED, DIFFERS = "verified", "differs"


def parity(given: Sequence[Given]) -> Content:
    """A matrix of preset and op for each file of kernels, then golden bytes, then what differs."""
    body: list[Markup] = []
    kernels = [(each, list[Parity](each.records)) for each in rows_of(given, "parity")]
    golden = [(each, list[Verified](each.records)) for each in rows_of(given, "verify")]
    for at, (each, records) in enumerate(kernels):
        body.append(_matrix(records, f"parity-{at}", _named(each, len(kernels))))
        body.append(bullets(_unfused(records)))
    for at, (each, found) in enumerate(golden):
        body += _golden(found, f"golden-{at}", _named(each, len(golden)))
    pairs = [(record.elements, record.elements_differing) for _, records in kernels for record in records]
    pairs += [(found.elements, found.differing) for _, every in golden for found in every]
    compared, differing = (sum(column) for column in zip(*pairs, strict=True))
    unfused = sum(bool(record.unfused) for _, records in kernels for record in records)
    notes = f", {plural(unfused, 'comparison')} not fused" if unfused else ""
    if not compared:
        return Content("wrong", "nothing was compared", body)
    good = not differing and not unfused
    return Content("holds" if good else "wrong", f"{differing:,} of {compared:,} elements differ{notes}", body)


def _named(each: Given, files: int) -> str:
    return f" ({each.name} {each.short_hash})" if files > 1 else ""


def _matrix(records: Sequence[Parity], name: str, which: str) -> Markup:
    cells: dict[tuple[str, str], Parity] = {(each.preset, each.op): each for each in records}
    ops = [op for op in OPS if any(each.op == op for each in records)]
    ops += sorted({each.op for each in records} - set(ops))
    rows = [
        [code(preset), *(_cell(cells.get((preset, op))) for op in ops)]
        for preset in dict.fromkeys(each.preset for each in records)
    ]
    caption = f"Elements whose bytes differ between fused kernel and the chain that the preset claims{which}"
    return table(name, caption, ["preset", *ops], [Rows(rows)], numbers=ops, class_="matrix")


def _cell(each: Parity | None) -> Cell:
    if each is None:
        return NONE
    good = not each.elements_differing and not each.unfused
    note = " not fused," if each.unfused else ""
    of = element("span", f"{note} of {each.elements:,}", class_="note")
    return joined(verdict(good, count(each.elements_differing)), of)


def _unfused(records: Sequence[Parity]) -> Iterator[str]:
    for each in records:
        if each.unfused:
            why = "; ".join(each.unfused)
            yield f"{each.op}, {each.preset}: the op ran its reference, so no kernel was tested: {why}"


def _golden(found: Sequence[Verified], name: str, which: str) -> Iterator[Markup]:
    columns = ["preset", "whose bytes", "status", "cases", "rows", "elements", "differ", "changes seen"]
    rows = [
        [
            code(each.preset),
            str(each.reference or words.NO_CLAIM),
            _status(each),
            *(count(value) if each.cases else NONE for value in (each.cases, each.rows, each.elements, each.differing)),
            _seen(each),
        ]
        for each in found
    ]
    caption = f"Eager references on a CPU against golden bytes of the providers{which}"
    yield table(name, caption, columns, [Rows(rows)], numbers=columns[3:])
    if first := [(each, difference) for each in found for difference in each.differences]:
        lines: list[list[Cell]] = [
            [
                code(each.preset),
                d.case,
                d.output,
                f"[{', '.join(map(str, d.index))}]",
                repr(d.provider),
                repr(d.computed),
            ]
            for each, d in first
        ]
        heads = ["preset", "case", "output", "index", "provider", "computed"]
        yield table(f"{name}-first", f"First elements that differ{which}", heads, [Rows(lines)], numbers=heads[4:])


def _status(each: Verified) -> Cell:
    known = {VERIFIED: True, DIFFERS: False}
    return verdict(known[each.status], each.status) if each.status in known else each.status


def _seen(each: Verified) -> str:
    """Of the changes of knobs that were tried, those that these bytes would show."""
    seen, blind = (sum(map(len, side.values())) for side in (each.sees, each.cannot_see))
    return f"{seen} of {seen + blind}" if seen + blind else NONE
