"""The report's precision: how far each preset is from the truth, and which is closer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from numerics.cli.report_charts import Bar, Bars, bar_chart
from numerics.cli.report_files import Given
from numerics.cli.report_html import (
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
    scientific,
    table,
)
from numerics.cli.report_measurements import Precise
from numerics.cli.report_section import Content

YARDSTICK: Final = "fast"  # the preset that others are compared with
Stage = tuple[str, str, str, str | None]  # case, stage, precision of the truth, its rotation table


def precision(given: Sequence[Given]) -> Content:
    """For each file and op a chart and a table; then presets that were refused."""
    body: list[Markup] = []
    for at, each in enumerate(given):
        measured: list[Precise] = [record for record in each.records if record.stage is not None]
        for op in dict.fromkeys(record.op for record in measured):
            body.append(element("h3", code(op), f", {each.name} {each.short_hash}" if len(given) > 1 else ""))
            body += _op(op, [record for record in measured if record.op == op], f"precision-{at}-{op.strip('_')}")
    records: list[Precise] = [record for each in given for record in each.records]
    refused = dict.fromkeys((each.preset, each.refused) for each in records if each.refused)
    if refused:
        body.append(element("h3", "Presets that refused a case"))
        body.append(bullets(joined(code(preset), f": {why}") for preset, why in refused))
    stages = {(each.op, each.case, each.stage): each.elements or 0 for each in records if each.stage is not None}
    presets = {each.preset for each in records if each.stage is not None}
    summary = f"{plural(len(presets), 'preset')}, {sum(stages.values()):,} values in {plural(len(stages), 'stage')}"
    return Content("measured", summary, body)


def _op(op: str, records: Sequence[Precise], name: str) -> Iterator[Markup]:
    stages: dict[Stage, dict[str, Precise]] = {}
    for each in records:
        place = each.case, each.stage or "", each.precision or "", each.table
        stages.setdefault(place, {})[each.preset] = each
    drawn = [Bars(_words(place), list(_bars(found))) for place, found in stages.items() if _is_main(place)]
    if drawn := [each for each in drawn if each.bars]:
        values = [bar.value for group in drawn for bar in group.bars]
        description = (
            f"{plural(len(values), 'bar')} from 0: error of a preset over that of {YARDSTICK}, from "
            f"{number(min(values), 3)} to {number(max(values), 3)}; left of the line at 1.0 a preset is closer to the "
            "truth. Hatched bars are of presets whose bits are left open. The table below holds the numbers."
        )
        title = f"{op}: RMSE over that of {YARDSTICK}, truth in float64"
        yield bar_chart(f"{name}-chart", title, description, drawn, f"is {YARDSTICK}")
    columns = [
        "preset",
        "RMSE",
        "RMSE / rms",
        "largest",
        "bias",
        "values",
        f"closer than {YARDSTICK}",
        "tied",
        "further",
    ]
    groups = [Rows([_row(each) for each in found.values()], _words(place)) for place, found in stages.items()]
    caption = joined("Errors of ", code(op), " against the same computed in float32 and float64")
    yield table(name, caption, columns, groups, numbers=columns[1:])


def _is_main(place: Stage) -> bool:
    """The truth that a chart shows: float64, and a rotation table that nobody rounded."""
    return place[2] == "float64" and place[3] in (None, "full")


def _words(place: Stage) -> str:
    case, stage, precision, rotation = place
    return f"{case}, {stage}, truth in {precision}" + (f", {rotation} table" if rotation else "")


def _bars(found: Mapping[str, Precise]) -> Iterator[Bar]:
    """Presets that compute the same share a bar."""
    yardstick = found.get(YARDSTICK)
    if yardstick is None or not yardstick.rmse:
        return
    for preset, each in found.items():
        if each.rmse is not None and each.same_as is None:
            same = [other for other, its in found.items() if its.same_as == preset]
            label = preset + (f" and {plural(len(same), 'equal preset')}" if same else "")
            yield Bar(
                label if each.exact else f"{label}, bits left open", each.rmse / yardstick.rmse, open=not each.exact
            )


def _row(each: Precise) -> list[Cell]:
    relative = each.rmse / each.rms if each.rmse is not None and each.rms else None
    note = element("span", f" same as {each.same_as}", class_="note") if each.same_as else ""
    standing = each.against.get(YARDSTICK)
    return [
        joined(code(each.preset), note),
        scientific(each.rmse, 4),
        *(scientific(value) for value in (relative, each.max_abs, each.bias)),
        count(each.elements),
        *map(count, (standing.closer, standing.tied, standing.further) if standing else (None, None, None)),
    ]
