"""The report's speed: ops beside a copy of the same bytes, beside `fast` and beside peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from numerics.cli.report_charts import Bar, Bars, bar_chart
from numerics.cli.report_files import Given
from numerics.cli.report_html import (
    NONE,
    TO,
    Cell,
    Markup,
    Rows,
    bullets,
    code,
    count,
    element,
    joined,
    number,
    plural,
    table,
    verdict,
)
from numerics.cli.report_measurements import Timed
from numerics.cli.report_section import Content, State
from numerics.measure.result import is_wrong
from numerics.presets.vocabulary import OP_SUMMARIES

FREE: Final = 1.02  # an exact preset costs nothing up to this share of `fast`
COLUMNS: Final = ("preset", "bits", "µs", "spread", "/ copy", "/ empty", "/ fast", "differ")


def speed(given: Sequence[Given]) -> Content:
    """For each machine and op a chart and a table; then what a number cannot say."""
    records: list[Timed] = [record for each in given for record in each.records]
    body: list[Markup] = []
    for at, each in enumerate(given):
        which = f", {each.name} {each.short_hash}" if _has_rivals(each, given) else ""
        for op in dict.fromkeys(record.op for record in each.records):
            of_op = [record for record in each.records if record.op == op]
            body.append(element("h3", code(op), which))
            body.append(element("p", OP_SUMMARIES.get(op, "not an op of this release"), class_="note"))
            body += _op(op, of_op, f"speed-{at}-{op.strip('_')}")
    body.append(_remarks(records))
    return Content(*_summary(records), body)


def _has_rivals(each: Given, given: Sequence[Given]) -> bool:
    """Whether another file has the same ops, so that a heading has to say which it is of."""
    ops = {record.op for record in each.records}
    return any(other is not each and ops & {record.op for record in other.records} for other in given)


def _summary(records: Sequence[Timed]) -> tuple[State, str]:
    exact = [each for each in records if each.exact]
    costs = [each.ratio_to_fast for each in exact if each.ratio_to_fast is not None]
    copies = [each.ratio_to_copy for each in exact if each.ratio_to_copy is not None]
    wrong = sum(is_wrong(each.model_dump()) for each in records)
    parts = [f"{plural(wrong, 'arm')} wrong"] if wrong else []
    if copies:
        parts.append(f"exact presets take {number(median(copies), 3)} times a copy (median of {len(copies)})")
    if costs:
        free = sum(each <= FREE for each in costs)
        parts.append(f"within {FREE - 1:.0%} of fast in {free} of {len(costs)}")
    return "wrong" if wrong else "measured", "; ".join(parts) or "no times"


def _op(op: str, records: Sequence[Timed], name: str) -> Iterator[Markup]:
    cases = {case: [each for each in records if each.case == case] for case in dict.fromkeys(r.case for r in records)}
    drawn = [
        Bars(
            case, [Bar(_bar_label(r), r.ratio_to_copy, open=not r.exact) for r in found if r.ratio_to_copy is not None]
        )
        for case, found in cases.items()
    ]
    if drawn := [each for each in drawn if each.bars]:
        values = [bar.value for group in drawn for bar in group.bars]
        description = (
            f"{plural(len(values), 'bar')} from 0: time of the op over that of a device copy of the same bytes, from "
            f"{number(min(values), 3)} to {number(max(values), 3)}; a line at 1.0 is the copy. Hatched bars are of "
            "presets whose bits are left open. The table below holds the numbers."
        )
        yield bar_chart(f"{name}-chart", f"{op}: time over that of a copy", description, drawn, "is a copy")
    peers = list(dict.fromkeys(peer for each in records for peer in each.peer_us or {}))
    columns = ["case, preset", *COLUMNS[1:], *(f"{peer} / ours" for peer in peers)]
    groups = [Rows([_row(each, peers) for each in found], code(case)) for case, found in cases.items()]
    yield table(name, joined("Times of ", code(op)), columns, groups, numbers=columns[2:])


def _bar_label(each: Timed) -> str:
    return each.preset if each.exact else f"{each.preset}, bits left open"


def _row(each: Timed, peers: Sequence[str]) -> list[Cell]:
    clock = (each.times or {}).get(each.clock or "")
    spread = TO.join(number(side) for side in clock.spread) if clock and clock.spread else NONE
    ratios = each.ratio_to_copy, each.ratio_to_empty, each.ratio_to_fast
    theirs = [(each.peer_us or {}).get(peer) for peer in peers]
    return [
        code(each.preset),
        "exact" if each.exact else "left open",
        number(each.time_us),
        spread,
        *(number(ratio, 3) for ratio in ratios),
        _differing(each),
        *(number(time / each.time_us if time is not None and each.time_us else None) for time in theirs),
    ]


def _differing(each: Timed) -> Cell:
    """Of an exact preset a verdict; elsewhere a number that may well be above 0."""
    if each.elements_differing is None or not each.exact:
        return count(each.elements_differing)
    return verdict(not is_wrong(each.model_dump()), count(each.elements_differing))


def _remarks(records: Sequence[Timed]) -> Markup:
    found: dict[Markup, list[str]] = {}
    for each in records:
        place = f"{each.op}/{each.case}, {each.preset}"
        remarks = {"Failed": each.error, "Refused": each.refused, "Not fused": each.not_fused}
        remarks["Wrote into the inputs of other arms"] = "yes" if each.inputs_changed else None
        remarks |= {f"Absent: {peer}": why for peer, why in (each.absent or {}).items()}
        for title, what in remarks.items():
            if what:
                found.setdefault(joined(element("strong", title), f": {what}"), []).append(place)
        found.setdefault(joined(element("strong", "Bytes compared with"), f": {each.reference}"), []).append(place)
    items = [joined(what, f" ({plural(len(places), 'record')})") for what, places in found.items()]
    return joined(element("h3", "Notes on these times"), bullets(items))
