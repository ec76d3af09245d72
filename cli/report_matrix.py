"""A matrix of the report: how many elements differ, by preset and op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from numerics.cli.report_html import NONE, Cell, Markup, Rows, count, element, joined, table, verdict
from numerics.presets.vocabulary import OPS


@dataclass(frozen=True)
class Counted:
    """Of one comparison, or of several. note: why a comparison that found no difference proves nothing."""

    elements: int
    differing: int
    note: str = ""

    def __add__(self, other: Counted) -> Counted:
        """Of both."""
        notes = dict.fromkeys(filter(None, (self.note, other.note)))
        return Counted(self.elements + other.elements, self.differing + other.differing, "; ".join(notes))


@dataclass(frozen=True)
class Line:
    """A row: its heading, and what was counted by op."""

    heading: Cell
    cells: Mapping[str, Counted]


def matrix(name: str, caption: str, head: str, groups: Sequence[tuple[Cell | None, Sequence[Line]]]) -> Markup:
    """Groups of rows under a heading, or one without. head: of the first column."""
    ops = _ordered(op for _, lines in groups for line in lines for op in line.cells)
    rows = [
        Rows([[line.heading, *(_cell(line.cells.get(op)) for op in ops)] for line in lines], title)
        for title, lines in groups
    ]
    return table(name, caption, [head, *ops], rows, numbers=ops, class_="matrix")


def _ordered(ops: Iterable[str]) -> list[str]:
    """Each once, known ones first and as the package lists them."""
    given = set(ops)
    return [*(op for op in OPS if op in given), *sorted(given - OPS.keys())]


def _cell(each: Counted | None) -> Cell:
    if each is None:
        return NONE
    note = f" {each.note}," if each.note else ""
    of = element("span", f"{note} of {each.elements:,}", class_="note")
    return joined(verdict(not each.differing and not each.note, count(each.differing)), of)
