"""Charts as inline SVG that fits any width: bars beside a line at 1.0, and lines over steps, infinity included.

Widths are shares of the figure and letters are not, so a chart is as legible on a telephone as on a wall. Each has a
title and a description, and the table below it holds its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from numerics.cli.report_html import Markup, element, joined, number

BAR, GAP, HEAD, AXIS = 18, 4, 26, 30  # heights in pixels
FULLEST: Final = 0.84  # share of the width that the longest bar takes; the numbers stand beyond
TICKS: Final = 6  # at most
PLOT_HEIGHT, BAND, FOOT = 240, 34, 40  # of a line chart: the plot, the band of infinity above it, the axis below
LEFT, RIGHT = 11.0, 97.0  # per cent of the width between which lines run
MARKS: Final = ("●", "■", "▲", "◆", "▼", "✚")  # beside dashes and colours, none of which is needed to tell lines apart
WIDE: Final = 1000  # units of a plot across


@dataclass(frozen=True)
class Bar:
    """One value. open: its bits are left open, and it is hatched."""

    label: str
    value: float
    open: bool = False


@dataclass(frozen=True)
class Bars:
    """The bars of one case."""

    title: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Line:
    """One preset over steps."""

    label: str
    points: Sequence[tuple[int, float]]


def bar_chart(name: str, title: str, description: str, groups: Sequence[Bars], line: str) -> Markup:
    """Bars from 0, and a line at 1.0. name: an id. line: what 1.0 is."""
    longest = max(1.0, *(bar.value for group in groups for bar in group.bars))
    most = longest / FULLEST
    height = AXIS + sum(HEAD + len(group.bars) * (BAR + GAP) for group in groups) + 8
    parts = [_hatch(name), *_bar_axis(most, longest, height)]
    top = AXIS
    for group in groups:
        parts.append(element("text", group.title, x=0, y=top + HEAD - 9, class_="case"))
        top += HEAD
        for bar in group.bars:
            parts += _bar(name, bar, top, most)
            top += BAR + GAP
    x = _share(1.0, most)
    parts.append(element("line", x1=x, x2=x, y1=AXIS - 6, y2=height, class_="one"))
    parts.append(element("text", f"1.0 {line}", x=x, y=AXIS - 12, class_="one", text_anchor="middle"))
    return _figure(name, title, description, height, parts)


def _bar(name: str, bar: Bar, top: float, most: float) -> Iterator[Markup]:
    kind = "bar open" if bar.open else "bar"
    fill = f"url(#{name}-hatch)" if bar.open else None
    yield element("rect", x=0, y=top, width=_share(bar.value, most), height=BAR, class_=kind, fill=fill)
    end = _share(bar.value, most)
    yield element("line", x1=end, x2=end, y1=top, y2=top + BAR, class_="end")
    yield element("text", bar.label, x=7, y=top + BAR - 5, class_="over")
    yield element("text", number(bar.value, 3), x="100%", y=top + BAR - 5, class_="value", text_anchor="end")


def _bar_axis(most: float, longest: float, height: float) -> Iterator[Markup]:
    for at in ticks(0, longest) if longest > 3 else (0, 0.5, 1.5, 2, 2.5):
        # The line at 1.0 is drawn last, above the bars, and its words take some room.
        if at <= longest and abs(at - 1) > longest / 4:
            x = _share(at, most)
            yield element("line", x1=x, x2=x, y1=AXIS - 6, y2=height, class_="grid")
            yield element("text", f"{at:g}", x=x, y=AXIS - 12, class_="tick", text_anchor="middle" if at else "start")


def line_chart(name: str, title: str, description: str, lines: Sequence[Line], unit: str) -> Markup:
    """Lines over steps, from the smallest to the largest finite value, with a band above them for infinity."""
    finite = [value for line in lines for _, value in line.points if math.isfinite(value)]
    steps = [step for line in lines for step, _ in line.points]
    first, last = min(steps), max(steps)
    marks = ticks(min(finite), max(finite)) if finite else []
    low, high = (min([*marks, *finite]), max([*marks, *finite])) if finite else (0.0, 1.0)
    scale = _Scale(first, max(last, first + 1), low, high, len(lines))
    bottom = BAND + PLOT_HEIGHT
    parts = [element("rect", x=f"{LEFT}%", y=8, width=f"{RIGHT - LEFT}%", height=BAND - 16, class_="infinite")]
    parts.append(element("text", "∞", x=f"{LEFT - 1}%", y=BAND / 2 + 5, class_="tick", text_anchor="end"))
    for at in marks:
        y = scale.y(at)
        parts.append(element("line", x1=f"{LEFT}%", x2=f"{RIGHT}%", y1=y, y2=y, class_="grid"))
        parts.append(element("text", f"{at:g}", x=f"{LEFT - 1}%", y=y + 4, class_="tick", text_anchor="end"))
    for step in dict.fromkeys((first, *(int(each) for each in ticks(first, last) if each > first), last)):
        x = scale.x(step)
        parts.append(element("line", x1=x, x2=x, y1=bottom, y2=bottom + 5, class_="axis"))
        if step == last or (last - step) * 12 > last - first:
            parts.append(element("text", str(step), x=x, y=bottom + 18, class_="tick", text_anchor="middle"))
    parts.append(element("line", x1=f"{LEFT}%", x2=f"{RIGHT}%", y1=bottom, y2=bottom, class_="axis"))
    parts.append(
        element("text", "step", x=f"{(LEFT + RIGHT) / 2}%", y=bottom + 34, class_="tick", text_anchor="middle")
    )
    parts.append(element("text", unit, x=0, y=BAND + 4, class_="tick"))
    for index, line in enumerate(lines):
        parts += _line(line, index, scale)
    keys = [_key(line, index) for index, line in enumerate(lines)]
    return _figure(name, title, description, bottom + FOOT, parts, element("ul", *keys, class_="key"))


@dataclass(frozen=True)
class _Scale:
    first: int
    last: int
    low: float
    high: float
    lines: int

    def across(self, step: int) -> float:
        """0 to 1."""
        return (step - self.first) / (self.last - self.first)

    def x(self, step: int) -> str:
        """A share of the figure's width."""
        return f"{LEFT + (RIGHT - LEFT) * self.across(step):.2f}%"

    def y(self, value: float, index: int = 0) -> float:
        """Pixels from the top. In the band of infinity lines lie below each other."""
        if value == math.inf:
            return 8 + (BAND - 16) * (index + 1) / (self.lines + 1)
        return BAND + PLOT_HEIGHT * ((self.high - value) / (self.high - self.low) if self.high > self.low else 0.5)


def _line(line: Line, index: int, scale: _Scale) -> Iterator[Markup]:
    """Runs of finite and of infinite values, and a mark now and then. What is no number is not drawn."""
    drawn = [(step, value) for step, value in line.points if not math.isnan(value) and value != -math.inf]
    kind = f"c{index % len(MARKS)}"
    runs = []
    for _, run in groupby(drawn, lambda point: point[1] == math.inf):
        points = [f"{WIDE * scale.across(step):.1f},{scale.y(value, index):.1f}" for step, value in run]
        runs.append(element("polyline", points=" ".join(points), class_=f"line {kind}"))
    # The plot is stretched to the width that there is, its strokes are not.
    box = {"viewBox": f"0 0 {WIDE} {BAND + PLOT_HEIGHT}", "preserveAspectRatio": "none", "overflow": "visible"}
    yield element("svg", *runs, x=f"{LEFT}%", y=0, width=f"{RIGHT - LEFT}%", height=BAND + PLOT_HEIGHT, **box)
    every = max(1, len(drawn) // 8)
    for step, value in drawn[index * every // 3 :: every]:  # where lines lie on each other, marks take turns
        y = f"{scale.y(value, index) + 4:.1f}"
        yield element(
            "text", MARKS[index % len(MARKS)], x=scale.x(step), y=y, class_=f"mark {kind}", text_anchor="middle"
        )


def _key(line: Line, index: int) -> Markup:
    mark = element("span", MARKS[index % len(MARKS)], class_=f"c{index % len(MARKS)}", aria_hidden="true")
    infinite = sum(value == math.inf for _, value in line.points)
    note = "" if not infinite else " (∞ in every step)" if infinite == len(line.points) else f" (∞ in {infinite} steps)"
    return element("li", mark, " ", element("code", line.label), note)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers, at most TICKS of them, from the last at or below low to the first at or above high."""
    span = high - low or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(size * each for each in (1, 2, 2.5, 5, 10, 20) if span / (size * each) <= TICKS - 1)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(step * each, 12) for each in range(first, last + 1)]


def _share(value: float, most: float) -> str:
    return f"{100 * value / most:.3f}%"


def _hatch(name: str) -> Markup:
    stripe = element("line", x1=0, x2=0, y1=0, y2=6, class_="stripe")
    size: dict[str, str | float] = {
        "width": 6,
        "height": 6,
        "patternUnits": "userSpaceOnUse",
        "patternTransform": "rotate(45)",
    }
    return element("defs", element("pattern", stripe, id=f"{name}-hatch", **size))


def _figure(
    name: str, title: str, description: str, height: float, parts: Sequence[Markup], below: Markup | None = None
) -> Markup:
    words = element("title", title, id=f"{name}-title"), element("desc", description, id=f"{name}-desc")
    labelled = f"{name}-title {name}-desc"
    drawn = element("svg", *words, *parts, role="img", aria_labelledby=labelled, width="100%", height=f"{height:g}")
    return element("figure", element("figcaption", title), drawn, below or joined(), id=name)
