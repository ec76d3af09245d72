"""`numerics precision`: how far presets are from the same computed in float32 and float64."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from numerics.cli.options import (
    Config,
    Json,
    Ops,
    Out,
    Saved,
    Seed,
    check_known,
    check_saved,
    device_of,
    presets,
    several,
    use_file,
)
from numerics.cli.render import NOTHING_VERIFIED, heading, indented, print_json, print_page, table, with_progress
from numerics.errors import ConfigurationError
from numerics.presets.vocabulary import OP_SUMMARIES

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from numerics.measure.precision import Record

ELEMENTS: Final = 1_500_000  # with which norms of the widest rows still see as many as have an order of their own
NEEDED: Final = ("op", "case", "preset", "stage", "precision", "rmse")
COMMAND: Final = "numerics precision"
KERNEL: Final = "kernel"
PRECISION: Final = "float64"  # of the page; float32 is in the JSON
TABLES: Final = {"full": ", full table", "rounded": ", own table"}
LEGEND: Final = (
    "closer, further: values, beside the first preset; all others are as far. max: the largest error; bias: its mean. "
    "full table: angles in float64; own: as presets read it. Beside float32, and all pairs: --json."
)


def precision(
    result: Saved = None,
    op: Ops = None,
    preset: Annotated[
        list[str] | None,
        several("PRESET", "May be repeated; the open ones and those that were verified without it.", presets),
    ] = None,
    elements: Annotated[
        int | None, typer.Option(min=1, metavar="N", help=f"Values of each case, at least; {ELEMENTS} without it.")
    ] = None,
    seed: Seed = 0,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="cuda or cpu; a GPU without it, if there is one.")
    ] = None,
    out: Out = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """How far presets are from float64, by stage.

    RMSE, largest error and bias of the norm, the rotation and the modulation; and in how many values a preset is closer
    to the truth than another. Exit 5 if no preset could be measured.
    """
    use_file(config)
    if result is None:
        names = check_known("preset", preset, presets())
        records = _measured(op or [], names, elements or ELEMENTS, seed, device, out)
    else:
        from numerics.cli.report_files import checked
        from numerics.measure import result as saved

        measuring = {"--op": op, "--preset": preset, "--elements": elements, "--seed": seed, "--device": device}
        check_saved(measuring | {"--out": out})
        records = checked("precision", saved.records(result, COMMAND, NEEDED), result)
    if as_json:
        print_json(records)
    else:
        print_page(*page(records))
    if all(each["rmse"] is None for each in records):
        raise typer.Exit(NOTHING_VERIFIED)


def _measured(
    op: Sequence[str], names: tuple[str, ...], elements: int, seed: int, device: str | None, out: Path | None
) -> list[Record]:
    try:
        from numerics.measure.precision import Plan, Precision
        from numerics.measure.precision_cases import chosen
        from numerics.measure.result import check_writable, write
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"precision computes with {error.name}, which is not installed") from None
    shapes = chosen(op)
    where = device_of(device)
    if out is not None:
        check_writable(out)  # before the work
    run = Precision(Plan(shapes, names, elements, seed), where)
    run.compile()
    facts = run.facts(sys.argv[1:])
    records: list[Record] = []
    for turn in with_progress(run.turns, lambda turn: turn[0].path):
        found = [{**each, **facts} for each in run.take(turn)]
        records += found
        if out is not None and found:
            write(out, records)
    return records


# --- As a page --------------------------------------------------------------------------------------------------------


def page(records: Sequence[Record]) -> Iterator[RenderableType]:
    """By op and stage, one line a preset, beside the first of them; then what a number cannot say."""
    cases: dict[tuple[str, str], dict[tuple[str, str | None], list[Record]]] = {}
    for each in records:
        if each["rmse"] is not None and each["precision"] == PRECISION and not each.get("same_as"):
            stages = cases.setdefault((each["op"], each["case"]), {})
            stages.setdefault((each["stage"], each.get("table")), []).append(each)
    for (op, case), stages in cases.items():
        yield heading(f"{op}/{case}", f": {OP_SUMMARIES.get(op, 'not an op of this release')}")
        for (stage, table_name), of_stage in stages.items():
            first = of_stage[0]
            columns = [f" {stage}{TABLES.get(table_name or '', '')}", "RMSE", f"/ {first['preset']}"]
            columns += ["max", "bias", "closer", "further"]
            yield table(columns, (_row(each, first) for each in of_stage), whole=columns[:1], right=columns[1:])
        yield ""
    yield LEGEND
    for title, found in _remarks(records).items():
        yield ""
        yield heading(title)
        yield from (indented(f"{what} ({', '.join(where)})") for what, where in found.items())
    yield ""
    yield _summary(records)


def _row(each: Record, first: Record) -> tuple[str, ...]:
    rmse, base = float(each["rmse"]), float(first["rmse"])
    errors = _number(each, "max_abs", ".2g"), _number(each, "bias", "+.0e")
    return f"  {each['preset']}", f"{rmse:.4e}", f"{rmse / base:.5f}" if base else "-", *errors, *_standing(each, first)


def _number(each: Record, name: str, form: str) -> str:
    value = each.get(name)
    return "-" if value is None else format(float(value), form)


def _standing(each: Record, first: Record) -> tuple[str, str]:
    found = each.get("against", {}).get(first["preset"])
    return ("-", "-") if found is None else (str(found["closer"]), str(found["further"]))


def _remarks(records: Sequence[Record]) -> dict[str, dict[str, list[str]]]:
    """What a number cannot say: by title and by what is said, where it holds."""
    found: dict[str, dict[str, list[str]]] = {}

    def remark(title: str, what: str, where: str) -> None:
        places = found.setdefault(title, {}).setdefault(what, [])
        places += [] if where in places else [where]

    for each in records:
        if each.get("refused"):
            remark("Refused", each["refused"], each["op"])
        elif each.get("same_as"):
            remark("The same in all bits", f"{each['preset']} and {each['same_as']}", each["op"])
        elif not each.get("exact") and each.get("computed_by") != KERNEL:
            remark("Ran its eager reference; its kernel adds and contracts otherwise", each["preset"], each["op"])
    return found


def _summary(records: Sequence[Mapping[str, Any]]) -> str:
    facts = records[0] if records else {}
    values = {
        (each["op"], each["case"], each["stage"]): each.get("elements") or 0
        for each in records
        if each["rmse"] is not None
    }
    parts = [f"{sum(values.values())} values in {len(values)} stages", facts.get("gpu") or facts.get("device")]
    parts += [f"{label} {facts[key]}" for label, key in (("torch", "torch"), ("Triton", "triton")) if facts.get(key)]
    return ", ".join(str(part) for part in parts if part)
