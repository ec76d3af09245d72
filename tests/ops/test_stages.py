from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from numerics.ops.stages import gate, modulate, normalize, rotate, store
from numerics.presets.schema import Numerics

Builder = Callable[..., Numerics]
Nearest = Callable[[Fraction], float]
SameBits = Callable[[Tensor, Tensor], bool]

BF16 = torch.bfloat16
LAYOUTS = pytest.mark.parametrize("interleaved", [True, False])
ROTATIONS = pytest.mark.parametrize("rotation", ["separate", "complex"])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def every_bfloat16() -> Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16)


PARTNERS = (0.0, -0.0, 1.0, -3.0, torch.inf, -torch.inf, torch.nan)
ONE = torch.ones(1, 1)


def pairs_of_every_bfloat16() -> Tensor:
    """[pairs, 1, 2]: each value first and second, beside every kind of partner. One pair: both layouts are the same."""
    a, b = (x.flatten() for x in torch.meshgrid(every_bfloat16().float(), torch.tensor(PARTNERS), indexing="ij"))
    return torch.cat((torch.stack((a, b), -1), torch.stack((b, a), -1)))[:, None]


@LAYOUTS
@ROTATIONS
@pytest.mark.parametrize("points", [(), ("rope_product",)])
def test_an_identity_row_returns_every_bfloat16_beside_every_kind_of_partner(
    interleaved: bool, rotation: str, points: tuple[str, ...], build: Builder, same_bits: SameBits
) -> None:
    x = pairs_of_every_bfloat16()
    out = rotate(x, ONE, -0.0 * ONE, interleaved, BF16, build(*points, rope_rotation=rotation))
    assert same_bits(out, x)


@ROTATIONS
def test_position_0_is_computed_as_the_unfused_chains_do(rotation: str, build: Builder, same_bits: SameBits) -> None:
    x = pairs_of_every_bfloat16()
    a, b = x.unbind(-1)
    zero = torch.zeros(())
    expected = torch.stack((a - b * zero, a * zero + b), -1)  # each product is exact: both rotations are the same
    out = rotate(x, ONE, 0.0 * ONE, True, BF16, build(rope_rotation=rotation))
    assert torch.equal(out.isnan(), expected.isnan())
    assert same_bits(out.nan_to_num(nan=9.0), expected.nan_to_num(nan=9.0))
    # What an identity row would have kept: a negative zero beside a number, and infinities beside any partner.
    assert not same_bits(out[x.isfinite().all(-1)], x[x.isfinite().all(-1)])
    assert out[x.isinf().any(-1)].isnan().any()


@LAYOUTS
@pytest.mark.parametrize(
    ("cos", "sin"),
    [((1.0, 0.0), (-0.0, 1.0)), ((1.0, 1.0), (-0.0, 0.0)), ((1.0, 0.5), (-0.0, -0.0)), ((1.0, -1.0), (-0.0, -0.0))],
)
def test_a_row_of_which_one_pair_is_turned_is_arithmetic_for_every_pair(
    cos: tuple[float, ...], sin: tuple[float, ...], interleaved: bool, build: Builder
) -> None:
    x = torch.full((1, 1, 4), torch.inf)
    out = rotate(x, torch.tensor([cos]), torch.tensor([sin]), interleaved, BF16, build())
    assert out.isnan().any(-1).all()
    kept = rotate(x, torch.ones(1, 2), torch.full((1, 2), -0.0), interleaved, BF16, build())
    assert torch.equal(kept, x)


def test_each_token_is_an_identity_by_itself(build: Builder, same_bits: SameBits) -> None:
    x = torch.full((3, 2, 2), -0.0)
    sin = torch.tensor([[0.0], [-0.0], [0.0]])
    out = rotate(x, torch.ones(3, 1), sin, True, BF16, build())
    assert same_bits(out[1], x[1])
    assert not same_bits(out[0], x[0])
    assert not same_bits(out[2], x[2])


def test_a_pair_that_is_turned_keeps_signed_zeros_of_its_arithmetic(build: Builder) -> None:
    x = torch.tensor([[[-0.0, -5.0]]])
    turned = rotate(x, ONE, torch.tensor([[2.0**-149]]), True, BF16, build())
    assert turned[0, 0, 0] == 5 * 2.0**-149


@ROTATIONS
def test_interleaved_and_half_split_are_the_same_rotation_of_other_pairs(
    rotation: str, build: Builder, same_bits: SameBits
) -> None:
    x, angle = random(5, 3, 12), random(5, 4, seed=1)
    numerics = build(rope_rotation=rotation)
    halves = rotate(x, angle.cos(), angle.sin(), False, BF16, numerics)
    order = torch.arange(8).view(2, 4).T.flatten()
    x[..., :8] = x[..., order]
    pairs = rotate(x, angle.cos(), angle.sin(), True, BF16, numerics)
    assert same_bits(pairs[..., :8], halves[..., order])
    assert same_bits(pairs[..., 8:], halves[..., 8:])


def test_a_rotation_is_the_product_of_complex_numbers_rounded_as_the_numerics_say(
    build: Builder, nearest: Nearest
) -> None:
    x, angle = random(40, 1, 2), random(40, 1, seed=1)
    cos, sin = angle.cos(), angle.sin()
    separate, fused = [], []
    for (a, b), c, s in zip(x[:, 0].tolist(), cos[:, 0].tolist(), sin[:, 0].tolist(), strict=True):
        A, B, C, S = map(Fraction, (a, b, c, s))
        ac, bs, as_, bc = (Fraction(nearest(product)) for product in (A * C, B * S, A * S, B * C))
        separate.append((nearest(ac - bs), nearest(as_ + bc)))
        fused.append((nearest(A * C - bs), nearest(A * S + bc)))
    assert separate != fused
    for rotation, expected in (("separate", separate), ("complex", fused)):
        out = rotate(x, cos, sin, True, BF16, build(rope_rotation=rotation))
        assert torch.equal(out[:, 0], torch.tensor(expected))


def test_rounded_products_are_a_rotation_evaluated_in_bfloat16(build: Builder, same_bits: SameBits) -> None:
    x, angle = random(50, 2, 16).bfloat16(), random(50, 8, seed=1)
    c, s = angle.cos().bfloat16(), angle.sin().bfloat16()
    a, b = x[..., :8], x[..., 8:]
    expected = torch.cat((a * c[:, None] + (-b) * s[:, None], b * c[:, None] + a * s[:, None]), -1)
    assert same_bits(rotate(x.float(), c, s, False, BF16, build("rope_product")).bfloat16(), expected)


def test_a_norm_multiplies_by_the_weight_last(build: Builder, same_bits: SameBits) -> None:
    x, weight = random(30, 64).bfloat16(), random(64, seed=1).bfloat16()
    bare = normalize(x, None, 1e-6, 30, BF16, build())
    assert same_bits(normalize(x, weight, 1e-6, 30, BF16, build()), bare * weight.float())
    rounded = normalize(x, weight, 1e-6, 30, BF16, build("normalized"))
    assert same_bits(rounded, bare.bfloat16().float() * weight.float())


@pytest.mark.parametrize(
    ("points", "expected"), [(("norm", "one_plus_scale", "scaled"), 3.0), ((), 3.015625), (("one_plus_scale",), 3.0)]
)
def test_an_affine_in_bfloat16_loses_a_small_scale_that_one_in_float32_keeps(
    points: tuple[str, ...], expected: float, build: Builder
) -> None:
    one = torch.ones(1, 1, dtype=BF16)
    out = modulate(3 * one.float(), 0 * one, 2.0**-8 * one, BF16, build(*points))
    assert out.bfloat16().item() == expected


@pytest.mark.parametrize("point", ["norm", "one_plus_scale", "scaled"])
def test_each_point_of_the_affine_rounds_one_intermediate(point: str, build: Builder, same_bits: SameBits) -> None:
    x, shift, scale = random(9, 33), random(9, 33, seed=1).bfloat16(), random(9, 33, seed=2).bfloat16()

    def rounded(at: str, value: Tensor) -> Tensor:
        return value.bfloat16().float() if at == point else value

    factor = rounded("one_plus_scale", 1 + scale.float())
    expected = rounded("scaled", rounded("norm", x) * factor) + shift.float()
    assert same_bits(modulate(x, shift, scale, BF16, build(point)), expected)
    assert not same_bits(modulate(x, shift, scale, BF16, build()), expected)


@pytest.mark.parametrize("points", [(), ("gate_product",)])
def test_a_gate_rounds_its_product_where_the_numerics_say(
    points: tuple[str, ...], build: Builder, same_bits: SameBits
) -> None:
    x, g, branch = (random(9, 33, seed=seed).bfloat16() for seed in range(3))
    product = g * branch if points else g.float() * branch.float()
    assert same_bits(gate(x, g, branch, BF16, build(*points)), x.float() + product.float())


@pytest.mark.parametrize(
    "view",
    [
        lambda: torch.zeros(1, 6, 8, 20)[..., 4:8],
        lambda: torch.zeros(2, 4, 6, 8).permute(0, 2, 3, 1),
        lambda: torch.zeros(1, 1, 3).expand(4, 5, 3),
        lambda: torch.zeros(0, 7).t(),
    ],
)
def test_an_output_has_the_canonical_strides_of_its_shape(view: Callable[[], Tensor]) -> None:
    out = store(view(), BF16)
    assert out.dtype == BF16
    assert out.stride() == torch.empty(out.shape).stride()
