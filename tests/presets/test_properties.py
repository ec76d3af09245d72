"""What follows from a declared order: compared with facts read in the providers' kernels, and with plain counting."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerics.presets import properties
from numerics.presets.file import load
from numerics.presets.order import Order, same_tree, tree
from numerics.presets.schema import Reduction

REDUCTIONS = load().reductions
WIDE = (3072, 3840, 5120, 5376, 6144)

# Trees at width 128, as numerics facts name them: each line is one tree, and no two lines are the same.
TREES_AT_128 = [
    {"vllm_cuda", "vllm_cuda_128", "vllm_cuda_batch_invariant", "flashinfer"},
    {"aten_mean", "aten_rms_norm", "sglang_qk_norm"},
    {"flashinfer_cuda", "quack"},
    {"aten_mean_2_9", "apex"},
    {"aten_mean_2_8"},
    {"vllm_cuda_0_11"},
]


def reduction(**fields: Any) -> Reduction:
    return Reduction.model_validate(
        {"vector": 4, "threads": "row/vector", "lanes": "adjacent", "mean": "divide", **fields}
    )


# --- Rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDE)
def test_vllm_wide_rows_change_at_256_rows(width: int) -> None:
    assert properties.row_changes(REDUCTIONS["vllm_cuda"], width) == (256,)


@pytest.mark.parametrize("width", [64, 96, 128, 256])
def test_vllm_narrow_rows_never_change(width: int) -> None:
    assert properties.row_changes(REDUCTIONS["vllm_cuda"], width) == ()


@pytest.mark.parametrize(
    ("width", "changes"), [(64, ()), (96, (16,)), (128, ()), (256, (16,)), (3072, (2, 4, 8, 16)), (5376, (2, 4, 8, 16))]
)
def test_aten_mean_changes_below_16_rows_where_the_tree_does(width: int, changes: tuple[int, ...]) -> None:
    """At 64 another number of threads carries out the same tree; at 128 the number stays."""
    assert properties.row_changes(REDUCTIONS["aten_mean"], width) == changes


@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("vllm_cuda", False),
        ("vllm_cuda_128", True),
        ("vllm_cuda_batch_invariant", True),
        ("aten_mean", False),
        ("aten_rms_norm", True),
        ("flashinfer", True),
    ],
)
def test_batch_invariance_of_known_providers(name: str, invariant: bool) -> None:
    assert properties.is_batch_invariant(REDUCTIONS[name]) is invariant


CAPS = st.lists(st.sampled_from([1, 2, 3, 4, 5, 8]), min_size=1, max_size=4)


@st.composite
def reductions(draw: st.DrawFn) -> Reduction:
    caps = draw(CAPS)
    starts = sorted({1, *draw(st.sets(st.integers(2, 12), min_size=len(caps) - 1, max_size=len(caps) - 1))})
    inner = draw(st.sampled_from(["fold", "pairs"]))
    return reduction(
        vector=draw(st.sampled_from([2, 4])),
        max_threads=list(zip(starts, caps, strict=False)),
        inner=inner,
        slots=1 if inner == "pairs" else draw(st.sampled_from([1, 2, 4])),
        lanes=draw(st.sampled_from(["adjacent", "halves"])),
        rows=draw(st.sampled_from([None, 3, [2, 7], [5, 40]])),
    )


@given(reductions(), st.sampled_from([4, 8, 12, 24, 40]))
def test_regimes_are_what_each_number_of_rows_computes(declared: Reduction, width: int) -> None:
    found = properties.regimes(declared, width)
    first, last = properties.row_span(declared)
    for rows in range(int(first), int(min(last, 20)) + 1):
        start, order = properties.rows_from(declared, width, rows)
        assert start <= rows
        assert same_tree(order, declared.order(width, rows))
    for (_, before), (start, after) in pairwise(found):
        assert not same_tree(before, after)
        assert first < start <= last


def test_rows_outside_of_the_declaration_are_refused() -> None:
    with pytest.raises(ValueError, match="declared for 16 to 40 rows, not 3"):
        properties.rows_from(reduction(rows=[16, 40]), 64, 3)


def test_width_outside_of_the_declaration_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of 128 elements, not 64"):
        properties.regimes(REDUCTIONS["vllm_cuda_128"], 64)


# --- Widths -----------------------------------------------------------------------------------------------------------


def test_widths_are_the_notable_ones_where_the_declarationholds() -> None:
    assert properties.widths(REDUCTIONS["vllm_cuda"]) == properties.NOTABLE_WIDTHS
    assert properties.widths(REDUCTIONS["sglang_qk_norm"]) == (64, 128, 256)


@pytest.mark.parametrize(("span", "widths"), [(40, (40,)), ([8, 24], (8,)), ([7, 24], (8,)), ([5, 7], ())])
def test_a_declaration_without_a_notable_width_is_looked_at_where_it_begins(
    span: int | list[int], widths: tuple[int, ...]
) -> None:
    assert properties.widths(reduction(width=span)) == widths


# --- Equal orders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", TREES_AT_128, ids=min)
def test_trees_at_128_are_those_of_the_providers(names: set[str]) -> None:
    known = set().union(*TREES_AT_128)
    for name in names:
        found = properties.equals(REDUCTIONS[name].order(128, 1000), REDUCTIONS, 1000)
        assert known.intersection(found) == names


def test_one_tree_with_another_mean_is_another_order_unless_the_width_is_a_power_of_two() -> None:
    divide, multiply = reduction(mean="divide"), reduction(mean="multiply")
    assert properties.same_bytes(divide.order(64, 1), multiply.order(64, 1))
    assert not properties.same_bytes(divide.order(96, 1), multiply.order(96, 1))
    assert properties.equal_widths(divide, multiply) == (64, 128, 256)


def test_orders_of_two_widths_are_never_equal() -> None:
    assert not properties.same_bytes(reduction().order(64, 1), reduction().order(128, 1))


def test_orders_equal_for_some_rows_alone_are_not_equal_at_that_width() -> None:
    vllm, locked = REDUCTIONS["vllm_cuda"], REDUCTIONS["vllm_cuda_batch_invariant"]
    assert properties.same_bytes(vllm.order(5376, 255), locked.order(5376, 255))
    assert properties.equal_widths(vllm, locked) == (64, 96, 128, 256)


def test_reductions_for_other_rows_are_not_equal_at_any_width() -> None:
    assert properties.equal_widths(reduction(), reduction(rows=[16, 40])) == ()


def test_a_reduction_that_does_not_hold_there_is_no_equal() -> None:
    assert "vllm_cuda_128" not in properties.equals(REDUCTIONS["vllm_cuda"].order(64, 1), REDUCTIONS, 1)


# --- Pieces -----------------------------------------------------------------------------------------------------------

Tree = int | tuple["Tree", "Tree"]


def leaf(element: int) -> Tree:
    return element


def pair(a: Tree, b: Tree) -> Tree:
    return a, b


def leaves(node: Tree) -> Iterator[int]:
    if isinstance(node, int):
        yield node
    else:
        yield from leaves(node[0])
        yield from leaves(node[1])


def is_cut(node: Tree, pieces: int) -> bool:
    """Whether the tree adds `pieces` equal contiguous spans pairwise, each summed apart."""
    span = sorted(leaves(node))
    if span != list(range(span[0], span[-1] + 1)):
        return False
    if pieces == 1:
        return True
    return (
        not isinstance(node, int)
        and len(list(leaves(node[0]))) * 2 == len(span)
        and all(is_cut(side, pieces // 2) for side in node)
    )


ORDERS = [
    *(
        REDUCTIONS[name].order(width, 1000)
        for name in REDUCTIONS
        for width in (64, 96, 128, 256)
        if properties.holds(REDUCTIONS[name], width)
    ),
    *(
        replace(Order(width=32, vector=2, threads=16, lanes=lanes), inner=inner)
        for lanes in ("adjacent", "halves")
        for inner in ("fold", "pairs")
    ),
]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_pieces_are_those_into_which_the_tree_falls(order: Order) -> None:
    whole = tree(order, leaf=leaf, add=pair)
    cut = [pieces for pieces in (2, 4, 8, 16, 32, 64, 128, 256) if is_cut(whole, pieces)]
    assert list(properties.pieces(order)) == cut


def test_vllm_rows_of_128_fall_into_pieces_and_atens_do_not() -> None:
    assert properties.pieces(REDUCTIONS["vllm_cuda_128"].order(128, 1)) == (2, 4, 8, 16)
    assert properties.pieces(REDUCTIONS["aten_rms_norm"].order(128, 1)) == ()
