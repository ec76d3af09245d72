"""The output of a whole forward, byte for byte: stock, fused, and stock again."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import numerics
from numerics.integrations.diffusers import apply
from numerics.measure.model_cases import JOINT, SINGLE, ModelCase
from numerics.measure.model_cases import outputs as forward
from numerics.ops.telemetry import dispatch_counts, reset_dispatch_counts
from tests.integrations.gpu_chain import stock_as_on_a_gpu
from tests.integrations.tiny import inputs_of

ALIGNMENT = 64  # of what torch allocates on a CPU


def same_bytes(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.equal(x.view(torch.int16), y.view(torch.int16)) for x, y in zip(a, b, strict=True)
    )


def calls() -> Counter[str]:
    """Of the ops, whichever way they went for want of a GPU; calls left to a stock processor are none."""
    found: Counter[str] = Counter()
    for way, count in dispatch_counts().items():
        assert "no kernel for device 'cpu'" in way.reason
        found[way.op] += count
    return found


@pytest.mark.parametrize("batch", [1, 2])
def test_fused_processors_return_the_bytes_of_the_stock_ones_on_a_gpu(tiny: ModelCase, model: Any, batch: int) -> None:
    inputs = inputs_of(tiny, batch)
    stock = forward(model, inputs)
    assert same_bytes(forward(model, inputs), stock), "the stock model differs from itself: not measurable"
    preset = numerics.resolve("fused_qk_norm_rope", tiny.model).preset
    with stock_as_on_a_gpu(model, preset):
        expected = forward(model, inputs)
    with apply(model):
        ours = forward(model, inputs)
    assert all(bool(torch.isfinite(x).all()) for x in ours)
    assert [x.stride() for x in ours] == [x.stride() for x in expected]
    assert same_bytes(ours, expected)
    assert same_bytes(forward(model, inputs), stock)


def test_ops_are_called_as_often_as_there_are_blocks(tiny: ModelCase, model: Any) -> None:
    with apply(model):
        reset_dispatch_counts()
        forward(model, inputs_of(tiny, 1))
    expected = tiny.calls(model.config)
    assert sum(expected.values()) >= 2
    assert calls() == Counter(expected)


def test_another_preset_changes_bytes(tiny: ModelCase, model: Any) -> None:
    inputs = inputs_of(tiny, 1)
    with apply(model):
        exact = forward(model, inputs)
    # One rounding before the weight instead of two, or two instead of one.
    other = "diffusers_native" if {JOINT, SINGLE} <= set(tiny.calls(model.config)) else "diffusers_aten"
    with apply(model, other) as applied:
        assert not same_bytes(forward(model, inputs), exact)
        assert applied.resolutions[""].preset == other
        assert applied.resolutions[""].sources["preset"].source == "call"


def test_attention_reads_tensors_laid_out_as_the_stock_ones(
    tiny: ModelCase, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def layouts() -> list[Any]:
        with attention_inputs(monkeypatch) as seen:
            forward(model, inputs)
        return seen

    for batch in (1, 2):
        inputs = inputs_of(tiny, batch)
        stock = layouts()
        with apply(model):
            assert layouts() == stock


@contextmanager
def attention_inputs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What each attention reads: form of q, k and v, and the mask."""
    import sys

    from diffusers.models import attention_dispatch

    true, seen = attention_dispatch.dispatch_attention_fn, []

    def spy(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, **options: Any) -> Any:
        mask = (
            None
            if attn_mask is None
            else (attn_mask.shape, attn_mask.stride(), zlib.crc32(attn_mask.contiguous().cpu().numpy()))
        )
        seen.append((*map(layout, (q, k, v)), mask, sorted(options.items(), key=str)))
        return true(q, k, v, attn_mask=attn_mask, **options)

    with monkeypatch.context() as patch:
        for module in [each for name, each in sys.modules.items() if name.startswith("diffusers.models")]:
            if vars(module).get("dispatch_attention_fn") is true:
                patch.setattr(module, "dispatch_attention_fn", spy)
        yield seen
    assert seen


def layout(x: Tensor) -> tuple[Any, ...]:
    """Shape, strides, place in its allocation, and size and alignment of that."""
    storage = x.untyped_storage()
    return x.shape, x.stride(), x.storage_offset(), storage.nbytes(), storage.data_ptr() % ALIGNMENT, x.dtype
