"""A section of the report, whatever it is about: its verdict in a line, and what stands below its heading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from numerics.cli.report_files import Given
from numerics.cli.report_html import Cell, Markup

State = Literal["holds", "wrong", "measured"]


@dataclass(frozen=True)
class Content:
    """What a section found in its files. summary: one line of the page's head."""

    state: State
    summary: Cell
    body: Sequence[Markup]


def rows_of(given: Sequence[Given], name: str) -> list[Given]:
    """The files of one kind."""
    return [each for each in given if each.kind.name == name]
