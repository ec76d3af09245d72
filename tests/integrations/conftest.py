"""The tiny models, built once; each test leaves them as it found them."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

from numerics.integrations.diffusers_processor import Processor
from numerics.ops.telemetry import reset_dispatch_counts
from tests.integrations.tiny import TINY, Inputs, Tiny, made

BY_NAME = {tiny.name: tiny for tiny in TINY}
_made = cache(made)


@pytest.fixture(params=TINY, ids=str)
def tiny(request: pytest.FixtureRequest) -> Tiny:
    found: Tiny = request.param
    return found


@pytest.fixture
def model(tiny: Tiny) -> Iterator[Any]:
    yield from _left_as_found(_made(tiny))


@pytest.fixture
def flux2() -> Iterator[Any]:
    yield from _left_as_found(_made(BY_NAME["flux2"]))


@pytest.fixture
def flux2_inputs() -> Inputs:
    torch.manual_seed(1)
    return BY_NAME["flux2"].inputs(1)


@pytest.fixture(autouse=True)
def _counts_from_zero() -> None:
    reset_dispatch_counts()


def _left_as_found(model: Any) -> Iterator[Any]:
    yield model
    assert not [
        each
        for each in model.modules()
        if isinstance(getattr(each, "processor", None), Processor) or "forward" in vars(each)
    ]
