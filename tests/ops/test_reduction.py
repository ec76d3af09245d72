import operator
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from numerics.errors import RequirementError
from numerics.ops.reduction import order_of, row_mean, row_sum
from numerics.presets.order import Inner, Order, tree
from numerics.presets.schema import Numerics, Reduction

Builder = Callable[..., Numerics]
Nearest = Callable[[Fraction], float]
SameBits = Callable[[Tensor, Tensor], bool]

INNER: list[Inner] = ["fold", "pairs"]
FIXTURE = HealthCheck.function_scoped_fixture


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """Any order, with threads, vectors and warps that are no powers of two and passes that are not full."""
    inner: Inner = draw(st.sampled_from(INNER))
    vector = draw(st.integers(1, 9)) * (2 if inner == "pairs" else 1)
    return Order(
        width=vector * draw(st.integers(1, 90)),
        vector=vector,
        threads=draw(st.integers(1, 200)),
        slots=draw(st.sampled_from([1, 2, 4])) if inner == "fold" else 1,
        inner=inner,
        lanes=draw(st.sampled_from(["adjacent", "halves"])),
        warps=draw(st.sampled_from(["fold", "adjacent", "halves"])),
        first=draw(st.sampled_from(["lanes", "warps"])),
    )


def rows_of(order: Order, seed: int, rows: int = 2) -> Tensor:
    """Rows of very different magnitudes, so that another order gives another sum."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, order.width, generator=generator)
    return x * torch.randint(-6, 6, x.shape, generator=generator).float().exp2()


@settings(max_examples=150, suppress_health_check=[FIXTURE])
@given(order=orders(), seed=st.integers(0, 2**31))
def test_a_sum_adds_in_the_order_that_is_declared(order: Order, seed: int, same_bits: SameBits) -> None:
    x = rows_of(order, seed)
    # A sum of two float32 tensors of one row each is the definition of float32 addition.
    columns = (x * x).unbind(-1)
    assert same_bits(row_sum(x, order), tree(order, columns.__getitem__, operator.add))


@settings(max_examples=25, suppress_health_check=[FIXTURE])
@given(order=orders().filter(lambda order: order.inner == "fold"), seed=st.integers(0, 2**31))
def test_a_contracted_square_is_rounded_once_with_its_sum(
    order: Order, seed: int, nearest: Nearest, same_bits: SameBits
) -> None:
    x = rows_of(order, seed, rows=1)
    values = [Fraction(value) for value in x[0].tolist()]
    threads = []
    for thread in range(order.threads):
        columns = [column for vector in order.columns(thread) for column in vector]
        slots = [0.0] * order.slots
        for position, column in enumerate(columns):
            slot = position % order.slots
            slots[slot] = nearest(values[column] ** 2 + Fraction(slots[slot]))
        total = torch.tensor(slots[0])
        for slot_sum in slots[1:]:
            total = total + slot_sum
        threads.append(total)
    across = replace(order, width=order.threads, vector=1, slots=1)
    expected = tree(across, threads.__getitem__, operator.add)
    assert same_bits(row_sum(x, replace(order, square="fma")), expected.reshape(1))


def test_contraction_changes_sums_of_float32_and_not_of_16_bit_values() -> None:
    order = Order(width=128, vector=8, threads=16)
    fused = replace(order, square="fma")
    x = rows_of(order, seed=1, rows=500)
    assert not torch.equal(row_sum(x, order), row_sum(x, fused))
    x = x.bfloat16().float()
    assert torch.equal(row_sum(x, order), row_sum(x, fused))


@settings(max_examples=50)
@given(order=orders(), seed=st.integers(0, 2**31))
def test_a_row_does_not_depend_on_the_others(order: Order, seed: int) -> None:
    x = rows_of(order, seed, rows=5)
    together = row_sum(x, order)
    assert all(torch.equal(together[i], row_sum(x[i], order)) for i in range(5))


def test_strides_do_not_change_a_sum(same_bits: SameBits) -> None:
    order = Order(width=96, vector=8, threads=12)
    x = torch.randn(4, 3, 96, generator=torch.Generator().manual_seed(0))
    expected = row_sum(x, order)
    columns = torch.empty(96, 3, 4).permute(2, 1, 0).copy_(x)
    assert same_bits(row_sum(columns, order), expected)
    wide = torch.full((4, 3, 500), torch.nan)
    wide[..., 7:103] = x
    assert same_bits(row_sum(wide[..., 7:103], order), expected)
    assert same_bits(row_sum(x[:1].expand(4, 3, 96), order), expected[:1].expand(4, 3))


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64)])
def test_no_rows_have_no_sums(shape: tuple[int, ...]) -> None:
    assert row_sum(torch.empty(shape), Order(width=64, vector=8, threads=8)).shape == shape[:-1]


def test_a_nan_or_an_infinity_stays_in_its_row() -> None:
    x = torch.ones(3, 64)
    x[0, 5], x[1, 63] = torch.nan, torch.inf
    sums = row_sum(x, Order(width=64, vector=8, threads=8))
    assert sums[0].isnan()
    assert sums[1] == torch.inf
    assert sums[2] == 64


@settings(max_examples=20)
@given(order=orders())
def test_the_gradient_of_a_sum_is_twice_the_row_in_every_order(order: Order) -> None:
    x = rows_of(order, 0).requires_grad_()
    row_sum(x, order).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach())


def test_a_sum_of_float64_passes_a_gradient_check() -> None:
    x = torch.randn(2, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    order = Order(width=24, vector=2, threads=5, square="fma")
    assert torch.autograd.gradcheck(lambda x: row_sum(x, order), x)
    assert torch.autograd.gradgradcheck(lambda x: row_sum(x, order), x)


def test_an_order_left_open_is_torchs_own() -> None:
    x = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(row_sum(x, "triton"), (x * x).sum(-1))


def test_the_mean_divides_or_multiplies_as_declared(build: Builder) -> None:
    x = torch.randn(200, 96, generator=torch.Generator().manual_seed(0))
    means = {}
    for mean in ("divide", "multiply"):
        reduction = Reduction(vector=8, threads="row/vector", lanes="adjacent", mean=mean)
        means[mean] = row_mean(x, 200, build(reduction=reduction))
    total = row_sum(x, Order(width=96, vector=8, threads=12))
    assert torch.equal(means["divide"], total / torch.full_like(total, 96))
    assert torch.equal(means["multiply"], total * torch.tensor(1 / 96))
    assert not torch.equal(means["divide"], means["multiply"])


def test_an_order_that_is_not_declared_for_a_row_is_refused_by_its_condition(build: Builder) -> None:
    reduction = Reduction(vector=8, threads=16, lanes="adjacent", mean="divide", width=128)
    with pytest.raises(RequirementError, match=r"rms_norm_reduction: .*rows of 128 elements, not 64"):
        order_of(build(reduction=reduction), 64, 5)


def test_no_rows_are_checked_like_one(build: Builder) -> None:
    reduction = Reduction(vector=8, threads=16, lanes="adjacent", mean="divide", rows=(1, 255))
    assert order_of(build(reduction=reduction), 128, 0) == order_of(build(reduction=reduction), 128, 1)
