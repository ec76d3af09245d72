"""HTML by small functions: whatever is no markup yet is escaped, so that a file's strings are shown and never act."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

VOID: Final = frozenset({"meta", "br", "wbr", "rect", "line", "polyline", "circle", "path"})
SVG_ALONE: Final = frozenset({"rect", "line", "polyline", "circle", "path"})  # closed as XML closes them
TO: Final = "\N{EN DASH}"  # between the ends of a range
MINUS: Final = "\N{MINUS SIGN}"
NONE: Final = TO  # a value that does not apply or was not measured


class Markup(str):
    """Text that is HTML already. Only what this module makes, and constants, may be."""

    __slots__ = ()


Cell = str | Markup


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """`<tag attribute="...">children</tag>`, everything escaped but Markup.

    Attributes: `class_` is class, `aria_label` aria-label; one that is None is left out.
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Markup(f"<{tag}{named}{'/' if tag in SVG_ALONE else ''}>")
    return Markup(f"<{tag}{named}>{joined(*children)}</{tag}>")


def joined(*parts: str, between: str = "") -> Markup:
    """Parts one after the other, those that are no Markup escaped."""
    return Markup(between.join(part if isinstance(part, Markup) else escape(part) for part in parts))


def code(text: str) -> Markup:
    """A name, a value or a command as it is typed."""
    return element("code", text)


def breakable(name: str) -> Markup:
    """A name that may continue on the next line after an underscore."""
    return joined(*name.split("_"), between="_<wbr>")


def paragraph(*parts: str, class_: str | None = None) -> Markup:
    """A paragraph."""
    return element("p", *parts, class_=class_)


def bullets(items: Iterable[str]) -> Markup:
    """A list; nothing if it is empty."""
    made = [element("li", item) for item in items]
    return element("ul", *made) if made else Markup()


def verdict(good: bool, text: str) -> Markup:
    """A mark, a word for who does not see it, and a colour: each says the same."""
    mark, word = ("✓", "holds: ") if good else ("✗", "wrong: ")
    shown = element("span", mark, aria_hidden="true"), element("span", word, class_="unseen")
    return element("span", *shown, " ", text, class_="good" if good else "bad")


# --- Tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Rows of a table, under a heading of their own if they have one."""

    rows: Sequence[Sequence[Cell]]
    title: Cell | None = None


def table(
    name: str,
    caption: Cell,
    columns: Sequence[str],
    groups: Iterable[Rows],
    numbers: Iterable[str] = (),
    class_: str | None = None,
) -> Markup:
    """A table in a box of its own that scrolls. The first cell of a row is its heading; `numbers` stand at the right.

    name: its id on the page.
    """
    right = [column in set(numbers) for column in columns]
    heads = [
        element("th", breakable(title), scope="col", class_="n" if is_number else None)
        for title, is_number in zip(columns, right, strict=True)
    ]
    body = [_group(group, right) for group in groups]
    titled = element("caption", element("span", caption), id=f"{name}-caption")
    made = element("table", titled, element("thead", element("tr", *heads)), *body, id=name, class_=class_)
    return element("div", made, class_="scroll", role="region", aria_labelledby=f"{name}-caption", tabindex=0)


def _group(group: Rows, right: Sequence[bool]) -> Markup:
    made = []
    if group.title is not None:
        head = element("th", group.title, scope="rowgroup", colspan=len(right))
        made.append(element("tr", head, class_="group"))
    for first, *cells in group.rows:
        row = [element("th", first, scope="row")]
        row += [
            element("td", cell, class_="n" if is_number else None)
            for cell, is_number in zip(cells, right[1:], strict=True)
        ]
        made.append(element("tr", *row))
    return element("tbody", *made)


# --- Words ------------------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 2) -> str:
    """`57.00`, or a dash."""
    return NONE if value is None else _typeset(f"{value:.{digits}f}")


def scientific(value: float | None, digits: int = 2) -> str:
    """`1.23e-04`, `0`, or a dash."""
    return NONE if value is None else "0" if value == 0 else _typeset(f"{value:.{digits}e}")


def _typeset(text: str) -> str:
    return text.replace("-", MINUS).replace("inf", "∞")


def count(value: int | None) -> str:
    """`1,019,215,872`, or a dash."""
    return NONE if value is None else f"{value:,}"


def plural(value: int, word: str) -> str:
    """`1 file`, `2 files`."""
    return f"{value:,} {word}{'' if value == 1 else 's'}"
