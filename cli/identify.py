"""`numerics identify`: which declared order, mean and rounding a callable computes with."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from numerics.cli.options import Config, Json, Seed, VllmLibrary, completing, device_of, use_file
from numerics.cli.render import DIFFERENT, Unwrapped, complain, grid, heading, indented, print_json, print_page
from numerics.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from numerics.measure.identify import Cell
    from numerics.measure.identify_verdict import Verdict

WIDTHS: Final = (128, 5376)
ROWS: Final = (1, 16, 256)
DTYPES: Final = ("bfloat16", "float16", "float32")
TREE_SHOWN: Final = 2000  # characters; --json has all


def _names() -> Iterable[str]:
    from numerics.context import configuration

    return (
        "aten",
        "aten-mean",
        "aten-mean:two",
        "vllm",
        *(f"numerics:{name}" for name in configuration().catalog.presets),
    )


def identify(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="CALLABLE",
            help="module:function, numerics:PRESET, aten, aten-mean, aten-mean:two or vllm.",
            autocompletion=completing(_names),
        ),
    ],
    width: Annotated[
        list[int] | None, typer.Option(min=2, metavar="N", help="Elements of a row; 128 and 5376 without it.")
    ] = None,
    rows: Annotated[
        list[int] | None, typer.Option(min=1, metavar="N", help="Rows of a call; 1, 16 and 256 without it.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="bfloat16, float16 or float32.")] = DTYPES[0],
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Such as cuda or cpu; a GPU without it, if there is one.")
    ] = None,
    vllm_library: VllmLibrary = None,
    seed: Seed = 0,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Which order, mean and rounding a norm has.

    CALLABLE is f(x [rows, N], weight [N], eps) -> [rows, N]. Rows are searched for that tell declared orders apart;
    where none of them reproduces every byte, the tree of additions is reconstructed by asking. --width and --rows may
    be repeated. Exit 1 if nothing declared reproduces it.
    """
    use_file(config)
    try:
        from numerics.measure.identify import Asked, identified
        from numerics.measure.identify_callables import subject as found_subject
        from numerics.measure.identify_verdict import verdict
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"identify computes with {error.name}, which is not installed") from None
    import torch

    from numerics.context import configuration

    if dtype not in DTYPES:
        raise ConfigurationError(f"--dtype: got {dtype!r}{nearest(dtype, DTYPES)}")
    catalog = configuration().catalog
    where = device_of(device)
    with redirect_stdout(sys.stderr):  # what a callable prints is not what the command prints
        asked = Asked(found_subject(subject, catalog, vllm_library), catalog, getattr(torch, dtype), where, seed)
        cells = [
            cell
            for number in dict.fromkeys(width or WIDTHS)
            for cell in identified(asked, number, list(dict.fromkeys(rows or ROWS)), complain)
        ]
    found = verdict(catalog, subject, cells)
    if as_json:
        print_json({"callable": subject, "dtype": dtype, "device": str(asked.device), **to_dict(found, cells)})
    else:
        print_page(*page(subject, dtype, found, cells))
    if not found.identified:
        raise typer.Exit(DIFFERENT)


def to_dict(found: Verdict, cells: Sequence[Cell]) -> dict[str, Any]:
    """As JSON values."""
    return {**found.to_dict(), "cells": [cell.to_dict() for cell in cells]}


# --- As a page --------------------------------------------------------------------------------------------------------


def page(subject: str, dtype: str, found: Verdict, cells: Sequence[Cell]) -> Iterator[RenderableType]:
    """The verdict, what to paste, and each width and number of rows."""
    from numerics.measure.identify_rows import ROUNDINGS
    from numerics.measure.identify_verdict import BLIND

    yield heading(subject, ": identified" if found.identified else ": not identified")
    lines = [("reductions", ", ".join(found.reductions) or "none in all of what was asked")]
    if found.rounding is not None:
        lines.append(("rounding", f"{found.rounding}: {ROUNDINGS[found.rounding]}"))
    lines.append(("presets", ", ".join(found.presets) or "none"))
    lines += [(f"batch, {width}", _batch(same)) for width, same in found.batch.items()]
    lines += [("sees", text) for text in found.sees]
    if dtype != "float32":
        lines.append(("cannot see", BLIND))
    yield grid(lines)
    if found.toml is not None:
        yield from _paste(found.toml)
    for cell in cells:
        yield ""
        yield from _cell(cell, with_toml=not found.identified)


def _batch(same: bool) -> str:
    return "a row has the same bytes at every number of rows asked" if same else "the bytes of a row depend on the rows"


def _cell(cell: Cell, *, with_toml: bool) -> Iterator[RenderableType]:
    from numerics.measure.identify_rows import RSQRTS

    many = "row" if cell.rows == 1 else "rows"
    yield heading(f"Width {cell.width}, {cell.rows} {many}", ": identified" if cell.identified else ": not identified")
    lines = [("reductions", ", ".join(cell.reductions) or "none")]
    if (how := cell.computes) is not None:
        lines += [("mean", how.mean), ("rsqrt", RSQRTS[how.rsqrt]), ("rounding", how.rounding)]
    lines += [("not told apart", text) for text in cell.also]
    lines += [("sees", text) for text in cell.sees]
    lines.append(("compared", f"{cell.elements} elements, {cell.probes} probes"))
    if cell.tree is not None:
        more = " ... (--json has all of it)" if len(cell.tree) > TREE_SHOWN else ""
        lines.append(("tree", cell.tree[:TREE_SHOWN] + more))
    yield grid(lines)
    if with_toml and cell.toml is not None:
        yield from _paste(cell.toml)


def _paste(toml: str) -> Iterator[RenderableType]:
    yield ""
    yield indented("To paste:")
    yield from (Unwrapped(line) for line in toml.splitlines())
