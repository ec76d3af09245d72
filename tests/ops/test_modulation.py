from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from numerics.errors import InputError, RequirementError
from numerics.ops import (
    fused_add_rms_norm,
    indexed_gate,
    indexed_gate_rms_norm_scale_shift,
    indexed_scale_shift_,
    rms_norm,
    rms_norm_indexed_scale_shift,
)
from numerics.presets.schema import Numerics

Builder = Callable[..., Numerics]
Preset = Callable[[str], Numerics]
SameBits = Callable[[Tensor, Tensor], bool]

BF16 = torch.bfloat16
EVERY_POINT = ("gate_product", "residual", "norm", "one_plus_scale", "scaled")


def random(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tables(groups: int = 3, width: int = 40, dtype: torch.dtype = BF16) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(random(groups, width, seed=20 + i, dtype=dtype) for i in range(3))  # type: ignore[return-value]


INDICES = torch.tensor([2, 0, 0, 1, 2, 1, 0])


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_every_point_together_is_pytorch_op_by_op(
    index_dtype: torch.dtype, build: Builder, same_bits: SameBits
) -> None:
    x, branch, weight = random(7, 40), random(7, 40, seed=1), random(40, seed=2)
    (shift, scale, gate), i = tables(), INDICES.to(index_dtype)
    numerics = build(*EVERY_POINT)

    def affine(h: Tensor) -> Tensor:
        return h * (1.0 + scale[INDICES]) + shift[INDICES]

    gated = x + gate[INDICES] * branch
    normed = rms_norm(x, weight, 1e-6, numerics=numerics)
    assert same_bits(rms_norm_indexed_scale_shift(x, weight, shift, scale, i, 1e-6, numerics=numerics), affine(normed))
    assert same_bits(indexed_gate(x, gate, branch, i, numerics=numerics), gated)
    residual, modulated = indexed_gate_rms_norm_scale_shift(
        x, gate, branch, weight, shift, scale, i, 1e-6, numerics=numerics
    )
    assert same_bits(residual, gated)
    assert same_bits(modulated, affine(rms_norm(gated, weight, 1e-6, numerics=numerics)))
    assert same_bits(indexed_scale_shift_(x.clone(), shift, scale, i, numerics=numerics), affine(x))


@pytest.mark.parametrize(("points", "expected"), [(("residual",), 0.6328125), ((), 0.62890625)])
def test_the_norm_after_a_gate_reads_the_residual_that_is_stored_or_not(
    points: tuple[str, ...], expected: float, build: Builder
) -> None:
    residual, branch = torch.tensor([[256.0, 128.0]], dtype=BF16), torch.tensor([[1.0, 0.0]], dtype=BF16)
    one, zero = torch.ones(1, 2, dtype=BF16), torch.zeros(1, 2, dtype=BF16)
    stored, modulated = indexed_gate_rms_norm_scale_shift(
        residual, one, branch, one[0], zero, zero, torch.tensor([0]), 1e-6, numerics=build(*points)
    )
    assert stored.tolist() == [[256.0, 128.0]]
    assert modulated[0, 1].item() == expected


@pytest.mark.parametrize(("preset_name", "expected"), [("bf16_affine", 3.0), ("fast", 3.015625)])
def test_a_small_scale_is_kept_or_lost_as_the_preset_says(preset_name: str, expected: float, preset: Preset) -> None:
    x, scale = torch.full((1, 1), 3.0, dtype=BF16), torch.full((1, 1), 2.0**-8, dtype=BF16)
    found = indexed_scale_shift_(x, 0 * scale, scale, torch.tensor([0]), numerics=preset(preset_name))
    assert found.item() == expected


def test_scale_and_shift_are_written_into_any_view(build: Builder, same_bits: SameBits) -> None:
    (shift, scale, _), numerics = tables(), build()
    x = random(7, 40)
    expected = indexed_scale_shift_(x.clone(), shift, scale, INDICES, numerics=numerics)
    wide = random(7, 100, seed=3)
    before = wide.clone()
    view = wide[:, 50:90].copy_(x)
    assert indexed_scale_shift_(view, shift, scale, INDICES, numerics=numerics) is view
    assert same_bits(wide[:, 50:90], expected)
    assert same_bits(wide[:, :50], before[:, :50])
    assert same_bits(wide[:, 90:], before[:, 90:])


@pytest.mark.parametrize("strides", [(0, 1), (39, 1), (1, 1), (1, 6), (40, 0)])
def test_elements_that_share_memory_are_not_written_to(build: Builder, strides: tuple[int, int]) -> None:
    shift, scale, _ = tables()
    x = random(7, 40).as_strided((7, 40), strides)
    with pytest.raises(InputError, match=rf"x: got strides \[{strides[0]}, {strides[1]}\] for shape .*x.clone\(\)"):
        indexed_scale_shift_(x, shift, scale, INDICES, numerics=build())


@pytest.mark.parametrize(
    ("shape", "strides"), [((7, 40), (1, 7)), ((7, 40), (40, 1)), ((1, 40), (0, 1)), ((0, 40), (3, 1))]
)
def test_elements_with_memory_of_their_own_are(
    build: Builder, shape: tuple[int, int], strides: tuple[int, int], same_bits: SameBits
) -> None:
    shift, scale, _ = tables()
    x = random(7, 40).as_strided(shape, strides)
    indices = INDICES[: shape[0]]
    expected = indexed_scale_shift_(
        x.clone(memory_format=torch.contiguous_format), shift, scale, indices, numerics=build()
    )
    assert same_bits(indexed_scale_shift_(x, shift, scale, indices, numerics=build()), expected)


def test_strides_do_not_change_a_byte(build: Builder, same_bits: SameBits) -> None:
    x, branch, weight = random(7, 40), random(7, 40, seed=1), random(40, seed=2)
    numerics = build(*EVERY_POINT)

    def apart(t: Tensor) -> Tensor:
        return torch.full((t.shape[0], 3 * t.shape[1]), torch.nan, dtype=t.dtype)[:, 5 : 5 + t.shape[1]].copy_(t)

    shift, scale, gate = tables()
    expected = indexed_gate_rms_norm_scale_shift(
        x, gate, branch, weight, shift, scale, INDICES, 1e-6, numerics=numerics
    )
    every_second = INDICES.repeat_interleave(2)[::2]
    found = indexed_gate_rms_norm_scale_shift(
        apart(x), apart(gate), branch.t().contiguous().t(), weight, apart(shift), apart(scale), every_second, 1e-6,
        numerics=numerics,
    )  # fmt: skip
    assert all(same_bits(a, b) and a.stride() == b.stride() for a, b in zip(found, expected, strict=True))
    rows = x[:1].expand(7, 40)
    assert same_bits(
        indexed_gate(rows, gate, branch, INDICES, numerics=numerics),
        indexed_gate(rows.contiguous(), gate, branch, INDICES, numerics=numerics),
    )


def test_no_rows_give_no_rows(build: Builder) -> None:
    x, none = torch.empty(0, 40, dtype=BF16), torch.empty(0, dtype=torch.int64)
    (shift, scale, gate), numerics = tables(), build(*EVERY_POINT)
    assert rms_norm_indexed_scale_shift(x, None, shift, scale, none, 1e-6, numerics=numerics).shape == x.shape
    assert indexed_gate(x, gate, x, none, numerics=numerics).shape == x.shape
    assert indexed_scale_shift_(x, shift, scale, none, numerics=numerics) is x
    out = indexed_gate_rms_norm_scale_shift(x, gate, x, None, shift, scale, none, 1e-6, numerics=numerics)
    assert [t.shape for t in out] == [x.shape, x.shape]


@pytest.mark.parametrize("point", ["one_plus_scale", "scaled", "gate_product"])
def test_float32_tables_are_refused_where_the_numerics_round_what_they_promote(point: str, build: Builder) -> None:
    x = random(7, 40)
    shift, scale, gate = tables(dtype=torch.float32)
    name = "gate" if point == "gate_product" else "scale"
    with pytest.raises(RequirementError, match=f"{name}: got float32; legal: bfloat16, .*round {point}"):
        indexed_gate_rms_norm_scale_shift(x, gate, x, None, shift, scale, INDICES, 1e-6, numerics=build(point))


def test_float32_tables_are_pytorchs_promotion_otherwise(build: Builder, same_bits: SameBits) -> None:
    x, weight = random(7, 40), random(40, seed=2)
    shift, scale, gate = tables(dtype=torch.float32)
    numerics = build("norm", "residual")
    normed = rms_norm(x, weight, 1e-6, numerics=numerics)
    expected = (normed * (1.0 + scale[INDICES]) + shift[INDICES]).bfloat16()
    assert same_bits(rms_norm_indexed_scale_shift(x, weight, shift, scale, INDICES, 1e-6, numerics=numerics), expected)
    assert same_bits(indexed_gate(x, gate, x, INDICES, numerics=numerics), (x + gate[INDICES] * x).bfloat16())


def test_a_gate_of_ones_is_the_sum_that_add_and_norm_computes(build: Builder, same_bits: SameBits) -> None:
    x, branch, weight = random(7, 40), random(7, 40, seed=1), random(40, seed=2)
    ones, zeros = torch.ones(3, 40, dtype=BF16), torch.zeros(3, 40, dtype=BF16)
    for points in ((), ("residual",)):
        numerics = build(*points)
        residual, modulated = indexed_gate_rms_norm_scale_shift(
            x, ones, branch, weight, zeros, zeros, INDICES, 1e-6, numerics=numerics
        )
        out, total = fused_add_rms_norm(branch, x, weight, 1e-6, numerics=numerics)
        assert same_bits(residual, total)
        assert same_bits(modulated, out)


@pytest.mark.parametrize("points", [(), EVERY_POINT])
def test_float64_passes_a_gradient_check(points: tuple[str, ...], build: Builder) -> None:
    numerics = build(*points)
    double = torch.float64
    x, branch, weight = (random(*s, seed=i, dtype=double) for i, s in enumerate([(4, 6), (4, 6), (6,)]))
    shift, scale, gate = tables(3, 6, dtype=double)
    indices = INDICES[:4]
    inputs = [t.requires_grad_() for t in (x, gate, branch, weight, shift, scale)]
    assert torch.autograd.gradcheck(
        lambda r, g, b, w, s, c: indexed_gate_rms_norm_scale_shift(r, g, b, w, s, c, indices, 1e-5, numerics=numerics),
        inputs,
    )
    assert torch.autograd.gradcheck(
        lambda x, s, c: indexed_scale_shift_(x.clone(), s, c, indices, numerics=numerics), (x, shift, scale)
    )
