"""The report's searches: which settings move the result of a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from numerics.cli.bisect_page import RESULTS, distance
from numerics.cli.report_files import Given
from numerics.cli.report_html import NONE, Cell, Markup, Rows, code, element, joined, paragraph, plural, table
from numerics.cli.report_measurements import Arm, Distance, Search, Turn, Verdict
from numerics.cli.report_section import Content

UNFINISHED: Final = "not finished"


def bisect(given: Sequence[Given]) -> Content:
    """For each search its verdict, the smallest set, and every arm that ran."""
    body: list[Markup] = []
    lines: list[str] = []
    for at, each in enumerate(given):
        search: Search = each.records[0]
        arms = [record for record in each.records if isinstance(record, Arm)]
        verdict = next((record for record in each.records if isinstance(record, Verdict)), None)
        body += _search(search, arms, verdict, f"bisect-{at}")
        said = RESULTS[verdict.result] if verdict else UNFINISHED
        found = ", ".join(_turns(search, verdict.smallest)) if verdict else ""
        lines.append(f"{search.target}: {said}" + (f" by {found}" if found else ""))
    return Content("measured", "; ".join(lines), body)


def _search(search: Search, arms: Sequence[Arm], verdict: Verdict | None, name: str) -> Iterator[Markup]:
    yield element("h3", code(search.target))
    equal = f"no farther apart than {search.tolerance:g}" if search.tolerance else "the same in every byte"
    yield paragraph("A is ", code(search.from_), ", B is ", code(search.to), f". Results count as equal if {equal}.")
    said = f"{RESULTS[verdict.result]}. {verdict.reason}" if verdict else f"{UNFINISHED}: the file holds no verdict."
    yield paragraph(element("strong", said[0].upper() + said[1:]))
    if verdict and verdict.smallest:
        rows = [*_rows(search, verdict.smallest, "in the smallest set")]
        rows += _rows(search, verdict.others, "by itself as well")
        columns = ["difference", "op", "model", "A", "B", "gives B's result"]
        yield table(f"{name}-smallest", "What explains the difference", columns, [Rows(rows)])
    columns = ["arm", "status", "beside A", "beside B"]
    ran = [[arm.name, _status(arm), _distance(arm.from_a, search), _distance(arm.from_b, search)] for arm in arms]
    caption = f"Arms that ran: A, B, and A with differences turned to B's ({plural(len(arms), 'arm')})"
    yield table(f"{name}-arms", caption, columns, [Rows(ran)])


def _rows(search: Search, indices: Sequence[int], why: str) -> Iterator[list[Cell]]:
    for turn in _turned(search, indices):
        yield [code(turn.what), code(turn.op), turn.model or "any other", code(turn.a), code(turn.b), why]


def _turns(search: Search, indices: Sequence[int]) -> list[str]:
    return [f"{turn.what} of {turn.op} ({turn.model or 'any other model'})" for turn in _turned(search, indices)]


def _turned(search: Search, indices: Sequence[int]) -> list[Turn]:
    return [search.differences[index] for index in indices if index < len(search.differences)]


def _status(arm: Arm) -> str:
    return f"{arm.status}: {arm.reason}" if arm.reason else arm.status


def _distance(found: Distance | None, search: Search) -> Cell:
    if found is None:
        return NONE
    if found.shapes is None and found.change is None and found.elements_differing is None:
        return NONE
    return joined(distance(found.model_dump(exclude_none=True) | {"worst": found.worst}, {"counts": search.counts}))
