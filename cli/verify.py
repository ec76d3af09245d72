"""`numerics verify`: its options, and what they lead to. Its pages stand in verify_pages.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from numerics.cli.options import (
    Config,
    Json,
    Ops,
    Out,
    Seed,
    VllmLibrary,
    check_known,
    device_of,
    presets,
    several,
    use_file,
)
from numerics.cli.render import DIFFERENT, FINE, NOTHING_VERIFIED, print_json, print_page, with_progress
from numerics.errors import ConfigurationError
from numerics.layers import family_of
from numerics.presets.vocabulary import OPS

if TYPE_CHECKING:
    from numerics.measure.verify_subject import Plan, Record
    from numerics.measure.verify_summary import Found

MOST_JOBS: Final = 12  # processes on one GPU
REFERENCES: Final = ("golden", "aten", "vllm", "diffusers", "flashinfer", "quack", "apex", "eager", "declaration")


def verify(
    preset: Annotated[
        list[str] | None, several("PRESET", "May be repeated; all that claim a reference without it.", presets)
    ] = None,
    op: Ops = None,
    reference: Annotated[
        list[str] | None,
        several("NAME", f"May be repeated; all without it: {', '.join(REFERENCES)}.", lambda: REFERENCES),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="cuda or cpu; a GPU without it, if there is one.")
    ] = None,
    elements: Annotated[
        int, typer.Option(min=0, metavar="N", help="At least so many of each op, preset and live reference.")
    ] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes; up to 12 on a GPU without it, one on a CPU.")
    ] = None,
    vllm_library: VllmLibrary = None,
    vllm_rotary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its vllm_flash_attn/ops/triton/rotary.py.")
    ] = None,
    vllm_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Of that library, such as 0.29.0.")
    ] = None,
    seed: Seed = 0,
    out: Out = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Presets against the bytes of what they claim.

    Golden bytes of the providers, and libraries that are here, live; on a GPU every kernel against its eager reference
    as well, which proves no claim. Exit 1 if a byte differs, 5 if nothing that is claimed could be compared.
    """
    use_file(config)
    names, references = _presets(preset), check_known("reference", reference, REFERENCES) or REFERENCES
    ops = _ops(op or ())
    try:
        from numerics.measure.peers import Locations
        from numerics.measure.result import check_writable
        from numerics.measure.verify_subject import Plan
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"verify computes with {error.name}, which is not installed") from None
    from numerics.context import configuration

    if vllm_version is not None and vllm_library is None:
        raise ConfigurationError("--vllm-version: of no use without --vllm-library")
    for option, path in (("--vllm-library", vllm_library), ("--vllm-rotary", vllm_rotary)):
        if path is not None and not path.is_file():  # on a CPU nothing would open it
            raise ConfigurationError(f"{option} {path}: no such file")
    if out is not None:
        check_writable(out)  # before the work
    where = device_of(device)
    locations = Locations(vllm_library, vllm_rotary)
    plan = Plan(configuration().catalog, names, ops, references, where, elements, seed, locations, vllm_version)
    found = _verified(plan, jobs or (min(MOST_JOBS, os.cpu_count() or 1) if where.type == "cuda" else 1), out)
    if as_json:
        from numerics.measure.verify_summary import as_json as described

        print_json(described(found))
    else:
        from numerics.cli.verify_pages import page

        print_page(*page(found))
    if code := exit_code(found):
        raise typer.Exit(code)


def _presets(names: Sequence[str] | None) -> tuple[str, ...]:
    """These, or all that claim a reference. Raises ConfigurationError for an unknown name."""
    from numerics.context import configuration

    known = configuration().catalog.presets
    return check_known("preset", names, known) or tuple(name for name in known if known[name].reference is not None)


def _ops(names: Sequence[str]) -> tuple[str, ...]:
    """Of these families and ops, or all. Raises ConfigurationError for an unknown name."""
    for name in names:
        family_of(name)
    return tuple(op for op, family in OPS.items() if not names or op in names or family in names)


def _verified(plan: Plan, jobs: int, out: Path | None) -> list[Found]:
    """What became of each preset. out: saved after each unit, what the golden bytes can see at the end."""
    from numerics.measure import verify_summary
    from numerics.measure.machine import command, machine
    from numerics.measure.result import write
    from numerics.measure.verify_jobs import started

    began = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {**machine(), "seed": plan.seed, "command": command(sys.argv[1:])}
    records: list[Record] = []

    def save(found: list[Found]) -> list[dict[str, Any]]:
        described = [{**each, "started": began, "machine": facts} for each in found]
        if out is not None:
            write(out, verify_summary.as_json(described))
        return described

    with started(plan, jobs) as work:
        for each in with_progress(work, lambda each: each.name):
            records += each.records()
            if out is not None:
                save(verify_summary.found(plan, records, with_sight=False))
    return save(verify_summary.found(plan, records))


def exit_code(found: Sequence[Found]) -> int:
    """1 if anything differs, 5 if nothing was compared that a preset claims."""
    from numerics.measure.verify_summary import DIFFERS, VERIFIED

    if any(each["status"] == DIFFERS for each in found):
        return DIFFERENT
    return FINE if any(each["status"] == VERIFIED for each in found) else NOTHING_VERIFIED
