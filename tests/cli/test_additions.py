"""The additions as text: the program that is printed, run, is the declared tree."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerics.cli.additions import Sum, brief, drawing, program, steps
from numerics.presets.file import load
from numerics.presets.order import Order, tree

REDUCTIONS = load().reductions


@dataclass(frozen=True)
class Term:
    """A square, or a sum of two terms: which is added to which is all that it knows."""

    text: str

    def __add__(self, other: "Term") -> "Term":
        return Term(f"({self.text}+{other.text})")


def run(order: Order) -> Term:
    """What the printed program adds, the mean left out."""
    names = {f"s{i}": Term(str(i)) for i in range(order.width)}
    *additions, mean = program(order)
    exec("\n".join(additions), {}, names)
    assert mean.startswith("mean = sum ")
    return names["sum"]


def declared(order: Order) -> Term:
    return tree(order, leaf=lambda i: Term(str(i)), add=Term.__add__)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    vector = draw(st.sampled_from([1, 2, 4, 6, 8]))
    inner = "fold" if vector == 1 else draw(st.sampled_from(["fold", "pairs"]))
    return Order(
        width=vector * draw(st.integers(1, 150)),
        vector=vector,
        threads=draw(st.integers(1, 100)),
        slots=1 if inner == "pairs" else draw(st.sampled_from([1, 2, 4])),
        inner=inner,  # type: ignore[arg-type]  # drawn from its literals
        lanes=draw(st.sampled_from(["adjacent", "halves"])),
        warps=draw(st.sampled_from(["fold", "adjacent", "halves"])),
        first=draw(st.sampled_from(["lanes", "warps"])),
    )


@given(orders())
def test_the_program_adds_in_the_declared_order(order: Order) -> None:
    assert run(order) == declared(order)


@pytest.mark.parametrize("width", [96, 128, 5376])
@pytest.mark.parametrize("name", ["vllm_cuda", "aten_mean", "aten_rms_norm", "vllm_cuda_add"])
def test_the_program_of_a_provider_is_its_order(name: str, width: int) -> None:
    for rows in (1, 1000):
        order = REDUCTIONS[name].order(width, rows)
        assert run(order) == declared(order)


def test_sums_read_from_left_to_right_as_python_does() -> None:
    order = REDUCTIONS["vllm_cuda_128"].order(128, 1)
    assert program(order)[0] == "t0 = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7"
    assert program(order)[-1] == "mean = sum / 128"
    assert program(order)[-2].startswith("sum = t0 + t1 + (t2 + t3) + (t4 + t5 + (t6 + t7)) + (t8 ")


def test_pairs_stand_in_parentheses() -> None:
    order = Order(width=8, vector=8, threads=1, inner="pairs")
    assert program(order)[0] == "t0 = s0 + s1 + (s2 + s3) + (s4 + s5) + (s6 + s7)"


def test_accumulators_are_seen_in_the_sum_of_a_thread() -> None:
    order = Order(width=8, vector=8, threads=1, slots=4)
    assert program(order)[0] == "t0 = s0 + s4 + (s1 + s5) + (s2 + s6) + (s3 + s7)"


def test_a_reciprocal_mean_says_that_the_reciprocal_is_rounded() -> None:
    assert program(Order(width=96, vector=8, threads=4, mean="multiply"))[-1] == "mean = sum * float32(1 / 96)"


def test_steps_follow_the_order_in_which_levels_combine() -> None:
    lanes_first = Order(width=512, vector=8, threads=64, first="lanes")
    warps_first = Order(width=512, vector=8, threads=64, first="warps")
    assert [step.title for step in steps(lanes_first)] == ["Threads", "Lanes", "Warps"]
    assert [step.title for step in steps(warps_first)] == ["Threads", "Warps", "Lanes"]


def test_a_single_warp_has_no_step_of_its_own() -> None:
    assert [step.title for step in steps(Order(width=64, vector=8, threads=8))] == ["Threads", "Lanes"]


def test_neighbours_are_drawn_next_to_each_other() -> None:
    total = dict(steps(Order(width=8, vector=2, threads=4))[-1].sums)["sum"]
    assert drawing(total) == [
        "t0 ─┐",
        "t1 ─┴─┐",
        "t2 ─┐ │",
        "t3 ─┴─┴",
    ]


def test_halves_are_drawn_so_that_no_two_lines_cross() -> None:
    total = dict(steps(Order(width=8, vector=2, threads=4, lanes="halves"))[-1].sums)["sum"]
    assert drawing(total) == [
        "t0 ─┐",
        "t2 ─┴─┐",
        "t1 ─┐ │",
        "t3 ─┴─┴",
    ]


def test_a_missing_lane_leaves_its_partner_waiting() -> None:
    total = dict(steps(Order(width=6, vector=2, threads=3))[-1].sums)["sum"]
    assert drawing(total) == ["t0 ─┐", "t1 ─┴─┐", "t2 ───┴"]


def test_a_taller_right_side_joins_beyond_itself() -> None:
    total = Sum("t0") + (Sum("t1") + Sum("t2"))
    assert drawing(total) == ["t0 ───┐", "t1 ─┐ │", "t2 ─┴─┴"]


def test_long_sums_and_many_of_them_show_their_ends() -> None:
    long = Sum("s0")
    for i in range(1, 40):
        long += Sum(f"s{i}")
    shown = brief([(f"t{i}", long) for i in range(9)])
    assert shown == [f"t{i} = s0 + s1 + s2 + s3 + ... + s38 + s39" if i != "..." else "..." for i in (0, 1, "...", 8)]
