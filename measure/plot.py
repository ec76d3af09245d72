"""A result as bars: the time of each arm beside that of a copy of the same bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numerics.errors import ConfigurationError, MissingExtraError
from numerics.measure.result import Record

FORMATS: Final = ("pdf", "png", "svg")
OURS, PEER, YARD = "#2563a8", "#b0b7c3", "#3a3f47"
INCHES_A_BAR: Final = 0.22


@dataclass(frozen=True)
class Bar:
    """One arm of a case."""

    label: str
    microseconds: float
    kind: str  # "ours" or "peer"


@dataclass(frozen=True)
class Group:
    """One case: its arms, and the time of the copy or of the empty kernel, if there is one."""

    title: str
    bars: tuple[Bar, ...]
    yard: float | None


def groups(records: Sequence[Record]) -> list[Group]:
    """The bars of each case in which something was timed: presets in their order, then each peer once."""
    cases: dict[tuple[str, str], list[Record]] = {}
    for each in records:
        if each["time_us"] is not None:
            cases.setdefault((each["op"], each["case"]), []).append(each)
    return [
        Group(f"{op}: {case}", tuple(_bars(ours)), ours[0].get("copy_us") or ours[0].get("empty_us"))
        for (op, case), ours in cases.items()
    ]


def _bars(ours: Sequence[Record]) -> Iterator[Bar]:
    yield from (Bar(each["preset"], each["time_us"], "ours") for each in ours)
    peers = {name: time for each in ours for name, time in (each.get("peer_us") or {}).items()}
    yield from (Bar(name, time, "peer") for name, time in peers.items())


def check(path: Path) -> None:
    """Raises what `draw` would, before anything is measured: MissingExtraError, or ConfigurationError."""
    if path.suffix.removeprefix(".") not in FORMATS:
        raise ConfigurationError(f"--plot {path}: legal endings: {', '.join(f'.{each}' for each in FORMATS)}")
    _figures()


def draw(records: Sequence[Record], path: Path) -> None:
    """Write the bars to a file. Raises MissingExtraError without matplotlib, ConfigurationError without bars."""
    cases = groups(records)
    if not cases:
        raise ConfigurationError(f"--plot {path}: the result has no time to draw")
    figures = _figures()
    bars = [len(group.bars) + 1.5 for group in cases]
    figure = figures(figsize=(9, max(2.0, INCHES_A_BAR * sum(bars))), layout="constrained")
    axes = figure.subplots(len(cases), 1, squeeze=False, gridspec_kw={"height_ratios": bars})
    gpus = ", ".join(sorted({str(each["gpu"]) for each in records if each["gpu"]}))
    figure.suptitle("; ".join(filter(None, (gpus, "dashed: a copy of the same bytes, or an empty kernel"))), fontsize=8)
    for (axis,), group in zip(axes, cases, strict=True):
        _draw_group(axis, group)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigurationError(
            f"--plot {path}: cannot be written: {(error.strerror or str(error)).lower()}"
        ) from None


def _draw_group(axis: Any, group: Group) -> None:
    colours = [OURS if bar.kind == "ours" else PEER for bar in group.bars]
    drawn = axis.barh(range(len(group.bars)), [bar.microseconds for bar in group.bars], color=colours)
    axis.bar_label(drawn, [f"{bar.microseconds:.1f} µs" for bar in group.bars], padding=3, fontsize=7)
    axis.set_yticks(range(len(group.bars)), [bar.label for bar in group.bars], fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_title(group.title, fontsize=8, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    if group.yard is not None:
        axis.axvline(group.yard, color=YARD, linewidth=1, linestyle="--")


def _figures() -> Any:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # of an extra
    except ImportError as error:
        message = "--plot needs matplotlib, which is not installed: pip install 'omni-numerics[plot]'"
        raise MissingExtraError(message) from error
    return Figure
