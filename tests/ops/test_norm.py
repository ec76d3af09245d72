from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from numerics.ops import fused_add_rms_norm, rms_norm
from numerics.presets.schema import Numerics, Reduction

Builder = Callable[..., Numerics]
Preset = Callable[[str], Numerics]
SameBits = Callable[[Tensor, Tensor], bool]

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("points", "expected"), [((), (0.984375, 1.09375)), (("normalized",), (0.98046875, 1.0859375))]
)
def test_rounding_before_the_weight_changes_every_lane_of_a_row_made_for_it(
    points: tuple[str, ...], expected: tuple[float, float], build: Builder
) -> None:
    x = torch.tensor([[1.0] * 64 + [1.109375] * 64], dtype=torch.bfloat16)
    weight = torch.full((128,), 1.0390625, dtype=torch.bfloat16)
    out = rms_norm(x, weight, 1e-6, numerics=build(*points))
    assert out[0, :64].unique().tolist() == [expected[0]]
    assert out[0, 64:].unique().tolist() == [expected[1]]


def test_the_presets_of_two_eras_differ_by_that_rounding(preset: Preset) -> None:
    old, new = preset("vllm_cuda_0_19"), preset("vllm_cuda")
    assert set(old.rounding_points) - set(new.rounding_points) == {"normalized"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_is_that_of_exact_arithmetic_up_to_the_roundings_of_its_dtype(
    dtype: torch.dtype, build: Builder
) -> None:
    x, weight = (3 * random(20, 96)).to(dtype), random(96, seed=1).to(dtype)
    exact = x.double() * (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    out = rms_norm(x, weight, 1e-5, numerics=build("normalized"))
    # Two roundings to the dtype and fewer than 30 in float32, each of half an ulp.
    bound = 2 * torch.finfo(dtype).eps / 2 + 30 * torch.finfo(torch.float32).eps / 2
    assert ((out.double() - exact).abs() <= bound * 1.01 * exact.abs() + torch.finfo(dtype).tiny).all()


def test_no_weight_is_a_weight_of_ones(build: Builder, same_bits: SameBits) -> None:
    x = random(7, 96).bfloat16()
    ones = torch.ones(96, dtype=torch.bfloat16)
    assert same_bits(rms_norm(x, None, 1e-6, numerics=build()), rms_norm(x, ones, 1e-6, numerics=build()))


def test_strides_and_leading_dimensions_do_not_change_a_byte(build: Builder, same_bits: SameBits) -> None:
    x, weight, numerics = random(6, 5, 96).bfloat16(), random(96, seed=1).bfloat16(), build()
    expected = rms_norm(x, weight, 1e-6, numerics=numerics)
    wide = torch.full((6, 5, 2000), torch.nan, dtype=torch.bfloat16)
    wide[..., 500:596] = x
    columns = torch.empty(96, 5, 6, dtype=torch.bfloat16).permute(2, 1, 0).copy_(x)
    strided_weight = torch.empty(96, 3, dtype=torch.bfloat16)[:, 1].copy_(weight)
    for view, w in ((wide[..., 500:596], weight), (columns, strided_weight)):
        out = rms_norm(view, w, 1e-6, numerics=numerics)
        assert same_bits(out, expected)
        assert out.stride() == expected.stride()
    assert same_bits(rms_norm(x.view(2, 3, 5, 96), weight, 1e-6, numerics=numerics).view(6, 5, 96), expected)
    expanded = x[:1, :1].expand(6, 5, 96)
    assert same_bits(
        rms_norm(expanded, weight, 1e-6, numerics=numerics), expected[:1, :1].expand(6, 5, 96).contiguous()
    )


def test_rows_beyond_the_reach_of_32_bits_are_read_in_place(
    tmp_path: Path, build: Builder, same_bits: SameBits
) -> None:
    # A file without content takes no room: two of its pages are written.
    memory = torch.from_file(str(tmp_path / "sparse"), shared=True, size=2**31 + 96, dtype=torch.bfloat16)
    x = random(2, 96).bfloat16()
    far = memory.as_strided((2, 96), (2**31, 1)).copy_(x)
    assert same_bits(rms_norm(far, None, 1e-6, numerics=build()), rms_norm(x, None, 1e-6, numerics=build()))


def test_the_rows_of_all_leading_dimensions_choose_the_order(build: Builder, same_bits: SameBits) -> None:
    reduction = Reduction(
        vector=8, threads="row/vector", max_threads=((1, 1024), (6, 5)), lanes="adjacent", mean="divide"
    )
    x = random(2, 3, 512)
    together = rms_norm(x, None, 1e-6, numerics=build(reduction=reduction))
    apart = torch.stack([rms_norm(half, None, 1e-6, numerics=build(reduction=reduction)) for half in x])
    capped = Reduction(vector=8, threads="row/vector", max_threads=5, lanes="adjacent", mean="divide")
    assert same_bits(together, rms_norm(x, None, 1e-6, numerics=build(reduction=capped)))
    assert not same_bits(together, apart)


@pytest.mark.parametrize("rounded", [True, False])
def test_the_norm_reads_the_sum_as_it_is_returned_or_unrounded(
    rounded: bool, build: Builder, same_bits: SameBits
) -> None:
    x, residual, weight = (random(*shape).bfloat16() for shape in ((20, 96), (20, 96), (96,)))
    residual = residual.flip(0)
    numerics = build(*(["residual"] if rounded else []))
    out, total = fused_add_rms_norm(x, residual, weight, 1e-6, numerics=numerics)
    assert same_bits(total, x + residual)
    of_the_rounded = rms_norm(total, weight, 1e-6, numerics=numerics)
    assert same_bits(out, of_the_rounded) == rounded


def test_inputs_are_not_written_to(build: Builder, same_bits: SameBits) -> None:
    x, residual = random(3, 96), random(3, 96, seed=1)
    before = x.clone(), residual.clone()
    out, total = fused_add_rms_norm(x, residual, None, 1e-6, numerics=build())
    assert same_bits(x, before[0])
    assert same_bits(residual, before[1])
    assert len({t.data_ptr() for t in (x, residual, out, total)}) == 4


@pytest.mark.parametrize("shape", [(0, 96), (4, 0, 96)])
def test_no_rows_give_no_rows(shape: tuple[int, ...], build: Builder) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16)
    assert rms_norm(x, None, 1e-6, numerics=build()).shape == shape
    assert [t.shape for t in fused_add_rms_norm(x, x, None, 1e-6, numerics=build("residual"))] == [shape, shape]


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_changes_neither_dtype_nor_bytes(dtype: torch.dtype, build: Builder, same_bits: SameBits) -> None:
    x = random(5, 96).to(dtype)
    expected = rms_norm(x, None, 1e-6, numerics=build("normalized"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same_bits(rms_norm(x, None, 1e-6, numerics=build("normalized")), expected)


def test_a_row_of_zeros_and_a_row_with_a_nan_do_not_reach_their_neighbours(build: Builder) -> None:
    x = torch.ones(4, 96, dtype=torch.bfloat16)
    x[1], x[2, 7] = 0.0, torch.nan
    out = rms_norm(x, None, 0.0, numerics=build())
    assert out[1].isnan().all()  # 0 * inf
    assert out[2].isnan().all()
    assert torch.equal(out[[0, 3]], x[[0, 3]])


@pytest.mark.parametrize("points", [(), ("normalized", "residual")])
def test_float64_passes_a_gradient_check(points: tuple[str, ...], build: Builder) -> None:
    x, residual, weight = (random(*shape).double().requires_grad_() for shape in ((3, 12), (3, 12), (12,)))
    numerics = build(*points)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-5, numerics=numerics), (x, weight))
    assert torch.autograd.gradcheck(
        lambda x, r, w: fused_add_rms_norm(x, r, w, 1e-5, numerics=numerics), (x, residual, weight)
    )


def test_the_gradients_of_float32_are_close_to_those_of_float64(build: Builder) -> None:
    gradients = []
    for dtype in (torch.float32, torch.float64):
        x, weight = random(8, 96).to(dtype).requires_grad_(), random(96, seed=1).to(dtype).requires_grad_()
        out = rms_norm(x, weight, 1e-6, numerics=build(reduction="triton"))
        gradients.append(torch.autograd.grad(out.square().sum(), (x, weight)))
    for single, double in zip(*gradients, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


def test_a_rounding_point_passes_gradients_on_in_bfloat16(build: Builder) -> None:
    x = random(8, 96).bfloat16().requires_grad_()
    out, total = fused_add_rms_norm(x, x.detach(), None, 1e-6, numerics=build("normalized", "residual"))
    (out.sum() + total.sum()).backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    assert x.grad.isfinite().all()
    assert x.grad.any()
