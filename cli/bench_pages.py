"""What `numerics bench` prints: the cases, a result, and what changed since an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from numerics.cli.render import heading, indented, table
from numerics.cli.words import listed
from numerics.measure.cases import Case
from numerics.measure.compare import Change
from numerics.measure.result import Record
from numerics.presets.vocabulary import OP_SUMMARIES

if TYPE_CHECKING:
    from rich.console import RenderableType

IN_FORCE: Final = "those in force"
MEGABYTE: Final = 1e6
SHOWN: Final = 2  # places of one remark


def entries(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The cases, as JSON values."""
    return [
        {
            "op": case.op,
            "case": case.name,
            "presets": list(case.presets),
            "peers": list(case.peers),
            "clock": case.clock,
            "moved_bytes": case.moved_bytes,
        }
        for case in cases
    ]


def list_page(found: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """One line a case, by op."""
    for number, (op, cases) in enumerate(_by_op(found).items()):
        if number:
            yield ""
        yield heading(op, f": {OP_SUMMARIES[op]}")
        rows = [
            (f"  {each['case']}", f"{each['moved_bytes'] / MEGABYTE:.1f}", listed(each["presets"] or [IN_FORCE]))
            for each in cases
        ]
        yield table(["  case", "MB", "presets"], rows, whole=["  case"], right=["MB"])


# --- A result ---------------------------------------------------------------------------------------------------------


def page(records: Sequence[Record]) -> Iterator[RenderableType]:
    """One line a preset, below its case; then what a number cannot say."""
    for op, of_op in _by_op(records).items():
        yield heading(op, f": {OP_SUMMARIES.get(op, 'not an op of this release')}")
        columns = ["  case, preset", "us", "/ floor", "/ fast", "differ", "peer / ours"]
        yield table(columns, _rows(of_op), whole=columns[:1], right=columns[1:5])
        yield ""
    yield heading("floor", ": a copy of the same bytes, or an empty kernel; differ: elements with other bytes")
    for title, found in _remarks(records).items():
        yield ""
        yield heading(title)
        yield from (indented(what + _where(places)) for what, places in found.items())
    if records:
        yield ""
        yield _summary(records)


def _rows(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    case = None
    for each in records:
        if each["case"] != case:
            case = each["case"]
            yield f"  {case}", *_floor(each)
        peers = [f"{name} {time / each['time_us']:.2f}" for name, time in _peers(each).items()]
        yield (
            f"    {each['preset']}",
            _number(each["time_us"]),
            _number(each.get("ratio_to_copy") or each.get("ratio_to_empty"), 3),
            _number(each.get("ratio_to_fast"), 3),
            _count(each.get("elements_differing")),
            listed(peers) if peers else "-",
        )


def _floor(each: Record) -> tuple[str, ...]:
    if each.get("clock") == "host":
        return "", "", "", "", "time of the host"
    is_copy = each.get("copy_us") is not None
    return (
        _number(each.get("copy_us" if is_copy else "empty_us")),
        "",
        "",
        "",
        "a copy" if is_copy else "an empty kernel",
    )


def _peers(each: Record) -> dict[str, float]:
    return dict(each.get("peer_us") or {}) if each["time_us"] else {}


def _remarks(records: Sequence[Record]) -> dict[str, dict[str, list[str]]]:
    """What a number cannot say: by title and by what is said, where it holds."""
    found: dict[str, dict[str, list[str]]] = {}

    def remark(title: str, what: str | None, place: str = "") -> None:
        if what:
            places = found.setdefault(title, {}).setdefault(what, [])
            places += [place] if place and place not in places else []

    for each in records:
        case = f"{each['op']}/{each['case']}"
        preset = f"{case}, {each['preset']}"
        if each.get("exact") and each.get("elements_differing"):
            remark("Differs", f"{preset}: {each['elements_differing']} of {each['elements']} elements")
        if each.get("inputs_changed"):
            remark("Wrote into the inputs of the other arms", case)
        for place, arm in (
            (preset, each),
            *((f"{case}, {peer}", it) for peer, it in (each.get("peers") or {}).items()),
        ):
            if repeated := (arm.get("differing") or {}).get("repeated"):
                remark("Not the same twice", f"{place}: {repeated} elements")
        remark("Failed", each.get("error"), preset)
        remark("Refused", each.get("refused"), preset)
        remark("Not fused", each.get("not_fused"), preset)
        remark("Compared with", each.get("reference"))
        for peer, why in (each.get("absent") or {}).items():
            remark("Absent", f"{peer}: {why}")
    return found


def _where(places: Sequence[str]) -> str:
    """The first of them, so that a thousand fit on a page."""
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f" ({'; '.join(places[:SHOWN])}{more})" if places else ""


def _summary(records: Sequence[Record]) -> str:
    exact = [each for each in records if each.get("exact") and each.get("elements")]
    elements, differing = (sum(each[what] or 0 for each in exact) for what in ("elements", "elements_differing"))
    machine = [
        " ".join(filter(None, (label, records[0].get(key))))
        for label, key in (("", "gpu"), ("driver", "driver"), ("torch", "torch"), ("Triton", "triton"))
        if records[0].get(key)
    ]
    return f"{differing} of {elements} elements of exact presets differ; {listed(machine)}"


# --- A comparison -----------------------------------------------------------------------------------------------------


def comparison_page(
    found: Sequence[Change], tolerance: float, machines: Mapping[str, tuple[str, str]]
) -> Iterator[RenderableType]:
    """One line a case and preset, and whether the two results were measured on the same."""
    columns = ["case", "preset", "earlier us", "now us", "ratio", ""]
    rows = [
        (
            "/".join(each.key[:2]),
            each.key[2],
            _number(each.earlier),
            _number(each.now),
            _number(each.ratio, 3),
            "slower" if each.is_slower(tolerance) else "",
        )
        for each in found
    ]
    yield table(columns, rows, right=columns[2:5])
    if machines:
        yield ""
        yield heading("Not measured on the same", ": a ratio says little of the code")
        yield from (indented(f"{name}: {earlier}, now {now}") for name, (earlier, now) in machines.items())
    yield ""
    slower, both = sum(each.is_slower(tolerance) for each in found), sum(each.ratio is not None for each in found)
    yield f"{slower} of {both} slower by more than {tolerance:.0%}, {len(found) - both} not in both"


# --- Words ------------------------------------------------------------------------------------------------------------


def _by_op(found: Sequence[Any]) -> dict[str, list[Any]]:
    ops: dict[str, list[Any]] = {}
    for each in found:
        ops.setdefault(each["op"], []).append(each)
    return ops


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)
