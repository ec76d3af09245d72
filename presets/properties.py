"""What follows from a declared reduction: where rows change it, how a row may be cut, and which orders are equal."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from numerics.presets.order import Interner, Order
from numerics.presets.order import shards as _shards
from numerics.presets.schema import Reduction

NOTABLE_WIDTHS: Final = (64, 96, 128, 256, 3072, 3840, 5120, 5376, 6144)
"""Head dimensions and hidden sizes of the models in `presets.toml`: where properties are looked at."""

_TREES = Interner()  # so that the tree of a wide row, which takes milliseconds, is built once and compared often


@lru_cache(maxsize=1024)
def regimes(reduction: Reduction, width: int) -> tuple[tuple[int, Order], ...]:
    """The orders of a row of `width` elements, each with the number of rows from which it holds.

    Two neighbours differ in the tree of their additions, not only in the threads that carry it out. Raises ValueError,
    naming the condition, where the declaration does not hold at this width.
    """
    first, last = row_span(reduction)
    starts = [first, *(start for start in reduction.row_regimes if first < start <= last)]
    found: list[tuple[int, Order]] = []
    for rows in starts:
        order = reduction.order(width, rows)
        if not found or not _same_tree(found[-1][1], order):
            found.append((rows, order))
    return tuple(found)


def row_changes(reduction: Reduction, width: int) -> tuple[int, ...]:
    """The numbers of rows from which the additions of a row change; empty where a batch cannot change them."""
    return tuple(rows for rows, _ in regimes(reduction, width)[1:])


@lru_cache(maxsize=1024)
def widths(reduction: Reduction) -> tuple[int, ...]:
    """The widths at which properties are looked at: the notable ones where it holds, else the first of its own."""
    notable = tuple(width for width in NOTABLE_WIDTHS if holds(reduction, width))
    if notable or reduction.width is None:
        return notable
    first, last = (reduction.width, reduction.width) if isinstance(reduction.width, int) else reduction.width
    own = range(first, min(last, 2 * first) + 1)  # a power of two is among them
    return tuple(width for width in own if holds(reduction, width))[:1]


@lru_cache(maxsize=1024)
def is_batch_invariant(reduction: Reduction) -> bool:
    """Whether no number of rows changes the additions of a row, at any of `widths(reduction)`."""
    # Narrow rows first: one width that changes settles it, and the trees of wide rows take milliseconds.
    return not any(row_changes(reduction, width) for width in widths(reduction))


@lru_cache(maxsize=1024)
def pieces(order: Order) -> tuple[int, ...]:
    """Into how many equal contiguous pieces a row may be cut and summed apart; the sums are then added in pairs."""
    return tuple(_shards(order))


def rows_from(reduction: Reduction, width: int, rows: int | None = None) -> tuple[int, Order]:
    """The regime that `rows` rows fall into, or that of the most rows: where it starts, and its order.

    Raises ValueError, naming the condition, where the declaration does not hold there.
    """
    found = regimes(reduction, width)
    if rows is None:
        return found[-1]
    reduction.order(width, rows)  # refuses rows that are not declared
    return next((start, order) for start, order in reversed(found) if rows >= start or start == found[0][0])


def same_bytes(a: Order, b: Order) -> bool:
    """Whether two orders make the same mean of the same squares: the same tree, and the same scaling at this width."""
    return a.width == b.width and scaling(a) == scaling(b) and _same_tree(a, b)


def scaling(order: Order) -> str:
    """How the sum becomes a mean. By a power of two each way is exact, so that all are the same."""
    return "power_of_two" if order.width & (order.width - 1) == 0 else order.mean


def equals(order: Order, reductions: Mapping[str, Reduction], rows: int) -> list[str]:
    """The names of the declared reductions that make the same mean as `order`, at its width and this number of rows."""
    return [
        name
        for name, other in reductions.items()
        if holds(other, order.width, rows) and same_bytes(order, other.order(order.width, rows))
    ]


def equal_widths(a: Reduction, b: Reduction) -> tuple[int, ...]:
    """The widths, among those at which both are looked at, where two reductions make the same mean for any rows."""
    return tuple(width for width in widths(a) if width in widths(b) and _always_same(a, b, width))


def _always_same(a: Reduction, b: Reduction, width: int) -> bool:
    if row_span(a) != row_span(b):
        return False
    starts: Iterable[int] = sorted({start for r in (a, b) for start, _ in regimes(r, width)})
    return all(same_bytes(a.order(width, rows), b.order(width, rows)) for rows in starts)


def _same_tree(a: Order, b: Order) -> bool:
    return a == b or _number(a) == _number(b)


@lru_cache(maxsize=4096)
def _number(order: Order) -> int:
    return _TREES.number(order)


def row_span(reduction: Reduction) -> tuple[int, float]:
    """The numbers of rows for which a reduction is declared: 1 to infinity where it does not say."""
    if reduction.rows is None:
        return 1, float("inf")
    return (reduction.rows, reduction.rows) if isinstance(reduction.rows, int) else reduction.rows


def holds(reduction: Reduction, width: int, rows: int | None = None) -> bool:
    """Whether a reduction is declared for this width, and for this number of rows, or the fewest of its own."""
    try:
        reduction.order(width, row_span(reduction)[0] if rows is None else rows)
    except ValueError:
        return False
    return True
