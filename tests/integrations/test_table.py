"""The rotation table is packed once a forward, and never used for cosines that it was not made of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import numerics
from numerics.integrations import diffusers_table
from numerics.integrations.diffusers import apply
from numerics.integrations.diffusers_table import Tables, of_complex_streams, of_pairs
from numerics.measure.model_cases import ModelCase
from numerics.measure.model_cases import outputs as forward
from tests.integrations.test_bytes import same_bytes
from tests.integrations.tiny import inputs_of

RESOLUTION = numerics.resolve("fused_qk_norm_rope", "diffusers:flux2")


def pairs(tokens: int = 3) -> tuple[Tensor, Tensor]:
    angles = torch.randn(tokens, 4)
    return angles.cos().repeat_interleave(2, -1), angles.sin().repeat_interleave(2, -1)


@pytest.fixture
def like() -> Tensor:
    return torch.zeros(1, 3, 2, 8, dtype=torch.bfloat16)


def test_each_forward_packs_one_table_for_all_its_blocks(
    tiny: ModelCase, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, packed = diffusers_table._packed, []

    def counted(*args: Any) -> Tensor:
        packed.append(1)
        return true(*args)

    monkeypatch.setattr(diffusers_table, "_packed", counted)
    phases = 3 if tiny.name == "z_image" else 1  # image, caption, and both
    with apply(model):
        for count in (1, 2):
            forward(model, inputs_of(tiny, 1))
            assert len(packed) == count * phases


def test_the_table_is_cos_and_sin_of_each_pair(like: Tensor) -> None:
    cos, sin = pairs()
    table = Tables().pack(of_pairs, (cos, sin), like, RESOLUTION, 1)
    assert torch.equal(table[:3], torch.cat([cos[:, ::2], sin[:, ::2]], -1))
    assert torch.equal(table[3], torch.tensor([1.0] * 4 + [-0.0] * 4))
    assert table[3, 4:].signbit().all()
    assert table.dtype == torch.float32


def test_streams_are_joined_in_order() -> None:
    text, image = torch.randn(2, 4, dtype=torch.complex64), torch.randn(3, 4, dtype=torch.complex64)
    cos, sin = of_complex_streams(text, image)
    assert torch.equal(cos, torch.cat([text.real, image.real]))
    assert torch.equal(sin, torch.cat([text.imag, image.imag]))


def test_a_table_is_kept_for_the_same_cosines_only(like: Tensor) -> None:
    tables, (cos, sin) = Tables(), pairs()
    first = tables.pack(of_pairs, (cos, sin), like, RESOLUTION)
    assert tables.pack(of_pairs, (cos, sin), like, RESOLUTION) is first
    cos.mul_(-1)
    second = tables.pack(of_pairs, (cos, sin), like, RESOLUTION)
    assert torch.equal(second[:, :4], -first[:, :4])
    assert tables.pack(of_pairs, (cos.clone(), sin), like, RESOLUTION) is not second
    assert tables.pack(of_pairs, (cos, sin), like, RESOLUTION, 2).shape == (5, 8)


def test_inference_tensors_are_packed_each_time(like: Tensor) -> None:
    with torch.inference_mode():
        tables, sources = Tables(), pairs()
        first = tables.pack(of_pairs, sources, like, RESOLUTION)
        assert tables.pack(of_pairs, sources, like, RESOLUTION) is not first


def test_inference_mode_and_no_grad_give_the_same_bytes_and_leave_nothing_behind(tiny: ModelCase, model: Any) -> None:
    inputs = inputs_of(tiny, 1)
    with apply(model):
        expected = forward(model, inputs)
        with torch.inference_mode():
            inside = forward(model, inputs)
        assert same_bytes(inside, expected)
        assert same_bytes(forward(model, inputs), expected)
