"""A result as dots: each case a row, presets beside the copy of the same bytes, and peers on a scale of their own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from numerics.errors import ConfigurationError, MissingExtraError
from numerics.measure.result import Record

FORMATS: Final = ("pdf", "png", "svg")
FLOORS: Final = {"copy_us": "a copy of the same bytes", "empty_us": "an empty kernel"}
OF_HOST: Final = "its first preset: host time of a call"  # where there is no floor

# Told apart by colour-blind readers (Okabe and Ito, 2008), and by shape where colours are not printed.
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d1f", "#6a3d9a", "#444444")
MARKERS: Final = ("o", "D", "s", "^", "v", "P", "X", "*")
GREY, GRID = "#5b6470", "#d9dde3"
WIDTH, ROW, AROUND, LEGEND = 11.5, 0.27, 0.95, 0.34  # inches: of the figure, a row, a panel's title and axis, a line
TICKS: Final = (1, 2, 5, 10, 20, 50, 100, 200)
LARGE, LITTLE = 10, 8  # points of text


@dataclass(frozen=True)
class Row:
    """One case: times over that of its floor."""

    label: str
    moved_bytes: int
    floor_us: float
    presets: Mapping[str, float]
    peers: Mapping[str, float]


@dataclass
class Panel:
    """The cases of an op that have the same kind of floor, the largest first."""

    op: str
    beside: str
    rows: list[Row] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its heading."""
        return f"{self.op}, beside {self.beside}"


def panels(records: Sequence[Record]) -> list[Panel]:
    """Of all cases in which something was timed."""
    cases: dict[tuple[str, str], list[Record]] = {}
    for each in records:
        if each["time_us"]:
            cases.setdefault((each["op"], each["case"]), []).append(each)
    found: dict[tuple[str, str], Panel] = {}
    for (op, case), of_case in cases.items():
        floor = next((name for name in FLOORS if of_case[0].get(name)), None)
        beside = OF_HOST if floor is None else FLOORS[floor]
        us = of_case[0]["time_us"] if floor is None else of_case[0][floor]
        panel = found.setdefault((op, beside), Panel(op, beside))
        peers = {name: time for each in of_case for name, time in (each.get("peer_us") or {}).items()}
        presets = {each["preset"]: each["time_us"] / us for each in of_case}
        theirs = {name: time / us for name, time in peers.items() if time}
        panel.rows.append(Row(case, of_case[0].get("moved_bytes") or 0, us, presets, theirs))
    for panel in found.values():
        panel.rows.sort(key=lambda row: -row.moved_bytes)
    return list(found.values())


def check(path: Path) -> None:
    """Raises what `draw` would, before anything is measured: MissingExtraError, or ConfigurationError."""
    if path.suffix.removeprefix(".") not in FORMATS:
        raise ConfigurationError(f"--plot {path}: legal endings: {', '.join(f'.{each}' for each in FORMATS)}")
    figure_class()


def draw(records: Sequence[Record], path: Path) -> None:
    """Write the dots to a file. Raises MissingExtraError without matplotlib, ConfigurationError without times."""
    drawn = panels(records)
    if not drawn:
        raise ConfigurationError(f"--plot {path}: the result has no time to draw")
    presets = _styles(_names(drawn, "presets"), hollow=False)
    peers = _styles(_names(drawn, "peers"), hollow=True)
    heights = [ROW * len(panel.rows) + AROUND for panel in drawn]
    top = LEGEND * (2 + max(1, len(presets) // 8))
    figure = figure_class()(figsize=(WIDTH, sum(heights) + top), layout="constrained")
    columns = 2 if peers else 1
    axes = figure.subplots(len(drawn), columns, squeeze=False, gridspec_kw={"height_ratios": heights})
    for row, panel in zip(axes, drawn, strict=True):
        _draw_rows(row[0], panel, [each.presets for each in panel.rows], presets)
        row[0].set_title(panel.title, fontsize=LARGE, loc="left", fontweight="bold")
        _presets_axis(row[0], panel)
        if peers:
            _draw_rows(row[1], panel, [each.peers for each in panel.rows], peers)
            _peers_axis(row[1])
    gpus = ", ".join(sorted({str(each["gpu"]) for each in records if each.get("gpu")}))
    figure.suptitle("; ".join(filter(None, ("Time, as a multiple of the line at 1", gpus))), fontsize=LARGE + 2)
    _legend(figure, presets, "presets", "outside upper left")
    _legend(figure, peers, "peers", "outside upper right")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a figure. Raises ConfigurationError where that fails."""
    from matplotlib import rc_context  # noqa: PLC0415  # of an extra

    try:
        with rc_context({"svg.fonttype": "none"}):  # text stays text, which can be searched and read aloud
            figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigurationError(
            f"--plot {path}: cannot be written: {(error.strerror or str(error)).lower()}"
        ) from None


def figure_class() -> Any:
    """Matplotlib's figure. Raises MissingExtraError where it is not installed."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # of an extra
    except ImportError as error:
        message = "--plot needs matplotlib, which is not installed: pip install 'omni-numerics[plot]'"
        raise MissingExtraError(message) from error
    return Figure


# --- Drawing ----------------------------------------------------------------------------------------------------------


def _names(drawn: Sequence[Panel], kind: str) -> list[str]:
    return list(dict.fromkeys(name for panel in drawn for row in panel.rows for name in getattr(row, kind)))


def _styles(names: Iterable[str], *, hollow: bool) -> dict[str, dict[str, Any]]:
    """By name, how its dots look: always alike, and after as many as there are colours smaller."""
    styles = {}
    for number, (name, colour, marker) in enumerate(zip(names, cycle(COLOURS), cycle(MARKERS), strict=False)):
        size = 6.5 if number < len(COLOURS) else 4
        fill = "white" if hollow else colour
        styles[name] = {"marker": marker, "markeredgecolor": colour, "markerfacecolor": fill, "markersize": size}
    return styles


def _draw_rows(
    axis: Any, panel: Panel, rows: Sequence[Mapping[str, float]], styles: Mapping[str, Mapping[str, Any]]
) -> None:
    places = range(len(panel.rows))
    axis.axvline(1, color=GREY, linewidth=1.4, zorder=1)
    axis.hlines(places, 0, 1, transform=axis.get_yaxis_transform(), color=GRID, linewidth=0.8, zorder=0)
    for name, style in styles.items():
        points = [(row[name], place) for place, row in enumerate(rows) if name in row]
        if points:
            axis.plot(*zip(*points, strict=True), linestyle="none", alpha=0.9, zorder=3, **style)
    axis.set_ylim(len(panel.rows) - 0.4, -0.6)
    axis.tick_params(labelsize=LITTLE, length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(GRID)


def _presets_axis(axis: Any, panel: Panel) -> None:
    """A scale on which a few percent can be seen, with names at the left and the time of the floor at the right."""
    axis.set_yticks(range(len(panel.rows)), [row.label for row in panel.rows])
    ratios = [ratio for row in panel.rows for ratio in row.presets.values()]
    low, high = min(1.0, *ratios), max(1.1, *ratios)
    axis.set_xlim(low - 0.05 * (high - low), high + 0.22 * (high - low))
    axis.grid(axis="x", color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)
    for place, row in enumerate(panel.rows):
        text = f"1 = {row.floor_us:.1f} µs"
        axis.text(1, place, text, transform=axis.get_yaxis_transform(), fontsize=LITTLE, color=GREY, ha="right",
                  va="center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip


def _peers_axis(axis: Any) -> None:
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.set_xlim(min(0.9, low), max(high, 2.2))
    low, high = axis.get_xlim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axis.set_xticks(ticks, [f"{tick}x" for tick in ticks])
    axis.minorticks_off()
    axis.set_yticks([])
    axis.grid(axis="x", color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)


def _legend(figure: Any, styles: Mapping[str, Mapping[str, Any]], title: str, place: str) -> None:
    if not styles:
        return
    from matplotlib.lines import Line2D  # noqa: PLC0415  # of an extra

    handles = [Line2D([], [], linestyle="none", label=name, **style) for name, style in styles.items()]
    figure.legend(handles=handles, title=title, loc=place, ncols=4, fontsize=LITTLE, title_fontsize=LITTLE,
                  frameon=False, alignment="left", columnspacing=1.2, handletextpad=0.1)  # fmt: skip
