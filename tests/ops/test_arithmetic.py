from collections.abc import Callable
from fractions import Fraction
from math import inf, isnan, nan

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from numerics.ops.arithmetic import divide, fma, is_exact_product, multiply, round_at, rsqrt
from numerics.presets.schema import Numerics

Builder = Callable[..., Numerics]
SameBits = Callable[[Tensor, Tensor], bool]
Nearest = Callable[[Fraction], float]

ONE_BITS = 0x3F800000
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def every_bfloat16() -> Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


# --- Rounding points --------------------------------------------------------------------------------------------------


def test_every_bfloat16_survives_a_rounding_point(build: Builder, same_bits: SameBits) -> None:
    x = every_bfloat16().float()
    rounded = round_at("norm", x, torch.bfloat16, build("norm"))
    assert same_bits(rounded[~x.isnan()], x[~x.isnan()])
    assert rounded[x.isnan()].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_value_between_two_neighbours_is_rounded_to_the_nearest_and_to_even_from_the_middle(
    dtype: torch.dtype, build: Builder, same_bits: SameBits
) -> None:
    largest = {torch.bfloat16: 0x7F7F, torch.float16: 0x7BFF}[dtype]
    lower = torch.arange(largest, dtype=torch.int16)
    below, above = lower.view(dtype).double(), (lower + 1).view(dtype).double()
    even = torch.where(lower % 2 == 0, below, above)
    # In float64 the middle and its neighbours are exact for every pair, subnormal ones included.
    middle, nudge = (below + above) / 2, (above - below) / 64
    for value, expected in ((middle, even), (middle - nudge, below), (middle + nudge, above)):
        for sign in (1.0, -1.0):
            rounded = round_at("norm", (sign * value).float(), dtype, build("norm"))
            assert same_bits(rounded, (sign * expected).float())


def test_a_point_that_is_not_listed_or_has_nothing_to_round_returns_its_input(build: Builder) -> None:
    x = torch.tensor([1.0039])
    assert round_at("norm", x, torch.bfloat16, build("qk_norm")) is x
    assert round_at("norm", x, torch.float32, build("norm")) is x


def test_the_gradient_of_a_rounding_point_is_the_identity(build: Builder, same_bits: SameBits) -> None:
    x = torch.tensor([1.0039, 3e38, -0.0], requires_grad=True)
    gradient = torch.tensor([1.00390625, -7.7777, 2.0**-140])
    round_at("norm", x, torch.bfloat16, build("norm")).backward(gradient)
    assert x.grad is not None
    assert same_bits(x.grad, gradient)


# --- Division ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [96, 3072, 5376])
def test_division_is_correctly_rounded_and_multiplication_by_the_reciprocal_is_another_number(
    width: int, nearest: Nearest
) -> None:
    sums = torch.rand(500, generator=torch.Generator().manual_seed(width)) * width
    exact = torch.tensor([nearest(Fraction(x) / width) for x in sums.tolist()])
    reciprocal = nearest(Fraction(1, width))
    multiplied = torch.tensor([nearest(Fraction(x) * Fraction(reciprocal)) for x in sums.tolist()])
    assert torch.equal(divide(sums, width), exact)
    assert torch.equal(multiply(sums, width), multiplied)
    assert not torch.equal(exact, multiplied)


def test_a_quotient_that_is_a_whole_number_is_exact() -> None:
    assert divide(torch.tensor(4.6875), 0.9375).item() == 5.0


# --- Reciprocal square root -------------------------------------------------------------------------------------------


def test_rsqrt_differs_from_the_nearest_float_as_measured_on_the_gpu() -> None:
    x = (torch.arange(2**24, dtype=torch.int32) + ONE_BITS).view(torch.float32)
    nearest = (1 / x.double().sqrt()).float()
    ulps, counts = (rsqrt(x).view(torch.int32) - nearest.view(torch.int32)).unique(return_counts=True)
    found = dict(zip(ulps.tolist(), counts.tolist(), strict=True))
    assert found == {-2: 8, -1: 2_344_391, 0: 13_143_086, 1: 1_289_731}


@pytest.mark.parametrize("power", [-63, -60, -1, 1, 50, 63])
def test_rsqrt_repeats_for_every_power_of_four(power: int, same_bits: SameBits) -> None:
    x = (torch.arange(0, 2**24, 997, dtype=torch.int32) + ONE_BITS).view(torch.float32)
    x = x[x.double() * 4.0**power < 2.0**128]
    scaled = (x.double() * 4.0**power).float()
    assert same_bits(rsqrt(scaled), (rsqrt(x).double() * 2.0**-power).float())


def test_rsqrt_of_a_subnormal_is_that_of_the_scaled_number(same_bits: SameBits) -> None:
    x = torch.tensor([2.0**-149, 3 * 2.0**-149, 2.0**-127, 2.0**-126 - 2.0**-149])
    assert same_bits(rsqrt(x), rsqrt(x * 2.0**24) * 2.0**12)


@pytest.mark.parametrize(
    ("x", "expected"), [(0.0, inf), (-0.0, -inf), (inf, 0.0), (nan, nan), (-1.0, nan), (-inf, nan), (-(2.0**-140), nan)]
)
def test_rsqrt_of_special_values(x: float, expected: float) -> None:
    found = rsqrt(torch.tensor([x])).item()
    assert found == expected or (isnan(found) and isnan(expected))


def test_rsqrt_is_differentiable_where_its_bits_are_those_of_the_gpu() -> None:
    x = torch.tensor([0.25, 1.0, 7.0], requires_grad=True)
    rsqrt(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, -0.5 * x.detach() ** -1.5)
    assert torch.autograd.gradcheck(rsqrt, torch.tensor([0.25, 7.0], dtype=torch.float64, requires_grad=True))


# --- Fused multiply-add -----------------------------------------------------------------------------------------------


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=1, max_size=20))
def test_fma_is_the_float_nearest_to_the_exact_value(nearest: Nearest, triples: list[tuple[float, ...]]) -> None:
    a, b, c = torch.tensor(triples).unbind(-1)
    exact = torch.tensor([nearest(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in triples])
    assert torch.equal(fma(a, b, c), exact)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        (1 + 2.0**-23, 1 - 2.0**-23, 1 + 2.0**-23),  # 2**-70 below the middle of two floats
        (1 + 2.0**-12, 1 - 4095 * 2.0**-24, 1.0),  # 2**-60 above
    ],
)
def test_fma_is_not_rounded_twice(a: float, b: float, c: float, sign: float, nearest: Nearest) -> None:
    a, b, c = sign * a * 2.0**-12, b * 2.0**-12, sign * c
    exact = nearest(Fraction(a) * Fraction(b) + Fraction(c))
    assert fma(torch.tensor(a), torch.tensor(b), torch.tensor(c)).item() == exact
    assert torch.tensor(a * b + c).item() != exact


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        (0.0, -1.0, 0.0, 0.0),
        (0.0, -1.0, -0.0, -0.0),
        (1.0, 1.0, -1.0, 0.0),
        (inf, 0.0, 1.0, nan),
        (inf, 1.0, -inf, nan),
        (2.0, 3.0, -inf, -inf),
        (3e38, 3e38, 1.0, inf),
        (2.0**-149, 2.0**-149, 0.0, 0.0),
        (2.0**-149, 0.5, 2.0**-149, 2.0**-148),
    ],
)
def test_fma_of_special_values(a: float, b: float, c: float, expected: float, same_bits: SameBits) -> None:
    found = fma(torch.tensor([a]), torch.tensor([b]), torch.tensor([c]))
    assert same_bits(found, torch.tensor([expected])) or (isnan(found.item()) and isnan(expected))


def test_fma_has_the_gradients_of_its_operands_where_they_broadcast() -> None:
    a = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    b, c = torch.tensor([2.0, -1.0, 0.5], requires_grad=True), torch.tensor([[1.0]], requires_grad=True)
    fma(a, b, c).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert c.grad is not None
    torch.testing.assert_close(a.grad, b.detach().expand(4, 3))
    torch.testing.assert_close(b.grad, a.detach().sum(0))
    torch.testing.assert_close(c.grad, torch.tensor([[12.0]]))


def test_the_square_of_a_16_bit_value_is_exact_unless_it_leaves_the_range_of_float32() -> None:
    x = every_bfloat16().float()
    x = x[(x.abs() >= 2.0**-63) & (x.abs() < 2.0**64)]
    assert is_exact_product(x, x)
    half = torch.arange(0x7C00, dtype=torch.int16).view(torch.float16).float()
    assert is_exact_product(half, half)
    assert not is_exact_product(torch.tensor([1 + 2.0**-23]), torch.tensor([1 + 2.0**-23]))
