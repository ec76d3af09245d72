"""The Q/K kernels against their references, in Triton's interpreter."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics.ops import fused_qk_norm_rope, pack_qk_norm_rope_table
from numerics.ops.qk_norm_rope import normalize_heads
from numerics.presets.file import load
from numerics.presets.schema import Numerics

Fused = Callable[..., tuple[Tensor, ...]]
Same = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], bool]
Preset = Callable[[str], Numerics]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
GEOMETRIES = [(128, 128), (128, 96), (96, 96), (64, 64), (96, 48), (256, 256), (256, 128), (40, 20), (2, 2), (120, 120)]
LAYOUTS = pytest.mark.parametrize("interleaved", [True, False])


def random(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def table(tokens: int, rotary: int, dtype: torch.dtype = BF16, identity_rows: int = 0) -> Tensor:
    angle = random(tokens - identity_rows, rotary // 2, seed=9, dtype=F32)
    packed = pack_qk_norm_rope_table(angle.cos(), angle.sin(), dtype=dtype, identity_rows=identity_rows)
    assert packed is not None
    return packed


def qk(
    tokens: int = 3, heads: tuple[int, int] = (3, 2), width: int = 128, rotary: int | None = None,
    dtype: torch.dtype = BF16, table_dtype: torch.dtype | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Arguments of the single op."""
    return {
        "q": random(tokens, heads[0], width, dtype=dtype),
        "k": random(tokens, heads[1], width, seed=1, dtype=dtype),
        "q_weight": random(width, seed=2, dtype=dtype),
        "k_weight": random(width, seed=3, dtype=dtype),
        "rope_table": table(tokens, rotary or width, table_dtype or dtype),
        "eps": 1e-6,
        "interleaved": True,
        **more,
    }


# --- Every declared order, in every class of geometry -----------------------------------------------------------------


def cases() -> Iterator[Any]:
    """Each distinct exact preset in each geometry that its order is declared for; dtypes and weights take turns."""
    catalog = load()
    seen: set[str] = set()
    turn = itertools.count()
    for name, preset in catalog.presets.items():
        given = preset.numerics(catalog.reductions)
        if not given.is_exact or given.fingerprint in seen:
            continue
        seen.add(given.fingerprint)
        for width, rotary in GEOMETRIES:
            try:
                given.rms_norm_reduction.order(width, 9)  # type: ignore[union-attr]  # exact
            except ValueError:
                continue
            number = next(turn)
            dtype = (BF16, BF16, F16, F32)[number % 4]
            yield pytest.param(
                given,
                qk(width=width, rotary=rotary, dtype=dtype, table_dtype=(dtype, F32)[number // 4 % 2])
                | {("q_weight", "k_weight", "eps")[number % 3]: (None, None, 1e-5)[number % 3]},
                id=f"{name}-{width}-{rotary}-{str(dtype).removeprefix('torch.')}",
            )


@pytest.mark.parametrize(("given", "call"), list(cases()))
def test_every_declared_order_in_every_geometry(given: Numerics, call: dict[str, Any], fused: Fused) -> None:
    for interleaved in (True, False):
        fused("fused_qk_norm_rope", given, **call | {"interleaved": interleaved})


def test_presets_with_a_declared_order_are_many() -> None:
    assert len(list(cases())) > 90
    assert {geometry[0] for geometry in GEOMETRIES} == {param.values[1]["q"].shape[-1] for param in cases()}


# --- Where tensors lie ------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("form", ["shared", "flat", "batched", "float32", "far apart"])
@pytest.mark.parametrize("batch", [1, 2])
def test_batches_read_every_form_of_the_table(
    form: str, batch: int, interleaved: bool, fused: Fused, preset: Preset
) -> None:
    tokens, width = 3, 64
    whole = table(batch * tokens, 48, F32 if form == "float32" else BF16)
    forms = {
        "shared": whole[:tokens],
        "flat": whole,
        "batched": whole.view(batch, tokens, 48),
        "float32": whole,
        "far apart": torch.full((batch, 5, 64), torch.nan, dtype=BF16)[:, 1:4, 7:55].copy_(
            whole.view(batch, tokens, 48)
        ),
    }
    call = qk(width=width) | {
        "q": random(batch, tokens, 3, width),
        "k": random(batch, tokens, 1, width, seed=1),
        "rope_table": forms[form],
        "interleaved": interleaved,
    }
    fused("fused_qk_norm_rope", preset("vllm_cuda"), **call)


def views() -> dict[str, tuple[Tensor, Tensor]]:
    """For q and k [2, 3, heads, 64], memory that others share."""
    qkv = random(2, 3, 8 * 64)
    q, k, _ = qkv.split([4 * 64, 2 * 64, 2 * 64], -1)
    apart = random(2, 5, 7, 80)[:, 1:4]  # no batch that can be joined to the tokens
    swapped = random(2, 6, 3, 64).transpose(1, 2)  # heads before tokens
    by_token = random(3, 2, 6, 64).transpose(0, 1)  # tokens before the batch
    return {
        "columns of qkv": (q.unflatten(-1, (4, 64)), k.unflatten(-1, (2, 64))),
        "apart": (apart[:, :, :4, 8:72], apart[:, :, 4:, :64]),
        "heads first": (swapped[:, :, :4], swapped[:, :, 4:]),
        "tokens first": (by_token[:, :, ::2], by_token[:, :, 1::3]),
        "expanded": (random(1, 1, 4, 64).expand(2, 3, 4, 64), random(2, 3, 1, 64).expand(2, 3, 2, 64)),
        "alone in its batch": (apart[:1, :, :4, :64].expand(2, 3, 4, 64), apart[:, :, 4:6, :64]),
    }


@LAYOUTS
@pytest.mark.parametrize("view", list(views()))
def test_views_are_read_in_place(view: str, interleaved: bool, fused: Fused, preset: Preset) -> None:
    q, k = views()[view]
    call = qk(width=64) | {"q": q, "k": k, "interleaved": interleaved}
    fused("fused_qk_norm_rope", preset("vllm_cuda"), **call)


def test_heads_in_one_dimension_with_their_columns_are_read_in_place(preset: Preset, same: Same) -> None:
    call, given = qk(tokens=4, width=64), preset("vllm_cuda")
    flat = call | {"q": call["q"].flatten(1), "k": call["k"].flatten(1), "head_dim": 64}
    found = fused_qk_norm_rope(**flat, numerics=given)
    expected = fused_qk_norm_rope(**call, numerics=given)
    assert same(found, (expected[0].flatten(1), expected[1].flatten(1)))


@pytest.mark.parametrize("name", ["q_weight", "k_weight"])
def test_a_weight_that_is_a_column_is_the_same_weight(name: str, preset: Preset, same: Same) -> None:
    call, given = qk(), preset("vllm_cuda")
    column = torch.full((128, 3), torch.nan, dtype=BF16)
    column[:, 1] = call[name]
    found = fused_qk_norm_rope(**call | {name: column[:, 1]}, numerics=given)
    assert same(found, fused_qk_norm_rope(**call, numerics=given))


STRIDE = 2**30 + 2**20  # fits 32 bits; twice as much does not


def far(path: Path, x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The same values at other strides, in a file without content, which takes no room but where it is written."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides, strict=True))
    return torch.from_file(str(path), shared=True, size=size, dtype=x.dtype).as_strided(x.shape, strides).copy_(x)


@pytest.mark.parametrize("stride", [STRIDE, 2**31 + 2**20])
@pytest.mark.parametrize("heads", [(3, 2), (8, 8)])
@pytest.mark.parametrize("name", ["q", "k", "rope_table"])
def test_tokens_beyond_32_bits_are_read_in_place(
    name: str, heads: tuple[int, int], stride: int, tmp_path: Path, fused: Fused, preset: Preset
) -> None:
    call = qk(3, heads, 64)
    call[name] = far(tmp_path / "sparse", call[name], (stride, *call[name].stride()[1:]))
    fused("fused_qk_norm_rope", preset("vllm_cuda"), **call)


@pytest.mark.parametrize("name", ["q", "k"])
def test_heads_beyond_32_bits_are_read_in_place(name: str, tmp_path: Path, fused: Fused, preset: Preset) -> None:
    call = qk(2, (3, 3), 64)
    call[name] = far(tmp_path / "sparse", call[name], (64, STRIDE, 1))
    fused("fused_qk_norm_rope", preset("vllm_cuda"), **call)


@pytest.mark.parametrize("name", ["q", "k", "rope_table"])
def test_batches_beyond_32_bits_are_read_in_place(name: str, tmp_path: Path, fused: Fused, preset: Preset) -> None:
    call = qk(width=64) | {"q": random(3, 1, 2, 64), "k": random(3, 1, 1, 64, seed=1)}
    call["rope_table"] = table(3, 64).view(3, 1, 64)
    x: Tensor = call[name]
    call[name] = far(tmp_path / "sparse", x, (STRIDE, *x.stride()[1:]))
    fused("fused_qk_norm_rope", preset("vllm_cuda"), **call)


# --- Few and no tokens, identity rows, special values -----------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("tokens", [0, 1, 2])
@pytest.mark.parametrize("heads", [(1, 1), (8, 8), (5, 1), (6, 3)])
def test_few_and_no_tokens(
    tokens: int, heads: tuple[int, int], interleaved: bool, fused: Fused, preset: Preset
) -> None:
    fused("fused_qk_norm_rope", preset("vllm_cuda"), **qk(tokens, heads, interleaved=interleaved))


def test_a_batch_of_no_tokens_and_no_batch_at_all(fused: Fused, preset: Preset) -> None:
    for shape in ((2, 0), (0, 3)):
        call = qk(tokens=shape[1]) | {"q": random(*shape, 3, 128), "k": random(*shape, 2, 128)}
        fused("fused_qk_norm_rope", preset("vllm_cuda"), **call)


SPECIAL = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-38, -1e-40, 3e38, -2.5, 1.0]


@LAYOUTS
@pytest.mark.parametrize("rotation", ["separate", "complex"])
@pytest.mark.parametrize("heads", [(8, 8), (3, 1)])  # of one token to a tile, or of several
@pytest.mark.parametrize("rotary", [64, 48])
def test_identity_rows_among_others_and_special_values(
    rotation: str, heads: tuple[int, int], rotary: int, interleaved: bool, fused: Fused, preset: Preset
) -> None:
    tokens, width = 6, 64
    given = preset("vllm_cuda").model_copy(update={"rope_rotation": rotation})
    call = qk(tokens, heads, width, rotary, interleaved=interleaved)
    rope = call["rope_table"]
    rope[0, : rotary // 2], rope[0, rotary // 2 :] = 1, 0.0  # position 0
    rope[2, : rotary // 2], rope[2, rotary // 2 :] = 1, -0.0  # an identity row
    rope[3, : rotary // 2], rope[3, rotary // 2 :] = 1, -0.0
    rope[3, rotary - 1] = 0.0  # nearly one
    rope[4, 0], rope[4, rotary // 2] = 1, -0.0  # begins like one
    rope[5, : rotary // 2], rope[5, rotary // 2 :] = 1, -0.0
    for name in ("q", "k"):
        x = call[name]
        # Rows of zeros, and rows with one special value: their norms are infinite, zero, NaN, or as ever.
        x[:, 0, ::2] = 0
        x[:, -1] = torch.where(torch.arange(width) % 7 == 0, -0.0, x[:, -1])
        for place, value in enumerate(SPECIAL):
            x[place % tokens, place % x.shape[1], place] = value
    fused("fused_qk_norm_rope", given, **call)


@pytest.mark.parametrize("identity_rows", [1, 4])
def test_identity_rows_that_packing_appends_are_the_norm_alone(
    identity_rows: int, fused: Fused, preset: Preset
) -> None:
    given = preset("vllm_cuda")
    call = qk(5, (4, 4)) | {"rope_table": table(5, 128, identity_rows=identity_rows)}
    out = fused("fused_qk_norm_rope", given, **call)
    normed = normalize_heads(call["q"], call["q_weight"], 1e-6, given).to(BF16)
    assert torch.equal(out[0][-identity_rows:], normed[-identity_rows:])
    assert not torch.equal(out[0][:-identity_rows], normed[:-identity_rows])


@pytest.mark.parametrize("scale", [1e-30, 1e-4, 1e4, 1e18])
def test_amplitudes(scale: float, fused: Fused, preset: Preset) -> None:
    call = qk(tokens=2)
    call |= {name: (call[name].float() * scale).to(BF16) for name in ("q", "k")}
    for name in ("vllm_cuda", "vllm_native", "diffusers_complex"):
        fused("fused_qk_norm_rope", preset(name), **call)


# --- Every tile and every count of warps ------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("heads", [(6, 4), (5, 1), (8, 8)])
@pytest.mark.parametrize(("rows", "warps"), [(1, 1), (2, 4), (4, 1), (8, 2), (16, 8), (32, 1)])
def test_no_tile_changes_a_byte(
    rows: int,
    warps: int,
    heads: tuple[int, int],
    interleaved: bool,
    fused: Fused,
    preset: Preset,
    tile: Callable[..., None],
) -> None:
    call = qk(3, heads, 64, 48, interleaved=interleaved) | {"rope_table": table(3, 48, identity_rows=1)}
    tile(rows, warps)
    fused("fused_qk_norm_rope", preset("vllm_cuda"), **call)
