"""The kernel of the joint op against its reference and against the single op, in Triton's interpreter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics.ops import fused_joint_qkv_norm_rope, fused_qk_norm_rope, pack_qk_norm_rope_table
from numerics.presets.schema import Numerics

Fused = Callable[..., tuple[Tensor, ...]]
Same = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], bool]
Preset = Callable[[str], Numerics]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
LAYOUTS = pytest.mark.parametrize("interleaved", [True, False])


def random(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def table(tokens: int, rotary: int, dtype: torch.dtype = BF16, identity_rows: int = 0) -> Tensor:
    angle = random(tokens - identity_rows, rotary // 2, seed=9, dtype=F32)
    packed = pack_qk_norm_rope_table(angle.cos(), angle.sin(), dtype=dtype, identity_rows=identity_rows)
    assert packed is not None
    return packed


def joint(batch: int, text: int, image: int, width: int = 64, rotary: int = 48, dtype: torch.dtype = BF16) -> Any:
    call: dict[str, Any] = {}
    for stream, tokens in (("text", text), ("image", image)):
        for name, heads in (("q", 3), ("k", 2), ("v", 2)):
            wide = random(batch, tokens, heads, width + 8, seed=len(call), dtype=dtype)
            call[f"{stream}_{name}"] = wide[..., :width]
        for name in "qk":
            call[f"{stream}_{name}_weight"] = random(width, seed=len(call), dtype=dtype)
    return call | {"rope_table": table(text + image, rotary), "eps": 1e-6}


@LAYOUTS
@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize(("text", "image"), [(2, 3), (0, 3), (3, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_joint_op_is_two_single_ones_and_a_concatenation(
    batch: int, text: int, image: int, image_first: bool, interleaved: bool, fused: Fused, preset: Preset, same: Same
) -> None:
    call, given = joint(batch, text, image), preset("vllm_cuda")
    more: dict[str, Any] = {"interleaved": interleaved, "image_first": image_first}
    found = fused("fused_joint_qkv_norm_rope", given, **call, **more)
    starts = {"text": image if image_first else 0, "image": 0 if image_first else text}

    def alone(stream: str) -> tuple[Tensor, ...]:
        q, k, v, q_weight, k_weight = (call[f"{stream}_{x}"] for x in ("q", "k", "v", "q_weight", "k_weight"))
        rows = call["rope_table"][starts[stream] :][: q.shape[1]]
        made = fused_qk_norm_rope(q, k, q_weight, k_weight, rows, 1e-6, interleaved=interleaved, numerics=given)
        return (*made, v)

    parts = [alone("image"), alone("text")] if image_first else [alone("text"), alone("image")]
    assert same(found, tuple(torch.cat(pair, 1) for pair in zip(*parts, strict=True)))


@pytest.mark.parametrize("name", ["vllm_native", "diffusers_aten", "diffusers_complex", "vllm_cuda_bf16_rope", "quack"])
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_the_joint_op_under_other_presets(name: str, dtype: torch.dtype, fused: Fused, preset: Preset) -> None:
    call = joint(1, 2, 2, dtype=dtype) | {"rope_table": table(4, 48, F32)}
    fused("fused_joint_qkv_norm_rope", preset(name), **call, interleaved=True)


@pytest.mark.parametrize("form", ["shared", "flat", "batched"])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_the_joint_op_reads_every_form_of_the_table_with_every_tile(
    form: str, rows: int, fused: Fused, preset: Preset, tile: Callable[..., None]
) -> None:
    tile(rows, 1)
    whole = table(10, 48, identity_rows=2)
    forms = {"shared": whole[5:], "flat": whole, "batched": whole.view(2, 5, 48)}
    call = joint(2, 2, 3) | {"rope_table": forms[form]}
    fused("fused_joint_qkv_norm_rope", preset("vllm_cuda"), **call, interleaved=False)


@pytest.mark.parametrize("name", ["text_q", "image_k", "text_v", "image_v", "rope_table"])
def test_the_joint_op_reads_beyond_32_bits_in_place(name: str, tmp_path: Path, fused: Fused, preset: Preset) -> None:
    call = joint(1, 3, 3)
    x: Tensor = call[name]
    strides = (x.stride(0), 2**30 + 2**20, *x.stride()[2:]) if x.ndim > 2 else (2**30 + 2**20, 1)
    size = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides, strict=True))
    memory = torch.from_file(str(tmp_path / "sparse"), shared=True, size=size, dtype=BF16)
    call[name] = memory.as_strided(x.shape, strides).copy_(x)
    fused("fused_joint_qkv_norm_rope", preset("vllm_cuda"), **call, interleaved=True)


def test_v_is_copied_bit_for_bit(preset: Preset) -> None:
    call = joint(1, 2, 2)
    patterns = torch.arange(2**16, dtype=torch.int32).to(torch.int16)[-512:].view(1, 2, 2, 128)  # NaNs of every kind
    call |= {"text_v": patterns[..., :64].view(BF16), "image_v": patterns[..., 64:].view(BF16)}
    _, _, v = fused_joint_qkv_norm_rope(**call, interleaved=True, numerics=preset("vllm_cuda"))
    expected = torch.cat((patterns[..., :64], patterns[..., 64:]), 1)
    assert torch.equal(v.view(torch.int16), expected)
