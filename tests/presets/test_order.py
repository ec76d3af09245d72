"""The additions of a row: each element once, which orders are one tree, and what else the tree implies."""

from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerics.presets.file import load
from numerics.presets.order import First, Inner, Interner, Lanes, Order, Warps, same_tree, shards, tree

REDUCTIONS = load().reductions


def columns(order: Order) -> list[int]:
    """Every element that the tree adds, as often as it does."""

    def leaf(column: int) -> list[int]:
        return [column]

    def add(a: list[int], b: list[int]) -> list[int]:
        return a + b

    added: list[int] = tree(order, leaf, add)
    return sorted(added)


# --- Every declaration ------------------------------------------------------------------------------------------------


def _holds(name: str, width: int) -> bool:
    try:
        REDUCTIONS[name].order(width, 256)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_declared_order_adds_each_element_once(name: str) -> None:
    widths = [width for width in (64, 96, 128, 256, 1024, 3072, 5376, 8192) if _holds(name, width)]
    assert widths
    for width in widths:
        order = REDUCTIONS[name].order(width, 256)
        assert columns(order) == list(range(width))


# --- Which orders are the same tree -----------------------------------------------------------------------------------

# Width 128. Triton's tiles are named by elements x threads of a row.
TREES = {
    "A": ["vllm_cuda", "vllm_cuda_128", "vllm_cuda_batch_invariant", "flashinfer"],
    "B": ["aten_mean", "aten_rms_norm", "sglang_qk_norm", "triton_128_4x32"],
    "C": ["flashinfer_cuda", "quack", "triton_128_8x16"],
    "D": ["aten_mean_2_9", "apex"],
    "E": ["aten_mean_2_8"],
    "F": ["vllm_cuda_0_11"],
    "add": ["vllm_cuda_add"],
}


@pytest.mark.parametrize("letter", TREES)
def test_orders_that_are_one_tree_at_128(letter: str) -> None:
    assert same_tree(*(REDUCTIONS[name].order(128, 256) for name in TREES[letter]))


@pytest.mark.parametrize(
    ("one", "other"), [(one, other) for one in TREES for other in TREES if one < other], ids=lambda name: name
)
def test_orders_that_are_different_trees_at_128(one: str, other: str) -> None:
    assert not same_tree(*(REDUCTIONS[TREES[letter][0]].order(128, 256) for letter in (one, other)))


@pytest.mark.parametrize("width", [64, 256, 3072])
def test_the_aten_orders_part_at_other_widths(width: int) -> None:
    assert not same_tree(*(REDUCTIONS[name].order(width, 256) for name in ("aten_mean", "aten_rms_norm")))


@pytest.mark.parametrize(("width", "same"), [(64, True), (96, True), (128, True), (256, True), (3072, False)])
def test_vllm_and_flashinfer_agree_on_heads_and_part_on_wide_rows(width: int, same: bool) -> None:
    assert same_tree(*(REDUCTIONS[name].order(width, 256) for name in ("vllm_cuda", "flashinfer"))) is same


@pytest.mark.parametrize("width", [64, 128, 256])
def test_sglang_adds_as_one_warp(width: int) -> None:
    lane = Order(width=width, vector=width // 32, threads=32, lanes="halves")
    assert same_tree(REDUCTIONS["sglang_qk_norm"].order(width, 1), lane)


@pytest.mark.parametrize("width", [128, 256, 3072, 5376, 6144])
def test_rows_change_vllm_s_order_from_256_on_in_wide_rows_only(width: int) -> None:
    few, many = (REDUCTIONS["vllm_cuda"].order(width, rows) for rows in (255, 256))
    assert same_tree(few, many) is (width <= 256)


@pytest.mark.parametrize(
    ("width", "changes"),
    [(64, []), (128, []), (96, [16]), (256, [16]), (5376, [2, 4, 8, 16])],
)
def test_rows_at_which_aten_s_mean_changes(width: int, changes: list[int]) -> None:
    aten = REDUCTIONS["aten_mean"]
    found = [b for a, b in pairwise((1, 2, 4, 8, 16, 256)) if not same_tree(aten.order(width, a), aten.order(width, b))]
    assert found == changes


# --- Properties -------------------------------------------------------------------------------------------------------


@st.composite
def orders(draw: st.DrawFn) -> Order:
    inner: Inner = draw(st.sampled_from(get_args(Inner)))
    vector = draw(st.sampled_from([2, 4, 6] if inner == "pairs" else [1, 2, 3, 4, 8]))
    return Order(
        width=vector * draw(st.integers(1, 40)),
        vector=vector,
        threads=draw(st.sampled_from([1, 2, 3, 16, 32, 33, 70, 128])),
        slots=1 if inner == "pairs" else draw(st.sampled_from([1, 2, 4])),
        inner=inner,
        lanes=draw(st.sampled_from(get_args(Lanes))),
        warps=draw(st.sampled_from(get_args(Warps))),
        first=draw(st.sampled_from(get_args(First))),
    )


Tree = int | frozenset["Tree"]


def shape(order: Order) -> Tree:
    """The tree itself; the two sides of a sum are interchangeable."""

    def leaf(column: int) -> Tree:
        return column

    def add(a: Tree, b: Tree) -> Tree:
        return frozenset((a, b))

    return tree(order, leaf, add)


@given(orders())
def test_any_order_adds_each_element_once(order: Order) -> None:
    assert columns(order) == list(range(order.width))


@given(orders(), orders())
def test_numbers_are_equal_where_the_trees_are(a: Order, b: Order) -> None:
    interner = Interner()
    assert (interner.number(a) == interner.number(b)) is (shape(a) == shape(b))
    assert same_tree(a, a)


@given(orders(), st.integers(1, 70))
def test_threads_without_a_vector_change_nothing(order: Order, idle: int) -> None:
    busy = replace(order, threads=max(order.threads, order.vectors))
    assert shape(replace(busy, threads=busy.threads + idle)) == shape(busy)


@pytest.mark.parametrize(
    ("name", "width", "pieces"),
    [
        ("vllm_cuda", 128, [2, 4, 8, 16]),
        ("flashinfer_qk_sm_100", 128, []),  # a thread's vectors lie apart
        ("flashinfer", 256, [2, 4, 8, 16, 32]),
        ("aten_mean", 128, []),
        ("quack", 128, []),
        ("vllm_cuda", 3072, []),
        ("triton_128_1x128", 128, []),
    ],
)
def test_pieces_of_a_row_that_may_be_summed_apart(name: str, width: int, pieces: list[int]) -> None:
    assert shards(REDUCTIONS[name].order(width, 1)) == pieces


@given(orders())
def test_a_row_in_pieces_has_the_same_tree_for_exactly_these_counts(order: Order) -> None:
    whole = shape(order)
    counts = [1 << k for k in range(1, 12) if order.width % (1 << k) == 0]
    possible = [count for count in counts if _in_pieces(order, count) == whole]
    assert [count for count in shards(order) if count <= order.width] == possible


def _in_pieces(order: Order, count: int) -> Tree:
    size = order.width // count
    parts: list[Tree] = [_within(shape(order), range(p * size, (p + 1) * size)) for p in range(count)]
    while len(parts) > 1:
        parts = [frozenset((parts[i], parts[i + 1])) for i in range(0, len(parts), 2)]
    return parts[0]


def _within(node: Tree, columns: range) -> Tree:
    """The part of a tree that adds these columns."""
    if isinstance(node, int):
        return node if node in columns else frozenset()
    parts = [part for part in (_within(child, columns) for child in node) if part != frozenset()]
    return parts[0] if len(parts) == 1 else frozenset(parts)
