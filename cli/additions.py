"""An order of additions as text that a person can follow: a Python program, and a drawing of how lanes combine.

Everything is read off `presets.order`, by adding names instead of numbers, so that the text cannot say anything else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from numerics.presets.order import COMBINE, WARP, Order, tree

LONGEST: Final = 16  # terms of a sum that are written out; of a longer one the ends are shown


@dataclass(frozen=True)
class Sum:
    """A value with a name, or a sum of two. Written as Python reads it: `a + b + c` from left to right."""

    name: str = ""
    left: "Sum | None" = None
    right: "Sum | None" = None

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(left=self, right=other)

    def terms(self) -> list[str]:
        """What stands between the pluses; a right side that is itself a sum is one term, in parentheses."""
        node, found = self, []
        while node.left is not None and node.right is not None:
            found.append(str(node.right) if node.right.left is None else f"({node.right})")
            node = node.left
        return [node.name, *reversed(found)]

    def __str__(self) -> str:
        return " + ".join(self.terms())

    @property
    def shortened(self) -> str:
        """The sum, or its ends."""
        terms = self.terms()
        return str(self) if len(terms) <= LONGEST else " + ".join([*terms[:4], "...", *terms[-2:]])


@dataclass(frozen=True)
class Step:
    """One level of the additions: what happens, in words, and the assignments `name = sum` that do it."""

    title: str
    words: str
    sums: tuple[tuple[str, Sum], ...]


def steps(order: Order) -> list[Step]:
    """From the elements of a row to its sum. Run one after the other the assignments are the declared additions."""
    threads = [(f"t{t}", thread_sum(order, t)) for t in range(min(order.threads, order.vectors))]
    found = [Step("Threads", _thread_words(order), tuple(threads))]
    names = [name for name, _ in threads]
    warps = [names[w : w + WARP] for w in range(0, len(names), WARP)]
    if len(warps) == 1:
        return [*found, Step("Lanes", _lane_words(order, len(names)), (("sum", _combine(order.lanes, names)),))]
    if order.first == "lanes":
        lanes = tuple((f"w{w}", _combine(order.lanes, line)) for w, line in enumerate(warps))
        total = (("sum", _combine(order.warps, [name for name, _ in lanes])),)
        words = f"{len(warps)} warps of {WARP} lanes; {_lane_words(order, WARP)}"
        return [*found, Step("Lanes", words, lanes), Step("Warps", _WARPS[order.warps], total)]
    columns = [[line[lane] for line in warps if lane < len(line)] for lane in range(WARP)]
    across = tuple((f"c{lane}", _combine(order.warps, column)) for lane, column in enumerate(columns))
    total = (("sum", _combine(order.lanes, [name for name, _ in across])),)
    words = f"{len(warps)} warps of {WARP} lanes; equal lanes of all warps first: {_WARPS[order.warps]}"
    return [*found, Step("Warps", words, across), Step("Lanes", _lane_words(order, WARP), total)]


def thread_sum(order: Order, thread: int) -> Sum:
    """What one thread adds before it meets the others."""
    elements = [column for vector in order.columns(thread) for column in vector]
    alone = replace(order, width=len(elements), threads=1)
    return tree(alone, leaf=lambda i: Sum(f"s{elements[i]}"), add=Sum.__add__)


def program(order: Order) -> list[str]:
    """The additions of one row as Python assignments, from s0, s1, ... (the squares) to `mean`."""
    sums = [f"{name} = {value}" for step in steps(order) for name, value in step.sums]
    return [*sums, f"mean = {MEAN[order.mean].format(width=order.width)}"]


def drawing(total: Sum) -> list[str]:
    """A sum as a tree, one name a line. Names stand so that no two lines cross, which need not be their order."""
    lines, _ = _draw(total, max(len(name) for name in _names(total)))
    return lines


def brief(sums: Sequence[tuple[str, Sum]]) -> list[str]:
    """The assignments; of many the first ones and the last."""
    if len(sums) > 4:
        return [*brief(sums[:2]), "...", *brief(sums[-1:])]
    return [f"{name} = {value.shortened}" for name, value in sums]


MEAN: Final = {
    "divide": "sum / {width}",
    "multiply": "sum * float32(1 / {width})",
    "power_of_two": "sum / {width}",
}
MEAN_WORDS: Final = {
    "divide": "correctly rounded division",
    "multiply": "multiplied by the reciprocal, which is rounded to float32 first",
    "power_of_two": "exact: the width is a power of two",
}
SQUARE_WORDS: Final = {
    "product": "s0 = x0 * x0, ... in float32 (exact for bfloat16 and float16)",
    "fma": "s0 = x0 * x0, ... exact for bfloat16 and float16; for float32 each square is fused into its addition",
}
_LANES: Final = {
    "adjacent": "neighbours first (distance 1, 2, 4, 8, 16)",
    "halves": "largest distance first (16, 8, 4, 2, 1)",
}
_WARPS: Final = {
    "fold": "left to right",
    "adjacent": "neighbours first",
    "halves": "largest distance first",
}


def _thread_words(order: Order) -> str:
    several = f"up to {order.passes} vectors of {order.vector}, {order.threads} vectors apart,"
    owns = f"1 vector of {order.vector}" if order.passes == 1 else several
    if order.inner == "pairs":
        inner = "neighbours first, then the pairs of a vector left to right, then its vectors"
    elif order.slots == 1:
        inner = "in address order, left to right, from 0.0"
    else:
        inner = f"element k into accumulator k mod {order.slots}, from 0.0, then the accumulators left to right"
    return f"{order.threads} threads, each owns {owns} and adds {inner}"


def _lane_words(order: Order, lanes: int) -> str:
    missing = f"; the other {WARP - lanes} lanes count as zeros" if lanes < WARP else ""
    return f"{lanes} lanes combine, {_LANES[order.lanes]}{missing}"


def _combine(how: str, names: Sequence[str]) -> Sum:
    combine: Callable[..., Sum] = COMBINE[how]  # type: ignore[assignment]  # one table, three combiners
    return combine([Sum(name) for name in names], Sum.__add__)


def _names(total: Sum) -> list[str]:
    if total.left is None or total.right is None:
        return [total.name]
    return _names(total.left) + _names(total.right)


def _draw(total: Sum, margin: int) -> tuple[list[str], int]:
    """The lines, and the height of the node, which is the column in which it joins."""
    if total.left is None or total.right is None:
        return [f"{total.name:<{margin}} "], 0
    above, left = _draw(total.left, margin)
    below, right = _draw(total.right, margin)
    height = max(left, right) + 1
    column = margin + 2 * height
    head, joint = above[:-1], above[-1]
    return (
        [
            *head,
            f"{joint:─<{column}}┐",
            *(f"{line:<{column}}│" for line in below[:-1]),
            f"{below[-1]:─<{column}}┴",
        ],
        height,
    )
