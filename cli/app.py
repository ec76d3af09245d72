"""The command `numerics`: parse, call, print. What a command finds out stands in the file of its name."""

import gc
import sys
import warnings
from pathlib import Path
from traceback import format_exception
from types import SimpleNamespace
from typing import Annotated

import typer

from numerics.cli.bench import bench
from numerics.cli.bisect import bisect
from numerics.cli.identify import identify
from numerics.cli.models import list_models
from numerics.cli.once import App, OnceGroup
from numerics.cli.options import Capability, Config, Json, Op, completing, kinds, model_names, orders, presets, use_file
from numerics.cli.precision import precision
from numerics.cli.render import (
    DIFFERENT,
    INTERNAL_ERROR,
    MISUSED,
    complain,
    print_json,
    print_page,
    write,
)
from numerics.cli.report import report
from numerics.cli.trajectory import trajectory
from numerics.cli.verify import verify
from numerics.errors import NumericsError

EXIT_CODES = (
    "Exit codes: 0 fine, 1 a check found a difference, 2 bad usage or configuration, 5 nothing was verified, "
    "101 an internal error."
)
WHERE = """Internal error: {}: {}
This is a defect of numerics; `numerics --traceback COMMAND ...` shows where it happened."""

app = App(
    name="numerics",
    cls=OnceGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help reads the same in a pipe, and rich need not load
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
_options = SimpleNamespace(traceback=False)


def main() -> None:
    """Entry point: runs a command, and turns what goes wrong into a message and an exit code."""
    # What is imported by now stays to the end, and to look for garbage in it takes a tenth of the time of `show`. It is
    # frozen before a command imports Triton, whose bindings complain unless they are collected.
    gc.freeze()
    # torch's word about an absent NumPy, which nothing here needs, looks like a broken installation.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)
    try:
        app(prog_name="numerics")
    except NumericsError as error:
        complain(f"Error: {error}")
        sys.exit(MISUSED)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is a defect of ours and no difference that a check found
        complain("".join(format_exception(error)) if _options.traceback else WHERE.format(type(error).__name__, error))
        sys.exit(INTERNAL_ERROR)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            write(f"numerics {version('omni-numerics')}\n")
        except PackageNotFoundError:
            write("numerics, from a clone that is not installed\n")
        raise typer.Exit


@app.callback()
def numerics(
    config: Config = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an internal error happened.")] = False,
    version: Annotated[  # noqa: ARG001  # its callback ends the command
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Which floating-point behaviour fused kernels have, who set it, and whether the bytes hold."""
    _options.traceback = traceback
    use_file(config)


# --- Commands ---------------------------------------------------------------------------------------------------------


@app.command()
def show(
    op: Op = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="One model, or its class.", autocompletion=completing(model_names)),
    ] = None,
    capability: Capability = None,
    config: Config = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="PRESET", help="As if a call asked for it.", autocompletion=completing(presets)),
    ] = None,
    in_full: Annotated[bool, typer.Option("--full", help="Everything about each setting, however many.")] = False,
    as_json: Json = False,
) -> None:
    """Settings in force, and who set each value.

    One line a setting; of up to three, or with --full, everything: knobs, sources and what they shadow, conditions, and
    what follows for batches, shards and bytes.
    """
    use_file(config)
    from numerics.cli.show import page, refuse, refuse_first, resolved, selected

    found, refused = resolved(selected(op, model), capability, preset)
    refuse_first(found, refused)
    if as_json:
        print_json([resolution.to_dict() for resolution in found])
    else:
        print_page(*page(found, in_full, asked=model))
    refuse(refused)


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="presets, reductions, rounding_points, ops or models; all without it.",
            autocompletion=completing(kinds),
        ),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Presets, reductions, rounding points, ops and models."""
    use_file(config)
    from numerics.cli.listing import entries, page
    from numerics.context import configuration

    found = entries(configuration().catalog, kind)
    if as_json:
        print_json(found)
    else:
        print_page(*page(found))


@app.command()
def explain(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A preset or a reduction.", autocompletion=completing(orders))
    ],
    width: Annotated[int | None, typer.Option(min=1, metavar="N", help="Elements of a row.")] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows that are normalised at once; many without it.")
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """A preset or a reduction, in words and as additions."""
    use_file(config)
    from numerics.cli.explain import explained, page
    from numerics.context import configuration

    catalog = configuration().catalog
    found = explained(catalog, name, width, rows)
    if as_json:
        print_json(found)
    else:
        print_page(*page(catalog, found))


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A preset, or a saved show --json.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """What differs between two presets or two saved settings.

    Says in which families a difference matters. Exit 1 if they differ.
    """
    use_file(config)
    from numerics.cli.diff import compared, page
    from numerics.context import configuration

    found = compared(configuration().catalog, a, b)
    if as_json:
        print_json(found)
    else:
        print_page(*page(found))
    if found["differences"]:
        raise typer.Exit(DIFFERENT)


@app.command()
def check(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Presets files; without one the settings in force.")
    ] = None,
    fingerprint: Annotated[
        Path | None, typer.Option(metavar="SAVED", help="A saved show --json that the settings in force must equal.")
    ] = None,
    capability: Capability = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Validate files and environment, or look for drift.

    Exit 1 if there is a problem or a drift, 2 if a file cannot be read.
    """
    use_file(config)
    from numerics.cli.check import checked, has_problems, page

    found = checked(files or [], fingerprint, capability)
    if as_json:
        print_json(found)
    else:
        print_page(*page(found))
    if has_problems(found):
        raise typer.Exit(DIFFERENT)


@app.command()
def schema(
    as_json: Annotated[  # noqa: ARG001  # every command has --json
        bool, typer.Option("--json", help="The same: a JSON Schema is JSON.", show_default=False)
    ] = True,
) -> None:
    """JSON Schema of a presets file, for editors."""
    from numerics.presets.file import json_schema

    print_json(json_schema())


@app.command()
def doctor(config: Config = None, as_json: Json = False) -> None:
    """What this machine runs, and what is wrong with it.

    Exit 1 if there is a problem; a machine without a GPU is none.
    """
    use_file(config)
    from numerics.cli.doctor import examined, page

    found = examined()
    if as_json:
        print_json(found)
    else:
        print_page(*page(found))
    if found["problems"]:
        raise typer.Exit(DIFFERENT)


app.command()(bench)
app.command()(bisect)
app.command()(identify)
app.command()(precision)
app.command(name="models")(list_models)
app.command()(report)
app.command()(trajectory)
app.command()(verify)
