"""`numerics report`: one HTML page from saved results, or without any from the settings in force and the machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from numerics.cli.options import Config, Json, use_file
from numerics.cli.render import print_json, print_page, table
from numerics.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from numerics.cli.report_files import Given

ENDINGS: Final = (".html", ".htm")
TITLE: Final = "Numerics report"


def report(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Saved JSON; what each is, its content says. Without any: settings as they are."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page, .html.")] = Path("report.html"),
    title: Annotated[str, typer.Option(metavar="TEXT", help="Its title.")] = TITLE,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """One HTML page of saved results.

    Takes what show, verify, doctor (--json), bench, precision and trajectory (--out) wrote, and refuses anything else.
    The page needs no network and no JavaScript. Exit 0 once it is written, whatever it says; --json prints what was
    found in which file.
    """
    use_file(config)
    from numerics.cli import report_page
    from numerics.cli.report_files import read
    from numerics.measure.machine import own_version

    _check(out, files or ())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    given = read(files) if files else _live(now)
    _write(out, report_page.page(given, title, now, own_version()))
    missing = report_page.missing(given)
    if as_json:
        print_json({"out": str(out), "files": [each.to_dict() for each in given], "missing": missing})
    else:
        print_page(*_summary(out, given, missing))


def _check(out: Path, files: Sequence[Path]) -> None:
    """Raises ConfigurationError, before the work, for a page that would not be one."""
    if out.suffix.lower() not in ENDINGS:
        raise ConfigurationError(f"--out {out}: legal endings: {', '.join(ENDINGS)}")
    if out.resolve() in {path.resolve() for path in files}:
        raise ConfigurationError(f"--out {out}: is among the files to read")


def _live(now: str) -> list[Given]:
    """The settings in force, and this machine. Raises ConfigurationError where the settings are refused."""
    from numerics.cli.doctor import examined
    from numerics.cli.report_files import live
    from numerics.cli.show import refuse, resolved, selected

    found, refused = resolved(selected(None, None), None, None)
    refuse(refused)
    in_force: list[dict[str, Any]] = [resolution.to_dict() for resolution in found]
    return [
        live("settings", in_force, "settings in force when this page was made", now),
        live("environment", examined(), "the machine that made this page", now),
    ]


def _write(out: Path, text: str) -> None:
    try:
        # A lone surrogate, which JSON can spell, is in no encoding.
        out.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigurationError(f"--out {out}: cannot be written: {(error.strerror or str(error)).lower()}") from None


def _summary(out: Path, given: Sequence[Given], missing: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    rows = [(each.name, each.kind.name, str(len(each.records)), each.short_hash or "-") for each in given]
    yield table(["file", "is", "records", "sha256"], rows, right=["records"])
    yield ""
    if missing:
        yield f"Without a file: {', '.join(each['section'] for each in missing)}; the page says how to make one."
    yield f"{out}: written, {out.stat().st_size:,} bytes."
