"""Fused processors in compiled blocks: no graph break, and, without Inductor's own kernels, no byte changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from numerics.integrations.diffusers import apply
from numerics.measure.model_cases import TINY
from numerics.measure.model_cases import outputs as forward
from numerics.measure.model_inputs import Extent
from numerics.ops.telemetry import dispatch_counts, reset_dispatch_counts
from tests.integrations.test_bytes import same_bytes
from tests.integrations.tiny import inputs_of, made

ONE = {"num_layers": 1, "num_single_layers": 1, "n_layers": 1, "n_refiner_layers": 1, "num_refiner_layers": 1}


@pytest.fixture(autouse=True)
def _compiled_anew() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def one_of_each(name: str) -> Any:
    """The model with one block of each kind."""
    return made(TINY[name], **{key: 1 for key in ONE if key in TINY[name].config})


@pytest.mark.parametrize(
    ("name", "backend"),
    [("flux2", "eager"), ("qwen_image", "eager"), ("minimax_h3", "aot_eager")],
)
def test_repeated_blocks_compile_whole_for_any_size_and_keep_every_byte(name: str, backend: str) -> None:
    model = one_of_each(name)
    sizes = [inputs_of(replace(TINY[name], extent=extent)) for extent in (Extent(6, 3, 5), Extent(7, 4, 6))]
    with apply(model):
        eager = [forward(model, inputs) for inputs in sizes]
        calls = dispatch_counts()
        reset_dispatch_counts()
        model.compile_repeated_blocks(fullgraph=True, backend=backend, dynamic=True)
        assert same_bytes(forward(model, sizes[0]), eager[0])
        with torch._dynamo.config.patch(error_on_recompile=True):
            assert same_bytes(forward(model, sizes[1]), eager[1])
    assert dispatch_counts() == calls


def test_a_model_that_is_compiled_already_is_served() -> None:
    model, inputs = one_of_each("flux2"), inputs_of(TINY["flux2"])
    compiled: Any = torch.compile(model, backend="eager")
    stock = forward(compiled, inputs)
    with apply(compiled) as applied:
        assert len(applied.replaced) == 2
        assert same_bytes(forward(compiled, inputs), forward(model, inputs))
    assert sum(dispatch_counts().values()) == 2 * sum(TINY["flux2"].calls(model.config).values())
    assert same_bytes(forward(compiled, inputs), stock)


def test_blocks_that_are_compiled_already_are_served_and_restored() -> None:
    model, inputs = one_of_each("minimax_h3"), inputs_of(TINY["minimax_h3"])
    model.compile_repeated_blocks(fullgraph=True, backend="eager")
    stock = forward(model, inputs)
    with apply(model):
        forward(model, inputs)
        assert sum(dispatch_counts().values()) == sum(TINY["minimax_h3"].calls(model.config).values())
    reset_dispatch_counts()
    assert same_bytes(forward(model, inputs), stock)
    assert not dispatch_counts()
