"""The report's models: as their library ships them, and with fused ops."""

from __future__ import annotations

from collections.abc import Sequence
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
    joined,
    number,
    plural,
    table,
    verdict,
)
from numerics.cli.report_measurements import ModelTimed
from numerics.cli.report_section import Content, State

EQUAL: Final = "equal"
UNJUDGED: Final = ("stated", "not judged")  # how a verdict begins that is none
COLUMNS: Final = (
    "case, preset", "verdict", "stock ms", "ours ms", "stock / ours", "ceiling", "fused calls", "differ", "elements"
)  # fmt: skip


def models(given: Sequence[Given]) -> Content:
    """A chart of how many times as fast, the table, and what was not fused or failed."""
    records: list[ModelTimed] = [record for each in given for record in each.records]
    names = {name: [r for r in records if r.model == name] for name in dict.fromkeys(r.model for r in records)}
    body: list[Markup] = []
    ratios = [each.stock_over_ours for each in records if each.stock_over_ours is not None]
    if ratios:
        body.append(_chart(names, ratios))
    groups = [Rows([_row(each) for each in found], code(model)) for model, found in names.items()]
    body.append(table("models-times", "Outputs and times of whole models", COLUMNS, groups, numbers=COLUMNS[2:]))
    body.append(bullets(_notes(records)))
    return Content(*_summary(records, ratios), body)


def _summary(records: Sequence[ModelTimed], ratios: Sequence[float]) -> tuple[State, str]:
    wrong = sum(_is_good(each) is False for each in records)
    equal = sum(bool(_is_good(each)) for each in records)
    parts = [f"{plural(wrong, 'case')} wrong"] if wrong else []
    parts += [f"every byte equal in {equal} of {plural(equal + wrong, 'case')}"] if equal + wrong else []
    parts += [f"{plural(rest, 'case')} not judged"] if (rest := len(records) - equal - wrong) else []
    if ratios:
        parts.append(f"fused {number(min(ratios))} to {number(max(ratios))} times as fast")
    return "wrong" if wrong else "holds" if equal else "measured", "; ".join(parts)


def _is_good(each: ModelTimed) -> bool | None:
    """Whether bytes are equal; None where that was not judged."""
    return None if each.verdict.startswith(UNJUDGED) else each.verdict == EQUAL


def _chart(names: dict[str, list[ModelTimed]], ratios: Sequence[float]) -> Markup:
    drawn = [
        Bars(model, [Bar(_name(r), r.stock_over_ours) for r in found if r.stock_over_ours is not None])
        for model, found in names.items()
    ]
    description = (
        f"{plural(len(ratios), 'bar')} from 0: time of the model as its library ships it over its time with fused ops, "
        f"from {number(min(ratios), 3)} to {number(max(ratios), 3)}; beyond the line at 1.0 the fused model is faster. "
        "The table below holds the numbers."
    )
    title = "Time of the stock model over that of the fused one"
    return bar_chart("models-chart", title, description, [each for each in drawn if each.bars], "is stock")


def _name(each: ModelTimed) -> str:
    return f"{each.case}, {each.preset}" if each.preset else each.case


def _row(each: ModelTimed) -> list[Cell]:
    good, calls = _is_good(each), each.fused_calls
    total = sum(calls.values()) if isinstance(calls, dict) else calls
    return [
        joined(each.case, *((", ", code(each.preset)) if each.preset else ())),
        each.verdict if good is None else verdict(good, each.verdict),
        *(number(value, 3) for value in (each.stock_ms, each.ours_ms, each.stock_over_ours, each.ceiling)),
        *(count(value) for value in (total, each.elements_differing, each.elements)),
    ]


def _notes(records: Sequence[ModelTimed]) -> list[str]:
    """What a number cannot say, each once."""
    found = [f"ceiling, {each.ceiling_is}" for each in records if each.ceiling_is]
    found += [f"{each.model}, {each.case}: {each.error}" for each in records if each.error]
    found += [f"{each.model}: not fused: {why}" for each in records for why in each.not_fused]
    return list(dict.fromkeys(found))
