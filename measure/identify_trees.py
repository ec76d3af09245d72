"""A tree of additions as data: where it comes from an order, how it is evaluated, compared, drawn and declared."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Final

from torch import Tensor

from numerics.presets.order import WARP, First, Lanes, Order, Warps, fold
from numerics.presets.order import tree as add_in_order

MOST_THREADS: Final = 1024
REDUCTION_FIELDS: Final = ("vector", "threads", "slots", "inner", "lanes", "warps", "first")
PLAIN: Final = {"slots": 1, "inner": "fold", "warps": "fold", "first": "lanes"}


@dataclass(frozen=True)
class Tree:
    """The additions of one row: sum k is made of `sums[k]`, where a number below `width` is an element."""

    width: int
    sums: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, order: Order) -> "Tree":
        """The tree of a declared order."""
        sums: list[tuple[int, int]] = []

        def add(a: int, b: int) -> int:
            sums.append((a, b))
            return order.width + len(sums) - 1

        add_in_order(order, leaf=lambda i: i, add=add)
        return cls(order.width, tuple(sums))

    @cached_property
    def key(self) -> int:
        """Equal for equal trees, whichever side of an addition comes first and in which sequence sums are listed."""
        return self.keys[-1]

    @cached_property
    def keys(self) -> tuple[int, ...]:
        """Of every element and every sum."""
        keys = [_leaf_key(i) for i in range(self.width)]
        for a, b in self.sums:
            keys.append(_sum_key(keys[a], keys[b]))
        return tuple(keys)

    def add_squares(self, x: Tensor) -> Tensor:
        """[rows, N] float32 -> [rows], each square rounded to float32 and each addition as the tree has it."""
        parts = list((x * x).unbind(-1))
        for a, b in self.sums:
            parts.append(parts[a] + parts[b])
        return parts[-1]

    def __str__(self) -> str:
        """Parentheses: `((0+1)+(2+3))`."""
        texts = [str(i) for i in range(self.width)]
        for a, b in self.sums:
            texts.append(f"({texts[a]}+{texts[b]})")
        return texts[-1]


def _leaf_key(element: int) -> int:
    return hash(("element", element))


def _sum_key(a: int, b: int) -> int:
    return hash(("sum", min(a, b), max(a, b)))


def declared_as(tree: Tree, mean: str) -> dict[str, Any] | None:
    """The fields of a `[reductions.NAME]` that make this tree at its width; None where the fields cannot say it."""
    keys = frozenset(tree.keys)
    for order in _orders(tree.width, keys):
        if Tree.of(order).key == tree.key:
            fields = {name: getattr(order, name) for name in REDUCTION_FIELDS}
            fields = {name: value for name, value in fields.items() if PLAIN.get(name) != value}
            return {"width": tree.width, **fields, "mean": mean}
    return None


def _orders(width: int, keys: frozenset[int]) -> Iterator[Order]:
    """What the vocabulary can say at a width, with usual threads, whose first thread's sum is among the keys."""
    powers = [1 << k for k in range(MOST_THREADS.bit_length())]
    for vector in [v for v in range(1, width + 1) if width % v == 0 and (v & (v - 1) == 0 or v * WARP == width)]:
        for threads in sorted({t for t in (*powers, width // vector) if t <= min(width // vector, MOST_THREADS)}):
            plain = Order(width=width, vector=vector, threads=threads)
            insides = [replace(plain, slots=slots) for slots in (1, 2, 4)]
            if vector % 2 == 0:
                insides.append(replace(plain, inner="pairs"))
            for inside in insides:
                if _first_thread_key(inside) in keys:
                    yield from _across(inside)


def _first_thread_key(order: Order) -> int | None:
    """Of the sum that the first thread makes of its own elements."""
    vectors = [[_leaf_key(column) for column in vector] for vector in order.columns(0)]
    if order.inner == "pairs":
        pairs = [[_sum_key(a, b) for a, b in zip(vector[::2], vector[1::2], strict=True)] for vector in vectors]
        return fold([fold(sums, _sum_key) for sums in pairs], _sum_key)
    elements = [key for vector in vectors for key in vector]
    return fold([fold(elements[slot :: order.slots], _sum_key) for slot in range(order.slots)], _sum_key)


def _across(inside: Order) -> Iterator[Order]:
    """The ways from threads to the row; warps matter where there is more than one."""
    sequences: tuple[Lanes, Lanes] = ("adjacent", "halves")
    ways: tuple[Warps, ...] = ("fold", "adjacent", "halves") if inside.threads > WARP else ("fold",)
    firsts: tuple[First, ...] = ("lanes", "warps") if inside.threads > WARP else ("lanes",)
    for lanes, warps, first in product(sequences, ways, firsts):
        yield replace(inside, lanes=lanes, warps=warps, first=first)
