"""Fused processors in compiled blocks: no graph break, and, without Inductor's own kernels, no byte changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from numerics.integrations.diffusers import apply
from numerics.measure.model_cases import TINY
from numerics.measure.model_cases import outputs as forward
from numerics.ops.telemetry import dispatch_counts
from tests.integrations.test_bytes import same_bytes
from tests.integrations.tiny import inputs_of, made


@pytest.fixture(autouse=True)
def _compiled_anew() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "layers"),
    [("flux2", {"num_layers": 1, "num_single_layers": 1}), ("qwen_image", {"num_layers": 1})],
)
def test_repeated_blocks_compile_whole_and_keep_every_byte(name: str, layers: dict[str, int]) -> None:
    tiny = TINY[name]
    model = made(tiny, **layers)
    inputs = inputs_of(tiny, 1)
    with apply(model):
        eager = forward(model, inputs)
        model.compile_repeated_blocks(fullgraph=True, backend="eager", dynamic=True)
        assert same_bytes(forward(model, inputs), eager)
    assert sum(dispatch_counts().values()) == 2 * len(layers)


def test_a_model_that_is_compiled_already_is_served() -> None:
    tiny = TINY["flux2"]
    model = made(tiny, num_layers=1, num_single_layers=1)
    compiled: Any = torch.compile(model, backend="eager")
    inputs = inputs_of(tiny, 1)
    stock = forward(compiled, inputs)
    with apply(compiled) as applied:
        assert len(applied.replaced) == 2
        assert same_bytes(forward(compiled, inputs), forward(model, inputs))
    assert sum(dispatch_counts().values()) == 4
    assert same_bytes(forward(compiled, inputs), stock)
