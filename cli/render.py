"""How results reach the terminal: JSON without rich, tables as wide as the terminal, and in a pipe plain and whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import typer

from numerics.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

Item = TypeVar("Item")

FINE: Final = 0
DIFFERENT: Final = 1  # a check found a difference
MISUSED: Final = 2  # bad usage or configuration
NOTHING_VERIFIED: Final = 5
INTERNAL_ERROR: Final = 101
READER_GONE: Final = 141  # 128 + SIGPIPE, as a shell reports it; not 1, which would claim a difference

NARROWEST: Final = 40  # columns below which a table is no longer one
PIPED: Final = 1000  # columns of a page that no terminal folds: a row stays on its line
NUMBERS: Final = re.compile(r"\[\n\s+(-?\d+(?:,\n\s+-?\d+)*)\n\s+\]")


class Unwrapped(str):
    """Text whose lines stay whole, however wide: what editors and grep read."""

    __slots__ = ()


def print_json(value: Any) -> None:
    """Two spaces a level, lists of numbers on one line. A line break never stands inside a JSON string."""
    text = json.dumps(value, indent=2)
    write(NUMBERS.sub(lambda found: " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]"), text) + "\n")


def print_page(*parts: RenderableType) -> None:
    """Tables, headings and text, one below the other."""
    from rich.console import Console

    page = StringIO()
    console = Console(
        file=page,
        force_terminal=to_terminal() and not os.environ.get("NO_COLOR"),  # neither colour nor bold elsewhere
        width=terminal_width(),
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Unwrapped))
    write("\n".join(line.rstrip() for line in page.getvalue().split("\n")))


def terminal_width() -> int:
    """Columns of the terminal, or COLUMNS; in a pipe enough for every row, whatever terminal stands behind it."""
    known = to_terminal() or os.environ.get("COLUMNS")
    return max(shutil.get_terminal_size((80, 24)).columns, NARROWEST) if known else PIPED


def to_terminal() -> bool:
    """Whether stdout is a terminal. Python has none where it was started with it closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def write(text: str) -> None:
    """The one place that writes to stdout. A reader that has seen enough (`| head`) ends the command in silence."""
    if sys.stdout is None:
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise typer.Exit(READER_GONE) from None
    except OSError as error:
        raise ConfigurationError(f"the output cannot be written: {error.strerror}") from None


def with_progress(items: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """The items, with a bar meanwhile."""
    with progress() as show:
        for done, item in enumerate(items):
            show(name(item), done, len(items))
            yield item


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr if that is a terminal, gone afterwards. It is given what is done, and how many of how many."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, completed=done, total=total, description=what)


def complain(message: str) -> None:
    """A message on stderr."""
    typer.echo(message, err=True)


def heading(text: str, rest: str = "") -> Text:
    """A bold line, and what follows it in ordinary letters."""
    from rich.text import Text

    return Text.assemble((text, "bold"), rest)


def indented(text: str, columns: int = 2) -> RenderableType:
    """Text that stays indented where it continues on the next line."""
    from rich.padding import Padding

    return Padding(text, (0, 0, 0, columns), expand=False)


def lines(*parts: str) -> RenderableType:
    """The first line, and the others indented below it."""
    from rich.console import Group

    return Group(parts[0], *map(indented, parts[1:]))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | RenderableType]],
    *,
    whole: Sequence[str] = (),
    right: Sequence[str] = (),
) -> Table:
    """A table without lines. Columns named in `whole` are not wrapped; elsewhere a long word is folded, never cut."""
    from rich.table import Table

    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        shown.add_column(column, overflow="fold", no_wrap=column in whole, justify=justify)
    for row in rows:
        shown.add_row(*row)
    return shown


def grid(rows: Iterable[tuple[str, str | RenderableType]]) -> Table:
    """Names and values; a value that is longer than the line continues below itself."""
    from rich.table import Table

    shown = Table.grid(padding=(0, 2, 0, 0))
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for name, value in rows:
        shown.add_row(f"  {name}", value)
    return shown
