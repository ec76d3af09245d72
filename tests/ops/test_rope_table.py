from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from numerics.errors import ConfigurationError, InputError, RequirementError
from numerics.ops import pack_qk_norm_rope_table

SameBits = Callable[[Tensor, Tensor], bool]

BF16 = torch.bfloat16


def angles(*shape: int) -> tuple[Tensor, Tensor]:
    angle = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8)])
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_a_table_is_cosines_beside_sines(shape: tuple[int, ...], dtype: torch.dtype, same_bits: SameBits) -> None:
    cos, sin = angles(*shape)
    packed = pack_qk_norm_rope_table(cos, sin, dtype=dtype)
    assert packed is not None
    assert same_bits(packed, torch.cat((cos, sin), -1).to(dtype))
    assert packed.is_contiguous()


def test_identity_rows_follow_each_sequence(same_bits: SameBits) -> None:
    cos, sin = angles(2, 5, 8)
    packed = pack_qk_norm_rope_table(cos, sin, dtype=torch.float32, identity_rows=3)
    assert packed is not None
    assert packed.shape == (2, 8, 16)
    assert torch.equal(packed[:, :5], torch.cat((cos, sin), -1))
    assert packed[:, 5:, :8].eq(1).all()
    assert same_bits(packed[:, 5:, 8:], torch.full((2, 3, 8), -0.0))


def test_a_table_of_no_tokens_can_be_identity_rows_alone() -> None:
    packed = pack_qk_norm_rope_table(torch.empty(0, 8), torch.empty(0, 8), dtype=BF16, identity_rows=2)
    assert packed is not None
    assert packed.shape == (2, 16)


def test_nothing_is_packed_for_activations_that_no_kernel_takes() -> None:
    cos, sin = angles(5, 16)
    assert pack_qk_norm_rope_table(cos, sin, dtype=BF16, like=torch.empty(5, 2, 32, dtype=BF16)) is None


def test_values_that_stand_twice_in_pairs_are_refused_by_the_values() -> None:
    cos, sin = (x.repeat_interleave(2, -1) for x in angles(5, 8))
    with pytest.raises(InputError, match="cos and sin: got 16 values a token, with each value twice, c0, c0, c1, c1"):
        pack_qk_norm_rope_table(cos, sin, dtype=BF16)


def test_values_that_stand_twice_in_halves_are_refused_by_the_width_of_the_heads() -> None:
    cos, sin = (x.repeat(1, 2) for x in angles(5, 16))
    with pytest.raises(InputError, match=r"got 32 values a token, for heads of at most 32; .*the first half of"):
        pack_qk_norm_rope_table(cos, sin, dtype=BF16, like=torch.empty(5, 2, 32, dtype=BF16))


def test_tokens_that_are_not_turned_are_no_doubled_values() -> None:
    assert pack_qk_norm_rope_table(torch.ones(3, 8), torch.zeros(3, 8), dtype=BF16) is not None


def test_cos_and_sin_belong_together() -> None:
    cos, sin = angles(5, 8)
    for wrong in (sin[:4], sin.bfloat16()):
        with pytest.raises(InputError, match="sin: got"):
            pack_qk_norm_rope_table(cos, wrong, dtype=BF16)
    with pytest.raises(InputError, match=r"dtype: got torch.int32; legal: bfloat16"):
        pack_qk_norm_rope_table(cos, sin, dtype=torch.int32)
    for rows in (-1, 1.5):
        with pytest.raises(InputError, match=f"identity_rows: got {rows}; legal: a whole number"):
            pack_qk_norm_rope_table(cos, sin, dtype=BF16, identity_rows=rows)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"like: got shape \[5, 64\]; legal: \[tokens, heads, head_dim\]"):
        pack_qk_norm_rope_table(cos, sin, dtype=BF16, like=torch.empty(5, 64, dtype=BF16))


def test_a_preset_that_needs_another_table_refuses_it() -> None:
    cos, sin = angles(5, 8)
    q = torch.empty(5, 2, 32, dtype=BF16)
    with pytest.raises(RequirementError, match=r"requires rope_table_dtype 'activation' .bfloat16 here., got float32"):
        pack_qk_norm_rope_table(cos, sin, dtype=torch.float32, like=q, numerics="vllm_cuda")
    with pytest.raises(RequirementError, match="requires rope_table_dtype 'float32'"):
        pack_qk_norm_rope_table(cos, sin, dtype=BF16, numerics="diffusers_aten")
    with pytest.raises(ConfigurationError, match="nearest: vllm_cuda"):
        pack_qk_norm_rope_table(cos, sin, dtype=BF16, numerics="vlm_cuda")
