"""A declared reduction made concrete for one row: which elements are added, in which order, and how the sum scales.

The additions are written once, in `tree`, over any pair of leaf and add; `explain` reads it as text, the comparison of
two orders as interned node numbers, and the tests evaluate it in float32 against the tensor form in `numerics.ops`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Node = TypeVar("Node")

Inner = Literal["fold", "pairs"]
Lanes = Literal["adjacent", "halves"]
Warps = Literal["fold", "adjacent", "halves"]
First = Literal["lanes", "warps"]
Mean = Literal["divide", "multiply", "power_of_two"]
Square = Literal["fma", "product"]

WARP = 32


@dataclass(frozen=True, slots=True)
class Order:
    """The order of additions of one row of `width` squares.

    Thread t owns the vectors t, t + threads, ... of `vector` contiguous elements. See `presets.toml` for the fields.
    """

    width: int
    vector: int
    threads: int
    slots: int = 1
    inner: Inner = "fold"
    lanes: Lanes = "adjacent"
    warps: Warps = "fold"
    first: First = "lanes"
    mean: Mean = "divide"
    square: Square = "product"

    @property
    def vectors(self) -> int:
        """Vectors in the row."""
        return self.width // self.vector

    @property
    def passes(self) -> int:
        """Vectors that the busiest thread owns."""
        return -(-self.vectors // self.threads)

    def columns(self, thread: int) -> list[list[int]]:
        """The elements of one thread: a list of columns for each of its vectors, in address order."""
        return [list(range(v * self.vector, (v + 1) * self.vector)) for v in range(thread, self.vectors, self.threads)]


def fold(nodes: Sequence[Node | None], add: Callable[[Node, Node], Node]) -> Node | None:
    """Left to right; None is the zero of a missing lane, thread or slot."""
    total: Node | None = None
    for node in nodes:
        total = _add(total, node, add)
    return total


def adjacent(nodes: Sequence[Node | None], add: Callable[[Node, Node], Node]) -> Node | None:
    """Neighbours first: distance 1, 2, 4, ..."""
    nodes = _padded(nodes)
    while len(nodes) > 1:
        nodes = [_add(nodes[i], nodes[i + 1], add) for i in range(0, len(nodes), 2)]
    return nodes[0]


def halves(nodes: Sequence[Node | None], add: Callable[[Node, Node], Node]) -> Node | None:
    """Largest distance first: n/2, n/4, ..., 1."""
    nodes = _padded(nodes)
    while len(nodes) > 1:
        half = len(nodes) // 2
        nodes = [_add(nodes[i], nodes[i + half], add) for i in range(half)]
    return nodes[0]


COMBINE: dict[str, Callable[..., object]] = {"fold": fold, "adjacent": adjacent, "halves": halves}


def tree(order: Order, leaf: Callable[[int], Node], add: Callable[[Node, Node], Node]) -> Node:
    """Adds the leaves of one row in the declared order. `leaf(i)` is the square of element i."""
    threads = [_thread(order, t, leaf, add) for t in range(order.threads)]
    lines = [threads[w : w + WARP] for w in range(0, len(threads), WARP)]
    lines = [line + [None] * (WARP - len(line)) for line in lines]
    lanes: Callable[..., Node | None] = COMBINE[order.lanes]  # type: ignore[assignment]  # one table, three combiners
    warps: Callable[..., Node | None] = COMBINE[order.warps]  # type: ignore[assignment]
    if order.first == "lanes":
        total = warps([lanes(line, add) for line in lines], add)
    else:
        total = lanes([warps(list(column), add) for column in zip(*lines, strict=True)], add)
    assert total is not None  # a row has at least one element
    return total


def _thread(order: Order, thread: int, leaf: Callable[[int], Node], add: Callable[[Node, Node], Node]) -> Node | None:
    vectors = order.columns(thread)
    if order.inner == "pairs":
        pairs = [_neighbours(vector, leaf, add) for vector in vectors]
        return fold([fold(sums, add) for sums in pairs], add)
    elements = [leaf(column) for vector in vectors for column in vector]
    return fold([fold(elements[slot :: order.slots], add) for slot in range(order.slots)], add)


def _neighbours(columns: list[int], leaf: Callable[[int], Node], add: Callable[[Node, Node], Node]) -> list[Node]:
    return [add(leaf(a), leaf(b)) for a, b in zip(columns[::2], columns[1::2], strict=True)]


def _add(a: Node | None, b: Node | None, add: Callable[[Node, Node], Node]) -> Node | None:
    if a is None or b is None:
        return b if a is None else a  # squares are never -0.0, so adding the zero of a missing lane changes nothing
    return add(a, b)


def _padded(nodes: Sequence[Node | None]) -> list[Node | None]:
    size = 1 << (len(nodes) - 1).bit_length()
    return list(nodes) + [None] * (size - len(nodes))


@dataclass(slots=True)
class Interner:
    """Numbers trees so that equal trees get equal numbers. Addition commutes, so the two sides of a node are sorted."""

    numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def number(self, order: Order) -> int:
        """The number of the tree of one row."""
        return tree(order, leaf=lambda i: -1 - i, add=self._node)

    def _node(self, a: int, b: int) -> int:
        return self.numbers.setdefault((a, b) if a <= b else (b, a), len(self.numbers))


def same_tree(*orders: Order) -> bool:
    """Whether the orders add the same elements in the same order, at one width."""
    interner = Interner()
    return len({interner.number(order) for order in orders}) == 1


def shards(order: Order) -> list[int]:
    """Into how many equal contiguous pieces a row can be cut, summed apart and added in pairs, with the same bits."""

    @dataclass(frozen=True, order=True, slots=True)
    class Span:
        start: int
        end: int
        elements: int
        pieces: int  # the most pieces in which this span is a balanced tree of equal contiguous spans

        @property
        def whole(self) -> bool:
            return self.elements == self.end - self.start

    def add(a: Span, b: Span) -> Span:
        a, b = sorted((a, b))
        equal = a.whole and b.whole and a.end == b.start and a.elements == b.elements
        pieces = 2 * min(a.pieces, b.pieces) if equal else 1
        return Span(a.start, max(a.end, b.end), a.elements + b.elements, pieces)

    pieces = tree(order, leaf=lambda i: Span(i, i + 1, 1, 1), add=add).pieces
    return [1 << k for k in range(1, pieces.bit_length())]
