"""`numerics bisect`: which knob, of which op and model, moves the result of a program."""

from __future__ import annotations

import math
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from numerics.cli.options import Capability, Config, Json, presets, use_file
from numerics.cli.render import DIFFERENT, FINE, NOTHING_VERIFIED, complain, print_json, print_page, progress
from numerics.errors import ConfigurationError, NumericsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numerics.measure.bisect import Question
    from numerics.measure.bisect_settings import Setting
    from numerics.measure.result import Record

CODES: Final = {"explained": DIFFERENT, "equal": FINE, "undecided": NOTHING_VERIFIED}
STOPPED: Final = 130  # 128 + SIGINT, as a shell reports it; not 1, which would claim an explanation
SETTING: Final = "a preset, PRESET,knob=value, a presets file, or a saved show --json."


def bisect(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="module:function without arguments, or a command in quotes.")
    ],
    from_: Annotated[str, typer.Option("--from", metavar="A", help=f"What the reference ran: {SETTING}")],
    to: Annotated[str, typer.Option("--to", metavar="B", help="What gives another result, written likewise.")],
    metric: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="A command's number is its last match; its exit code without it."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, metavar="X", help="Results that are no farther apart are equal.")
    ] = 0.0,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECONDS", help="Stop an arm that takes longer.")
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="All arms here, instead of a fresh process for each.")
    ] = False,
    controls: Annotated[int, typer.Option(min=2, metavar="N", help="How often A and B run.")] = 2,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save each arm; the same command continues from there.")
    ] = None,
    capability: Capability = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Which knob moves a result: the smallest set of them.

    Runs TARGET under A and under B, twice each, then under A with one difference turned to B's value at a time, and
    then under the sets of them that a search takes. TARGET returns a tensor, several, or a number. Exit 1 if the
    difference is explained, 0 if there is none, 5 if nothing could be decided.
    """
    use_file(config)
    try:
        from numerics.measure.bisect import Question
        from numerics.measure.bisect_arms import Arms, apart
        from numerics.measure.bisect_settings import atoms_of
        from numerics.measure.bisect_target import Target
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"bisect computes with {error.name}, which is not installed") from None
    if not math.isfinite(tolerance):
        raise ConfigurationError(f"--tolerance: got {tolerance}; legal: a number, 0 or more")
    asked = Target(target, metric, in_process, timeout)
    a = _setting("--from", from_, capability)
    b = apart(a, _setting("--to", to, capability))
    question = Question(asked, Arms(a, b, atoms_of(a, b)), tolerance, controls)
    found = _records(question, out)
    if as_json:
        print_json(found)
    else:
        from numerics.cli.bisect_page import page

        print_page(*page(found))
    if code := CODES[found[-1]["result"]]:
        raise typer.Exit(code)


def _setting(option: str, name: str, capability: str | None) -> Setting:
    """Raises ConfigurationError, naming the option."""
    from numerics.capability import checked, current
    from numerics.cli import saved
    from numerics.measure.bisect_settings import of_file, of_saved, of_text

    where = current() if capability is None else checked(capability)
    path = Path(name)
    try:
        if path.suffix == ".json":
            return of_saved(name, saved.read(path), where)
        if path.suffix == ".toml" or (path.is_file() and name not in presets()):
            return of_file(name, where)
        return of_text(name, where)
    except NumericsError as error:
        raise ConfigurationError(f"{option} {name!r}: {error}") from None


def _records(question: Question, out: Path | None) -> Sequence[Record]:
    """Header, arms and verdict, saved after each arm."""
    from numerics.measure import result
    from numerics.measure.bisect import Bisection
    from numerics.measure.bisect_saved import alone, continued, folder, header
    from numerics.measure.bisect_search import searched

    first = header(question, sys.argv[1:])
    arms, verdict = continued(out, question) if out is not None else ([], None)
    if verdict is not None:
        return [first, *arms, verdict]
    with ExitStack() as stack:
        if out is None:
            keep = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="numerics-bisect-")))
        else:
            result.check_writable(out)  # before the work
            stack.enter_context(alone(out))
            keep = folder(out)
            arms, _ = continued(out, question)  # what another search has added until now
            result.write(out, [first, *arms])

        def save(arms: Sequence[Record]) -> None:
            if out is not None:
                result.write(out, [first, *arms])

        bisection = Bisection(question, keep, arms, save, stack.enter_context(progress()))
        try:
            verdict = searched(bisection)
        except KeyboardInterrupt:
            where = "nothing is saved without --out" if out is None else f"the same command continues from {out}"
            complain(f"Stopped after {len(bisection.arms)} arms; {where}")
            raise typer.Exit(STOPPED) from None
        if out is not None:
            result.write(out, [first, *bisection.arms, verdict])
            bisection.forget()
    return [first, *bisection.arms, verdict]
