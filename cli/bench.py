"""`numerics bench`: its options, and what they lead to. Its pages stand in bench_pages.py."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from numerics.cli.options import (
    Config,
    Json,
    Ops,
    Out,
    Plot,
    Saved,
    Seed,
    VllmLibrary,
    check_known,
    check_saved,
    presets,
    several,
    use_file,
)
from numerics.cli.render import DIFFERENT, NOTHING_VERIFIED, print_json, print_page, with_progress
from numerics.errors import ConfigurationError

if TYPE_CHECKING:
    from numerics.measure.cases import Case
    from numerics.measure.result import Record

ROUNDS, QUICK_ROUNDS = 10, 3
TOLERANCE: Final = 0.05  # two runs on one machine differ by less


def _cases() -> Iterable[str]:
    from numerics.measure.cases import CASES

    return dict.fromkeys(case.name for case in CASES)


def _peers() -> Iterable[str]:
    from numerics.measure.cases import PEERS

    return PEERS


def bench(
    result: Saved = None,
    op: Ops = None,
    case: Annotated[list[str] | None, several("GLOB", "Such as '16384x*', 'rms_norm/*'.", _cases)] = None,
    preset: Annotated[list[str] | None, several("PRESET", "In place of a case's own.", presets)] = None,
    peer: Annotated[
        list[str] | None,
        several("PEER", "vllm, vllm_omni, torch, quack, flashinfer, inductor, inductor_autotuned.", _peers),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help=f"Two samples of each arm a round; {ROUNDS} without it.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A case or two an op, two presets, few rounds, no Inductor.")
    ] = False,
    list_cases: Annotated[bool, typer.Option("--list", help="Say what would be measured, and stop.")] = False,
    out: Out = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An earlier result: is anything slower now?")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, metavar="SHARE", help=f"How much slower does not count; {TOLERANCE} without it."),
    ] = None,
    plot: Plot = None,
    vllm_library: VllmLibrary = None,
    vllm_rotary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its vllm_flash_attn/ops/triton/rotary.py.")
    ] = None,
    vllm_omni: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder with vllm-omni's fused kernels.")
    ] = None,
    seed: Seed = 0,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Speed of the fused ops, beside a copy and beside peers.

    Needs a GPU, but not for --list nor for a saved RESULT. Options that name something may be repeated. Bytes are
    compared before and after timing: exit 1 if those of an exact preset differ, if an arm fails, or if --compare finds
    a case slower; 5 if there was nothing to measure or to compare. --json prints the records, or the comparison.
    """
    use_file(config)
    from numerics.cli.report_files import checked
    from numerics.measure import plot as drawing
    from numerics.measure import result as saved
    from numerics.measure.cases import USUAL_PEERS, chosen

    if plot is not None:
        drawing.check(plot)
    if tolerance is not None and compare is None:
        raise ConfigurationError("--tolerance: of no use without --compare")
    if tolerance is not None and not math.isfinite(tolerance):  # with which nothing is ever slower
        raise ConfigurationError(f"--tolerance: got {tolerance}; legal: a number, 0 or more")
    earlier = None if compare is None else checked("bench", saved.read(compare), compare)
    if result is not None:
        measuring = {"--op": op, "--case": case, "--preset": preset, "--peer": peer, "--rounds": rounds, "--out": out}
        measuring |= {"--quick": quick, "--list": list_cases, "--seed": seed}
        check_saved(
            measuring | {"--vllm-library": vllm_library, "--vllm-rotary": vllm_rotary, "--vllm-omni": vllm_omni}
        )
        records = checked("bench", saved.read(result), result)
    else:
        check_known("preset", preset, presets())
        check_known("peer", peer, _peers())
        cases = chosen(op or (), case or (), preset or (), quick=quick)
        if list_cases:
            if given := [name for name, path in (("--out", out), ("--plot", plot), ("--compare", compare)) if path]:
                raise ConfigurationError(f"{', '.join(given)}: of no use with --list, which measures nothing")
            _print_list(cases, as_json)
            return
        peers = peer or (USUAL_PEERS if quick else ())
        locations = {"vllm_library": vllm_library, "vllm_rotary": vllm_rotary, "vllm_omni": vllm_omni}
        how = _How(tuple(peers), locations, rounds or (QUICK_ROUNDS if quick else ROUNDS), seed)
        records = _measured(cases, how, out)
    if plot is not None:
        drawing.draw(records, plot)
    if earlier is None:
        code = _print_records(records, as_json)
    else:
        allowed = TOLERANCE if tolerance is None else tolerance
        code = _print_comparison(earlier, records, allowed, as_json, whole=result is not None)
    if any(map(saved.is_wrong, records)):
        code = DIFFERENT
    if code:
        raise typer.Exit(code)


# --- Measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _How:
    """To measure."""

    peers: tuple[str, ...]  # none: those of each case
    locations: Mapping[str, Path | None]
    rounds: int
    seed: int


def _measured(cases: Sequence[Case], how: _How, out: Path | None) -> list[Record]:
    try:
        from numerics.measure import clock, peers, run
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"bench measures with {error.name}, which is not installed") from None
    from numerics.measure.cases import PEERS
    from numerics.measure.result import check_writable, write

    if out is not None:
        check_writable(out)  # before the work
    device = clock.CudaClock()
    there = peers.found(peers.Locations(**how.locations), how.peers or PEERS)
    plan = run.Plan(there, how.peers, how.rounds, how.seed)
    facts = run.facts(plan, sys.argv[1:])
    records: list[Record] = []
    for each in with_progress(cases, lambda case: case.path):
        records += [{**record, **facts} for record in run.measured(each, plan, device)]
        device.release()
        if out is not None:
            write(out, records)
    return records


# --- Printing ---------------------------------------------------------------------------------------------------------


def _print_list(cases: Sequence[Case], as_json: bool) -> None:
    from numerics.cli.bench_pages import entries, list_page

    found = entries(cases)
    if as_json:
        print_json(found)
    else:
        print_page(*list_page(found))


def _print_records(records: list[Record], as_json: bool) -> int:
    from numerics.cli.bench_pages import page

    if as_json:
        print_json(records)
    else:
        print_page(*page(records))
    return 0 if any(each["time_us"] for each in records) else NOTHING_VERIFIED


def _print_comparison(
    earlier: list[Record], records: list[Record], tolerance: float, as_json: bool, *, whole: bool
) -> int:
    """whole: cases of the earlier result that are missing now are shown."""
    from numerics.cli.bench_pages import comparison_page
    from numerics.measure.compare import changes, differences

    found = changes(earlier, records, all_of_earlier=whole)
    if as_json:
        print_json([each.to_dict(tolerance) for each in found])
    else:
        print_page(*comparison_page(found, tolerance, differences(earlier, records)))
    if any(each.is_slower(tolerance) for each in found):
        return DIFFERENT
    return 0 if any(each.ratio for each in found) else NOTHING_VERIFIED
